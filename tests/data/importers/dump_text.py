"""Writes the text dumps: verl's rollout_data_dir, AReaL's rollout folder, ROLL's columns and logging board."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from samples import Sample


@dataclass
class Text:
    """One sample of a text dump."""

    prompt: str
    completion: str
    reward: float
    group: int = 0
    extra: dict[str, Any] = field(default_factory=dict)


def texts() -> st.SearchStrategy[Text]:
    """Any text that JSON can hold, line breaks and lone surrogates left to tests of their own."""
    words = st.text(st.characters(codec="utf-8"), max_size=12)
    number = st.one_of(st.floats(-9, 9, width=32), st.just(float("nan")))
    return st.builds(Text, words, words, number, st.integers(0, 3))


def _lines(path: Path, records: Sequence[Mapping[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in records), encoding="utf-8")
    return path


def verl(folder: Path, step: int, written: Sequence[Text], *, v1: bool = True) -> Path:
    """{step}.jsonl: V1 adds uid, the legacy trainer the reward function's extras and request_id."""
    records = []
    for i, sample in enumerate(written):
        record = {"input": sample.prompt, "output": sample.completion, "gts": "42", "score": sample.reward}
        ids = {"uid": f"p_{sample.group}_0_{i}"} if v1 else {"request_id": f"r{i}"}
        records.append({**record, "step": step, **ids, **sample.extra})
    return _lines(folder / f"{step}.jsonl", records)


def areal(folder: Path, version: int, task: int, written: Sequence[Text], rle: list[list[int]]) -> Path:
    """rollout/{version}/{task}.jsonl."""
    tokens = sum(n for _, n in rle)
    known = [v for v, _ in rle]
    records = [
        {
            "task_id": task, "sample_idx": i, "seqlen": 4 + tokens, "prompt_len": 4, "head_version": min(known),
            "tail_version": max(known), "version_rle": rle, "reward": s.reward, "prompt": s.prompt,
            "completion": s.completion, **s.extra,
        }
        for i, s in enumerate(written)
    ]  # fmt: skip
    return _lines(folder / "rollout" / str(version) / f"{task}.jsonl", records)


def roll_columns(folder: Path, step: int, written: Sequence[Text]) -> Path:
    """rollout_dump_data.step_{N}.jsonl of the RLVR pipeline: one line, a list a column."""
    meta = {"generation_config": {"temperature": 0.75, "top_p": 0.5, "top_k": 50, "max_new_tokens": 9}}
    columns = {
        "global_step": [step] * len(written),
        "id": [str(s.group) for s in written],
        "prompt": [s.prompt for s in written],
        "responses": [s.completion for s in written],
        "scores": [s.reward for s in written],
        "sampling_params": [json.dumps(meta)] * len(written),
    }
    return _lines(folder / f"rollout_dump_data.step_{step}.jsonl", [columns])


def roll_board(folder: Path, step: int, written: Sequence[Sample], *, second: int = 0, gap: float = 0.0) -> Path:
    """data_{date}_{time}_{ms}.jsonl: from the first response token to the end of the padded row."""
    width = max(len(s.response) for s in written) + 2
    records = []
    for sample in written:
        pad = width - len(sample.response)
        old = [*sample.trainer, *[-99.0] * pad]
        records.append(
            {
                "log_probs2": [v + gap for v in old],
                "logprobs": old,
                "new_response_mask": [*map(int, sample.sampled), *[0] * pad],
                "prompt": "<pad>ask",
                "response": "answer",
                "old_log_probs2_entropy": [*map(float, range(len(sample.response))), *[0.0] * pad],
                "ref_logprobs": [v - 1.0 for v in old],
                "values": [0.0] * width,
                "token_rewards": [0.0] * width,
                "reward": sample.reward,
                "step": step,
                "response_tokens": ["a"] * width,
            }
        )
    return _lines(folder / f"data_20260101_0000{second:02d}_{step:03d}.jsonl", records)
