"""Hooks that wait for a module: they run after it, once, import nothing themselves and never get in the way."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from timscope.loggers.adapters import openrlhf, post_import
from timscope.loggers.adapters.post_import import when_imported


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package `waited_for` with one module `trainer`, importable and not imported."""
    folder = tmp_path / "waited_for"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "trainer.py").write_text("class Trainer:\n    pass\nDONE = True\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(post_import, "_watch", post_import._Watch())
    yield folder
    for name in [n for n in sys.modules if n.split(".")[0] == "waited_for"]:
        del sys.modules[name]


def test_the_action_runs_after_the_module_and_only_then(package: Path) -> None:
    seen: list[bool] = []
    when_imported("waited_for.trainer", lambda module: seen.append(module.DONE))
    when_imported("waited_for.trainer", lambda module: setattr(module.Trainer, "hooked", True))
    import waited_for

    assert seen == [] and "waited_for.trainer" not in sys.modules
    from waited_for.trainer import Trainer

    assert seen == [True] and Trainer.hooked
    module = sys.modules["waited_for.trainer"]
    assert "exec_module" not in vars(module.__spec__.loader), "the loader is as it was"
    assert module.__file__ == str(package / "trainer.py")
    when_imported("waited_for.trainer", lambda module: seen.append(False))
    assert seen == [True, False], "a module that is there already is hooked at once"
    assert waited_for.trainer is module


def test_an_action_that_fails_does_not_fail_the_import(package: Path, caplog: pytest.LogCaptureFixture) -> None:
    def fail(module: ModuleType) -> None:
        raise AttributeError(f"{module.__name__} has no such class")

    when_imported("waited_for.trainer", fail)
    from waited_for.trainer import DONE

    assert DONE and "waited_for.trainer is not hooked" in caplog.text


def test_a_module_that_fails_says_so_itself_and_is_hooked_when_it_works(package: Path) -> None:
    seen: list[str] = []
    when_imported("waited_for.trainer", lambda module: seen.append(module.__name__))
    good = (package / "trainer.py").read_text()
    (package / "trainer.py").write_text("raise ImportError('no GPU here')\n")
    with pytest.raises(ImportError, match="no GPU here"):
        import waited_for.trainer
    assert seen == []
    (package / "trainer.py").write_text(good + "# once more\n")
    import waited_for.trainer  # noqa: F401

    assert seen == ["waited_for.trainer"]


def test_a_module_that_is_not_there_stays_not_there(package: Path) -> None:
    when_imported("waited_for.nowhere", lambda module: None)
    with pytest.raises(ModuleNotFoundError, match="nowhere"):
        import waited_for.nowhere  # noqa: F401


def test_openrlhf_is_hooked_when_it_comes(package: Path, monkeypatch: pytest.MonkeyPatch, asked: Path) -> None:
    """`install()` puts both wraps on as soon as the two modules exist, and only once."""
    root = package.parent / "openrlhf" / "trainer" / "ppo_utils"
    root.mkdir(parents=True)
    for folder in (root.parents[1], root.parents[0], root):
        (folder / "__init__.py").write_text("")
    (root.parent / "ppo_trainer.py").write_text(
        "class BasePPOTrainer:\n    def train_step(self, rollout_samples, global_step): pass\n"
    )
    (root / "experience_maker.py").write_text(
        "class RemoteExperienceMaker:\n    def make_experience_batch(self, rollout_samples): pass\n"
    )
    monkeypatch.setattr(openrlhf, "_installed", False)
    before = {n for n in sys.modules if n.startswith("openrlhf")}
    openrlhf.install()
    openrlhf.install()
    assert {n for n in sys.modules if n.startswith("openrlhf")} == before
    try:
        from openrlhf.trainer.ppo_trainer import BasePPOTrainer
        from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker

        for method in (BasePPOTrainer.train_step, RemoteExperienceMaker.make_experience_batch):
            assert hasattr(method, "__wrapped__") and not hasattr(method.__wrapped__, "__wrapped__")
    finally:
        for name in [n for n in sys.modules if n.split(".")[0] == "openrlhf"]:
            del sys.modules[name]
