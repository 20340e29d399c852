"""Weight versions of a response that was generated in several pieces."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from timscope.data.importers.base import Findings


def weight_versions(
    segments: list[str],
    sampled: NDArray[np.bool_],
    findings: Findings,
    place: str,
    extra: dict[str, float | None],
) -> tuple[int | None, Any]:
    """(the response's version, or its tokens' versions (n,), masked where nothing was sampled) of `segments`, the
    version of each generation call in order.

    One version for all: the first form. Several, and as many runs of sampled tokens as segments (one a turn): each run
    gets its own. Otherwise the boundaries are lost: neither form; the smallest and largest go into `extra`, and a
    finding says so, because one version for all would be wrong.
    """
    if not segments:
        return None, None
    try:
        versions = [int(v) for v in segments]
    except ValueError:
        findings.note("weight-version", "weight versions that are no numbers are left out", place=place,
                      value=segments[0][:40])  # fmt: skip
        return None, None
    if min(versions) == max(versions):
        return versions[0], None
    edges = np.flatnonzero(np.diff(np.concatenate([[False], sampled, [False]]).astype(np.int8)))
    runs = edges.reshape(-1, 2)
    if len(runs) == len(versions):
        column = np.ma.array(np.zeros(len(sampled), np.int64), mask=np.ones(len(sampled), bool))
        for (start, end), version in zip(runs.tolist(), versions, strict=True):
            column[start:end] = version
        findings.note("weight-versions-placed", "versions of several turns placed by the runs of the loss mask",
                      place=place)  # fmt: skip
        return None, column
    note_mixed(min(versions), max(versions), findings, place, extra)
    return None, None


def note_mixed(low: int, high: int, findings: Findings, place: str, extra: dict[str, float | None]) -> None:
    """A response of several weight versions whose boundaries the dump does not have."""
    extra["weight_version_min"], extra["weight_version_max"] = float(low), float(high)
    findings.note(
        "mixed-versions", "responses of several weight versions whose boundaries the dump does not have",
        place=place, low=low, high=high,
    )  # fmt: skip
