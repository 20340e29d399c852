"""What every adapter test needs: a run asked for through the environment, a session of its own, shared batch makers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from timscope.loggers.adapters import session as module
from timscope.loggers.adapters.session import Session

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    """A session that no other test has touched, and an environment that asks for nothing."""
    monkeypatch.delenv("TIMSCOPE_RUN", raising=False)
    monkeypatch.delenv("TIMSCOPE_OPTIONS", raising=False)
    made = Session()
    monkeypatch.setattr(module, "_session", made)
    yield made
    made.close()


@pytest.fixture
def asked(fresh: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the run that the environment asks for."""
    path = tmp_path / "run"
    monkeypatch.setenv("TIMSCOPE_RUN", str(path))
    return path
