"""A replay's weights from outside the run: a model by name or folder, and which recorded version it proves to be."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

from timscope.data import BadInput, Run
from timscope.data.digest import fingerprint
from timscope.data.manifest import WeightVersion
from timscope.replay.models import DTYPES, load_config, load_model, load_tokenizer
from timscope.replay.replay_input import StepInput, check_vocabulary, local_source
from timscope.replay.versions import Share
from timscope.replay.weights import model_digest, weight_items

Loaded = tuple[Any, str]  # a model on the replay's device and in its dtype, the digest of its weights before rounding

_BY_DIGEST = "SELECT min(weight_version) AS version FROM steps WHERE weight_digest = $digest"


class Named:
    """A model by its name or folder, for one version of the weights: the run's first, or the one that its digest names.

    BadInput where nobody names a model, or its weights are none that the run recorded and `allow_other` is not set.
    """

    def __init__(
        self,
        run: Run,
        spec: str | os.PathLike[str] | None,
        first: WeightVersion | None,
        device: str,
        dtype: str,
        allow_other: bool = False,
    ) -> None:
        source = (first.source if first else None) or run.manifest.model.source
        if spec is None and source is None:
            raise BadInput(f"the manifest of {run.path} does not say where its weights are: give them with --model")
        self.spec = os.fspath(spec) if spec is not None else local_source(run, str(source))
        self._run, self._first, self._device, self._dtype = run, first, device, dtype
        self._loaded: Loaded | None = None
        self._trusted = allow_other or first is None or not first.digest
        self.version = first.version if first else None
        if spec is not None and not self._trusted:
            self.version = self._identify()

    def check(self, items: Sequence[StepInput]) -> None:
        """BadInput where the model's vocabulary cannot be the run's."""
        check_vocabulary(self._run, items, load_config(self.spec), _tokenizer(self.spec))

    def models(self, shares: Sequence[Share]) -> Iterator[Loaded]:
        """The one model. BadInput where the recorded digest is another, unless other weights are allowed."""
        if not self._trusted:
            self._identify()
            self._trusted = True
        model, digest = self._load()
        model = model.to(DTYPES[self._dtype])
        for _ in shares:
            yield model, digest

    def _load(self) -> Loaded:
        if self._loaded is None:
            stored = self._run.manifest.model.dtype or self._run.manifest.trainer.dtype
            model = load_model(self.spec, stored if stored in DTYPES else None, self._device)
            self._loaded = model, model_digest(model)
        return self._loaded

    def _identify(self) -> int:
        """The version that the model is: the first, or one whose fingerprint a step recorded. BadInput where none."""
        model, digest = self._load()
        first = self._first
        assert first is not None and first.digest is not None
        if first.digest == digest:
            return first.version
        mark = fingerprint(weight_items(model))
        if first.digest == mark:
            return first.version
        found = self._run.sql(_BY_DIGEST, params={"digest": mark})["version"].item()
        if found is not None:
            return int(found)
        raise BadInput(
            f"the weights of {self.spec} are not the run's version {first.version} (digest {digest[:19]}, recorded "
            f"{first.digest[:19]}) nor one that a step recorded: give the recorded weights with --model, or accept "
            "these with --allow-other-weights"
        )

    def said(self, run: Run, name: str, shares: Sequence[Share], digest: str) -> dict[str, Any]:
        """One model, one digest."""
        return {"model_digest": digest, "weight_version": self.version}


def _tokenizer(spec: str) -> Any | None:
    try:
        return load_tokenizer(spec)
    except BadInput:  # a checkpoint without a tokenizer still has weights; only the comparison of vocabularies is lost
        return None
