"""A small model with everything that can be awkward in a state dict."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Small(nn.Module):
    """float32 and bfloat16, a transposed view, a scalar, an empty tensor, buffers, a tied head."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(40, 9)
        self.lm_head = nn.Linear(9, 40, bias=False)
        self.lm_head.weight = self.embed.weight
        self.cast = nn.Linear(33, 7).to(torch.bfloat16)
        self.turned = nn.Parameter(torch.randn(5, 6).t())
        self.scalar = nn.Parameter(torch.tensor(1.5))
        self.register_buffer("none", torch.zeros(0, 3))
        self.register_buffer("count", torch.arange(5))
        self.register_buffer("flags", torch.tensor([True, False, True]))

    def get_input_embeddings(self) -> Any:
        return self.embed

    def move(self) -> None:
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.add_(torch.randn_like(parameter) * 1e-4)
