"""ROLL's rollout mock dumps (rollout_mock.mode=dump): {dump_dir}/train/step_{N:06d}.pkl, a pickled DataProto a step.

`input_ids` (B, T) is padded on the right; `infer_logprobs` (B, T-1) holds in column j the log-prob of token j+1. There
are no trainer log-probs and no advantages yet.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from timscope.data.errors import BadInput
from timscope.data.importers.base import Findings, Format, Part
from timscope.data.importers.columns import Row, parts
from timscope.data.importers.files import OpenFile, note_unread, open_dump
from timscope.data.importers.step_files import note_gaps, numbered
from timscope.data.importers.suspects import scored
from timscope.data.importers.tensordicts import TENSORDICT, DataProto, data_proto, rows_of
from timscope.data.importers.unpickle import load_pickle
from timscope.data.manifest import Framework, Sampling

_NAME = re.compile(r"step_(\d{6,})\.pkl")
_HOMES = ("roll.distributed.scheduler.protocol", "verl.protocol")
_SAMPLING = {
    "temperature": "temperature", "top_p": "top_p", "top_k": "top_k", "min_p": "min_p",
    "repetition_penalty": "repetition_penalty", "max_new_tokens": "max_tokens",
}  # fmt: skip


def _files(path: Path) -> list[tuple[int, Path]]:
    if path.is_file():
        match = _NAME.fullmatch(path.name)
        return [(int(match[1]), path)] if match else []
    return numbered(path, _NAME) or numbered(path / "train", _NAME)


def detect(path: Path) -> bool:
    """Whether `path` is ROLL's dump_dir, its train folder, or one step's file."""
    return bool(_files(path))


def read(path: Path, findings: Findings, facts: dict[str, Any]) -> Iterator[Part]:
    """See `Format.read`. Validation rollouts are left out."""
    files = _files(path)
    if not files:
        raise BadInput(f"{path} holds no step_N.pkl: give ROLL's rollout_mock.dump_dir")
    facts["framework"] = Framework(name="roll")
    note_gaps((step for step, _ in files), findings)
    if held_out := numbered(path / "val", _NAME) if path.is_dir() else []:
        findings.note("not-imported", "evaluation rollouts are left out", len(held_out), first=held_out[0][1].name)
    for step, file in files:
        batch, opened = open_dump(file, findings, load=_load)
        if batch is None or opened is None:
            continue
        _sampling(batch["meta"], facts)
        for part in parts(step, _rows(batch["columns"], opened, findings), findings):
            yield part
            opened.forget()
        note_unread(opened, findings=findings)


def _load(file: OpenFile) -> dict[str, Any]:
    name = file.path.name
    names = {**TENSORDICT, **{(home, "DataProto"): data_proto(name, file.unknown) for home in _HOMES}}
    batch = load_pickle(file.view, name, names, file.unknown)
    if not isinstance(batch, DataProto):
        raise BadInput(f"{file.path} holds no DataProto: give the file that ROLL's rollout mock dumped")
    return {"columns": batch.columns, "meta": batch.meta}


def _sampling(meta: Mapping[str, Any], facts: dict[str, Any]) -> None:
    """The sampling parameters, where the batch carries its generation config."""
    config = meta.get("generation_config")
    if isinstance(config, dict) and "sampling" not in facts:
        said = {
            ours: config[theirs] for theirs, ours in _SAMPLING.items() if isinstance(config.get(theirs), int | float)
        }
        if said:
            facts["sampling"] = Sampling.model_validate(said)


def _rows(columns: Mapping[str, Any], file: OpenFile, findings: Findings) -> Iterator[Row]:
    block = {name: columns.get(name) for name in ("input_ids", "attention_mask", "response_mask", "infer_logprobs")}
    for name, value in block.items():
        if value is None and name != "infer_logprobs":
            raise BadInput(f"{file.path} has no {name}: it is no rollout batch of ROLL")
    ids, real, response = (np.asarray(block[n]) for n in ("input_ids", "attention_mask", "response_mask"))
    said = None if block["infer_logprobs"] is None else np.asarray(block["infer_logprobs"])
    if said is not None and said.shape != (len(ids), ids.shape[1] - 1):
        raise BadInput(
            f"{file.path}: infer_logprobs is {said.shape} where input_ids is {ids.shape}: one column less is expected, "
            "so this is another version of ROLL"
        )
    scores, prompts = (rows_of(columns.get(name), len(ids)) for name in ("scores", "prompt_id"))
    for index in range(len(ids)):
        logprobs = None if said is None else said[index]
        row = _row(ids[index], real[index] != 0, response[index] != 0, logprobs, f"{file.path.name} row {index}")
        if scores is not None:
            row.reward = float(np.asarray(scores[index], np.float64).sum())
        if prompts is not None:
            row.group_id = str(np.asarray(prompts[index]).item())
        yield row


def _row(
    ids: NDArray[Any], real: NDArray[np.bool_], response: NDArray[np.bool_], logprobs: NDArray[Any] | None, place: str
) -> Row:
    """One row (T,) of the batch; the response begins at its first sampled token and goes on to the last real one."""
    there = np.flatnonzero(real)
    begin = np.flatnonzero(response & real)
    split = int(np.searchsorted(there, begin[0])) if len(begin) else len(there)
    at = there[split:]
    row = Row(place=place, prompt_ids=ids[there[:split]], token_ids=ids[at], mask=response[at])
    row.pad_left = int(there[0]) if len(there) else len(ids)
    row.pad_right = int(len(ids) - 1 - there[-1]) if len(there) else 0
    if logprobs is not None:
        by_token = np.concatenate([[0.0], logprobs.astype(np.float64)])  # column j scores token j + 1
        values = np.ma.array(by_token[at], mask=at == 0)
        row.rollout_logprob = scored(values if (at == 0).any() else values.data, row.mask)
    return row


FORMAT = Format("roll-pickle", "ROLL rollout_mock dump", "T2", detect, read)
