"""The hook for slime: `--rollout-data-postprocess-path timscope.loggers.adapters.slime.record` and `TIMSCOPE_RUN`.

slime calls it on every rank once a rollout, after old log-probs and advantages and before training. The ranks of a data
parallel group hold the same rows: the one on the last pipeline stage (only it has log-probs), first of the tensor and
context parallel ranks, writes them, as rank r of the data parallel size. slime's numbers are kept: step = rollout id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

from timscope.loggers.adapters.columns import advantages, gathered, sampled
from timscope.loggers.adapters.session import session
from timscope.loggers.adapters.slime_facts import describe
from timscope.loggers.bundle import Step
from timscope.loggers.recorder import Recorder

_TRAINER_COLUMNS = {"old_logprob": "log_probs", "ref_logprob": "ref_log_probs", "entropy": "entropy"}
_SPLIT = "each context parallel rank holds a part of every sequence: use --dump-details and `timscope import`"


@dataclass(frozen=True)
class Place:
    """Which share of the batch this process holds, and whether it is the one that writes it."""

    rank: int = 0
    world_size: int = 1
    writes: bool = True
    context_parallel: int = 1


def place() -> Place:
    """From Megatron's parallel state, or from torch.distributed where there is none."""
    mpu: Any = None
    with suppress(ImportError):
        mpu = import_module("megatron.core").mpu
    if mpu is not None and mpu.model_parallel_is_initialized():
        first = mpu.get_tensor_model_parallel_rank() == 0 and mpu.get_context_parallel_rank() == 0
        return Place(
            rank=mpu.get_data_parallel_rank(with_context_parallel=False),
            world_size=mpu.get_data_parallel_world_size(with_context_parallel=False),
            writes=first and mpu.is_pipeline_last_stage(ignore_virtual=True),
            context_parallel=mpu.get_context_parallel_world_size(),
        )
    import torch

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return Place(torch.distributed.get_rank(), torch.distributed.get_world_size())
    return Place()


def record(args: Any, rollout_id: int, rollout_data: Mapping[str, Any]) -> None:
    """Record one rollout batch; changes nothing in it. Does nothing without `TIMSCOPE_RUN`."""
    session().attempt("slime", partial(_record, args, rollout_id, rollout_data))


def _record(args: Any, rollout_id: int, data: Mapping[str, Any]) -> None:
    here = place()
    if not here.writes:
        return
    recorder = session().open("slime", partial(describe, args), rank=here.rank, world_size=here.world_size)
    if recorder is None:
        return
    step = recorder.begin(int(rollout_id))
    if here.context_parallel > 1:
        _without_split_columns(recorder)
    if recorder.guard.on("rollout"):
        with recorder.guard.column("rollout"):
            read_rows(step, data, _group_size(args, data), split=here.context_parallel > 1)
    recorder.complete(int(rollout_id))


def _without_split_columns(recorder: Recorder) -> None:
    for column in ("rollout_logprob", "advantage", *_TRAINER_COLUMNS):
        recorder.guard.turn_off(column, _SPLIT)


def _group_size(args: Any, data: Mapping[str, Any]) -> int | None:
    """Completions a prompt, where the whole batch consists of full groups (slime's own rewards rely on the same)."""
    count, prompts = getattr(args, "n_samples_per_prompt", None), getattr(args, "rollout_batch_size", None)
    return count if count and prompts and len(data.get("raw_reward") or ()) == count * prompts else None


def read_rows(step: Step, data: Mapping[str, Any], group: int | None, *, split: bool = False) -> None:
    """Put the rows of slime's rollout data into `step`.

    Layout: one 1-D tensor a sample; `tokens` hold prompt and response, everything else the response alone: index i
    belongs to token i of the last `response_lengths`. `partition` numbers the samples over all ranks. `split`: with
    context parallelism only tokens, masks and rewards are whole.
    """
    lengths = [int(n) for n in data["response_lengths"]]
    tokens, masks = gathered(data["tokens"]), [row.astype(bool) for row in gathered(data["loss_masks"])]
    position = [int(p) for p in data.get("partition", range(len(lengths)))]
    label = f"{step.number:06d}"

    def column(name: str) -> Any:
        values = data.get(name)
        return None if values is None or split else gathered(values)

    rollout, advantage = column("rollout_log_probs"), column("advantages")
    rows = step.rollout(
        prompt_ids=[row[: len(row) - n] for row, n in zip(tokens, lengths, strict=True)],
        completion_ids=[row[len(row) - n :] for row, n in zip(tokens, lengths, strict=True)],
        sequence=position,
        uid=[f"{label}-{p:05d}" for p in position],
        group_id=None if group is None else [f"{label}-{p // group:05d}" for p in position],
        rollout_logprob=None if rollout is None else sampled(rollout, masks),
        weight_version=_versions(data.get("weight_versions")),
        finish_reason=_finish(data.get("truncated")),
    )
    step.trainer(
        rows=rows,
        mask=masks,
        micro_batch=_micro_batch(data.get("micro_batch_indices"), len(lengths)),
        **{name: column(field) for name, field in _TRAINER_COLUMNS.items()},
    )
    raw = data.get("local_raw_reward")
    if raw is None and data.get("raw_reward") is not None:
        raw = [data["raw_reward"][p] for p in position]
    step.scores(rows=rows, reward=raw, advantage=None if advantage is None else advantages(advantage, masks))


def _micro_batch(indices: Sequence[Sequence[int]] | None, rows: int) -> list[int | None] | None:
    """The number of the micro-batch that each local row is in, counted over all training steps of the rollout."""
    if indices is None:
        return None
    where = {int(row): number for number, chosen in enumerate(indices) for row in chosen}
    return [where.get(row) for row in range(rows)]


def _versions(versions: Sequence[Sequence[Any]] | None) -> list[int | None] | None:
    """One list a sample, an entry a generated segment. slime keeps them where it samples; one that sends them along to
    the trainer under their own name is understood."""
    if versions is None:
        return None
    return [int(next(iter(set(said)))) if len(set(said)) == 1 else None for said in versions]


def _finish(truncated: Any) -> list[str] | None:
    return None if truncated is None else ["length" if cut else "stop" for cut in truncated]
