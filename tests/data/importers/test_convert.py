"""The driver: recognises, streams, records findings without repairing, and never writes into another's run."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dump_nemo_rl import write as write_nemo_rl
from dump_roll import write_roll
from dump_skyrl import batch, save, write_skyrl
from dump_slime import write_slime
from dump_verl import write_verl
from hypothesis import given, settings
from hypothesis import strategies as st
from reading import same
from samples import Sample, samples

from timscope.data import Manifest, RunWriter, open_run
from timscope.data.errors import BadInput
from timscope.data.importers import columns, convert, registry
from timscope.data.importers.base import Findings, Format, Part
from timscope.data.importers.columns import Row, sequence_part, step_part
from timscope.data.importers.convert import Summary, import_dump
from timscope.data.manifest_file import read_manifest
from timscope.data.storage import Storage


def noisy(count: int = 12, length: int = 40, seed: int = 0) -> list[Sample]:
    """Samples as a healthy job has them: two engines that nearly agree."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        rollout = (-rng.exponential(1.0, length) - 0.01).tolist()
        made.append(
            Sample(
                prompt=rng.integers(0, 1000, 4).tolist(),
                response=rng.integers(0, 1000, length).tolist(),
                sampled=[True] * length,
                rollout=rollout,
                trainer=[r + d for r, d in zip(rollout, rng.normal(0, 0.01, length), strict=True)],
                advantage=[float(rng.normal())] * length,
                reward=1.0,
            )
        )
    return made


def kinds(done: Summary) -> set[str]:
    return {f.kind for f in done.imported.findings}


def evidence(done: Summary, kind: str) -> dict[str, Any]:
    return next(f.evidence for f in done.imported.findings if f.kind == kind)


def test_a_whole_import(tmp_path: Path) -> None:
    dump = write_slime(tmp_path / "dump", {3: noisy(), 4: noisy(seed=1)})
    done = import_dump(dump, tmp_path / "run")
    assert (done.imported.format, done.imported.tier, done.steps, done.sequences, done.tokens) == (
        "slime", "T4", 2, 24, 960,
    )  # fmt: skip
    assert done.imported.cannot == {} and not done.damaged
    with open_run(tmp_path / "run") as run:
        assert run.complete_steps == [3, 4] and not run.problems
        assert run.manifest.imported == done.imported
        assert run.manifest.framework is not None and run.manifest.framework.name == "slime"
        assert run.manifest.algorithm.loss_mode == "unknown"
        assert run.manifest.recorder.closed
        assert run.steps()["loss"].to_list() == [None, None]
        assert run.tokens().height == 960 and run.tokens()["weight_version"].unique().to_list() in ([3, 4], [4, 3])


@settings(max_examples=15, deadline=None)
@given(st.lists(samples(), min_size=1, max_size=4))
def test_what_the_dump_says_is_in_the_run(rollouts: list[Sample]) -> None:
    """Through the writer and Parquet: NaN and infinities stay, missing is NULL."""
    with tempfile.TemporaryDirectory() as folder:
        import_dump(write_skyrl(Path(folder) / "dump", {1: rollouts}, 1), Path(folder) / "run")
        with open_run(Path(folder) / "run") as run:
            rows = run.tokens().rows(named=True)
    want = [(i, j, s) for i, s in enumerate(rollouts) for j in range(len(s.response))]
    assert len(rows) == len(want)
    for row, (i, j, sample) in zip(rows, want, strict=True):
        assert (row["sequence"], row["position"]) == (i, len(sample.prompt) + j)
        assert row["token_id"] == sample.response[j]
        assert same(row["rollout_logprob"], sample.rollout[j] if sample.sampled[j] else None)
        assert same(row["old_logprob"], sample.trainer[j])
        assert same(row["advantage"], sample.advantage[j])


