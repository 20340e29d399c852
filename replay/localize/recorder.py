"""Shows the values at every site of a forward, row by row of the compared tokens, and may put others in their place."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from timscope.replay.localize.batches import Batch
from timscope.replay.localize.patching import Patches
from timscope.replay.localize.routing import Heads, Step, add_step
from timscope.replay.localize.sites import LOG_SOFTMAX, Site, sites

# Gets the rows [tokens, width] at a site; what it returns, unless None, takes their place in the forward.
Sink = Callable[[Site, Tensor], Tensor | None]


class Recorder:
    """Hooks at every site of `model`, added to `patches` and gone with them. A watcher for `Computation.score`."""

    def __init__(self, model: Any, patches: Patches, sink: Sink) -> None:
        self._sink = sink
        self._batch: Batch | None = None
        self._logprob: Site | None = None
        heads: dict[str, dict[int, Site]] = {"query": {}, "key": {}, "value": {}}
        for site in sites(model):
            if site.kind == "output":
                hook = partial(self._output, site)
                patches.hook(model.get_submodule(site.module).register_forward_hook(hook))
            elif site.kind == "input":
                before = partial(self._input, site)
                patches.hook(model.get_submodule(site.module).register_forward_pre_hook(before))
            elif site.kind == "tables":
                patches.hook(model.get_submodule(site.module).register_forward_hook(partial(self._tables, site)))
            elif site.kind == "logprob":
                self._logprob = site
            elif site.layer is not None:
                heads[site.kind][site.layer] = site
        self._heads = heads
        add_step(model, Step(before=self._before_attention), patches)

    def begin(self, batch: Batch) -> None:
        """The forward that follows is of this batch."""
        self._batch = batch

    def end(self, logprobs: Tensor) -> None:
        """The forward gave these log-probs."""
        assert self._logprob is not None and self._logprob.name == LOG_SOFTMAX
        self._sink(self._logprob, logprobs[:, None])

    def _shown(self, site: Site, flat: Tensor) -> Tensor | None:
        """flat [B * L, width] with the sink's rows in place of the compared ones; None where the sink gave none."""
        assert self._batch is not None
        new = self._sink(site, flat[self._batch.rows])
        if new is None:
            return None
        out = flat.clone()
        out[self._batch.rows] = new.to(flat.dtype)
        return out

    def _output(self, site: Site, _module: nn.Module, _inputs: Any, out: Any) -> Any:
        if site.module == "lm_head":  # only scored rows go through the head
            return self._sink(site, out)
        value = out[0] if isinstance(out, tuple) else out
        length = value.shape[0] * value.shape[1]
        new = self._shown(site, value.reshape(length, -1))
        if new is None:
            return None
        new = new.view(value.shape)
        return (new, *out[1:]) if isinstance(out, tuple) else new

    def _input(self, site: Site, _module: nn.Module, inputs: tuple[Any, ...]) -> Any:
        value = inputs[0]
        new = self._shown(site, value.reshape(-1, value.shape[-1]))
        return None if new is None else (new.view(value.shape), *inputs[1:])

    def _tables(self, site: Site, _module: nn.Module, _inputs: Any, out: tuple[Tensor, Tensor]) -> None:
        """cos beside sin; positions that count padding differ from those that do not, so they are never replaced."""
        assert self._batch is not None
        both = torch.cat(out, -1).expand(self._batch.ids.shape[0], -1, -1)
        self._sink(site, both.reshape(-1, both.shape[-1])[self._batch.rows])

    def _before_attention(self, module: Any, heads: Heads) -> Heads:
        """Query, key and value [B, H, L, D] as the attention gets them."""
        seen = [self._head(kind, module.layer_idx, x) for kind, x in zip(self._heads, heads, strict=True)]
        return seen[0], seen[1], seen[2]

    def _head(self, kind: str, layer: int, x: Tensor) -> Tensor:
        batch, count, length, dim = x.shape
        rows = x.transpose(1, 2).reshape(batch * length, count * dim)
        new = self._shown(self._heads[kind][layer], rows)
        return x if new is None else new.view(batch, length, count, dim).transpose(1, 2).contiguous()
