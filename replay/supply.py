"""Where a replay's weights come from: a model that somebody names, or the versions that the run itself holds."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from timscope.data import Run
from timscope.data.manifest import WeightVersion
from timscope.data.weights import Weights, WeightStore
from timscope.replay.models import DTYPES, load_config, model_with, recorded_config
from timscope.replay.named_model import Loaded, Named
from timscope.replay.replay_input import StepInput, check_vocabulary
from timscope.replay.versions import Share, given_shares, recorded_shares
from timscope.replay.weights import set_weights


class Supply(Protocol):
    """Gives each share of the run its model. `spec` names the source in the replay's manifest."""

    spec: str

    def check(self, items: Sequence[StepInput]) -> None:
        """BadInput where the model's vocabulary cannot be the run's."""

    def models(self, shares: Sequence[Share]) -> Iterator[Loaded]:
        """The models of these shares, one at a time: the next may be the same object with other weights."""
        ...

    def said(self, run: Run, name: str, shares: Sequence[Share], digest: str) -> dict[str, Any]:
        """What the manifest of replay `name` says of the weights; `digest` is that of the first model."""
        ...


class Recorded:
    """The versions stored in a run, one after the other; a version that is not stored comes from where it is named."""

    spec = "weights"

    def __init__(self, run: Run, first: WeightVersion | None, device: str, dtype: str) -> None:
        self._run, self._first, self._device, self._dtype = run, first, device, dtype
        self._store = WeightStore(run.storage)
        self._config = recorded_config(run.manifest.model) or load_config(self._source().spec)

    def _source(self) -> Named:
        return Named(self._run, None, self._first, self._device, self._dtype)

    def check(self, items: Sequence[StepInput]) -> None:
        """BadInput where the model's vocabulary cannot be the run's."""
        check_vocabulary(self._run, items, self._config, None)

    def models(self, shares: Sequence[Share]) -> Iterator[Loaded]:
        """Each version's model, proven against the recorded digest.

        On the way to later versions the weights stay in host memory, so that each is only a few deltas away.
        """
        held: Weights | None = None
        model: Any = None
        for number, share in enumerate(shares):
            if share.entry is None:
                yield from self._source().models([share])
                continue
            last = number + 1 == len(shares)
            weights = self._store.load(*share.entry.key, near=held, verify=last)
            held = None if last else (weights := weights.in_memory())
            if model is None:
                model = model_with(self._config, weights, self._device).to(DTYPES[self._dtype])
            else:
                set_weights(model, weights)
            yield model, _recorded_digest(share, self._first)

    def said(self, run: Run, name: str, shares: Sequence[Share], digest: str) -> dict[str, Any]:
        """Version, resume and digest of each, those of earlier calls too: a replay may be made in several."""
        earlier = run.replay(name).manifest.model_dump(mode="json").get("weights", []) if name in run.replays else []
        known = {(w["version"], w["resume"]): w for w in earlier}
        for share in shares:
            version, resume = key = share.entry.key if share.entry else (share.version or 0, 0)
            known[key] = {"version": version, "resume": resume, "digest": _recorded_digest(share, self._first)}
        return {"weights": [known[key] for key in sorted(known)]}


def _recorded_digest(share: Share, first: WeightVersion | None) -> str:
    if share.entry is None:
        return (first.digest if first else None) or ""
    return share.entry.digest or share.entry.fingerprint or ""


def supply_for(
    run: Run,
    model: str | os.PathLike[str] | None,
    steps: Sequence[int] | None,
    device: str,
    compute: str,
    allow_other: bool,
) -> tuple[Supply, list[Share]]:
    """Where a replay's weights come from, and which steps they serve."""
    first = min(run.manifest.weights, key=lambda w: w.version, default=None)
    if model is None and run.weight_versions:
        return Recorded(run, first, device, compute), recorded_shares(run, first, steps)
    supply = Named(run, model, first, device, compute, allow_other)
    anything = allow_other and bool(steps)
    return supply, given_shares(run, None if anything else supply.version, steps)
