"""The comparability gate: rules that say whether a mismatch number of this run means anything at all.

`run_checks(run)` judges every rule of the fault list that needs no replay (kinds 1 to 13, 29, 30 and three of dumps)
and gives a `Report`. What each failure means:

- error, not comparable: integrity (what spoils pairs), non-finite, placeholder, units, off-by-one, inserted-token,
  different-inputs, temperature-one-sided, logprob-divided-by-temperature, top-p- and top-k-renormalisation, penalties,
  zero-filled-old, old-copies-rollout (every step), storage-dtype where the mismatch is below the rounding; and, without
  a rule of its own, weights that no log-prob of the sampled tokens has (validity.py), or no columns to compare.
- warning, comparable: integrity (versions, ranks, dropped parts, rows an importer left out), storage-dtype above its
  rounding, placeholders outside the loss, old-copies-rollout in some steps, estimator-artefact, outlier-sequences,
  truncated-dump.
"""

from timscope.analysis.check.gate import RULES, run_checks
from timscope.analysis.check.report import Report, Rule

__all__ = ["RULES", "Report", "Rule", "run_checks"]
