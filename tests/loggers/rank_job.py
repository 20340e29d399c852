"""One rank of a two-process job on the CPU (gloo): `python rank_job.py FOLDER`, with RANK and the like in the
environment as torchrun sets them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import tiny_grpo
import torch

from timscope.loggers import attach


def main(folder: Path) -> None:
    """Four steps; rank 1's recorder is told of a column that it cannot read."""
    torch.set_num_threads(1)
    trainer = tiny_grpo.trainer(folder / "out", vllm=True, gradient_accumulation_steps=2, max_steps=3)
    recorder = attach(trainer, folder / "run", model_source="tiny")
    rank = int(os.environ["RANK"])
    if rank == 1:
        recorder.guard.turn_off("entropy", "made to fail")
    trainer.train()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