def test_tiers_and_what_cannot_be_served(tmp_path: Path) -> None:
    one = {1: noisy()}
    verl = import_dump(write_verl(tmp_path / "v", {1: [noisy()], 2: [noisy(seed=2)]}), tmp_path / "rv").imported
    roll = import_dump(write_roll(tmp_path / "r", one, logprobs=False), tmp_path / "rr").imported
    skyrl = import_dump(write_skyrl(tmp_path / "s", one), tmp_path / "rs").imported
    assert (verl.tier, roll.tier, skyrl.tier) == ("T2", "T2", "T3")
    assert set(verl.cannot) == {"diagnose", "corrections", "calibrate"} and "replay" in verl.cannot["diagnose"]
    assert "no rollout log-probs" in roll.cannot["diagnose"]
    assert set(skyrl.cannot) == {"signals"}  # one step


def test_zero_filled_old(tmp_path: Path) -> None:
    rollouts = noisy()
    for sample in rollouts:
        sample.trainer = [0.0] * len(sample.trainer)
    (tmp_path / "d").mkdir()
    write_nemo_rl(tmp_path / "d", 1, rollouts)
    done = import_dump(tmp_path / "d", tmp_path / "run")
    assert done.damaged and evidence(done, "zero-filled-old")["tokens"] == 480
    assert "all 0.0" in done.imported.cannot["diagnose"] and done.imported.tier == "T2"
    with open_run(tmp_path / "run") as run:
        assert run.tokens()["old_logprob"].to_list() == [0.0] * 480  # kept as it came


def test_zero_filled_old_of_some_sequences(tmp_path: Path) -> None:
    """Not where the rollout is as sure of every token: a collapsed policy may be."""
    rollouts = noisy()
    for i in (3, 5, 6):
        rollouts[i].trainer = [0.0] * len(rollouts[i].trainer)
    rollouts[6].rollout = [0.0] * len(rollouts[6].rollout)
    done = import_dump(write_slime(tmp_path / "d", {0: rollouts}), tmp_path / "run")
    (found,) = [f for f in done.imported.findings if f.kind == "zero-filled-old"]
    assert (found.count, found.evidence) == (2, {"step": 0, "sequence": 3}) and done.damaged


def test_copied_old_is_the_bypass_mode(tmp_path: Path) -> None:
    rollouts = noisy()
    for sample in rollouts:
        sample.trainer = list(sample.rollout)
    done = import_dump(write_slime(tmp_path / "d", {0: rollouts}), tmp_path / "run")
    assert "old-copies-rollout" in kinds(done) and not done.damaged
    assert "own" in done.imported.cannot["diagnose"]
    assert read_manifest(Storage(tmp_path / "run")).algorithm.loss_mode == "bypass"


def test_one_copied_step_is_no_bypass(tmp_path: Path) -> None:
    rollouts = noisy()
    for sample in rollouts:
        sample.trainer = list(sample.rollout)
    done = import_dump(write_slime(tmp_path / "d", {0: rollouts, 1: noisy(seed=1)}), tmp_path / "run")
    assert evidence(done, "old-copies-rollout")["step"] == 0
    assert read_manifest(Storage(tmp_path / "run")).algorithm.loss_mode == "unknown"


@pytest.mark.parametrize("lag", [-2, -1, 0, 1, 2])
def test_lag_test_of_the_index_convention(tmp_path: Path, lag: int) -> None:
    """r[i] agrees with t[i - lag]: so the trainer column was written `lag` columns too far to the left."""
    one = batch(noisy(length=60), 0)
    one["action_log_probs"] = one["action_log_probs"].roll(-lag, dims=1)
    save(one, tmp_path / "d" / "global_step_1_training_input.pkl")
    done = import_dump(tmp_path / "d", tmp_path / "run")
    assert ("off-by-one" in kinds(done)) == (lag != 0) == done.damaged
    if lag:
        said = evidence(done, "off-by-one")
        assert said["lag"] == lag and said["share"] == 1.0 and said["median_gain"] > 50
        assert said["mean_abs_difference"][str(lag)] < 0.02 < 0.5 < said["mean_abs_difference"]["0"]


