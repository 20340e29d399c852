"""TRL's `log_completions=True`: `completions/completions_{step}.parquet`, text, rewards and advantage (T1).

TRL writes its buffer at every log, so a generation that serves several optimizer steps is written once a step: rows
that begin a file and ended the one before are the same generation again, imported once and noted. Token ids and
log-probs are not in the dump.

Columns between completion and advantage are reward functions, then whatever the user logged. `trainer_state.json`
beside the dump names the functions (and gives the `steps` table); their values are `reward/<function>`, and `reward`
where there is one function alone, since the weights of several are not in the dump. Other numbers keep their own names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from timscope.data.errors import BadInput
from timscope.data.importers.base import Findings, Format, Part
from timscope.data.importers.columns import Row, parts, step_part
from timscope.data.importers.json_values import text
from timscope.data.importers.numbers import number
from timscope.data.importers.overlap import overlap, signature
from timscope.data.importers.step_files import numbered
from timscope.data.importers.text_rows import own_numbers
from timscope.data.importers.trl_state import TrainerState
from timscope.data.manifest import Framework

_FILE = re.compile(r"completions_(\d+)\.parquet")
_OWN = ("step", "prompt", "completion", "advantage")
_BATCH = 256


def _folder(path: Path) -> Path:
    inner = path / "completions"
    return inner if inner.is_dir() else path


def _files(path: Path) -> list[tuple[int, Path]]:
    if path.is_file():
        match = _FILE.fullmatch(path.name)
        return [(int(match[1]), path)] if match else []
    return numbered(_folder(path), _FILE)


def detect(path: Path) -> bool:
    """An output folder with completions/, that folder, or one file of it."""
    return bool(_files(path))


def read(path: Path, findings: Findings, facts: dict[str, Any]) -> Iterator[Part]:
    """All steps in order; see `Format.read`."""
    files = dict(_files(path))
    if not files:
        raise BadInput(f"{path} holds no completions_STEP.parquet: give the trainer's output_dir")
    facts["framework"] = Framework(name="trl")
    state = TrainerState((path.parent if path.is_file() else _folder(path)).parent, findings)
    before: list[bytes] = []
    for step in sorted({*files, *state.steps}):
        if step in state.steps:
            yield step_part(step, state.steps[step])
        if step in files:
            if not _is_dump(files[step], findings):
                continue
            try:
                written = [signature(r) for r in _records(files[step])]
            except (pa.ArrowException, OSError) as error:
                findings.note("truncated-dump", "files that are no whole Parquet file are left out",
                              file=files[step].name, error=str(error).split("\n")[0])  # fmt: skip
                continue
            again = overlap(before, written)
            if again:
                findings.note(
                    "reused-generation", "rows written again for a later step are imported once, at the first",
                    count=again, file=files[step].name,
                )  # fmt: skip
            before = written
            yield from parts(step, _rows(step, files[step], again, state, findings), findings)


def _is_dump(file: Path, findings: Findings) -> bool:
    """Whether the file has completions; what is no Parquet file at all is found out when it is read."""
    try:
        with pq.ParquetFile(file) as source:
            there = source.schema_arrow.names
    except (pa.ArrowException, OSError):
        return True
    if "completion" not in there:
        findings.note("integrity", "files without a column completion are left out", file=file.name, columns=there[:20])
    return "completion" in there


def _records(file: Path) -> Iterator[dict[str, Any]]:
    with pq.ParquetFile(file) as source:
        for batch in source.iter_batches(batch_size=_BATCH):
            yield from batch.to_pylist()


def _rows(step: int, file: Path, skip: int, state: TrainerState, findings: Findings) -> Iterator[Row]:
    functions = _functions(file, state)
    for i, record in enumerate(_records(file)):
        place = f"{file.name}:{i}"
        if record.get("step", step) != step:
            findings.note("step-differs", "rows name another step than their file: the file's counts", place=place,
                          step=record["step"])  # fmt: skip
        if i < skip:
            continue
        rewards = {name: number(record[name], findings, name, place) for name in sorted(functions)}
        yield Row(
            prompt=text(record.get("prompt")),
            completion=text(record.get("completion")),
            advantage=number(record.get("advantage"), findings, "advantage", place),
            reward=next(iter(rewards.values())) if len(rewards) == 1 else None,
            extra={f"reward/{name}": value for name, value in rewards.items()}
            | own_numbers(record, {*_OWN, *functions}),
            place=place,
            sequence=i,
        )


def _functions(file: Path, state: TrainerState) -> set[str]:
    """Columns that are reward functions: those that the trainer's state names, or the only one there is."""
    with pq.ParquetFile(file) as source:
        fields = [f for f in source.schema_arrow if f.name not in _OWN]
    numeric = {f.name for f in fields if pa.types.is_floating(f.type) or pa.types.is_integer(f.type)}
    named = state.functions & {f.name for f in fields}
    # A trainer has at least one reward function, so a single number column is it.
    return named or (numeric if len(numeric) == 1 else set())


FORMAT = Format("trl-parquet", "TRL completions parquet", "T1", detect, read)
