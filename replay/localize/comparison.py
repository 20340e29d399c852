"""Two witnesses side by side: the difference at every site, inherited and own, and the first site where they part.

The left witness's rows are kept for one group of sequences at a time, and the right one's are compared as they come,
so memory is that of one group. Twice: as the right witness runs by itself (what a site shows is all that the sites
before it caused), and with the left one's values put in behind every site (what is left is the site's own).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from timscope.replay.localize.computation import Computation
from timscope.replay.localize.patching import Patches
from timscope.replay.localize.recorder import Recorder
from timscope.replay.localize.sites import Site, sites
from timscope.replay.localize.texts import Text


@dataclass
class Difference:
    """Sums over the elements seen at one site."""

    elements: int = 0
    equal: int = 0
    largest: float = 0.0
    squares: float = 0.0
    left_squares: float = 0.0

    def add(self, left: Tensor, right: Tensor) -> None:
        """Count right - left of two tensors of one shape, in float32, summed in float64; NaN is always a difference."""
        a, b = left.float(), right.float()
        apart = (b - a).abs_()
        self.elements += a.numel()
        self.equal += int((a == b).sum())
        top = float(apart.max()) if a.numel() else 0.0
        self.largest = max(self.largest, math.inf if math.isnan(top) else top)
        self.squares += float(apart.square_().sum(dtype=torch.float64))
        self.left_squares += float(a.square().sum(dtype=torch.float64))

    def said(self) -> dict[str, float | None]:
        """max_abs, rms, relative (rms over the left side's rms; None where that is 0), equal_share."""
        rms, scale = (float((s / max(1, self.elements)) ** 0.5) for s in (self.squares, self.left_squares))
        share = self.equal / self.elements if self.elements else 1.0
        relative = rms / scale if scale else None
        return {"max_abs": self.largest, "rms": rms, "relative": relative, "equal_share": share}


@dataclass
class Comparison:
    """Both kinds of difference at every site, by site name, in the order of execution."""

    order: list[Site]
    inherited: dict[str, Difference] = field(default_factory=dict)
    own: dict[str, Difference] = field(default_factory=dict)

    def rows(self) -> list[dict[str, Any]]:
        """One row a site: order, site, op, layer, module, elements, the inherited difference, the own one as own_*."""
        found = []
        for number, site in enumerate(self.order):
            at = {"order": number, "site": site.name, "op": site.op, "layer": site.layer, "module": site.module}
            own = {f"own_{name}": value for name, value in self.own[site.name].said().items()}
            here = self.inherited[site.name]
            found.append({**at, "elements": here.elements, **here.said(), **own})
        return found

    def first(self) -> Site | None:
        """The first site where any element differs; None where all are bit-equal."""
        return next((s for s in self.order if self.inherited[s.name].equal < self.inherited[s.name].elements), None)


def compare(model: Any, left: Computation, right: Computation, texts: Sequence[Text], group: int) -> Comparison:
    """Run `texts` through both computations of one model, `group` sequences at a time."""
    found = Comparison(sites(model))
    for site in found.order:
        found.inherited[site.name], found.own[site.name] = Difference(), Difference()
    for part in _groups(texts, group):
        kept: dict[str, list[Tensor]] = {site.name: [] for site in found.order}

        def keep(site: Site, rows: Tensor, kept: dict[str, list[Tensor]] = kept) -> None:
            kept[site.name].append(rows.clone())

        with left, Patches() as patches:
            left.score(part, Recorder(model, patches, keep))
        rows = {name: torch.cat(parts) for name, parts in kept.items()}
        kept.clear()
        for put_back, into in ((False, found.inherited), (True, found.own)):
            with right, Patches() as patches:
                right.score(part, Recorder(model, patches, _Against(rows, into, put_back)))
    return found


def _groups(texts: Sequence[Text], size: int) -> Iterator[Sequence[Text]]:
    yield from (texts[i : i + size] for i in range(0, len(texts), size))


class _Against:
    """A sink that compares what it sees with the left witness's rows, and gives those back where `put_back`."""

    def __init__(self, rows: dict[str, Tensor], into: dict[str, Difference], put_back: bool) -> None:
        self._rows, self._into, self._put_back = rows, into, put_back
        self._seen = dict.fromkeys(rows, 0)

    def __call__(self, site: Site, rows: Tensor) -> Tensor | None:
        start = self._seen[site.name]
        self._seen[site.name] = end = start + rows.shape[0]
        left = self._rows[site.name][start:end]
        self._into[site.name].add(left, rows)
        return left.to(rows.dtype) if self._put_back else None
