"""How the trainer ran its forward, as far as the run says: what `--engine hf` has to imitate to reach its bits.

Attention, precision and batch size come from the manifest; padding from the sequences table, where the loggers keep the
pads of each row. Whatever nobody recorded stays plain: one unpadded sequence a forward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import Any

import polars as pl

from timscope.data import BadInput, Run
from timscope.replay.replay_input import StepInput

PADDINGS = ("recorded", "two-sided", "right", "left", "none")
LOGITS = ("bfloat16", "float32", "head-float32")
HEADS = ("plain", "trl")


@dataclass(frozen=True)
class Emulation:
    """The trainer's forward. None in the options of a replay means: as the run says.

    `logits`: bfloat16 keeps what the head gives, float32 raises it before the log-softmax, head-float32 multiplies in
    float32 too. `head` trl: TRL's own fused head, chunk by chunk. `autocast`: mixed precision of the forward.
    """

    attention: str | None = None
    padding: str | None = None
    micro_batch: int | None = None
    logits: str | None = None
    head: str | None = None
    autocast: bool | None = None

    def __post_init__(self) -> None:
        for name, known in (("padding", PADDINGS), ("logits", LOGITS), ("head", HEADS)):
            if (value := getattr(self, name)) is not None and value not in known:
                raise BadInput(f"there is no {name} {value!r}: choose {', '.join(known)}")
        if self.micro_batch is not None and self.micro_batch < 1:
            raise BadInput(f"a micro-batch of {self.micro_batch} sequences: give 1 or more")

    def said(self) -> dict[str, Any]:
        """For the replay's manifest."""
        return asdict(self)


@dataclass(frozen=True)
class Row:
    """One sequence of a padded forward: index in the step's input, pads before the prompt and after the response."""

    index: int
    left: int
    right: int


def emulation(run: Run, asked: Emulation) -> Emulation:
    """What was asked for, completed by what the manifest says of the trainer."""
    trainer = run.manifest.trainer
    options = trainer.options
    trl = run.manifest.framework is not None and run.manifest.framework.name == "trl" and find_spec("trl") is not None
    batch = options.get("old_logprob_batch")
    padded = asked.padding or ("recorded" if batch or asked.micro_batch else "none")
    return Emulation(
        asked.attention or trainer.attention,
        padded,
        asked.micro_batch or (batch if isinstance(batch, int) and batch > 0 else None),
        asked.logits or ("head-float32" if options.get("cast_lm_head_to_fp32") else "float32"),
        asked.head or ("trl" if trl and asked.logits is None else "plain"),
        options.get("mixed_precision") == "bf16" if asked.autocast is None else asked.autocast,
    )


def batches(run: Run, item: StepInput, how: Emulation) -> list[list[Row]]:
    """The forwards of a step: rows in the order of the sequences, in groups of one width."""
    if how.padding == "none":
        return [[Row(i, 0, 0)] for i in range(len(item.sequences))]
    table = run.sequences([item.step]).filter(pl.col("sequence").is_in(item.sequences)).sort("sequence")
    if table["sequence"].to_list() != sorted(item.sequences):
        raise BadInput(f"step {item.step} of {run.path} lacks rows of the sequences table: take --padding none")
    facts = {row["sequence"]: row for row in table.iter_rows(named=True)}
    groups: list[list[int]] = []
    for rank in sorted({row["rank"] or 0 for row in facts.values()}):
        mine = [i for i, s in enumerate(item.sequences) if (facts[s]["rank"] or 0) == rank]
        groups += _groups(mine, [facts[item.sequences[i]]["micro_batch"] for i in mine], how.micro_batch)
    return [_padded(item, group, [facts[item.sequences[i]] for i in group], str(how.padding)) for group in groups]


def _groups(rows: list[int], recorded: Sequence[int | None], size: int | None) -> list[list[int]]:
    """By `size` in order; without one by the recorded micro-batch; without that one by one."""
    if size:
        return [rows[i : i + size] for i in range(0, len(rows), size)]
    if any(number is None for number in recorded):
        return [[row] for row in rows]
    return [[r for r, m in zip(rows, recorded, strict=True) if m == n] for n in sorted(set(recorded), key=str)]


def _padded(item: StepInput, group: list[int], facts: Sequence[dict[str, Any]], padding: str) -> list[Row]:
    prompts, responses = [len(item.prompts[i]) for i in group], [len(item.completions[i]) for i in group]
    if padding == "recorded" and all(f["pad_left"] is not None and f["pad_right"] is not None for f in facts):
        widths = {f["pad_left"] + p + r + f["pad_right"] for f, p, r in zip(facts, prompts, responses, strict=True)}
        if len(widths) == 1:
            return [Row(i, f["pad_left"], f["pad_right"]) for i, f in zip(group, facts, strict=True)]
    if padding in ("recorded", "two-sided"):  # prompts end, and responses begin, in one column
        return [Row(i, max(prompts) - p, max(responses) - r) for i, p, r in zip(group, prompts, responses, strict=True)]
    width = max(p + r for p, r in zip(prompts, responses, strict=True))
    spare = [width - p - r for p, r in zip(prompts, responses, strict=True)]
    return [Row(i, n, 0) if padding == "left" else Row(i, 0, n) for i, n in zip(group, spare, strict=True)]
