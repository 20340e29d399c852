"""Files of a dump that carry their step in the name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from timscope.data.importers.base import Findings


def numbered(folder: Path, pattern: re.Pattern[str]) -> list[tuple[int, Path]]:
    """Entries of `folder` whose whole name matches `pattern`, with its first group as number, ascending.

    Empty where there is no such folder; never raises.
    """
    try:
        found = [(match, entry) for entry in folder.iterdir() if (match := pattern.fullmatch(entry.name))]
    except OSError:
        return []
    return sorted((int(match[1]), entry) for match, entry in found)


def note_gaps(steps: Iterable[int], findings: Findings) -> None:
    """Note "missing-step" where a dump that is written every step lacks some between its first and its last."""
    there = sorted(set(steps))
    gaps = [[a + 1, b - 1] for a, b in pairwise(there) if b - a > 1]
    if gaps:
        findings.note(
            "missing-step", "steps between the first and the last one are missing",
            count=sum(b - a + 1 for a, b in gaps), first=there[0], last=there[-1], gaps=gaps[:20],
        )  # fmt: skip


def note_missing_ranks(ranks: Mapping[int, Sequence[int]], findings: Findings) -> None:
    """Note "missing-rank" for every step whose ranks are not all that the dump must have.

    Those are the ranks that any step has, and what is needed for them to be 0, k, 2k, ...: where several ranks share a
    sequence (context parallelism), only every k-th one writes.
    """
    there = sorted({rank for found in ranks.values() for rank in found})
    if not there:
        return
    stride = min((b - a for a, b in pairwise(there)), default=there[0] or 1)
    everyone = sorted({*there, *range(there[-1] % stride, there[-1], stride)})
    for step, found in sorted(ranks.items()):
        if missing := sorted(set(everyone) - set(found)):
            findings.note("missing-rank", "steps lack ranks, or these had nothing to write", step=step,
                          missing=missing, ranks=everyone)  # fmt: skip
