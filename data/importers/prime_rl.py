"""prime-rl's token export: `token_exports/step_{N}/rank_{R}.jsonl`, one line a sequence with a token in the loss.

Layout: arrays over prompt and response without padding; log-prob i scores token i, and index 0 holds a filler. The
response starts at the first token in the loss or with a rollout log-prob; rollout log-probs are 0.0 where the engine
sampled nothing, so an exact 0.0 outside the loss is missing (NULL).

`trainer_logprobs` come from inside the loss, so they are loss_logprob: old log-probs do not exist here, the ratio is to
the rollout's (bypass). `importance_ratio` is the weight in that loss. `is_masked` (tokens that the loss drops for a
large change) is counted a sequence as `is_masked`; `mask` stays the loss mask. The export writes null for NaN and
infinities: they come out missing and are noted. Groups, versions and rewards come from the traces beside it, by ids.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from timscope.data.errors import BadInput
from timscope.data.importers.base import Findings, Format, Part
from timscope.data.importers.columns import Row, parts
from timscope.data.importers.json_values import flag_list, float_list
from timscope.data.importers.jsonl import Line, lines, usable
from timscope.data.importers.metrics_jsonl import PRIME_RL, MetricsFile
from timscope.data.importers.numbers import integers, number
from timscope.data.importers.prime_traces import StepTraces
from timscope.data.importers.step_files import note_gaps, note_missing_ranks, numbered
from timscope.data.importers.suspects import scored
from timscope.data.manifest import Algorithm, Framework

_STEP = re.compile(r"step_(\d+)")
_RANK = re.compile(r"rank_(\d+)\.jsonl(?:\.gz)?")
_COLUMNS = {
    "trainer_logprobs": "loss_logprob", "entropy": "entropy", "importance_ratio": "rollout_is_weight",
    "advantages": "token_advantage",
}  # fmt: skip


def _export(path: Path) -> Path:
    """The token_exports folder of a run's output folder, or the folder itself."""
    inner = path / "token_exports"
    return inner if inner.is_dir() else path


def _steps(path: Path) -> dict[int, list[tuple[int, Path]]]:
    """Files by step, each as (rank, path)."""
    by_step = {step: numbered(folder, _RANK) for step, folder in numbered(_export(path), _STEP)}
    return {step: files for step, files in by_step.items() if files}


def detect(path: Path) -> bool:
    """An output folder with token_exports, or that folder itself."""
    return bool(_steps(path))


def read(path: Path, findings: Findings, facts: dict[str, Any]) -> Iterator[Part]:
    """All steps in order, with the metrics and traces that lie beside the export; see `Format.read`."""
    export, files = _export(path), _steps(path)
    if not files:
        raise BadInput(f"{path} holds no token_exports/step_N/rank_R.jsonl: give the run's output folder")
    output = export.parent
    note_gaps(files, findings)
    note_missing_ranks({step: [rank for rank, _ in found] for step, found in files.items()}, findings)
    for step in files:
        if not (export / f"step_{step}" / "STABLE").exists():
            findings.note("truncated-dump", "steps without the file STABLE were not finished", step=step)
    facts["framework"] = Framework(name="prime-rl")
    # No old log-probs exist in this framework: its loss weighs against the rollout's.
    facts["algorithm"] = Algorithm(loss_mode="bypass", options={"old_logprob": "never computed"})
    log = output / "metrics.jsonl"
    metrics = MetricsFile(log, findings, PRIME_RL) if log.is_file() else None
    yield from _parts(output, files, metrics, findings)


def _parts(
    output: Path, files: dict[int, list[tuple[int, Path]]], metrics: MetricsFile | None, findings: Findings
) -> Iterator[Part]:
    for step in sorted({*files, *(metrics.steps if metrics else ())}):
        if metrics is not None and (part := metrics.part(step)) is not None:
            yield part
        if step in files:
            traces = StepTraces(output, step, findings)
            yield from parts(step, _rows(step, files[step], traces, findings), findings)


def _rows(step: int, files: list[tuple[int, Path]], traces: StepTraces, findings: Findings) -> Iterator[Row]:
    base = 0
    for rank, file in files:
        last = -1
        for row in usable(lines(file, findings), lambda line: _row(line, traces, findings), findings, base):
            row.rank, last = rank, row.sequence if row.sequence is not None else last
            yield row
        base = max(base, last + 1)


def _row(line: Line, traces: StepTraces, findings: Findings) -> Row:
    data, place = line.data, line.place
    ids = integers(data.get("token_ids"), findings, "token_ids", place)
    in_loss = flag_list(data.get("loss_mask"), findings, "loss_mask", place)
    if ids is None or len(ids) != len(in_loss):
        raise BadInput(f"{place}: token_ids and loss_mask are missing or differ in length")
    rollout = float_list(data.get("inference_logprobs"), findings, "inference_logprobs", place)
    sampled = in_loss if rollout is None else in_loss | (np.ma.filled(rollout, 0.0) != 0.0)
    start = int(np.argmax(sampled)) if sampled.any() else len(ids)
    row = Row(
        prompt_ids=ids[:start],
        token_ids=ids[start:],
        mask=in_loss[start:],
        rollout_logprob=None if rollout is None else scored(rollout, in_loss)[start:],
        micro_batch=_whole(data.get("micro_step"), findings, "micro_step", place),
        place=place,
    )
    for name, column in _COLUMNS.items():
        values = float_list(data.get(name), findings, name, place)
        if values is not None and len(values) != len(ids):
            raise BadInput(f"{place}: {name} has {len(values)} values for {len(ids)} token ids")
        never = name == "importance_ratio" and values is not None and _all_null(values)
        setattr(row, column, None if values is None or never else values[start:])
    _note_nulls(row, findings)
    dropped = float_list(data.get("is_masked"), findings, "is_masked", place)
    if dropped is not None and not _all_null(dropped):
        row.extra["is_masked"] = float(np.ma.sum(dropped))
    row.turns = int(np.count_nonzero(np.diff(sampled[start:].astype(np.int8), prepend=0) == 1))
    traces.tell(row, ids, findings)
    return row


def _note_nulls(row: Row, findings: Findings) -> None:
    for column in ("rollout_logprob", "loss_logprob"):
        null = np.ma.getmaskarray(getattr(row, column)) if getattr(row, column) is not None else np.zeros(0, bool)
        if count := int(np.count_nonzero(null & row.mask[: len(null)])):
            findings.note(
                "non-finite", f"{column} is null inside the loss: the export writes null for NaN and infinities",
                count=count, place=row.place,
            )  # fmt: skip


def _all_null(values: Any) -> bool:
    """Whether a ratio column is null as a whole: that is how the export says that it was not computed."""
    return len(values) > 0 and bool(np.ma.getmaskarray(values).all())


def _whole(value: Any, findings: Findings, column: str, place: str) -> int | None:
    found = number(value, findings, column, place)
    return None if found is None else int(found)


FORMAT = Format("prime-rl", "prime-rl token_exports", "T3", detect, read)