def test_noise_alone_has_no_lag(tmp_path: Path) -> None:
    """Negative control: two unrelated columns fit nowhere, so no lag may be named."""
    rollouts, other = noisy(length=60), noisy(length=60, seed=9)
    for sample, strange in zip(rollouts, other, strict=True):
        sample.trainer = strange.rollout
    assert "off-by-one" not in kinds(import_dump(write_skyrl(tmp_path / "d", {1: rollouts}), tmp_path / "run"))


def test_parts_do_not_change_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dump = write_slime(tmp_path / "d", {0: noisy(), 1: noisy(seed=1)})
    import_dump(dump, tmp_path / "whole")
    monkeypatch.setattr(columns, "PART_TOKENS", 100)
    import_dump(dump, tmp_path / "parts")
    assert len(list((tmp_path / "parts/tokens/step=000000").iterdir())) > 3
    with open_run(tmp_path / "whole") as a, open_run(tmp_path / "parts") as b:
        assert a.tokens().equals(b.tokens()) and a.sequences().equals(b.sequences())


# --- where it may write --------------------------------------------------------------------------------------------


def test_a_grown_dump_goes_on_where_it_stopped(tmp_path: Path) -> None:
    dump = write_slime(tmp_path / "d", {0: noisy(), 1: noisy(seed=1)})
    import_dump(dump, tmp_path / "run")
    part = tmp_path / "run/tokens/step=000000/rank=0-000.parquet"
    stamp = part.stat().st_mtime_ns
    write_slime(tmp_path / "d", {2: noisy(seed=2)})
    done = import_dump(dump, tmp_path / "run")
    assert (done.steps, done.resumed) == (3, 2) and part.stat().st_mtime_ns == stamp
    with open_run(tmp_path / "run") as run:
        assert run.complete_steps == [0, 1, 2] and run.tokens().height == 3 * 480 and not run.problems


def test_other_runs_are_left_alone(tmp_path: Path) -> None:
    dump, other = write_slime(tmp_path / "d", {0: noisy()}), write_skyrl(tmp_path / "o", {0: noisy()})
    import_dump(dump, tmp_path / "run")
    with pytest.raises(BadInput, match=r"already holds an import of .*--overwrite"):
        import_dump(other, tmp_path / "run")
    done = import_dump(other, tmp_path / "run", overwrite=True)
    assert done.imported.format == "skyrl" and done.resumed == 0
    with RunWriter(tmp_path / "recorded", Manifest(), strict=True) as writer:
        writer.put("steps", 0, {"loss": [1.0]})
        writer.complete(0)
    for overwrite in (False, True):
        with pytest.raises(BadInput, match="recorded, not imported"):
            import_dump(dump, tmp_path / "recorded", overwrite=overwrite)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("x")
    with pytest.raises(BadInput, match="not empty"):
        import_dump(dump, tmp_path / "full", overwrite=True)
    with pytest.raises(BadInput, match="the dump itself"):
        import_dump(dump, dump)
    assert (tmp_path / "full" / "thesis.txt").exists()


def test_overwriting_removes_what_belonged_to_the_old_run_alone(tmp_path: Path) -> None:
    dump = write_slime(tmp_path / "d", {0: noisy(), 1: noisy()})
    import_dump(dump, tmp_path / "run")
    (tmp_path / "run" / "replays" / "exact").mkdir(parents=True)
    (tmp_path / "run" / "mine.txt").write_text("kept")
    (dump / "rollout_data" / "1.pt").unlink()
    (dump / "train_data" / "1.pt").unlink()
    import_dump(dump, tmp_path / "run", overwrite=True)
    with open_run(tmp_path / "run") as run:
        assert run.complete_steps == [0] and run.replays == []
    assert (tmp_path / "run" / "mine.txt").read_text() == "kept"


# --- what it refuses ------------------------------------------------------------------------------------------------


