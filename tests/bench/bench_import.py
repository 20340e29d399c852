"""How much memory an import takes, and how fast it is, on dumps much larger than one part.

Run by hand: python tests/bench/bench_import.py [--megabytes 800] [--only nemo-rl,slime,skyrl]. Each format is written
at two sizes with files of one size, and once with fewer and larger files; every import runs in a process of its own,
whose peak resident memory the kernel reports. (So does the writing: a child's figure begins at its parent's peak.) Flat
from the small to the large dump means that a 10 GB dump takes no more. The script fails where an import would pass 2 GB
when the line through the two sizes is drawn out to 10 GB.
"""

from __future__ import annotations

import argparse
import json
import pickle
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import orjson

sys.path.insert(0, str(Path(__file__).parents[1] / "data" / "importers"))

LENGTH, PROMPT, VOCABULARY = 4000, 400, 150_000
TEN_GB, LIMIT_MB = 10_000.0, 2_000.0

CHILD = """
import json, resource, sys, time
from timscope.data.importers.convert import import_dump
start = time.perf_counter()
done = import_dump(sys.argv[1], sys.argv[2])
seconds = time.perf_counter() - start
used = resource.getrusage(resource.RUSAGE_SELF)
cpu = used.ru_utime + used.ru_stime
print(json.dumps({"seconds": seconds, "cpu": cpu, "peak_mb": used.ru_maxrss / 1024, "tokens": done.tokens}))
"""


def columns(rng: np.random.Generator) -> dict[str, Any]:
    """One sample: ids, log-probs of both engines, mask."""
    rollout = -rng.exponential(1.0, LENGTH).astype(np.float32)
    return {
        "ids": rng.integers(0, VOCABULARY, PROMPT + LENGTH),
        "rollout": rollout,
        "trainer": rollout + rng.normal(0, 0.01, LENGTH).astype(np.float32),
        "advantage": float(rng.normal()),
    }


def nemo_rl(folder: Path, step: int, samples: int, rng: np.random.Generator) -> None:
    """One train_data_step file."""
    head = np.zeros(PROMPT, np.float32)
    with (folder / f"train_data_step{step}.jsonl").open("wb") as out:
        for index in range(samples):
            c = columns(rng)
            row = {
                "rewards": [1.0], "input_lengths": [PROMPT + LENGTH], "token_ids": [c["ids"]],
                "token_loss_mask": [np.repeat([0, 1], [PROMPT, LENGTH])], "sample_loss_mask": [1.0],
                "advantages": [np.full(PROMPT + LENGTH, c["advantage"])],
                "generation_logprobs": [np.concatenate([head, c["rollout"]])],
                "prev_logprobs": [np.concatenate([head, c["trainer"]])], "idx": index,
            }  # fmt: skip
            out.write(orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY) + b"\n")


def slime(folder: Path, step: int, samples: int, rng: np.random.Generator) -> None:
    """One pair: the rollout file with Python lists, the train file with tensors."""
    import torch

    made, trained = [], []
    for i in range(samples):
        c = columns(rng)
        made.append(
            {"index": i, "group_index": i // 8, "tokens": c["ids"].tolist(), "response_length": LENGTH, "reward": 1.0,
             "loss_mask": [1] * LENGTH, "weight_versions": [str(step)], "rollout_log_probs": c["rollout"].tolist(),
             "status": "completed", "prompt": "p", "response": "r", "metadata": {}}
        )  # fmt: skip
        trained.append(
            {"data_parallel_rank": 0, "rollout_position": i, "tokens": torch.from_numpy(c["ids"]),
             "response_lengths": LENGTH, "log_probs": torch.from_numpy(c["trainer"]),
             "advantages": torch.full((LENGTH,), c["advantage"]), "loss_masks": torch.ones(LENGTH, dtype=torch.int)}
        )  # fmt: skip
    shard = {"rank": 0, "data_parallel_rank": 0, "partition": list(range(samples)), "micro_batch_indices": [[0]]}
    for name, payload in (
        ("rollout_data", {"rollout_id": step, "samples": made}),
        ("train_data", {"format_version": 2, "rollout_id": step, "rank": 0, "samples": trained, "dp_shards": [shard]}),
    ):
        (folder / name).mkdir(exist_ok=True)
        torch.save(payload, folder / name / f"{step}.pt")


