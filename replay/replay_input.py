"""What a replay needs from a run, read and checked before any weights are loaded: steps, sequences, temperature."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from timscope.data import BadInput, Run


@dataclass(frozen=True)
class StepInput:
    """One step's sequences: row numbers, prompts and completions as token ids, in the same order."""

    step: int
    sequences: list[int]
    prompts: list[list[int]]
    completions: list[list[int]]

    @property
    def tokens(self) -> int:
        """Response tokens to score."""
        return sum(map(len, self.completions))

    def only(self, sequences: Sequence[int]) -> StepInput:
        """The same step with these of its sequences."""
        rows = [self.sequences.index(sequence) for sequence in sequences]
        prompts, completions = ([of[i] for i in rows] for of in (self.prompts, self.completions))
        return StepInput(self.step, list(sequences), prompts, completions)


_REMEDY = "give the model that was trained"

_VERSIONS = """
SELECT step, min(v) AS low, max(v) AS high FROM (
    SELECT t.step, coalesce(t.weight_version, s.weight_version) AS v
    FROM witnesses t LEFT JOIN steps s USING (step)
) GROUP BY step ORDER BY step
"""

_SEQUENCES = """
SELECT s.step, s.sequence, any_value(s.prompt_ids) AS prompt_ids,
       list(t.token_id ORDER BY t.position) AS token_ids, min(t.position) AS first, max(t.position) AS last,
       count(*) FILTER (t.token_id IS NULL) AS unknown
FROM tokens t JOIN sequences s USING (step, sequence)
WHERE t.step = $step GROUP BY s.step, s.sequence ORDER BY s.sequence
"""


def choose_steps(run: Run, version: int | None, steps: Sequence[int] | None) -> list[int]:
    """Steps to replay: those asked for, or all that were sampled under `version` alone.

    BadInput where a step asked for is not in the run or was sampled under other weights; a run that names no versions
    has only what is asked for.
    """
    found = {row["step"]: (row["low"], row["high"]) for row in run.sql(_VERSIONS).iter_rows(named=True)}
    if not found:
        raise BadInput(f"{run.path} has no complete step to replay")
    if steps is None:
        chosen = [s for s, versions in found.items() if versions == (version, version)]
        if not chosen:
            raise BadInput(f"no step of {run.path} names weights version {version}: name the steps with --steps")
        return chosen
    for step in steps:
        if step not in found:
            raise BadInput(f"step {step} is not a complete step of {run.path}: it has {min(found)} to {max(found)}")
        low, high = found[step]
        if version is not None and low is not None and (low, high) != (version, version):
            under = f"version {low}" if low == high else f"versions {low} to {high}"
            raise BadInput(
                f"step {step} was sampled under weights {under}, and the weights at hand are version {version}: "
                "replay the steps of that version, or give the weights with --model and --allow-other-weights"
            )
    return sorted(set(steps))


def read_step(run: Run, step: int) -> StepInput:
    """A step's prompts and completions. BadInput where ids are missing or positions do not follow the prompt."""
    rows = run.sql(_SEQUENCES, params={"step": step}).to_dicts()
    where = f"step {step} of {run.path}"
    for row in rows:
        if not row["prompt_ids"] or row["unknown"]:
            what = "token" if row["prompt_ids"] else "prompt"
            raise BadInput(f"{where} lacks {what} ids: a replay needs prompt ids and token ids, record both")
        start, count = len(row["prompt_ids"]), len(row["token_ids"])
        if (row["first"], row["last"]) != (start, start + count - 1):
            raise BadInput(
                f"{where}, sequence {row['sequence']}: positions {row['first']} to {row['last']} do not follow "
                f"a prompt of {start} tokens with {count} response tokens: record every response token, masked ones too"
            )
    return StepInput(step, *([row[key] for row in rows] for key in ("sequence", "prompt_ids", "token_ids")))


def check_vocabulary(run: Run, steps: Sequence[StepInput], config: Any, tokenizer: Any | None) -> None:
    """BadInput where the model's vocabulary cannot be the one that the run's ids came from."""
    size, manifest = config.vocab_size, run.manifest
    recorded = manifest.model.vocab_size
    if recorded is not None and recorded != size:
        raise BadInput(f"the run's model has a vocabulary of {recorded}, this one has {size}: {_REMEDY}")
    if tokenizer is not None:
        if len(tokenizer) > size:
            raise BadInput(f"the tokenizer has {len(tokenizer)} tokens, the model only {size}: {_REMEDY}")
        known = manifest.tokenizer.vocab_size
        if known is not None and known != len(tokenizer):
            raise BadInput(f"the run's tokenizer has {known} tokens, this one {len(tokenizer)}: {_REMEDY}")
    for item in steps:
        ids = [i for rows in (item.prompts, item.completions) for row in rows for i in row]
        if ids and not 0 <= min(ids) <= max(ids) < size:
            wrong = max(ids) if max(ids) >= size else min(ids)
            raise BadInput(
                f"step {item.step} has token id {wrong}, outside the model's vocabulary of {size}: {_REMEDY}"
            )


def replay_temperature(run: Run) -> float:
    """Temperature of the trainer's log-probs: the witness must be of the same distribution to be compared with them.

    Whatever the mode: loggers call a trainer's column raw where nothing was truncated, and name the temperature that
    its logits were divided by.
    """
    mode = run.manifest.logprobs.get("old_logprob")
    if mode is None or mode.temperature is None:
        return 1.0
    if mode.temperature <= 0:
        raise BadInput(f"the manifest gives old_logprob a temperature of {mode.temperature}: it must be above 0")
    return mode.temperature


def local_source(run: Run, source: str) -> str:
    """A source as load_model takes it; one that names a folder inside the run is meant relative to the run."""
    inside = Path(run.path) / source
    return str(inside) if inside.exists() else source