def fake(name: str, *parts: Part | Exception) -> Format:
    def read(_path: Path, _findings: Findings, _facts: dict[str, Any]) -> Iterator[Part]:
        for part in parts:
            if isinstance(part, Exception):
                raise part
            yield part

    return Format(name, name, "T3", lambda _path: True, read)


def use(monkeypatch: pytest.MonkeyPatch, *formats: Format) -> None:
    monkeypatch.setattr(registry, "formats", lambda: {f.name: f for f in formats})


def a_part(step: int) -> Part:
    return sequence_part(step, [Row(prompt_ids=[1], token_ids=[2, 3])])


def test_detection_says_what_it_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInput, match=r"not a dump that is known.*slime, skyrl"):
        import_dump(tmp_path, tmp_path / "run")
    with pytest.raises(BadInput, match="does not exist"):
        import_dump(tmp_path / "nowhere", tmp_path / "run")
    with pytest.raises(BadInput, match="'verl' is no format: there are slime"):
        import_dump(tmp_path, tmp_path / "run", format="verl")
    use(monkeypatch, fake("one", a_part(0)), fake("two", a_part(0)))
    with pytest.raises(BadInput, match="may be one or two: choose with --format"):
        import_dump(tmp_path, tmp_path / "run")
    assert import_dump(tmp_path, tmp_path / "run", format="two").imported.format == "two"


def test_every_format_has_a_module_and_its_own_name() -> None:
    found = registry.formats()
    assert len(found) == len(registry.MODULES) and all(f.title and f.tier for f in found.values())


def test_an_empty_dump_leaves_no_run(tmp_path: Path) -> None:
    (tmp_path / "d" / "rollout_data").mkdir(parents=True)
    (tmp_path / "d" / "rollout_data" / "0.pt").write_bytes(b"half a file")
    with pytest.raises(BadInput, match=r"holds nothing to import as slime: .*0\.pt"):
        import_dump(tmp_path / "d", tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("error", [KeyError("samples"), TypeError("x"), ValueError("y"), AttributeError("z")])
def test_a_foreign_layout_is_no_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    use(monkeypatch, fake("one", error))
    with pytest.raises(BadInput, match="does not have the layout of one"):
        import_dump(tmp_path, tmp_path / "run")


def test_an_interrupted_import_says_so_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, fake("one", a_part(0), a_part(1), OSError("disk")))
    with pytest.raises(OSError, match="disk"):
        import_dump(tmp_path, tmp_path / "run")
    imported = read_manifest(Storage(tmp_path / "run")).imported
    assert imported is not None and "interrupted" in imported.cannot["check"]
    with open_run(tmp_path / "run") as run:
        assert run.complete_steps == [0]  # step 1 was not known to be through
    use(monkeypatch, fake("one", a_part(0), a_part(1), step_part(1, {"loss": 0.5})))
    done = import_dump(tmp_path, tmp_path / "run")
    assert done.resumed == 1 and "check" not in done.imported.cannot
    with open_run(tmp_path / "run") as run:
        assert run.complete_steps == [0, 1] and run.tokens().height == 4
        assert run.steps()["loss"].to_list() == [None, 0.5]


def test_a_step_that_comes_back_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, fake("one", a_part(0), a_part(1), a_part(0)))
    with pytest.raises(BadInput, match="step 0 comes twice"):
        import_dump(tmp_path, tmp_path / "run")


def test_row_lengths_are_checked() -> None:
    with pytest.raises(BadInput, match="file:3: old_logprob has 2 values for 1 tokens"):
        sequence_part(0, [Row(prompt_ids=[1], token_ids=[2], old_logprob=np.zeros(2), place="file:3")])


def test_damage_is_what_the_exit_code_says() -> None:
    assert {"truncated-dump", "missing-rank", "zero-filled-old", "off-by-one", "integrity"} <= convert.DAMAGE
    assert "old-copies-rollout" not in convert.DAMAGE and "padding-rows" not in convert.DAMAGE
