"""The training forward of the exact engine: log-probabilities with gradients, bit for bit those of scoring and rollout.

The parameters are the transformers model's own, so gradients land in `parameter.grad` under its names and any optimizer
works. Every forward operation is the engine's own kernel; the backward has no atomics, so equal calls give equal
gradients. Only the forward is batch-invariant: a gradient is a sum over the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from timscope.data.errors import BadInput
from timscope.replay.exact.support import check_model
from timscope.replay.fast.forward import Batch
from timscope.replay.fast.matmul import Plan
from timscope.replay.fast.training_attention import Heads, mixed
from timscope.replay.fast.training_ends import embedding, scores
from timscope.replay.fast.training_ops import add_rms_norm, linear, rms_norm, swiglu
from timscope.replay.fast.weights import rotary_tables


def _check(model: Any, dim: int) -> None:
    check_model(model)
    config = model.config
    block = model.model.layers[0]
    if config.hidden_act != "silu" or dim not in (64, 128, 256):
        raise BadInput(
            f"the fast engine trains silu and head sizes 64, 128 and 256, not {config.hidden_act} and {dim}: "
            "use the training forward of the reference engine"
        )
    if any(p.bias is not None for p in (block.mlp.gate_proj, block.mlp.up_proj, block.mlp.down_proj)):
        raise BadInput("the fast engine knows no MLP biases: use the training forward of the reference engine")
    if getattr(config, "attention_dropout", 0.0):
        raise BadInput("attention dropout makes every forward another one: set attention_dropout to 0")


class FastTraining(nn.Module):
    """The exact training forward of a Llama, Qwen2 or Qwen3 `model`.

    `plan`: share one with the engine that scores, so that shapes are probed once. `dtype`: compute in it while the
    parameters stay as they are, for float32 master weights (bit-equal to scoring a copy in that dtype). `checkpoint`:
    keep two hidden states a layer and compute the rest again in the backward, with the same bits. The weights must be
    whole on one device: wrappers that shard them (FSDP) are not known. Raises BadInput for a model it does not know.
    """

    def __init__(
        self,
        model: Any,
        plan: Plan | None = None,
        *,
        positions: int = 32_768,
        dtype: torch.dtype | None = None,
        checkpoint: bool = False,
    ) -> None:
        super().__init__()
        config = model.config
        dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        _check(model, dim)
        self.model, self.plan, self.positions, self.checkpoint = model, plan or Plan(), positions, checkpoint
        self.dtype = dtype or model.dtype
        cos, sin = rotary_tables(model, positions)
        rotary = cos.to(self.dtype), sin.to(self.dtype)
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.heads = Heads(heads, kv_heads, dim, config.rms_norm_eps, rotary)

    def _in(self, parameter: Tensor) -> Tensor:
        """The parameter in the dtype of computation; the gradient goes back to its own."""
        return parameter if parameter.dtype == self.dtype else parameter.to(self.dtype)

    def _linear(self, x: Tensor, *modules: Any) -> Tensor:
        biases = [] if modules[0].bias is None else [self._in(m.bias) for m in modules]
        return linear(self.plan, x, [self._in(m.weight) for m in modules], biases)

    def _block(self, block: Any, following: Any, batch: Batch, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """x is already normed; returns (x normed for what follows, residual)."""
        attention, mlp, eps = block.self_attn, block.mlp, self.heads.eps
        norms = None
        if hasattr(attention, "q_norm"):
            norms = self._in(attention.q_norm.weight), self._in(attention.k_norm.weight)
        qkv = self._linear(x, attention.q_proj, attention.k_proj, attention.v_proj)
        added = self._linear(mixed(qkv, self.heads, batch, norms), attention.o_proj)
        x, residual = add_rms_norm(added, residual, self._in(block.post_attention_layernorm.weight), eps)
        out = self._linear(swiglu(self._linear(x, mlp.gate_proj, mlp.up_proj)), mlp.down_proj)
        return add_rms_norm(out, residual, self._in(following.weight), eps)

    def hidden(self, ids: Tensor, batch: Batch) -> Tensor:
        """Final normed hidden states [T, H] of packed token ids [T]."""
        body = self.model.model
        residual = embedding(ids, self._in(body.embed_tokens.weight))
        x = rms_norm(residual, self._in(body.layers[0].input_layernorm.weight), self.heads.eps)
        norms = [*(layer.input_layernorm for layer in body.layers[1:]), body.norm]
        for layer, following in zip(body.layers, norms, strict=True):
            arguments = (layer, following, batch, x, residual)
            if self.checkpoint and torch.is_grad_enabled():
                x, residual = checkpoint(self._block, *arguments, use_reentrant=False, preserve_rng_state=False)
            else:
                x, residual = self._block(*arguments)
        return x

    def forward(
        self, prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]], temperature: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies (nats, float32) of all completion tokens, end to end in the order given.

        One pack: give as many sequences as memory holds, and beyond 16,384 tokens expect slower products. BadInput
        where nothing is to be scored, a prompt is empty, or a sequence is longer than the positions at hand.
        """
        pairs = [(list(p), list(c)) for p, c in zip(prompts, completions, strict=True) if len(c)]
        if not pairs or any(not p for p, _ in pairs):
            raise BadInput("a training forward needs a completion, and a prompt of a token or more before each")
        rows = [(p + c)[:-1] for p, c in pairs]  # the last token predicts nothing that is scored
        lengths = [len(r) for r in rows]
        if max(lengths) > self.positions:
            raise BadInput(f"a sequence of {max(lengths)} tokens is longer than the {self.positions} positions at hand")
        device = self.model.model.embed_tokens.weight.device
        ids = [t for r in rows for t in r]
        at: list[int] = []
        begin = 0
        for (prompt, _), length in zip(pairs, lengths, strict=True):
            at += range(begin + len(prompt) - 1, begin + length)
            begin += length
        targets = torch.tensor([t for _, c in pairs for t in c], device=device)
        index = torch.tensor(at, device=device)
        with torch.autocast(device.type, enabled=False):  # the dtype is ours to choose
            hidden = self.hidden(torch.tensor(ids, device=device), Batch.packed(lengths, device))
            return scores(hidden, self._in(self.model.lm_head.weight), index, targets, temperature, self.plan)
