"""Writes the large dumps that bench_import.py imports, one file of one step a call."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import orjson

sys.path.insert(0, str(Path(__file__).parents[1] / "data" / "importers"))

LENGTH, PROMPT, VOCABULARY = 4000, 400, 150_000


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


def in_memory(samples: int, rng: np.random.Generator) -> list[Any]:
    """Samples as the writers of the tests take them."""
    from samples import Sample

    made = []
    for c in (columns(rng) for _ in range(samples)):
        ids = c["ids"].tolist()
        flat = [c["advantage"]] * LENGTH
        logprobs = [c["rollout"].tolist(), c["trainer"].tolist()]
        made.append(Sample(ids[:PROMPT], ids[PROMPT:], [True] * LENGTH, *logprobs, flat, 1.0))
    return made


def prime_rl(folder: Path, step: int, samples: int, rng: np.random.Generator) -> None:
    """One rank's export."""
    import dump_prime_rl

    dump_prime_rl.write(folder, step, [in_memory(samples, rng)])


def verl_batch(folder: Path, step: int, samples: int, rng: np.random.Generator) -> None:
    """One tq_batch.pt."""
    import dump_verl

    dump_verl.save(dump_verl.payload(in_memory(samples, rng), step), folder)


def roll(folder: Path, step: int, samples: int, rng: np.random.Generator) -> None:
    """One pickled DataProto."""
    import dump_roll

    dump_roll.write_roll(folder, {step: in_memory(samples, rng)})


def verl_text(folder: Path, step: int, samples: int, rng: np.random.Generator) -> None:
    """One step of rollout_data_dir: texts alone."""
    import dump_text

    dump_text.verl(folder, step, [dump_text.Text(*texts(rng), 1.0, i // 8) for i in range(samples)])


def trl(folder: Path, step: int, samples: int, rng: np.random.Generator) -> None:
    """One parquet file of completions: texts alone."""
    import polars as pl

    prompts, completions = zip(*(texts(rng) for _ in range(samples)), strict=True)
    frame = {"step": [step] * samples, "prompt": prompts, "completion": completions, "reward": [1.0] * samples}
    frame["advantage"] = rng.normal(size=samples).tolist()
    (folder / "completions").mkdir(exist_ok=True)
    pl.DataFrame(frame).write_parquet(folder / "completions" / f"completions_{step:05d}.parquet")


def texts(rng: np.random.Generator) -> tuple[str, str]:
    """A prompt and a completion of about LENGTH words that compress no better than words do."""
    letters = rng.integers(97, 123, 5 * (PROMPT + LENGTH)).astype(np.uint8).tobytes().decode()
    return letters[: 5 * PROMPT], letters[5 * PROMPT :]


# format: its writer and about how many bytes a sample takes
FORMATS = {
    "nemo-rl": (nemo_rl, 190_000), "slime": (slime, 142_000), "skyrl": (skyrl, 148_000),
    "prime-rl": (prime_rl, 560_000), "verl-batch": (verl_batch, 120_000), "roll": (roll, 110_000),
    "verl-jsonl": (verl_text, 22_000), "trl-parquet": (trl, 15_000),
}  # fmt: skip
