"""The formulas need numpy alone, and the room never touches torch, transformers or streamlit."""

from __future__ import annotations

import subprocess
import sys


def loaded(module: str) -> set[str]:
    code = f"import sys, {module}; print(*{{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_formulas_need_numpy_alone() -> None:
    others = {"duckdb", "polars", "pyarrow", "pydantic", "scipy", "matplotlib", "torch"}
    assert not loaded("timscope.analysis.formulas") & others


def test_the_room_never_imports_torch() -> None:
    assert not loaded("timscope.analysis.verdict, timscope.analysis.plots") & {"torch", "transformers", "streamlit"}
