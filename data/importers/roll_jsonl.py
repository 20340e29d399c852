"""ROLL's two JSON dumps: `rollout_dump_data.step_{N}.jsonl` (text, T1) and the logging board's `data_*.jsonl`.

The first is one line a step, a list a column. Of the RLVR pipeline: prompt, responses, scores (the reward) and id (the
prompt's, so it is the group). Of the agentic pipeline: messages and trajectory_data as JSON text; the leading messages
that no assistant wrote are the prompt, and `episode_reward` is the reward. Neither has token ids or log-probs. The
second is in `roll_board`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from timscope.data.errors import BadInput
from timscope.data.importers.base import ROW_FAULTS, Findings, Format, Part
from timscope.data.importers.columns import Row, parts
from timscope.data.importers.json_values import text
from timscope.data.importers.jsonl import described, lines
from timscope.data.importers.numbers import number
from timscope.data.importers.roll_board import board_files, read_board
from timscope.data.importers.step_files import note_gaps, numbered
from timscope.data.manifest import Framework, Sampling

_FILE = re.compile(r"rollout_dump_data\.step_(\d+)\.jsonl(?:\.gz)?")
_SAMPLING = {
    "temperature": "temperature", "top_p": "top_p", "min_p": "min_p", "repetition_penalty": "repetition_penalty"
}  # fmt: skip


def _files(path: Path) -> list[tuple[int, Path]]:
    if path.is_file():
        match = _FILE.fullmatch(path.name)
        return [(int(match[1]), path)] if match else []
    return numbered(path, _FILE)


def detect(path: Path) -> bool:
    """A file or folder of either dump, by name."""
    return bool(_files(path)) or bool(board_files(path))


def read(path: Path, findings: Findings, facts: dict[str, Any]) -> Iterator[Part]:
    """All steps in order; see `Format.read`. BadInput where both dumps, of the same samples, lie in one folder."""
    files, board = _files(path), board_files(path)
    if files and board:
        raise BadInput(f"{path} holds rollout_dump_data.* and data_*.jsonl of the same steps: move one kind elsewhere")
    if not files and not board:
        raise BadInput(f"{path} holds no rollout_dump_data.step_N.jsonl: give the folder that rollout_dump_dir named")
    facts["framework"] = Framework(name="roll")
    if board:
        yield from read_board(board, findings)
        return
    note_gaps((step for step, _ in files), findings)
    for step, file in files:
        yield from parts(step, _rows(file, findings, facts), findings)


def _rows(file: Path, findings: Findings, facts: dict[str, Any]) -> Iterator[Row]:
    base = 0
    for line in lines(file, findings):
        columns = {name: values for name, values in line.data.items() if isinstance(values, list)}
        lengths = {len(values) for values in columns.values()}
        if len(lengths) != 1 or not columns.keys() & {"responses", "messages", "trajectory_data"}:
            findings.note(
                "integrity", "lines that are not columns of one length are left out", place=line.place,
                lengths={name: len(values) for name, values in columns.items()},
            )  # fmt: skip
            continue
        for i in range(rows := lengths.pop()):
            sample = {name: values[i] for name, values in columns.items()}
            try:
                row = _row(sample, findings, f"{line.place}[{i}]")
            except ROW_FAULTS as error:
                findings.note("integrity", "samples that cannot be read are left out", error=described(error))
                continue
            row.sequence = base + i
            if "sampling" not in facts and (sampling := _sampling(sample.get("sampling_params"))):
                facts["sampling"] = sampling
            yield row
        base += rows


def _row(sample: dict[str, Any], findings: Findings, place: str) -> Row:
    row = Row(place=place, reward=number(sample.get("scores"), findings, "scores", place))
    if "responses" in sample:
        row.prompt, row.completion = text(sample.get("prompt")), text(sample["responses"])
        row.group_id = None if sample.get("id") is None else str(sample["id"])
        return row
    messages, trajectory = _json(sample.get("messages")), _json(sample.get("trajectory_data"))
    if isinstance(messages, list):
        roles = [m.get("role") if isinstance(m, dict) else None for m in messages]
        first = roles.index("assistant") if "assistant" in roles else len(roles)
        row.prompt, row.completion, row.turns = text(messages[:first]), text(messages[first:]), roles.count("assistant")
    if isinstance(trajectory, dict):
        reward = (trajectory.get("reward_info") or {}).get("episode_reward")
        row.uid = text(trajectory.get("trajectory_id"))
        row.reward = number(reward, findings, "episode_reward", place)
    return row


def _json(value: Any) -> Any:
    """JSON text as its value; None where it is none."""
    try:
        return orjson.loads(value) if isinstance(value, str) else value
    except orjson.JSONDecodeError:
        return None


def _sampling(value: Any) -> Sampling | None:
    """Sampling parameters out of the batch's meta_info, where they are there as numbers."""
    meta = _json(value)
    config = meta.get("generation_config", meta) if isinstance(meta, dict) else None
    if not isinstance(config, dict):
        return None
    known = {ours: config[theirs] for ours, theirs in _SAMPLING.items() if isinstance(config.get(theirs), int | float)}
    whole = {"top_k": config.get("top_k"), "max_tokens": config.get("max_new_tokens")}
    known |= {name: v for name, v in whole.items() if isinstance(v, int) and v > 0}
    return Sampling(**known) if known else None


FORMAT = Format("roll-jsonl", "ROLL rollout_dump_data and logging board", "T1", detect, read)
