"""However a recording process ends, what it had finished is readable and its exit status is its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from timscope.data import open_run

FINISHED, IN_THE_MIDDLE = [0, 1, 2, 3, 4, 5], [6]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, int]]:
    """The runs of all scenarios, and how each process ended."""
    folder = tmp_path_factory.mktemp("exits")
    command = [sys.executable, str(Path(__file__).parent / "exit_scenarios.py"), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return folder, json.loads(done.stdout)


@pytest.mark.parametrize(
    ("scenario", "status"),
    [("exits", 0), ("raises", 1), ("terminated", -15), ("ignores", 0), ("handler_put_over_ours", -15)],
)
def test_nothing_finished_is_lost(played: tuple[Path, dict[str, int]], scenario: str, status: int) -> None:
    folder, statuses = played
    assert statuses[scenario] == status
    with open_run(folder / scenario) as run:
        assert run.complete_steps == FINISHED and len(run.tokens()) == 6 * 2_000
        # At the end of the process even the rows of the step in the middle are there, without the mark that they count.
        assert run.incomplete_steps == (IN_THE_MIDDLE if scenario in ("exits", "raises", "ignores") else [])
        assert run.recorders[0].closed == (status in (0, 1))
        assert [p for p in run.problems if "left out" not in p] == []


def test_without_the_handler_sigterm_loses_what_is_queued(played: tuple[Path, dict[str, int]]) -> None:
    """The control: `terminated` keeps its last step because of the handler and not by luck."""
    folder, statuses = played
    assert statuses["terminated_without_flush"] == -15
    with open_run(folder / "terminated_without_flush") as run:
        assert 5 not in run.complete_steps and not run.recorders[0].closed


def test_a_handler_that_was_there_decides(played: tuple[Path, dict[str, int]]) -> None:
    folder, statuses = played
    assert statuses["terminated_under_a_handler"] == 7
    with open_run(folder / "terminated_under_a_handler") as run:
        assert run.complete_steps == FINISHED and run.recorders[0].closed
    # It may also decide to go on: the open step is not cut short then, and gets its metrics.
    assert statuses["goes_on_after_a_handler"] == 0
    with open_run(folder / "goes_on_after_a_handler") as run:
        assert run.complete_steps == [*FINISHED, 6] and run.steps()["loss"].to_list()[5] == 0.5
        assert run.problems == []


def test_forked_children_write_nothing(played: tuple[Path, dict[str, int]]) -> None:
    folder, statuses = played
    assert statuses["forks"] == 0
    with open_run(folder / "forks") as run:
        assert run.complete_steps == FINISHED and run.manifest.recorder.closed


def test_kill_9_leaves_every_complete_step(played: tuple[Path, dict[str, int]]) -> None:
    folder, statuses = played
    assert statuses["killed"] == -9
    with open_run(folder / "killed") as run:
        last = run.complete_steps[-1]
        assert last >= 5
        assert run.complete_steps == list(range(last + 1)), "a step before the last complete one is lost"
        assert len(run.tokens()) == 5_000 * (last + 1)
        assert all(step > last for step in run.incomplete_steps)
        assert not run.recorders[0].closed and not run.manifest.recorder.closed
