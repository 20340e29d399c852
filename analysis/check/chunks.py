"""The tokens of a run as numpy arrays, whole sequences at a time, read once and never all at once.

DuckDB keeps the order of the parts: steps ascend, and inside a part rows are sorted by sequence and position. So a
sequence is a stretch of neighbouring rows, and everything that needs neighbours is a shift of an array.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from timscope.data.schema import LOGPROB_COLUMNS

Ints = npt.NDArray[np.integer[Any]]
Floats32 = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]

FLOATS = (*LOGPROB_COLUMNS, "entropy", "advantage")
NO_INT = -(2**31)  # stands for NULL in token_id and weight_version


@dataclass
class Chunk:
    """Some whole sequences of the run, N tokens. Arrays are [N]; `starts` is [M], the first row of each sequence.

    `values` holds the float columns, NaN where NULL; `null[column]` says where that was: None nowhere, True everywhere,
    else [N]. `mask` is the loss mask with NULL as false, `masked_null` how many of it were NULL.
    """

    step: Ints
    sequence: Ints
    position: Ints
    token: Ints
    version: Ints | None
    mask: Bools
    masked_null: int
    values: dict[str, Floats32]
    null: dict[str, Bools | bool | None]
    starts: npt.NDArray[np.int64]
    memo: dict[Any, Bools] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """N."""
        return len(self.step)

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Tokens of each sequence, [M]."""
        return np.diff(np.append(self.starts, self.rows))

    def per_token(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """[M] -> [N]."""
        return np.repeat(values, self.lengths)

    def sums(self, values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Sum over each sequence, [N] -> [M]."""
        return np.add.reduceat(values, self.starts, dtype=np.float64)

    def where(self, rows: npt.NDArray[Any]) -> list[dict[str, Any]]:
        """Key, token and log-probs of some rows, for evidence."""
        shown = [c for c in FLOATS if self.null[c] is not True]
        return [
            {
                "step": int(self.step[i]),
                "sequence": int(self.sequence[i]),
                "position": int(self.position[i]),
                "token_id": None if self.token[i] == NO_INT else int(self.token[i]),
                **{c: self._value(c, int(i)) for c in shown},
            }
            for i in rows
        ]

    def _value(self, column: str, i: int) -> float | None:
        null = self.null[column]
        if null is not None and (null is True or (isinstance(null, np.ndarray) and null[i])):
            return None
        # Nine digits name a float32; its double's seventeen only look precise.
        return float(f"{self.values[column][i]:.9g}")
