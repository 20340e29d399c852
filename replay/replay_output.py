"""What a replay shows and stores: its progress bar, and a step's scores as columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from timscope.data.schema import REPLAY_COLUMNS, REPLAY_ENTROPIES
from timscope.replay import replay_input
from timscope.replay.scoring import Progress


@contextmanager
def bar_of(total: int, show: bool) -> Iterator[Progress | None]:
    """A bar on standard error over `total` tokens, as a callable to tell of tokens done; None where not to show."""
    if not show:
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("replay"), BarColumn(), MofNCompleteColumn(), TextColumn("tokens"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("replay", total=total)
        yield lambda tokens: bar.advance(task, tokens)


def columns_of(engine: str, item: replay_input.StepInput, scores: Sequence[Any]) -> dict[str, Any]:
    """One step's part of the replay, keyed like the run's tokens."""
    lengths = [len(c) for c in item.completions]
    positions = [np.arange(len(p), len(p) + n) for p, n in zip(item.prompts, lengths, strict=True)]
    columns: dict[str, Any] = {
        "sequence": np.repeat(np.array(item.sequences, np.int64), lengths),
        "position": np.concatenate(positions).astype(np.int32),
        REPLAY_COLUMNS[engine]: np.concatenate([s.logprob for s in scores]),
    }
    if engine != "vllm":  # which gives no entropies: NULL says so
        columns[REPLAY_ENTROPIES[engine]] = np.concatenate([s.entropy for s in scores])
    return columns
