"""Which two columns are compared: before the tokens are read by what is there, afterwards by what turned out fake."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from timscope.analysis.check.copies import Copies
from timscope.analysis.check.dump import Notes, copied_old, zero_filled_old
from timscope.analysis.check.facts import Declared, declared, vocabulary
from timscope.analysis.check.placeholders import zero_limit
from timscope.analysis.check.plan import Plan
from timscope.analysis.check.reading import present
from timscope.analysis.check.report import Rule
from timscope.analysis.columns import LOSS, ROLLOUT, TRAINER
from timscope.analysis.faults import by_step, copied_steps
from timscope.data import Run


@dataclass(frozen=True)
class Source:
    """The pair and what the manifest says of it.

    `there` counts the values of each column. `trainer` is old_logprob, or loss_logprob where that is absent or in every
    step fake, or None. `missing` names columns without which nothing can be compared.
    """

    there: dict[str, int]
    trainer: str | None
    declared: Declared
    plan: Plan

    @property
    def missing(self) -> tuple[str, ...]:
        """Columns without a value."""
        absent = tuple(name for name in (ROLLOUT, "mask") if not self.there[name])
        return absent if self.trainer else (*absent, TRAINER)


def source(run: Run) -> Source:
    """The pair by what is there."""
    there = present(run)
    trainer = next((c for c in (TRAINER, LOSS) if there[c]), None)
    said = declared(run.manifest, trainer or TRAINER)
    plan = Plan(trainer=trainer if there[ROLLOUT] else None, zero_limit=zero_limit(said), fillers=_fillers(run))
    return Source(there, trainer, said, plan)


def without_fakes(run: Run, chosen: Source, copies: Copies, notes: Notes) -> tuple[Source, Rule, Rule]:
    """The pair once the tokens were seen, and the rules zero-filled-old and old-copies-rollout.

    Steps whose old log-probs are no measurement do not count; where all are such, loss_logprob is compared, or nothing.
    """
    steps = copies.by_step()
    if run.replays and copied_steps(steps).height:
        steps = by_step(run)  # an exact replay can show that two engines agree
    loss = LOSS if chosen.there[LOSS] else None
    zero, zeros = zero_filled_old(steps, notes, loss)
    copied, copied_in = copied_old(run, steps, notes, loss)
    fake = frozenset((zeros if zero.passed is False else []) + (copied_in if copied.passed is False else []))
    if not fake:
        return chosen, zero, copied
    if len(fake) < steps.height:
        return replace(chosen, plan=replace(chosen.plan, fake_steps=fake)), zero, copied
    said = declared(run.manifest, loss or TRAINER)
    return replace(chosen, trainer=loss, declared=said, plan=replace(chosen.plan, trainer=loss)), zero, copied


def _fillers(run: Run) -> tuple[float, ...]:
    """-1 and, where the vocabulary is known, log(1 / vocabulary)."""
    sizes = {run.manifest.model.vocab_size, vocabulary(run.manifest)}
    return (-1.0, *(-math.log(n) for n in sizes if n and n > 1))


def no_pair(name: str, missing: tuple[str, ...]) -> Rule:
    """The answer of a rule that compares, where there is nothing to compare."""
    return Rule(name, None, f"needs {', '.join(missing)}", {"missing": list(missing)})
