"""The snapshots policy: what each form keeps, and what it never does to the trainer."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from timscope.data import BadInput, open_run
from timscope.data.digest import fingerprint
from timscope.loggers import Recorder

torch = pytest.importorskip("torch")

from small_model import Small  # noqa: E402
from torch import nn  # noqa: E402

from timscope.loggers.snapshots import Snapshots  # noqa: E402
from timscope.loggers.weights import weight_items, weight_tensors, why_not_whole  # noqa: E402


def copied(model: nn.Module) -> dict[str, bytes]:
    return {name: bytes(data) for name, _, _, data in weight_items(model)}


def record(path: Path, snapshots: Any, versions: range = range(6), model: Small | None = None, **options: Any) -> Any:
    """A job over these versions; returns the bytes of each."""
    model = Small() if model is None else model
    states = {}
    with Recorder(path, snapshots=snapshots, **options) as recorder:
        for version in versions:
            recorder.weights(version, model)
            states[version] = copied(model)
            with recorder.step(version + 1) as step:
                step.metrics(loss=0.0, weight_version=version)
            model.move()
    return states


def kept(path: Path) -> list[tuple[int, str]]:
    with open_run(path) as run:
        return [(v, run.weights(v, verify=False).entry.kind) for v in run.weight_versions]


def restored(path: Path, version: int, **which: Any) -> dict[str, bytes]:
    with open_run(path) as run:
        return {name: bytes(tensor.data) for name, tensor in run.weights(version, **which).items()}


def test_every_version_comes_back_and_each_third_is_whole(tmp_path: Path) -> None:
    states = record(tmp_path, 3, strict=True)
    assert kept(tmp_path) == [(v, "full" if v % 3 == 0 else "delta") for v in range(6)]
    assert {v: restored(tmp_path, v) for v in states} == states
    assert "lm_head.weight" not in states[0] and "embed.weight" in states[0]
    assert len({state["embed.weight"] for state in states.values()}) == 6


@pytest.mark.parametrize(
    ("snapshots", "stored", "marked"),
    [
        ("digest", [], 6),
        (None, [], 0),
        (Snapshots(every=2, deltas=False), [0, 2, 4], 6),
        (Snapshots(every=4, digest="first"), [0, 1, 2, 3, 4, 5], 1),
        (Snapshots(every=1, digest=None), [0, 1, 2, 3, 4, 5], 0),
    ],
)
def test_policies(tmp_path: Path, snapshots: Any, stored: list[int], marked: int) -> None:
    states = record(tmp_path, snapshots, strict=True)
    with open_run(tmp_path) as run:
        assert run.weight_versions == stored and run.problems == []
        marks = run.steps()["weight_digest"].drop_nulls().to_list()
    assert len(marks) == marked and len(set(marks)) == marked
    assert all(mark.startswith("mix128:") for mark in marks)
    assert all(restored(tmp_path, v) == states[v] for v in stored)
    if isinstance(snapshots, Snapshots) and snapshots.deltas is False:
        assert {kind for _, kind in kept(tmp_path)} == {"full"}


def test_the_digest_in_steps_is_of_the_weights_being_trained(tmp_path: Path) -> None:
    model = Small()
    before = fingerprint(weight_items(model))
    record(tmp_path, "digest", range(2), model)
    with open_run(tmp_path) as run:
        assert run.steps()["weight_digest"][0] == before != run.steps()["weight_digest"][1]


def test_bad_policies_are_one_line() -> None:
    for wrong in (0, -3, True, "often", 1.5):
        with pytest.raises(BadInput, match="snapshots"):
            Snapshots.of(wrong)  # type: ignore[arg-type]
    given = Snapshots(every=2)
    assert Snapshots.of(given) == given and Snapshots.of(given) is not given, "two recorders share no state"


def test_a_resumed_job_goes_on_with_the_chain(tmp_path: Path) -> None:
    model = Small()
    states = record(tmp_path, 10, range(3), model)
    with torch.no_grad():  # the checkpoint of version 2, as it was
        for parameter in model.parameters():
            parameter.zero_()
    for name, data in states[2].items():
        tensor = weight_tensors(model)[name]
        if tensor.numel():
            values = torch.frombuffer(bytearray(data), dtype=tensor.dtype).reshape(tensor.shape)
            tensor.copy_(values)
    assert copied(model) == states[2]
    again = record(tmp_path, 10, range(2, 5), model)
    assert kept(tmp_path) == [(0, "full"), (1, "delta"), (2, "delta"), (3, "delta"), (4, "delta")]
    assert {v: restored(tmp_path, v) for v in range(5)} == {**states, **again}
    with open_run(tmp_path) as run:
        assert run.weights(4).entry.depth == 4 and run.weights(3).entry.base == (2, 0)
        assert run.weights(3).entry.resume == 1


def test_a_job_that_begins_again_keeps_both_lives_apart(tmp_path: Path) -> None:
    first = record(tmp_path, 10, range(2), Small(1))
    second = record(tmp_path, 10, range(2), Small(2))
    assert first != second
    for version in range(2):
        assert restored(tmp_path, version, resume=0) == first[version]
        assert restored(tmp_path, version) == second[version]


def test_checkpoints_of_the_framework_are_pointed_to(tmp_path: Path) -> None:
    """The framework saves after the hook has seen the version: each is found later, the last when training ends."""
    from safetensors.torch import save_file

    run, out, model = tmp_path / "run", tmp_path / "out", Small()
    states = {}
    with Recorder(run, snapshots=Snapshots(checkpoints=out), strict=True) as recorder:
        for version in range(5):
            recorder.weights(version, model)
            if version % 2 == 0:
                states[version] = copied(model)
                folder = out / f"checkpoint-{version}"
                folder.mkdir(parents=True)
                own = {name: tensor.contiguous() for name, tensor in weight_tensors(model).items()}
                save_file(own, folder / "model.safetensors")
            model.move()
    assert kept(run) == [(v, "checkpoint") for v in (0, 2, 4)]
    assert {v: restored(run, v) for v in states} == states
    save_file({n: t.contiguous() for n, t in weight_tensors(model).items()}, out / "checkpoint-2/model.safetensors")
    with pytest.raises(BadInput, match="cannot be restored"):
        restored(run, 2)


def test_a_function_says_where_checkpoints_are(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    model = Small()
    (tmp_path / "late").mkdir()
    save_file({n: t.contiguous() for n, t in weight_tensors(model).items()}, tmp_path / "late/model.safetensors")
    where = {1: None, 0: tmp_path / "late"}
    record(tmp_path / "run", Snapshots(every=2, deltas=False, checkpoints=where.get), range(3), model)
    assert kept(tmp_path / "run") == [(0, "full"), (2, "full")], "what is stored needs no pointer"
    record(tmp_path / "other", Snapshots(checkpoints=where.get), range(2), Small())
    assert kept(tmp_path / "other") == [(0, "checkpoint")]


class DTensor(nn.Parameter):
    """By name what FSDP2 puts in the place of parameters."""


def sharded(kind: str) -> nn.Module:
    model = Small()
    if kind == "DeepSpeed":
        model.scalar.ds_id = 1  # type: ignore[attr-defined]
    elif kind == "FSDP2":
        model.scalar = DTensor(torch.zeros(1))
    elif kind == "FSDP ":
        model.inner = type("FullyShardedDataParallel", (nn.Linear,), {})(2, 2)
    else:
        model.peft_config = {}  # type: ignore[assignment]
    return model


@pytest.mark.parametrize("kind", ["DeepSpeed", "FSDP2", "FSDP ", "adapters"])
def test_what_is_not_whole_is_left_alone_and_said(tmp_path: Path, kind: str, caplog: Any) -> None:
    assert why_not_whole(Small()) is None
    with caplog.at_level(logging.WARNING, "timscope"):
        record(tmp_path, 2, model=sharded(kind))
    assert sum(kind in r.message for r in caplog.records) == 1
    with open_run(tmp_path) as run:
        assert run.weight_versions == [] and run.steps().height == 6
        assert [kind in p for p in run.problems] == [True]


def test_an_error_turns_snapshots_off_and_training_goes_on(tmp_path: Path, monkeypatch: Any) -> None:
    from timscope.data.weights import WeightStore

    def full_disk(*_args: Any, **_said: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(WeightStore, "write_delta", full_disk)
    record(tmp_path, 4)
    with open_run(tmp_path) as run:
        assert run.weight_versions == [0] and len(run.complete_steps) == 6
        assert sum("no space left" in p for p in run.problems) == 1
        assert run.steps()["weight_digest"].null_count() == 0, "fingerprints do not depend on snapshots"
    with Recorder(tmp_path / "b", snapshots=2) as recorder:
        recorder.weights(0, object())
        recorder.weights(1, Small())
        assert "weights" in recorder.guard.off


def test_a_version_without_a_free_buffer_is_dropped_and_said(tmp_path: Path) -> None:
    import threading

    gate = threading.Event()
    with Recorder(tmp_path, snapshots=Snapshots(every=9, overflow="drop")) as recorder:
        assert recorder._writer
        model = Small()
        recorder._writer.call(lambda: gate.wait() and None)
        states = {}
        for version in range(4):
            recorder.weights(version, model)
            states[version] = copied(model)
            model.move()
        gate.set()
        recorder._writer.flush()
        recorder.weights(4, model)
        states[4] = copied(model)
    assert kept(tmp_path) == [(0, "full"), (1, "delta"), (4, "delta")]
    assert all(restored(tmp_path, v) == states[v] for v in (0, 1, 4))
    with open_run(tmp_path) as run:
        assert any("version 3 was not stored" in p for p in run.problems)


def test_ranks_above_0_and_no_path_do_nothing(tmp_path: Path) -> None:
    with Recorder(None) as nothing:
        nothing.weights(0, Small())
    with Recorder(tmp_path, rank=1, world_size=2, snapshots=2) as other:
        other.weights(0, Small())
    assert not (tmp_path / "weights").exists()


@pytest.mark.gpu
def test_on_a_gpu_nothing_waits_and_all_is_equal(tmp_path: Path) -> None:
    model = nn.Sequential(*(nn.Linear(1500, 1500) for _ in range(8)), nn.Linear(1500, 33).bfloat16()).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    states = {}
    with Recorder(tmp_path, snapshots=4, strict=True) as recorder:
        for version in range(6):
            recorder.weights(version, model)
            recorder._writer.flush()  # type: ignore[union-attr]
            states[version] = copied(model)
            for parameter in model.parameters():
                parameter.grad = torch.randn_like(parameter)
            optimizer.step()
        held = copied(model)
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            recorder.weights(6, model)
            optimizer.step()  # right behind: the copy must be of the weights before
        finally:
            torch.cuda.set_sync_debug_mode("default")
        states[6] = held
    assert {v: restored(tmp_path, v) for v in states} == states
    assert copied(model) != held
    with open_run(tmp_path) as run:
        entry = run.weights(6).entry
        weights = run.weights(6)
        assert entry.fingerprint == fingerprint((n, t.dtype, t.shape, t.data) for n, t in weights.items())
