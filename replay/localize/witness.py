"""Names of the computations that can be compared, such as `exact`, `exact-bfloat16`, `hf-float32-eager`, `trainer`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from timscope.data import BadInput, Run
from timscope.replay.localize.batches import Padding
from timscope.replay.models import dtype_name

ATTENTIONS = ("eager", "sdpa")
DEFAULT_ATTENTION = "sdpa"  # what transformers takes on its own for every model that localize knows


@dataclass(frozen=True)
class Witness:
    """One way to compute log-probs: the exact engine or plain transformers, in a dtype; `padding` None: one alone."""

    name: str
    engine: Literal["exact", "hf"]
    dtype: str
    attention: str | None = None
    padding: Padding | None = None

    def said(self) -> dict[str, object]:
        """As a report gives it."""
        padding = None if self.padding is None else {"batch": self.padding.size, "shifted": self.padding.shifted}
        attention = self.attention or "exact tiles"
        return {
            "name": self.name,
            "engine": self.engine,
            "dtype": self.dtype,
            "attention": attention,
            "padding": padding,
        }


def trainer_dtype(run: Run) -> str:
    """The dtype that the run's trainer computed in, as far as the manifest says."""
    return dtype_name(run.manifest.trainer.dtype or run.manifest.model.dtype or "float32")


def parse_witness(name: str, run: Run) -> Witness:
    """A witness by name: `trainer`, or ENGINE[-DTYPE][-ATTENTION] with engine exact or hf. BadInput for any other.

    `trainer` is plain transformers in the run's logged dtype, attention and padding.
    """
    usual = trainer_dtype(run)
    if name == "trainer":
        return Witness(name, "hf", usual, _logged_attention(run), _logged_padding(run))
    engine, *rest = name.split("-")
    dtype, attention = usual, DEFAULT_ATTENTION
    for word in rest:
        if word in ATTENTIONS and engine == "hf":
            attention = word
        else:
            dtype = dtype_name(word)
    if engine == "exact":
        return Witness(name, "exact", dtype)
    if engine == "hf":
        return Witness(name, "hf", dtype, attention)
    raise BadInput(
        f"there is no witness {name!r}: take trainer, or exact or hf with a dtype and, for hf, an attention, "
        "such as exact-bfloat16 or hf-float32-eager"
    )


def _logged_attention(run: Run) -> str:
    logged = run.manifest.trainer.attention or DEFAULT_ATTENTION
    if logged not in ATTENTIONS:
        raise BadInput(
            f"the trainer's attention was {logged!r}, which cannot be emulated here: name a witness such as "
            f"hf-{trainer_dtype(run)}-sdpa with --right"
        )
    return logged


def _logged_padding(run: Run) -> Padding | None:
    size = run.manifest.trainer.options.get("old_logprob_batch")
    # TRL hands its models no position ids, so they count the padding.
    framework = run.manifest.framework
    return Padding(int(size), framework is not None and framework.name == "trl") if size else None
