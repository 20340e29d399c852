"""Numbers as dumps write them: None for missing, NaN kept, and sometimes text where a number was meant."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from timscope.data.errors import BadInput
from timscope.data.importers.base import Findings
from timscope.data.importers.row import Floats


def floats(values: Any, findings: Findings, column: str, place: str) -> Floats | None:
    """A list or array of numbers as float64: None becomes masked (missing), NaN and infinities stay, None as a whole
    stays None. Text that spells numbers is converted and noted as "numbers-as-strings".

    Raises BadInput, naming `column` and `place`, for anything that is no number.
    """
    if values is None:
        return None
    array = np.ma.asanyarray(values) if isinstance(values, np.ma.MaskedArray) else _array(values, column, place)
    if array.dtype.kind in "fiub":
        return array.astype(np.float64)
    items = [number(v, findings, column, place) for v in np.asarray(values, object).tolist()]
    data = np.array([0.0 if v is None else v for v in items], np.float64)
    missing = np.array([v is None for v in items], bool)
    return np.ma.array(data, mask=missing) if missing.any() else data


def number(value: Any, findings: Findings, column: str, place: str) -> float | None:
    """One number, None stays None; text is converted and noted. BadInput where it is no number."""
    if value is None:
        return None
    if isinstance(value, str):
        findings.note(
            "numbers-as-strings", f"{column} holds numbers written as text; converted", place=place, value=value[:40]
        )
    try:
        return float(value)
    except (OverflowError, TypeError, ValueError) as error:
        raise BadInput(f"{place}: {column} holds {_short(value)} where a number is expected") from error


def integers(values: Any, findings: Findings, column: str, place: str) -> NDArray[np.int64] | None:
    """A list or array of whole numbers as int64, None as a whole stays None; text is converted and noted.

    Raises BadInput, naming `column` and `place`, where a value is missing or not whole.
    """
    if values is None:
        return None
    array = _array(values, column, place)
    if array.dtype.kind in "iub" or not array.size:
        return array.astype(np.int64)
    numbers = floats(values, findings, column, place)
    assert numbers is not None
    whole = np.ma.getdata(numbers)
    if np.ma.is_masked(numbers) or not np.all(np.isfinite(whole) & (whole == np.floor(whole))):
        raise BadInput(f"{place}: {column} holds values that are not whole numbers: this is no list of token ids")
    return whole.astype(np.int64)


def _short(value: Any) -> str:
    """A value for a message; a container by its type, since it may be endless."""
    return repr(str(value)[:40]) if isinstance(value, str | float) else f"a value of type {type(value).__name__}"


def _array(values: Any, column: str, place: str) -> NDArray[Any]:
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise BadInput(f"{place}: {column} is nested unevenly where one list of numbers is expected") from error
    if array.ndim != 1:
        raise BadInput(f"{place}: {column} has {array.ndim} dimensions where one list of numbers is expected")
    return array
