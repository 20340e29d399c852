"""The house itself: every folder with code is shipped, and the facade costs no torch."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
ROOMS = ("data", "loggers", "replay", "analysis", "app")


def test_every_code_folder_is_in_the_package_mapping() -> None:
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = {p.parent.relative_to(ROOT).as_posix() for room in ROOMS for p in (ROOT / room).rglob("__init__.py")}
    mapped = set(setuptools["package-dir"].values()) - {"timscope"}
    assert folders == mapped
    assert set(setuptools["packages"]) == set(setuptools["package-dir"])


def test_every_file_opens_with_a_module_docstring() -> None:
    bare = [
        str(path.relative_to(ROOT))
        for room in (*ROOMS, "tests", "timscope")
        for path in (ROOT / room).rglob("*.py")
        if not path.read_text().lstrip().startswith(('"""', "#!"))
    ]
    assert bare == []


def test_importing_the_light_rooms_never_imports_torch() -> None:
    code = (
        "import sys, timscope, timscope.data, timscope.loggers, timscope.analysis.verdict, timscope.app.cli\n"
        "heavy = {'torch', 'transformers', 'streamlit', 'vllm'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT / "tests")
