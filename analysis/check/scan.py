"""One pass over the tokens: every collector sees every chunk once."""

from __future__ import annotations

from dataclasses import dataclass, field

from timscope.analysis.check.artefacts import MaskedAdvantages
from timscope.analysis.check.copies import Copies
from timscope.analysis.check.ids import ByToken
from timscope.analysis.check.lag_scan import LagScan
from timscope.analysis.check.mask_scan import MaskScan
from timscope.analysis.check.pairs import Pairs
from timscope.analysis.check.plan import Plan
from timscope.analysis.check.profile import Profile
from timscope.analysis.check.reading import chunks
from timscope.analysis.check.structure import Structure
from timscope.analysis.check.sums import Sums
from timscope.analysis.check.thinned import Thinned
from timscope.analysis.check.values import Values
from timscope.data import Run


@dataclass
class Log:
    """What does not depend on which tokens are compared: collected in the first pass alone."""

    structure: Structure
    copies: Copies = field(default_factory=Copies)
    mask: MaskScan = field(default_factory=MaskScan)
    masked_advantages: MaskedAdvantages = field(default_factory=MaskedAdvantages)


@dataclass
class Compared:
    """What depends on the plan: collected again after a repair."""

    values: Values
    sums: Sums = field(default_factory=Sums)
    lags: LagScan = field(default_factory=LagScan)
    sample: Thinned = field(default_factory=Thinned)
    ids: ByToken = field(default_factory=ByToken)
    profile: Profile = field(default_factory=Profile)


def scan(run: Run, there: dict[str, int], plan: Plan, log: Log | None = None) -> Compared:
    """Read the tokens once; fills `log` too where one is given. Memory: two chunks and a few numbers a sequence."""
    found = Compared(Values(plan))
    for chunk in chunks(run, there):
        if log is not None:
            log.structure.add(chunk)
            log.copies.add(chunk)
            log.mask.add(chunk)
            log.masked_advantages.add(chunk)
        found.values.add(chunk)
        pairs = Pairs(chunk, plan)
        if plan.trainer is None or not len(pairs):
            continue
        found.sums.add(pairs)
        found.lags.add(pairs, plan)
        found.sample.add(pairs)
        found.ids.add(pairs)
        found.profile.add(pairs)
    return found
