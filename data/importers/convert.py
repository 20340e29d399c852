"""From a dump to a run: recognise it, stream it through the checks into the writer, say what it can be used for.

Nothing is repaired. What looks wrong is kept as it came and written into `manifest.imported.findings`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from timscope.data.errors import BadInput
from timscope.data.importers.base import Findings, Format, Part
from timscope.data.importers.columns import step_part
from timscope.data.importers.place import prepare
from timscope.data.importers.registry import choose
from timscope.data.importers.suspects import watched
from timscope.data.importers.watch import Watch
from timscope.data.manifest import Algorithm, Imported, ImportFinding, Manifest
from timscope.data.writer import RunWriter

# Findings that say that data is lost, misplaced or no measurement: the run is not what the job saw. A step that is gone
# (of a dump that is written every step) is such a loss; "non-finite" is none: the job itself computed that NaN, the
# import brings it faithfully, and `timscope check` fails on it.
DAMAGE = frozenset(
    {"broken-line", "integrity", "missing-rank", "missing-ranks", "missing-step", "off-by-one", "truncated-dump",
     "zero-filled-old", "zero-filled-rollout"}
)  # fmt: skip
# Parts waiting for the disk; each holds up to PART_TOKENS tokens (about 100 MB).
_QUEUE = 4


@dataclass
class Summary:
    """What an import did."""

    run: str
    imported: Imported
    steps: int
    sequences: int
    tokens: int
    resumed: int = 0  # steps that an earlier import had already written
    damaged: bool = field(init=False)  # whether a finding says that data is lost, misplaced or no measurement

    def __post_init__(self) -> None:
        self.damaged = any(f.kind in DAMAGE for f in self.imported.findings)


def import_dump(
    source: str | os.PathLike[str],
    run_path: str | os.PathLike[str],
    *,
    format: str = "auto",
    overwrite: bool = False,
) -> Summary:
    """Write the run `run_path` (folder or fsspec URL) from the dump `source` (local file or folder).

    `format`: a name from the registry or "auto". An import that was interrupted, or whose dump has grown, goes on where
    it stopped; `overwrite` replaces an earlier import. Memory stays bounded by the largest part, whatever the size of
    the dump. Raises BadInput where the dump is not recognised, cannot be read at all, or `run_path` holds another run.
    """
    path = Path(source)
    chosen = choose(path, format)
    if not path.exists():
        raise BadInput(f"{path} does not exist: give the file or folder that the framework wrote")
    prepare(path, run_path, chosen.name, overwrite)
    findings, facts, watch = Findings(), dict[str, Any](), Watch()
    seen = Findings()
    parts = watched(_read(chosen, path, findings, facts), seen)
    first = next(parts, None)
    if first is None:
        raise BadInput(f"{path} holds nothing to import as {chosen.name}{_because(findings)}")
    start = Manifest(timscope_version=version("timscope"), imported=_begun(chosen, path))
    with RunWriter(run_path, start, queue_size=_QUEUE, strict=True) as writer:
        resumed = len(writer.done)
        _write(writer, _chain(first, parts), watch)
        _merge(findings, seen)
        watch.lags.note(findings)
        imported = Imported(
            format=chosen.name, source=str(path.resolve()), tier=watch.tier, cannot=watch.cannot(),
            findings=findings.listed(),
        )  # fmt: skip
        writer.update_manifest(imported=imported, **_fields(facts, watch))
    return Summary(os.fspath(run_path), imported, len(watch.steps), watch.sequences, watch.tokens, resumed)


def _read(chosen: Format, path: Path, findings: Findings, facts: dict[str, Any]) -> Iterator[Part]:
    """The format's parts; a file that has its name and not its layout is bad input, not a traceback."""
    try:
        yield from chosen.read(path, findings, facts)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(
            f"{path} does not have the layout of {chosen.title} ({type(error).__name__}: {error}): name its "
            "format with --format, or it is of a version that is not read here"
        ) from error


def _begun(chosen: Format, path: Path) -> Imported:
    """What the manifest says until the import is through."""
    unfinished = {"check": "the import was interrupted: run it again to finish it"}
    return Imported(format=chosen.name, source=str(path.resolve()), tier=chosen.tier, cannot=unfinished)


def _chain(first: Part, rest: Iterator[Part]) -> Iterator[Part]:
    yield first
    yield from rest


def _write(writer: RunWriter, parts: Iterator[Part], watch: Watch) -> None:
    """Write every part of steps that are not there yet, and mark each step when its last part is through."""
    already, step, with_row = set(writer.done), None, False
    for part in parts:
        if part.step != step:
            if part.step in watch.steps:
                raise BadInput(f"step {part.step} comes twice in the dump, apart: import its jobs one by one")
            if step is not None:
                _finish(writer, step, with_row, already)
            step, with_row = part.step, False
        watch.add(part)
        with_row |= "steps" in part.tables
        if part.step not in already:
            for table, columns in part.tables.items():
                writer.put(table, part.step, columns)
    if step is not None:
        _finish(writer, step, with_row, already)


def _finish(writer: RunWriter, step: int, with_row: bool, already: set[int]) -> None:
    if step in already:
        return
    if not with_row:
        writer.put("steps", step, step_part(step, {}).tables["steps"])
    writer.complete(step)


def _merge(findings: Findings, seen: Findings) -> None:
    """Add what the driver saw, save the kinds that the format module noted itself."""
    noted = {kind for kind, _detail in findings.found}
    for key, finding in seen.found.items():
        if key[0] not in noted:
            findings.found[key] = finding


def _fields(facts: dict[str, Any], watch: Watch) -> dict[str, Any]:
    """The manifest fields that the dump says or that its numbers prove."""
    known = Manifest.model_validate(facts)
    fields = {name: getattr(known, name) for name in facts}
    algorithm = fields.get("algorithm", Algorithm())
    if watch.copied_old and algorithm.loss_mode == "unknown":
        fields["algorithm"] = algorithm.model_copy(update={"loss_mode": "bypass"})
    return fields


def _because(findings: Findings) -> str:
    listed: list[ImportFinding] = findings.listed()
    if not listed:
        return ": give the file or folder that the framework wrote"
    where = ", ".join(f"{k}={v}" for k, v in listed[0].evidence.items())
    return f": {listed[0].detail} ({where})"
