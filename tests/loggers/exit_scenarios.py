"""How a recording process may end: `python exit_scenarios.py FOLDER` plays every scenario in a forked child, each into
a run of its own, and prints the children's exit statuses as JSON (negative: killed by that signal)."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from timscope.loggers import Recorder


def record(folder: Path, **options: Any) -> Recorder:
    """Steps 0 to 4 complete, 5 finished but for its metrics, 6 in the middle; nothing is waited for."""
    recorder = Recorder(folder, **options)
    for number in range(7):
        step = recorder.begin(number)
        step.rollout(prompt_ids=[[1]] * 40, completion_ids=[list(range(50))] * 40)
        step.trainer(old_logprob=np.random.default_rng(number).standard_normal((40, 50)))
        if number < 5:
            recorder.complete(number)
        step.ended = number == 5
    return recorder


def exits(folder: Path) -> None:
    record(folder)


def raises(folder: Path) -> None:
    record(folder)
    raise RuntimeError("the trainer's own")


def terminated(folder: Path) -> None:
    record(folder)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(30)


def terminated_without_flush(folder: Path) -> None:
    recorder = record(folder, sigterm=False)
    recorder._writer.call(lambda: time.sleep(5))  # type: ignore[union-attr]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(30)


def terminated_under_a_handler(folder: Path) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
    record(folder)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(30)


def goes_on_after_a_handler(folder: Path) -> None:
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    recorder = record(folder)
    os.kill(os.getpid(), signal.SIGTERM)
    assert told == [signal.SIGTERM]
    recorder.begin(5).metrics(loss=0.5)
    recorder.complete(5)
    recorder.complete(6)
    recorder.close()
    assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    os.kill(os.getpid(), signal.SIGTERM)
    assert len(told) == 2


def ignores(folder: Path) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    record(folder)
    os.kill(os.getpid(), signal.SIGTERM)


def handler_put_over_ours(folder: Path) -> None:
    """A framework that chains to what it found, and a second recorder after it."""
    recorder = record(folder)
    ours = signal.getsignal(signal.SIGTERM)
    assert callable(ours)
    signal.signal(signal.SIGTERM, lambda number, frame: ours(number, frame))
    Recorder(folder / "second")
    recorder.flush(10)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(30)


def forks(folder: Path) -> None:
    """Children that inherit a recorder with a full queue write nothing, hang nowhere and die of SIGTERM as usual."""
    recorder = record(folder, queue_size=1)
    recorder._writer.call(lambda: time.sleep(0.2))  # type: ignore[union-attr]
    for die in (False, True):
        child = os.fork()
        if child == 0:
            for number in range(10, 14):
                recorder.begin(number).metrics(loss=1.0)
                recorder.complete(number)
            if die:
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(30)
            sys.exit(3)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert status == (-signal.SIGTERM if die else 3), status
    recorder.complete(5)
    recorder.close()


def killed(folder: Path) -> None:
    """Dies in the middle of writing, at a moment of its own."""
    recorder = Recorder(folder)
    for number in range(10_000):
        with recorder.step(number) as step:
            ids = [list(range(100))] * 50
            step.rollout(prompt_ids=[[1]] * 50, completion_ids=ids, rollout_logprob=[[-1.0] * 100] * 50)
        if number == 5:
            recorder.flush()
            wait = 0.1 + 0.2 * (os.getpid() % 7) / 7
            threading.Timer(wait, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()


SCENARIOS: list[Callable[[Path], None]] = [
    *(exits, raises, terminated, terminated_without_flush, terminated_under_a_handler, goes_on_after_a_handler),
    *(ignores, handler_put_over_ours, forks, killed),
]


def main(folder: Path) -> None:
    """Fork, play, collect. A child that hangs is killed by the alarm and seen as such."""
    children = {}
    for scenario in SCENARIOS:
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            scenario(folder / scenario.__name__)
            return
        children[scenario.__name__] = child
    print(json.dumps({n: os.waitstatus_to_exitcode(os.waitpid(c, 0)[1]) for n, c in children.items()}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
