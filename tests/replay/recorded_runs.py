"""Recorded runs of a random tiny Qwen2, written with the real writer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from timscope.data import Manifest, RunWriter
from timscope.replay.paths import Texts
from timscope.replay.tiny import tiny_model
from timscope.replay.weights import model_digest


def record(path: Path, model_dir: Path, texts: Texts, steps: int = 2, shift: int = 0, **fields: Any) -> Path:
    """A recorded run: steps 0 and 1 sampled under version 0, later ones under 1; `shift` misplaces every position."""
    digest = model_digest(tiny_model("qwen2"))
    manifest = {
        "model": {"vocab_size": 391, "dtype": "float32", "source": str(model_dir)},
        "trainer": {"dtype": "float32"},
        "weights": [{"version": 0, "digest": digest, "source": str(model_dir)}],
        "logprobs": {"old_logprob": {"mode": "processed", "temperature": 0.7}},
        **fields,
    }
    writer = RunWriter(path, Manifest.model_validate(manifest))
    count, response = len(texts.prompts), texts.response
    for step in range(steps):
        writer.put(
            "sequences",
            step,
            {
                "sequence": np.arange(count),
                "prompt_ids": texts.prompts,
                "num_tokens": np.full(count, response),
                "weight_version": np.full(count, max(0, step - 1)),
            },
        )
        writer.put(
            "tokens",
            step,
            {
                "sequence": np.repeat(np.arange(count), response),
                "position": np.concatenate([len(p) + shift + np.arange(response) for p in texts.prompts]),
                "token_id": np.concatenate(texts.completions),
                "rollout_logprob": np.full(count * response, -1.0),
            },
        )
        writer.complete(step)
    writer.close()
    return path
