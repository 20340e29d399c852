"""NeMo-RL: `train_data_step{N}.jsonl`, written by default at every step, one line a sample.

Layout: every value of a line is a batch of one, so it lies in a list of length 1. Per-token lists cover prompt and
response, padded on the right to the batch; `input_lengths` says where the padding starts. Log-prob i scores token i,
and column 0 is unused. The prompt ends before the first generated token (the first 1 of `token_loss_mask`); whatever
follows is response, with tool and user turns masked out.

Frameworks write 0.0 where the engine sampled nothing: outside `token_loss_mask` an exact 0.0 is therefore missing
(NULL); any other value there is kept. Zeros inside the mask are kept and noted. The reward is `filtered_rewards` where
dynamic sampling wrote it: `rewards` is then the pool before filtering, whose rows are not those of the line. Groups and
weight versions are not in the dump.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from timscope.data.errors import BadInput
from timscope.data.importers.base import Findings, Format, Part
from timscope.data.importers.columns import Row, parts
from timscope.data.importers.json_values import flag_list, float_list, text
from timscope.data.importers.jsonl import Line, lines, usable
from timscope.data.importers.numbers import integers, number
from timscope.data.importers.step_files import note_gaps, numbered
from timscope.data.importers.suspects import scored
from timscope.data.importers.without_ids import hide_placeholders, placeholder_ids
from timscope.data.manifest import Algorithm, Framework

_FILE = re.compile(r"train_data_step(\d+)\.jsonl(?:\.gz)?")
_EXPERIMENT = re.compile(r"exp_(\d+)")


def _files(path: Path) -> list[tuple[int, Path]]:
    if path.is_file():
        match = _FILE.fullmatch(path.name)
        return [(int(match[1]), path)] if match else []
    return numbered(path, _FILE)


def detect(path: Path) -> bool:
    """A file of that name, a folder of them, or a log folder whose exp_NNN hold them."""
    return bool(_files(path)) or any(_files(folder) for _, folder in numbered(path, _EXPERIMENT))


def _chosen(path: Path) -> list[tuple[int, Path]]:
    if files := _files(path):
        return files
    experiments = [folder for _, folder in numbered(path, _EXPERIMENT) if _files(folder)]
    if len(experiments) != 1:
        names = ", ".join(e.name for e in experiments)
        raise BadInput(f"{path} holds {names or 'no train_data_step*.jsonl'}: give the folder of one experiment")
    return _files(experiments[0])


def read(path: Path, findings: Findings, facts: dict[str, Any]) -> Iterator[Part]:
    """All steps in order; see `Format.read`."""
    files = _chosen(path)
    note_gaps((step for step, _ in files), findings)
    facts["framework"] = Framework(name="nemo-rl")
    measured: dict[int, bool] = {}
    for step, file in files:
        rows = usable(lines(file, findings), lambda line: _row(line, findings), findings)
        for part in map(hide_placeholders, parts(step, rows, findings)):
            measured[step] = measured.get(step, False) or _old_measured(part)
            yield part
    # Where prev_logprobs were computed, the loss weighs against them.
    facts["algorithm"] = Algorithm(loss_mode="recompute" if measured and all(measured.values()) else "unknown")


def _old_measured(part: Part) -> bool:
    """Whether any old log-prob is neither zero nor the rollout's."""
    tokens = part.tables.get("tokens", {})
    old, rollout = tokens.get("old_logprob"), tokens.get("rollout_logprob")
    if old is None:
        return False
    other = (old != 0.0) if rollout is None else (old != 0.0) & (old != rollout)
    return bool(np.ma.filled(other, False).any())


def _row(line: Line, findings: Findings) -> Row:
    data, place = line.data, line.place
    reward = "filtered_rewards" if "filtered_rewards" in data else "rewards"
    row = Row(reward=number(_one(data.get(reward)), findings, reward, place))
    if data.get("token_loss_mask") is None:
        row.completion = text(_one(data.get("content")))  # a distillation run logs the text alone
        return row
    sampled = _sampled(data, findings, place)
    length = len(sampled)
    start = int(np.argmax(sampled)) if sampled.any() else length
    response = sampled[start:]
    ids = integers(_cut(data, "token_ids", 0, length, place), findings, "token_ids", place)
    kept = number(_one(data.get("sample_loss_mask")), findings, "sample_loss_mask", place)
    row.mask = response & bool(1.0 if kept is None else kept)
    row.prompt_length = start
    row.token_ids = placeholder_ids(length - start) if ids is None else ids[start:]
    row.prompt_ids = None if ids is None else ids[:start]
    row.turns = int(np.count_nonzero(np.diff(response.astype(np.int8), prepend=0) == 1))
    for name, column in (("generation_logprobs", "rollout_logprob"), ("prev_logprobs", "old_logprob")):
        values = float_list(_cut(data, name, start, length, place), findings, name, place)
        setattr(row, column, None if values is None else scored(values, response))
    row.token_advantage = float_list(_cut(data, "advantages", start, length, place), findings, "advantages", place)
    _texts(row, _one(data.get("content")), response)
    return row


def _sampled(data: dict[str, Any], findings: Findings, place: str) -> NDArray[np.bool_]:
    """token_loss_mask without the padding: which of the sequence's tokens the engine generated."""
    length = number(_one(data.get("input_lengths")), findings, "input_lengths", place)
    if length is None or length < 0:
        raise BadInput(f"{place}: input_lengths is missing or negative")
    return flag_list(_cut(data, "token_loss_mask", 0, int(length), place), findings, "token_loss_mask", place)


def _cut(data: dict[str, Any], name: str, start: int, length: int, place: str) -> Any:
    """Entries start..length of a per-token list: without prompt and padding there is less to convert."""
    values = _inner(data.get(name))
    if isinstance(values, list):
        if len(values) < length:
            raise BadInput(f"{place}: {name} has {len(values)} values where input_lengths says {length}")
        return values[start:length]
    return values


def _texts(row: Row, content: Any, response: NDArray[np.bool_]) -> None:
    """Prompt and completion text, where the roles are certain: one generated turn that ends the sequence."""
    one_turn = bool(response.all()) and len(response) > 0
    if one_turn and isinstance(content, list) and len(content) > 1 and all(isinstance(c, str) for c in content):
        row.prompt, row.completion = text("".join(content[:-1])), text(content[-1])


def _one(value: Any) -> Any:
    """A scalar or a sample's list out of its batch of one."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _inner(value: Any) -> Any:
    """A per-token list out of its batch of one; a list that was never wrapped stays."""
    return value[0] if isinstance(value, list) and len(value) == 1 and isinstance(value[0], list) else value


FORMAT = Format("nemo-rl", "NeMo-RL train_data_step*.jsonl", "T3", detect, read)
