"""A job that records steps and weights until it is killed, for test_kill.py; run as a program it forks such jobs.

The weights of a version are a function of its number alone, so that the test knows them without having been there.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from timscope.data import open_run
from timscope.data.storage import Storage
from timscope.loggers import Recorder

EVERY = 4
TOKENS = 6


class Weights(nn.Module):
    """A megabyte of float32 and bfloat16, an integer buffer, and a scalar."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Parameter(torch.zeros(300, 700))
        self.short = nn.Parameter(torch.zeros(333, 333, dtype=torch.bfloat16))
        self.scale = nn.Parameter(torch.zeros(()))
        self.register_buffer("steps", torch.zeros(3, dtype=torch.int64))


def set_version(model: Weights, version: int) -> None:
    """Put the weights of a version into the model: a fixed start and a small walk away from it."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        model.wide.normal_(0, 0.02, generator=generator)
        model.short.normal_(0, 0.02, generator=generator)
        model.wide.add_(torch.arange(700) % 7, alpha=1e-6 * version)
        model.short[version % 333] *= 1.5
        model.scale.fill_(version / 3)
        model.steps.fill_(version)


def logprobs(step: int) -> np.ndarray[Any, Any]:
    """What step `step` recorded."""
    return -np.arange(1, TOKENS + 1, dtype=np.float32) / (step + 1)


def train(path: str, die_in_write: int, steps: int) -> None:
    """Go on from the last complete step. `die_in_write` n > 0: SIGKILL in the middle of the n-th file of weights."""
    torch.set_num_threads(1)
    if die_in_write:
        _die_in(die_in_write)
    last = 0
    if Path(path, "manifest.json").exists():
        with open_run(path) as run:
            last = max(run.complete_steps, default=0)
    model = Weights()
    set_version(model, last)
    with Recorder(path, snapshots=EVERY, sigterm=False) as recorder:
        recorder.weights(last, model)
        for number in range(last + 1, last + steps + 1):
            set_version(model, number)
            recorder.weights(number, model)
            with recorder.step(number) as step:
                ids = [list(range(TOKENS))]
                step.rollout(
                    prompt_ids=[[1]], completion_ids=ids, rollout_logprob=[logprobs(number)], weight_version=number - 1
                )
                step.metrics(loss=0.0, weight_version=number - 1)


def _die_in(count: int) -> None:
    plain = Storage.write
    seen = 0

    class Dying:
        def __init__(self, handle: Any) -> None:
            self.handle = handle

        def write(self, data: Any) -> None:
            self.handle.write(memoryview(data).cast("B")[: len(data) // 2])
            self.handle.flush()
            os.kill(os.getpid(), signal.SIGKILL)

    def write(self: Storage, path: str, fill: Any) -> int:
        nonlocal seen
        if path.startswith("weights/"):
            seen += 1
            if seen == count:
                return plain(self, path, lambda handle: fill(Dying(handle)))
        return plain(self, path, fill)

    Storage.write = write  # type: ignore[method-assign]


def serve() -> None:
    """For each line "PATH N STEPS" fork a job, say its process id, and its exit status when it is gone.

    Forking a process that has only imported is fifty times as fast as starting Python anew.
    """
    for line in sys.stdin:
        path, count, steps = line.rsplit(maxsplit=2)
        pid = os.fork()
        if not pid:
            try:
                train(path, int(count), int(steps))
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)  # a child that fails must not go on as a second parent
        print(pid, flush=True)
        print(os.waitpid(pid, 0)[1], flush=True)


if __name__ == "__main__":
    serve()
