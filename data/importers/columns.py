"""From a dump's rows to a run's columns: the one place where every importer builds its parts.

A format module reads its own layout into `Row`s (plain per-sequence arrays, log-prob i beside response token i) and
hands them over; absolute positions, NULLs, the choice between per-token and per-sequence columns, and the size of parts
are decided here, once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from timscope.data.errors import BadInput
from timscope.data.importers.base import PART_TOKENS, Findings, Part
from timscope.data.importers.json_values import text
from timscope.data.importers.row import MAX_INT, TOKEN_FLOATS, Floats, Row

__all__ = ["MAX_INT", "TOKEN_FLOATS", "Floats", "Row", "parts", "sequence_part", "step_part"]

_SEQUENCE_VALUES = (
    "rank", "uid", "group_id", "prompt", "completion", "reward", "finish_reason", "turns", "micro_batch", "pad_left",
    "pad_right",
)  # fmt: skip
_TEXTS = frozenset({"uid", "group_id", "prompt", "completion", "finish_reason"})


def parts(step: int, rows: Iterable[Row], findings: Findings) -> Iterator[Part]:
    """Rows of one step as parts of at most about PART_TOKENS response tokens.

    A row whose columns differ in length cannot be used: it is left out and noted with its place. Every row keeps its
    number in the dump as `sequence`, so gaps show what was left out.
    """
    _check_step(step)
    kept: list[Row] = []
    tokens = 0
    for number, row in enumerate(rows):
        row.sequence = number if row.sequence is None else row.sequence
        if wrong := row.mismatch():
            column, has, ids = wrong
            findings.note(
                "integrity",
                "rows whose per-token columns and token ids differ in length are left out",
                place=row.place, step=step, sequence=row.sequence, column=column, length=has, token_ids=ids,
            )  # fmt: skip
            continue
        if odd := row.outside():
            findings.note(
                "integrity", "rows with a number beyond 32 bits are left out",
                place=row.place, step=step, sequence=row.sequence, column=odd[0], value=str(odd[1])[:40],
            )  # fmt: skip
            continue
        kept.append(row)
        # Texts and prompts count too: they are what a text dump's memory is made of.
        tokens += sum(0 if v is None else len(v) for v in (row.token_ids, row.prompt_ids))
        tokens += sum(len(v or "") // 4 for v in (row.prompt, row.completion)) + 1
        if tokens >= PART_TOKENS:
            yield sequence_part(step, kept)
            kept, tokens = [], 0
    if kept:
        yield sequence_part(step, kept)


def sequence_part(step: int, rows: Sequence[Row], first_sequence: int = 0) -> Part:
    """The columns of `rows`; those without an own `sequence` are numbered from `first_sequence`.

    Raises BadInput, naming the row's place and both lengths, where a per-token column is not as long as the ids.
    """
    for row in rows:
        if wrong := row.mismatch():
            column, has, ids = wrong
            raise BadInput(
                f"{row.place or f'step {step}'}: {column} has {has} values for {ids} tokens: this dump is damaged or "
                "of another version"
            )
    numbers = [first_sequence + i if r.sequence is None else r.sequence for i, r in enumerate(rows)]
    flat = [_one_advantage(r) for r in rows]  # a token column is for advantages that vary
    tables = {"sequences": _sequences(rows, numbers, flat)}
    with_tokens = [(n, r, a) for n, r, a in zip(numbers, rows, flat, strict=True) if _length(r)]
    if with_tokens:
        tables["tokens"] = _tokens(*zip(*with_tokens, strict=True))
    return Part(step, tables)


def step_part(step: int, metrics: Mapping[str, Any]) -> Part:
    """One row of `steps`: metrics under their own names; values that are no numbers are left out."""
    _check_step(step)
    numbers = {str(text(k)): v for k, v in metrics.items() if v is None or isinstance(v, int | float | np.number)}
    row = {name: None if value is None else float(value) for name, value in numbers.items() if name != "step"}
    table: dict[str, Any] = {name: [value] for name, value in {"loss": None, **row}.items()}
    for name in ("weight_version", "resume"):
        if table.get(name, [None])[0] is not None:
            table[name] = [int(table[name][0])]
    return Part(step, {"steps": table})


def _check_step(step: int) -> None:
    """Such a number is a time or an id: written as a step it would not be found again."""
    if not 0 <= step <= MAX_INT:
        raise BadInput(f"{str(step)[:40]} is no step: rename what is called so, a step is a whole number below 2^31")


def _length(row: Row) -> int:
    return 0 if row.token_ids is None else len(row.token_ids)


def _start(row: Row) -> int:
    return row.prompt_length if row.prompt_ids is None else len(row.prompt_ids)


def _one_advantage(row: Row) -> float | None:
    """The advantage where it is one value over the whole sequence; None where it varies or is not there."""
    values = row.token_advantage
    if values is None or not len(values) or np.ma.is_masked(values):
        return None
    data = np.ma.getdata(values)
    return float(data[0]) if bool(np.all(data == data[0])) else None


def _sequences(rows: Sequence[Row], numbers: list[int], flat: list[float | None]) -> dict[str, Any]:
    table: dict[str, Any] = {
        "sequence": np.array(numbers, np.int64),
        "num_tokens": [r.num_tokens if r.token_ids is None else len(r.token_ids) for r in rows],
        "advantage": [r.advantage if a is None else a for r, a in zip(rows, flat, strict=True)],
        "weight_version": [r.weight_version for r in rows],
    }
    if any(r.prompt_ids is not None for r in rows):
        table["prompt_ids"] = [None if r.prompt_ids is None else np.asarray(r.prompt_ids, np.int32) for r in rows]
    for name in _SEQUENCE_VALUES:
        values = [getattr(r, name) for r in rows]
        if any(v is not None for v in values):
            table[name] = [text(v) for v in values] if name in _TEXTS else values
    for name in dict.fromkeys(name for r in rows for name in r.extra):
        table[str(text(name))] = [r.extra.get(name) for r in rows]
    return table


def _tokens(numbers: Sequence[int], rows: Sequence[Row], flat: Sequence[float | None]) -> dict[str, Any]:
    lengths = [_length(r) for r in rows]
    table: dict[str, Any] = {
        "sequence": np.repeat(np.array(numbers, np.int64), lengths),
        "position": np.concatenate([_start(r) + np.arange(n) for r, n in zip(rows, lengths, strict=True)]),
        "token_id": np.concatenate([np.asarray(r.token_ids, np.int64) for r in rows]),
        # Without a mask every response token is in the loss.
        "mask": np.concatenate(
            [
                np.ones(n, bool) if r.mask is None else np.asarray(r.mask, bool)
                for r, n in zip(rows, lengths, strict=True)
            ]
        ),
    }
    for name in TOKEN_FLOATS:
        table[name] = _joined([getattr(r, name) for r in rows], lengths, np.dtype(np.float64))
    varying = [r.token_advantage if a is None else None for r, a in zip(rows, flat, strict=True)]
    table["advantage"] = _joined(varying, lengths, np.dtype(np.float64))
    table["weight_version"] = _joined([r.token_weight_version for r in rows], lengths, np.dtype(np.int64))
    return {name: values for name, values in table.items() if values is not None}


def _joined(columns: Sequence[Any], lengths: Sequence[int], dtype: np.dtype[Any]) -> Any:
    """Rows one after another as a masked array, absent rows masked; None where no row has the column."""
    if all(c is None for c in columns):
        return None
    data = np.concatenate(
        [np.zeros(n, dtype) if c is None else np.ma.getdata(c) for c, n in zip(columns, lengths, strict=True)]
    ).astype(dtype)
    mask = np.concatenate(
        [np.ones(n, bool) if c is None else np.ma.getmaskarray(c) for c, n in zip(columns, lengths, strict=True)]
    )
    return np.ma.array(data, mask=mask)
