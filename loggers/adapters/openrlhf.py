"""The hook for OpenRLHF, which has neither dump nor plugin: `install()` from a sitecustomize.py.

OpenRLHF's trainer lives in a Ray worker, so a hook set in the launcher would not reach it; a sitecustomize.py on the
path is run by every Python process, the worker included (docs/loggers.md has the file). `install()` only waits for
OpenRLHF's modules. `train_step` knows the number of the step and its metrics, `make_experience_batch`, called inside
it, returns the rows before they are sharded.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np

from timscope.loggers.adapters.calls import Arguments, watch
from timscope.loggers.adapters.columns import advantages, only
from timscope.loggers.adapters.config import pick, scalars, standard
from timscope.loggers.adapters.openrlhf_facts import STEP_COLUMNS, describe, sync_version
from timscope.loggers.adapters.post_import import when_imported
from timscope.loggers.adapters.session import run_path, session
from timscope.loggers.arrays import Array, numbers, row_values
from timscope.loggers.bundle import Step

_TOKEN_COLUMNS = {
    "old_logprob": "action_log_probs",
    "ref_logprob": "base_action_log_probs",
    "rollout_logprob": "rollout_log_probs",
    "advantage": "advantages",
    "mask": "action_mask",
}
_current: list[int] = []  # the number of the step that is going on
_installed = False


def install() -> None:
    """Watch out for OpenRLHF's trainer. Does nothing without `TIMSCOPE_RUN`; calling it twice is the same as once."""
    global _installed
    if run_path() is not None and not _installed:
        _installed = True
        when_imported("openrlhf.trainer.ppo_trainer", hook_trainer)
        when_imported("openrlhf.trainer.ppo_utils.experience_maker", hook_maker)


def hook_trainer(module: ModuleType) -> None:
    """Hook `openrlhf.trainer.ppo_trainer`: where a step begins and ends, and its metrics."""

    def begins(call: Arguments) -> None:
        _current[:] = [int(call["global_step"]) + 1]  # what OpenRLHF logs this step as

    def ended(_call: Arguments, result: Any) -> None:
        if (recorder := session().recorder) is not None and _current:
            number, metrics = _current[0], scalars(result[0])
            recorder.begin(number).metrics({**metrics, **standard(metrics, STEP_COLUMNS)}, weight_version=number - 1)
            recorder.complete(number)

    watch(module.BasePPOTrainer, "train_step", before=begins, after=ended)


def hook_maker(module: ModuleType) -> None:
    """Hook `openrlhf.trainer.ppo_utils.experience_maker`: the rows."""

    def made(call: Arguments, experiences: Any) -> None:
        maker = call["self"]
        recorder = session().open("openrlhf", partial(describe, maker))
        if recorder is not None and _current and recorder.guard.on("rollout"):
            step, group = recorder.begin(_current[0]), int(pick(maker.args, "rollout.n_samples_per_prompt", 1))
            with recorder.guard.column("rollout"):
                read_rows(step, experiences, group, sync_version(maker.args, step.number))

    watch(module.RemoteExperienceMaker, "make_experience_batch", after=made)


def read_rows(step: Step, experiences: Sequence[Any], group: int, version: int | None) -> None:
    """Put the rows of a list of Experience into `step`.

    Layout: `sequences`, `attention_mask` (B, T) padded on the right; `action_mask` and everything per token (B, T - 1),
    where index i belongs to token i + 1. The response begins at the first action; what lies between two actions is an
    environment's and has no rollout log-prob. `group`: completions a prompt, in the order of `index`. `version`: of
    the weights that generated the rows, None where not known.
    """
    for experience in experiences:
        tokens, actions = numbers(experience.sequences), numbers(experience.action_mask).astype(bool)
        ends = numbers(experience.attention_mask).astype(bool).sum(1)
        starts = np.where(actions.any(1), actions.argmax(1) + 1, ends)
        found = {}
        for column, field in _TOKEN_COLUMNS.items():
            if (block := getattr(experience, field, None)) is not None:
                found[column] = _cut(numbers(block), starts - 1, ends - 1)
        mask = [row.astype(bool) for row in found.pop("mask")]
        rollout, advantage = found.pop("rollout_logprob", None), found.pop("advantage", None)
        index = [int(i) for i in experience.index]
        rows = step.rollout(
            prompt_ids=_cut(tokens, np.zeros_like(starts), starts),
            completion_ids=_cut(tokens, starts, ends),
            rollout_logprob=None if rollout is None else only(rollout, mask),
            sequence=index,
            uid=[f"{step.number:06d}-{i:05d}" for i in index],
            group_id=[f"{step.number:06d}-{i // group:05d}" for i in index],
            weight_version=version,
            finish_reason=_finish(experience.truncated, len(index)),
            prompt=list(experience.prompts) if len(experience.prompts or []) == len(index) else None,
        )
        step.trainer(rows=rows, mask=mask, **found)
        step.scores(
            rows=rows,
            reward=experience.rewards,
            rewards={} if experience.scores is None else {"score": experience.scores},
            advantage=None if advantage is None else advantages(advantage, mask),
        )


def _cut(block: Array, starts: Array, ends: Array) -> list[Array]:
    return [row[start:end] for row, start, end in zip(block, starts, ends, strict=True)]


def _finish(truncated: Any, rows: int) -> list[str] | None:
    """OpenRLHF keeps whether the engine ran into its token limit, not the reason itself."""
    return None if truncated is None else ["length" if cut else "stop" for cut in row_values(truncated, rows)]