def skyrl(folder: Path, step: int, samples: int, rng: np.random.Generator) -> None:
    """One dumped batch, all rows of one length."""
    import torch
    from dump_skyrl import HOME, TrainingInputBatch, _rebuild_tensor_batch
    from pickled_as import pretending

    made = [columns(rng) for _ in range(samples)]
    batch = TrainingInputBatch(
        {
            "sequences": torch.from_numpy(np.stack([c["ids"] for c in made])),
            "attention_mask": torch.ones(samples, PROMPT + LENGTH, dtype=torch.int64),
            "response_mask": torch.ones(samples, LENGTH, dtype=torch.int64),
            "loss_mask": torch.ones(samples, LENGTH),
            "rollout_logprobs": torch.from_numpy(np.stack([c["rollout"] for c in made])),
            "action_log_probs": torch.from_numpy(np.stack([c["trainer"] for c in made])),
            "advantages": torch.from_numpy(np.stack([np.full(LENGTH, c["advantage"], np.float32) for c in made])),
        },
        {"pad_size": 0, "policy_prompt_boundaries": [(0, samples)]},
    )
    with (
        pretending(HOME, _rebuild_tensor_batch=_rebuild_tensor_batch, TrainingInputBatch=TrainingInputBatch),
        (folder / f"global_step_{step}_training_input.pkl").open("wb") as out,
    ):
        pickle.dump(batch, out)


# format: its writer and about how many bytes a sample takes
FORMATS: dict[str, tuple[Callable[[Path, int, int, np.random.Generator], None], int]] = {
    "nemo-rl": (nemo_rl, 190_000), "slime": (slime, 142_000), "skyrl": (skyrl, 148_000),
}  # fmt: skip


def measure(name: str, megabytes: float, files: int) -> dict[str, float]:
    """Write a dump of about `megabytes` in `files` files, import it in a process of its own, remove both."""
    samples = max(1, round(megabytes * 1e6 / files / FORMATS[name][1]))
    with tempfile.TemporaryDirectory() as folder:
        dump = Path(folder) / "dump"
        dump.mkdir()
        subprocess.run([sys.executable, __file__, "--write", name, str(dump), str(files), str(samples)], check=True)
        size = sum(p.stat().st_size for p in dump.rglob("*") if p.is_file()) / 1e6
        command = [sys.executable, "-c", CHILD, str(dump), str(Path(folder) / "run")]
        said = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        run = sum(p.stat().st_size for p in (Path(folder) / "run").rglob("*") if p.is_file()) / 1e6
        shutil.rmtree(dump)
    return {"mb": size, "files": files, "run_mb": run, **{k: said[k] for k in ("seconds", "cpu", "peak_mb", "tokens")}}


def write_dump(name: str, folder: str, files: str, samples: str) -> None:
    """A dump of `files` files with `samples` samples each."""
    rng = np.random.default_rng(0)
    for step in range(1, int(files) + 1):
        FORMATS[name][0](Path(folder), step, int(samples), rng)


def main() -> int:
    """Print a line an import and the projection; 1 where it passes the limit."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=float, default=800.0)
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--only", default=",".join(FORMATS))
    parser.add_argument("--write", nargs=4, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.write:
        write_dump(*asked.write)
        return 0
    failed = False
    for name in asked.only.split(","):
        small = measure(name, asked.megabytes / 2, asked.files // 2)
        large = measure(name, asked.megabytes, asked.files)
        coarse = measure(name, asked.megabytes, asked.files // 4)
        for what, m in (("half", small), ("whole", large), ("whole, files 4 times as large", coarse)):
            print(
                f"{name}, {what}: {m['mb']:.0f} MB in {m['files']} files, {m['tokens'] / 1e6:.1f} M tokens: "
                f"{m['seconds']:.1f} s ({m['cpu']:.1f} s of CPU), {m['mb'] / m['cpu']:.0f} MB and "
                f"{m['tokens'] / m['cpu'] / 1e6:.2f} M tokens a CPU-second, peak {m['peak_mb']:.0f} MB, run "
                f"{m['run_mb']:.0f} MB",
                flush=True,
            )
        slope = max(0.0, (large["peak_mb"] - small["peak_mb"]) / (large["mb"] - small["mb"]))
        projected = large["peak_mb"] + slope * (TEN_GB - large["mb"])
        by_file = (coarse["peak_mb"] - large["peak_mb"]) / (
            coarse["mb"] / coarse["files"] - large["mb"] / large["files"]
        )
        print(
            f"{name}: {slope * 1000:.0f} MB more a GB of dump, so {projected:.0f} MB at 10 GB with files of this size; "
            f"{by_file:.2f} MB more a MB of file"
        )
        failed |= projected > LIMIT_MB
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
