"""Stored weights come back bit for bit, through chains, lives of a job and checkpoints; damage is named, never read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from timscope.data import BadInput, Manifest, RunWriter, open_run
from timscope.data.digest import digest_tensors, fingerprint
from timscope.data.storage import Storage
from timscope.data.weights import RawTensor, Weights, WeightStore, items, spans
from timscope.data.weights.planes import CHUNK
from timscope.data.weights.tensors import DTYPES, layout_bytes

Tensors = dict[str, RawTensor]


def made(layouts: dict[str, tuple[str, tuple[int, ...]]], seed: int) -> Tensors:
    rng = np.random.default_rng(seed)
    return {name: RawTensor(*layout, rng.bytes(layout_bytes(layout))) for name, layout in layouts.items()}


def stepped(tensors: Tensors, seed: int, share: float = 0.05) -> Tensors:
    """The next version: a few bytes changed, some tensors not at all."""
    rng = np.random.default_rng(seed)
    new = {}
    for name, tensor in tensors.items():
        flat = tensor.flat.copy()
        if flat.size and rng.random() < 0.8:
            at = rng.integers(0, flat.size, max(1, int(flat.size * share)))
            flat[at] ^= rng.integers(0, 256, at.size, np.uint8)
        new[name] = RawTensor(tensor.dtype, tensor.shape, flat.tobytes())
    return new


def bits(tensors: Any) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    return {name: (tensors[name].dtype, tensors[name].shape, bytes(tensors[name].data)) for name in tensors}


def chain(store: WeightStore, versions: list[Tensors], **said: Any) -> None:
    entry = store.write_full(0, versions[0], **said)
    for number in range(1, len(versions)):
        entry = store.write_delta(number, versions[number], entry, versions[number - 1], **said)


MIXED = {
    "embed": ("bfloat16", (300, 7)),
    "norm": ("float32", (33,)),
    "scale": ("float16", ()),
    "empty": ("float32", (0, 4)),
    "flags": ("bool", (5,)),
    "steps": ("int64", (2,)),
}


@st.composite
def layouts(draw: Any) -> dict[str, tuple[str, tuple[int, ...]]]:
    names = draw(st.lists(st.text("ab.0", min_size=1, max_size=5), min_size=1, max_size=5, unique=True))
    shape = st.lists(st.integers(0, 9), max_size=3).map(tuple)
    return {name: (draw(st.sampled_from(sorted(DTYPES))), draw(shape)) for name in names}


@given(layouts(), st.integers(0, 2**32 - 1), st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_any_chain_restores_every_version(tmp_path_factory: Any, known: Any, seed: int, length: int) -> None:
    store = WeightStore(Storage(tmp_path_factory.mktemp("run")))
    versions = [made(known, seed)]
    for step in range(length):
        versions.append(stepped(versions[-1], seed + step + 1))
    chain(store, versions)
    held: Weights | None = None
    for number, tensors in enumerate(versions):
        weights = store.load(number)
        assert bits(weights) == bits(tensors) and weights.entry.digest == digest_tensors(items(tensors))
        held = store.load(number, near=held, verify=False).in_memory()
        assert bits(held) == bits(tensors)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "uint8"])
def test_tensors_around_the_chunk_size_and_nan_payloads(tmp_path: Path, dtype: str) -> None:
    width = DTYPES[dtype][0]
    known = {f"t{extra}": (dtype, (2 * CHUNK // width + extra,)) for extra in (-1, 0, 1)}
    first = made(known, 1)
    last = {n: RawTensor(dtype, t.shape, b"\xff" * t.nbytes) for n, t in first.items()}  # NaN with every payload bit
    middle = stepped(first, 2, share=1e-5)
    store = WeightStore(Storage(tmp_path))
    chain(store, [first, middle, middle, last])
    assert [bits(store.load(v)) == bits(t) for v, t in enumerate([first, middle, middle, last])] == [True] * 4
    sizes = [store.find(v).files[0].bytes for v in range(4)]  # type: ignore[union-attr]
    assert sizes[1] < sizes[0] / 50 and sizes[2] < 400, "few changes are small, none are nothing"


def test_the_full_snapshot_is_what_the_safetensors_package_reads_and_writes(tmp_path: Path) -> None:
    tensors = made(MIXED, 3)
    store = WeightStore(Storage(tmp_path / "run"))
    chain(store, [tensors, stepped(tensors, 4)])
    file = tmp_path / "run/weights/version=000000/full.safetensors"
    read = dict(safetensors.deserialize(file.read_bytes()))
    assert {n: (tuple(t["shape"]), bytes(t["data"])) for n, t in read.items()} == {
        n: (t.shape, bytes(t.data)) for n, t in tensors.items()
    }
    with safetensors.safe_open(file, "numpy") as opened:
        assert opened.metadata()["format"] == "pt"
        assert np.array_equal(opened.get_tensor("steps"), tensors["steps"].flat.view(np.int64))
    saved = tmp_path / "out/deep/saved.safetensors"
    store.load(1).save(saved)
    read = dict(safetensors.deserialize(saved.read_bytes()))
    assert {n: bytes(t["data"]) for n, t in read.items()} == {n: bytes(t.data) for n, t in store.load(1).items()}


def test_a_version_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    versions = [made(MIXED, 5)]
    versions += [stepped(versions[0], 6)]
    store = WeightStore(Storage(tmp_path))
    chain(store, versions)
    folder = tmp_path / "weights/version=000002"
    folder.mkdir()
    (folder / "delta.zst").write_bytes(b"half")
    (folder / "delta.zst.12345678.tmp").write_bytes(b"quarter")
    assert store.versions() == [0, 1] and store.find(2) is None
    with pytest.raises(BadInput, match=r"version 2 was never stored .*: it has 0 to 1"):
        store.load(2)

    def full_disk(*_args: Any) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr("timscope.data.weights.store.write_delta_file", full_disk)
        with pytest.raises(OSError, match="no space"):
            store.write_delta(2, versions[1], store.find(1), versions[1])  # type: ignore[arg-type]
    assert store.versions() == [0, 1]
    assert store.sweep() == 2 and list(folder.iterdir()) == []
    assert bits(store.load(1)) == bits(versions[1])


def test_a_stored_version_never_changes(tmp_path: Path) -> None:
    tensors = made(MIXED, 7)
    store = WeightStore(Storage(tmp_path))
    entry = store.write_full(0, tensors)
    assert store.write_full(0, tensors) == entry
    with pytest.raises(ValueError, match="already stored with other values"):
        store.write_full(0, stepped(tensors, 8))
    with pytest.raises(ValueError, match="names, dtypes and shapes"):
        store.write_delta(1, made({**MIXED, "norm": ("float32", (11, 3))}, 1), entry, tensors)
    assert store.versions() == [0] and bits(store.load(0)) == bits(tensors)


@pytest.mark.parametrize("spoil", ["flip", "cut", "gone", "index", "zero"])
@pytest.mark.parametrize("where", ["version=000000/full.safetensors", "version=000001/delta.zst"])
def test_damage_is_named_and_the_rest_stays_usable(tmp_path: Path, where: str, spoil: str) -> None:
    versions = [made(MIXED, 9)]
    versions += [stepped(versions[-1], 10 + i) for i in range(2)]
    store = WeightStore(Storage(tmp_path))
    chain(store, versions)
    store.write_full(3, versions[2])
    path = tmp_path / "weights" / where
    data = bytearray(path.read_bytes())
    if spoil == "flip":
        data[len(data) // 2] ^= 4
    elif spoil == "index":
        data[10 if "full" in where else -40] ^= 0x55
    elif spoil == "zero":
        data[:] = bytes(len(data))
    path.write_bytes(data[:-1] if spoil == "cut" else data)
    if spoil == "gone":
        path.unlink()
    with pytest.raises(BadInput, match=r"version 2 of .* cannot be restored: .* use another version: .*3") as caught:
        store.load(2)
    assert "\n" not in str(caught.value)
    assert bits(store.load(3)) == bits(versions[2])
    if "delta" in where:
        assert bits(store.load(0)) == bits(versions[0])
    else:
        with pytest.raises(BadInput, match="version 0 of"):
            store.load(0)


def test_a_missing_base_and_a_broken_version_file(tmp_path: Path) -> None:
    versions = [made(MIXED, 11)]
    versions += [stepped(versions[-1], 12 + i) for i in range(2)]
    store = WeightStore(Storage(tmp_path))
    chain(store, versions)
    said = tmp_path / "weights/version=000001/version.json"
    text = said.read_text()
    said.unlink()
    with pytest.raises(BadInput, match=r"it rests on version 1, which is missing.*another version: 0"):
        store.load(2)
    said.write_text("{")
    with pytest.raises(BadInput, match="not valid JSON"):
        store.load(1)
    said.write_text(text.replace('"version": 1', '"version": 5'))
    with pytest.raises(BadInput, match="describes weights version 5"):
        store.load(1)
    loop = json.loads(text)
    said.write_text(json.dumps({**loop, "base": [2, 0]}))
    with pytest.raises(BadInput, match="does not end"):
        store.load(2)
    said.write_text(json.dumps({**loop, "files": [{"name": "../../x", "bytes": 1}]}))
    with pytest.raises(BadInput, match="out of the run directory"):
        store.load(1)


def test_a_version_counted_twice_is_two_versions(tmp_path: Path) -> None:
    """A job was resumed from version 1: it counts 2 again, with other weights."""
    versions = [made(MIXED, 13)]
    versions += [stepped(versions[-1], 14 + i) for i in range(2)]
    store = WeightStore(Storage(tmp_path))
    chain(store, versions)
    again = stepped(versions[1], 99)
    base = store.find(1, resume=1)
    assert base is not None and base.resume == 0
    store.write_delta(2, again, base, versions[1], resume=1)
    assert bits(store.load(2, resume=0)) == bits(versions[2])
    assert bits(store.load(2, resume=1)) == bits(store.load(2, resume=7)) == bits(store.load(2)) == bits(again)
    assert store.versions() == [0, 1, 2] and store.keys() == [(0, 0), (1, 0), (2, 0), (2, 1)]
    assert bits(store.load(1, resume=1)) == bits(versions[1])


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("inside", [True, False])
def test_a_checkpoint_is_pointed_to_not_copied(tmp_path: Path, shards: int, inside: bool) -> None:
    safetensors_torch = pytest.importorskip("safetensors.torch")
    tensors = made({**MIXED, "lm_head.weight": ("bfloat16", (300, 7))}, 15)
    tensors["flags"] = RawTensor("bool", (5,), b"\1\0\1\1\0")
    folder = tmp_path / ("run/kept/checkpoint-3" if inside else "elsewhere")
    folder.mkdir(parents=True)
    names = sorted(tensors)
    files = ["model.safetensors"] if shards == 1 else [f"model-{i}.safetensors" for i in range(shards)]
    for number, file in enumerate(files):
        safetensors_torch.save_file({n: as_torch(tensors[n]) for n in names[number::shards]}, folder / file)
    if shards > 1:
        owner = {n: files[names.index(n) % shards] for n in names}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": owner}))
    run = tmp_path / "run"
    store = WeightStore(Storage(run))
    entry = store.point(3, folder, fingerprint=fingerprint(items(tensors)))
    assert [p.name for p in (run / "weights/version=000003").iterdir()] == ["version.json"]
    assert entry.path == ("kept/checkpoint-3" if inside else str(folder))
    assert bits(store.load(3)) == bits(tensors)
    moved = run.rename(tmp_path / "moved") if inside else run
    assert bits(WeightStore(Storage(moved)).load(3)) == bits(tensors)
    folder = moved / "kept/checkpoint-3" if inside else folder
    (folder / "config.json").write_text(json.dumps({"tie_word_embeddings": True}))
    with pytest.raises(BadInput, match="digest"):
        WeightStore(Storage(moved)).load(3)  # the head is left out now, and that is another set of weights
    (folder / "config.json").unlink()
    data = bytearray((folder / files[0]).read_bytes())
    data[-1] ^= 1
    (folder / files[0]).write_bytes(data)
    with pytest.raises(BadInput, match="its digest is mix128"):
        WeightStore(Storage(moved)).load(3)
    (folder / files[-1]).unlink()
    with pytest.raises(BadInput, match="is missing"):
        WeightStore(Storage(moved)).load(3)
    with pytest.raises(BadInput, match="no checkpoint that can be pointed to"):
        store.point(4, tmp_path)


def as_torch(tensor: RawTensor) -> Any:
    torch = pytest.importorskip("torch")
    flat = torch.frombuffer(bytearray(tensor.data) or bytearray(8), dtype=getattr(torch, tensor.dtype))
    return flat[: 0 if 0 in tensor.shape else None].reshape(tensor.shape)


def test_a_run_gives_its_weights_also_from_an_object_store() -> None:
    url = "memory://bucket/run-w"
    with RunWriter(url, Manifest(), strict=True) as writer:
        writer.put("tokens", 0, {"sequence": [0], "position": [3]})
        writer.complete(0)
        versions = [made(MIXED, 16)]
        versions.append(stepped(versions[0], 17))
        chain(WeightStore(writer.storage), versions)
    with open_run(url) as run:
        assert run.weight_versions == [0, 1]
        assert [bits(run.weights(v)) for v in (0, 1)] == [bits(t) for t in versions]
        one = run.weights(1, verify=False)
        assert len(one) == len(MIXED) and one.version == 1 and one["norm"].shape == (33,)
        with pytest.raises(KeyError):
            one["nosuch"]
        one.save("memory://bucket/saved.safetensors")
        with pytest.raises(BadInput, match="never stored"):
            run.weights(9)


def test_bad_tensors_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot be stored"):
        RawTensor("quint4x2", (2,), b"ab")
    with pytest.raises(ValueError, match="do not fill"):
        RawTensor("float32", (2,), b"abc")
    assert spans([]) == "none" and spans([0, 1, 2, 5, 7, 8]) == "0 to 2, 5, 7 to 8"
