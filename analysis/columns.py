"""Names of witness columns, checked before they go into SQL, and the short letters that people call them by."""

from __future__ import annotations

from timscope.data import BadInput
from timscope.data.schema import LOGPROB_COLUMNS, REPLAY_COLUMNS

ROLLOUT, RESCORE, TRAINER, LOSS, EXACT = (
    "rollout_logprob",
    "rescore_logprob",
    "old_logprob",
    "loss_logprob",
    "exact_logprob",
)

LETTERS = {"A": ROLLOUT, "B": RESCORE, "C": TRAINER, "N": LOSS, "Z": EXACT}

WITNESSES = (*LOGPROB_COLUMNS, *(c for c in REPLAY_COLUMNS.values() if c not in LOGPROB_COLUMNS))


def witness(name: str) -> str:
    """The column of a witness given by column name or letter (A, B, C, N, Z). BadInput for anything else."""
    column = LETTERS.get(name, name)
    if column not in WITNESSES:
        choices = f"{', '.join(WITNESSES)} or a letter of {', '.join(LETTERS)}"
        raise BadInput(f"{name!r} is no log-prob column: use one of {choices}")
    return column
