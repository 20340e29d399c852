"""Reading JSON lines as dumps really are: huge, sometimes half-written, with NaN where JSON has none.

One line is held at a time. A line that cannot be used is left out, counted, and its first place is kept: nothing is
repaired and nothing is lost silently.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import orjson

from timscope.data.errors import BadInput
from timscope.data.importers.base import ROW_FAULTS, Findings
from timscope.data.importers.row import Row

MAX_LINE = 1 << 30  # bytes; a line is held whole, as Python objects several times its size
_FIRST_LINE = 1 << 26


@dataclass(frozen=True, slots=True)
class Line:
    """One JSON object: `number` counts from 1, `offset` is its first byte in the (uncompressed) file."""

    path: Path
    number: int
    offset: int
    data: dict[str, Any]

    @property
    def place(self) -> str:
        """File and line, for messages."""
        return f"{self.path.name}:{self.number}"


def open_text(path: Path) -> BinaryIO:
    """The file's bytes, unpacked where its name ends in .gz."""
    if path.suffix == ".gz":
        return cast(BinaryIO, gzip.open(path, "rb"))
    return path.open("rb", buffering=1 << 20)


def lines(path: Path, findings: Findings, start: int = 0) -> Iterator[Line]:
    """The JSON objects of a file, in order, from byte `start` on (then `number` counts from there).

    Noted and left out: a half-written last line ("truncated-dump") and lines that are not JSON objects ("broken-line"),
    each with file, line and byte offset. NaN, Infinity and lone surrogates are read as Python wrote them. Raises
    BadInput for a line above MAX_LINE bytes and for a file that cannot be opened.
    """
    offset, number = start, 0
    try:
        with open_text(path) as handle:
            handle.seek(start)
            while raw := handle.readline(MAX_LINE + 1):
                number += 1
                if len(raw) > MAX_LINE:
                    raise BadInput(f"{path}:{number} is longer than {MAX_LINE:,} bytes: split it, one sample a line")
                data = _parse(raw)
                if isinstance(data, dict):
                    yield Line(path, number, offset, data)
                elif raw.strip():
                    _left_out(findings, path, number, offset, raw)
                offset += len(raw)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        findings.note(
            "truncated-dump", "a compressed file ends early or is damaged: what came before it is imported",
            file=path.name, line=number + 1, offset=offset, error=str(error),
        )  # fmt: skip
    except OSError as error:
        raise BadInput(
            f"{path} cannot be read ({error.strerror or error}): give the file that the framework wrote, with the "
            "right to read it"
        ) from error


def _left_out(findings: Findings, path: Path, number: int, offset: int, raw: bytes) -> None:
    half = not raw.endswith(b"\n")
    findings.note(
        "truncated-dump" if half else "broken-line",
        "the last line of a file is half-written and left out" if half else "lines that hold no JSON object left out",
        file=path.name, line=number, offset=offset, bytes=len(raw),
    )  # fmt: skip


def _parse(raw: bytes) -> Any:
    """The value of a line; None where it is not JSON."""
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        pass
    try:
        return json.loads(raw)  # takes the NaN, Infinity and surrogates that Python's json writes and orjson refuses
    except (ValueError, RecursionError):
        return None


def first_object(path: Path) -> dict[str, Any]:
    """The first line as an object, or {} where there is none or it is huge; never raises."""
    try:
        with open_text(path) as handle:
            data = _parse(handle.readline(_FIRST_LINE))
    except (OSError, EOFError, zlib.error):
        return {}
    return data if isinstance(data, dict) else {}


def described(error: BaseException) -> str:
    """The text of an error; with its kind where it is not one of ours, which say all themselves."""
    return str(error) if isinstance(error, BadInput) else f"{type(error).__name__}: {error}"


def usable(found: Iterable[Line], make: Callable[[Line], Row], findings: Findings, base: int = 0) -> Iterator[Row]:
    """One row a line, numbered `base` + its line from 0; a line that `make` cannot read is noted and left out."""
    for line in found:
        try:
            row = make(line)
        except ROW_FAULTS as error:
            findings.note("integrity", "lines that cannot be read as a sample are left out", place=line.place,
                          error=described(error))  # fmt: skip
            continue
        row.place, row.sequence = line.place, base + line.number - 1
        yield row
