"""Pickles are read, never run. Every attack here works against Python's own unpickler (the first test shows it for the
plain ones); against ours it must be refused, leave no trace, and change nothing for the next file."""

from __future__ import annotations

import datetime
import io
import os
import pickle
import struct
import uuid
import zipfile
from collections import OrderedDict, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from timscope.data.errors import BadInput
from timscope.data.importers import pickles
from timscope.data.importers.numpy_pickles import Array
from timscope.data.importers.pickles import Damaged
from timscope.data.importers.placeholders import Inert
from timscope.data.importers.tensors import Nested, Tensor
from timscope.data.importers.torch_file import load_torch
from timscope.data.importers.torch_names import TORCH
from timscope.data.importers.unpickle import PLAIN, load_pickle


def load(data: bytes, placeholders: set[str] | None = None) -> Any:
    return load_pickle(memoryview(data), "x.pkl", placeholders=placeholders)


def torch_bytes(value: Any, **options: Any) -> memoryview:
    buffer = io.BytesIO()
    torch.save(value, buffer, **options)
    return memoryview(buffer.getvalue())


class Calls:
    """Pickles as a call of `function(*args)`."""

    def __init__(self, function: Any, *args: Any, state: Any = None) -> None:
        self._call = (function, args) if state is None else (function, args, state)

    def __reduce__(self) -> Any:
        return self._call


def raw(*parts: bytes) -> bytes:
    return b"\x80\x04" + b"".join(parts) + b"."


def name(module: str, attribute: str) -> bytes:
    return b"c" + module.encode() + b"\n" + attribute.encode() + b"\n"


def text(value: str) -> bytes:
    return b"\x8c" + bytes([len(value)]) + value.encode()


def attacks(mark: Path) -> dict[str, bytes]:
    """Pickles that would create the file `mark`, or that try to reach further than data."""
    touch = f"touch {mark}"
    code = f"open({str(mark)!r}, 'w')"
    system = name("os", "system") + text(touch) + b"\x85R"
    return {
        "os.system": pickle.dumps(Calls(os.system, touch)),
        "posix.system": raw(name("posix", "system"), text(touch), b"\x85R"),
        "builtins.eval": pickle.dumps(Calls(eval, code)),
        "builtins.exec": pickle.dumps(Calls(exec, code)),
        "inside of a list": pickle.dumps({"samples": [1, 2, Calls(os.system, touch)]}),
        "inside of an object array": pickle.dumps(np.array([Calls(os.system, touch), None], dtype=object)),
        "getattr chain": raw(name("builtins", "getattr"), name("os", "path"), text("join"), b"\x86R"),
        "dotted name": raw(text("os"), text("path.join"), b"\x93", text(touch), b"\x85R"),
        "dotted name of a known class": raw(text("numpy"), text("dtype.__new__"), b"\x93"),
        "import": raw(name("builtins", "__import__"), text("os"), b"\x85R"),
        "nested names": raw(name("builtins", "map"), name("os", "system"), b"]", text(touch), b"a\x86R"),
        "result called": raw(name("functools", "partial"), name("os", "system"), text(touch), b"\x86R)R"),
        "memo": raw(name("os", "system"), b"\x940", b"h\x00", text(touch), b"\x85R"),
        "old style instance": b"(ios\nsystem\nX" + struct.pack("<I", len(touch)) + touch.encode() + b"o.",
        "instance opcode": b"(X" + struct.pack("<I", len(touch)) + touch.encode() + b"ios\nsystem\n.",
        "new object": raw(name("subprocess", "Popen"), text(touch), b"\x85\x81"),
        "extension code": raw(b"\x82\x01", b")R"),
        "state of a name": raw(name("collections", "OrderedDict"), b"}", text("make"), system, b"sb"),
        "state of a class": raw(name("numpy", "ndarray"), b"}", text("__setstate__"), name("numpy", "dtype"), b"sb"),
        "state of a list": raw(b"]}", text("append"), b"K\x01sb"),
        "state of a dict": raw(name("collections", "OrderedDict"), b")R}", text("items"), b"K\x01sb"),
        "call of a value": raw(text(touch), b")R"),
        "call of a bare name": raw(name("builtins", "str"), text(touch), b"\x85R"),
        "torch's own loader": raw(name("torch.storage", "_load_from_bytes"), b"C\x01x\x85R"),
        "persistent id": raw(text(touch), b"Q"),
        "persistent id as text": b"P" + touch.encode() + b"\n.",
        "out-of-band buffer": b"\x80\x05\x97.",
        "timscope itself": raw(name("timscope.data.importers.unpickle", "load_pickle"), b")R"),
        "copyreg": raw(name("copyreg", "_reconstructor"), name("os", "error"), name("builtins", "object"), b"N\x87R"),
        "pathlib": raw(name("pathlib", "Path"), text(str(mark)), b"\x85R", b"}", text("touch"), b"K\x01sb", system),
    }


def test_the_attacks_are_real(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    for kind in ("os.system", "posix.system", "builtins.eval", "inside of a list", "inside of an object array", "memo"):
        mark.unlink(missing_ok=True)
        pickle.loads(attacks(mark)[kind])
        assert mark.exists(), kind


@pytest.mark.parametrize("kind", attacks(Path("mark")))
@pytest.mark.parametrize("placeholders", [False, True])
def test_attack_is_refused_without_effect(tmp_path: Path, kind: str, placeholders: bool) -> None:
    mark = tmp_path / "mark"
    before = {key: (named.name, named.make, named.new) for key, named in PLAIN.items()}
    modules = set(os.sys.modules)
    unknown: set[str] = set()
    if placeholders and kind == "torch's own loader":
        assert isinstance(load(attacks(mark)[kind], unknown), Inert)  # unknown, so inert; its bytes are not looked at
    else:
        with pytest.raises(BadInput) as caught:
            load(attacks(mark)[kind], unknown if placeholders else None)
        assert "x.pkl" in str(caught.value) and "\n" not in str(caught.value)
    assert not mark.exists()
    assert set(os.sys.modules) == modules
    assert {key: (named.name, named.make, named.new) for key, named in PLAIN.items()} == before
    assert load(pickle.dumps(OrderedDict(a=[1]))) == {"a": [1]}


@pytest.mark.parametrize("kind", ["os.system", "builtins.eval", "inside of a list", "memo", "call of a bare name"])
def test_attack_inside_a_torch_file(tmp_path: Path, kind: str) -> None:
    mark = tmp_path / "mark"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a/data.pkl", attacks(mark)[kind])
        archive.writestr("a/version", "3")
    with pytest.raises(BadInput):
        load_torch(memoryview(buffer.getvalue()), "x.pt", placeholders=set())
    assert not mark.exists()


class Mine:
    def __init__(self) -> None:
        self.touched = False

    def __setstate__(self, state: Any) -> None:
        raise AssertionError("a class of the dump was used")

    def __getstate__(self) -> Any:
        return {"deep": [1, {"a": (2,)}]}


def test_unknown_classes() -> None:
    data = pickle.dumps({"a": 1, "object": Mine(), "list": [Mine(), 2]})
    with pytest.raises(BadInput, match=r"names .*\.Mine, which is not plain data"):
        load(data)
    unknown: set[str] = set()
    got = load(data, unknown)
    assert got["a"] == 1 and got["list"][1] == 2
    assert isinstance(got["object"], Inert) and unknown == {f"{Mine.__module__}.Mine"}


PLAIN_DATA = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.one_of(
        st.lists(inner),
        st.lists(inner).map(tuple),
        st.dictionaries(st.text(), inner),
        st.frozensets(st.integers()),
        st.lists(st.integers(-(2**31), 2**31 - 1) | st.floats(), min_size=2),
    ),
    max_leaves=20,
)


def same(a: Any, b: Any) -> bool:
    """Equal, with NaN equal to itself and lists of numbers equal to their arrays."""
    if isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in b)
    if isinstance(b, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return a == b or (a != a and b != b)


@settings(max_examples=150, deadline=None)
@given(PLAIN_DATA, st.sampled_from([2, 3, 4, 5]))
def test_plain_data_comes_back(value: Any, protocol: int) -> None:
    assert same(load(pickle.dumps(value, protocol)), value)


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_known_objects_come_back(protocol: int) -> None:
    shared = [1.5, 2.5]
    value = {
        "ordered": OrderedDict(b=1, a=2),
        "default": defaultdict(list, {"k": [1]}),
        "set": {1, 2},
        "bytes": bytearray(b"ab"),
        "complex": 1 + 2j,
        "shared": [shared, shared],
        "long": list(range(3000)),
        "mixed": [1, 2.5, None, "x"],
        "big": [2**40, 1, 2],
        "array": np.arange(6, dtype=np.float32).reshape(2, 3),
        "fortran": np.asfortranarray(np.arange(6).reshape(2, 3)),
        "objects": np.array([["a", None], [3, {"k": 1}]], dtype=object),
        "strings": np.array(["ab", "c"]),
        "number": np.float64(2.5),
        "flag": np.bool_(True),
    }
    got = load(pickle.dumps(value, protocol))
    assert got["ordered"] == {"b": 1, "a": 2} and got["default"] == {"k": [1]} and got["set"] == {1, 2}
    assert got["bytes"] == b"ab" and got["complex"] == 1 + 2j and got["shared"][0] is got["shared"][1]
    assert list(got["long"]) == value["long"] and got["mixed"] == value["mixed"] and list(got["big"]) == value["big"]
    for key in ("array", "fortran", "strings"):
        assert isinstance(got[key], Array) and np.array_equal(np.asarray(got[key]), value[key])
        assert np.asarray(got[key]).dtype == value[key].dtype
    assert np.asarray(got["objects"]).tolist() == value["objects"].tolist()
    assert got["number"] == 2.5 and got["flag"] is True


def test_tensors_pickled_without_torch_save_are_inert() -> None:
    """Their bytes are a torch file of the old format, which is not looked into."""
    unknown: set[str] = set()
    got = load_pickle(memoryview(pickle.dumps({"t": torch.ones(2)})), "x.pkl", TORCH, unknown)
    assert isinstance(got["t"], Inert) and unknown == {"torch.storage._load_from_bytes"}


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("dump", [pickle.dumps, pickle._dumps])
@pytest.mark.parametrize(
    "value",
    [[0.5] * 2001, [1, 2, 70_000] * 700, [*[0.5] * 1500, None], [*range(1500), 2**70], [*[1] * 1000, "x"]],
    ids=["rest of one", "integers", "none at the end", "beyond 64 bits", "text at the end"],
)
def test_long_lists_of_numbers(value: list[Any], dump: Any, protocol: int) -> None:
    """Pickled in pieces of a thousand, by either of Python's picklers."""
    got = load(dump(value, protocol))
    assert list(got) == value and len(got) == len(value) and got[-1] == value[-1]
    assert np.asarray(got).tolist() == np.asarray(value).tolist()


def test_values_of_the_standard_library_are_inert() -> None:
    unknown: set[str] = set()
    got = load(pickle.dumps([datetime.datetime(2026, 1, 1), uuid.uuid4(), Path("a")]), unknown)
    assert all(isinstance(item, Inert) for item in got)
    assert {n.split(".")[0] for n in unknown} == {"datetime", "uuid", "pathlib"}


def test_every_cut_is_noticed() -> None:
    data = pickle.dumps({"a": [0.5] * 10, "b": "text", "c": np.arange(4), "d": b"x" * 2000})
    for size in range(len(data)):
        with pytest.raises(BadInput):
            load(data[:size])


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60))
def test_noise_is_refused_or_read(data: bytes) -> None:
    with_header = b"\x80\x04" + data
    for candidate in (data, with_header, with_header + b"."):
        try:
            load(candidate, set())
        except BadInput:
            continue


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_forged_bytes_never_escape(data: st.DataObject) -> None:
    good = bytearray(torch_bytes({"a": torch.arange(4), "b": np.arange(3), "c": [1.0, 2.0]}))
    for _ in range(data.draw(st.integers(1, 4))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    try:
        got = load_torch(memoryview(bytes(good)), "x.pt", placeholders=set())
        for value in got.values() if isinstance(got, dict) else ():
            np.asarray(value)
    except (BadInput, ValueError, TypeError, OverflowError):
        pass  # what a format module meets as bad input; never a crash and never a call


# --- bombs: small files that ask for much ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x04\x8e" + struct.pack("<Q", 1 << 60) + b".",  # a byte string of an exabyte
        b"\x80\x04B" + struct.pack("<I", 0xFFFFFFFF) + b"x.",
        b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b".",
        b"\x80\x04\x8d" + struct.pack("<Q", 1 << 60) + b".",
        b"\x80\x04\x8b" + struct.pack("<i", 0x7FFFFFFF) + b".",
        b"\x80\x04" + name("builtins", "bytearray") + b"J" + struct.pack("<i", 0x7FFFFFFF) + b"\x85R.",
        b"\x80\x04" + name("builtins", "list") + b"J" + struct.pack("<i", 0x7FFFFFFF) + b"\x85R.",
    ],
)
def test_announced_sizes_are_not_believed(data: bytes) -> None:
    with pytest.raises(BadInput):
        load(data)


def test_memo_index_costs_nothing() -> None:
    """Python's unpickler makes its memo as long as the largest index: 2**31 would be 16 GB."""
    assert load(b"\x80\x04K\x07r" + struct.pack("<I", 0xFFFFFFFF) + b".") == 7


def test_too_many_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickles, "MAX_OPCODES", 1000)
    with pytest.raises(BadInput, match="more than 1,000 objects"):
        load(b"\x80\x04" + b"}" * 5000 + b".")
    numbers = pickle.dumps([0.5] * 100_000, protocol=2)  # as torch.save writes them
    assert len(load(numbers)) == 100_000  # numbers in lists are not objects


@pytest.mark.parametrize("shape", [(1 << 62, 0), (0, 1 << 62), (-1, 3), (1 << 40,)])
def test_array_shapes_are_not_believed(shape: tuple[int, ...]) -> None:
    made = Calls(np.zeros, state=None)
    made._call = (np._core.multiarray._reconstruct, (np.ndarray, (0,), b"b"), (1, shape, np.dtype("f4"), False, b""))
    with pytest.raises(BadInput):
        load(pickle.dumps(made))


def test_forged_dtype_is_refused() -> None:
    """An object array whose bytes are taken for pointers: numpy's own unpickler trusts the flags of a dtype."""
    made = Calls(np.zeros)
    state = (1, (1,), np.dtype("O"), False, struct.pack("<Q", 0x41414141))
    made._call = (np._core.multiarray._reconstruct, (np.ndarray, (0,), b"b"), state)
    with pytest.raises(BadInput):
        load(pickle.dumps(made))


# --- torch files ---------------------------------------------------------------------------------------------------

DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.uint16, torch.bool,
]  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 4), max_size=3), st.sampled_from(DTYPES), st.integers(0, 3), st.booleans())
def test_tensors_come_back(shape: list[int], dtype: torch.dtype, cut: int, transpose: bool) -> None:
    tensor = (torch.randn([n + cut for n in shape]) * 10).to(dtype)
    for axis in range(tensor.dim()):
        tensor = tensor.narrow(axis, min(cut, tensor.shape[axis]), max(0, tensor.shape[axis] - cut))
    tensor = tensor.t() if transpose and tensor.dim() == 2 else tensor
    got = np.asarray(load_torch(torch_bytes({"t": tensor}), "x.pt")["t"])
    want = tensor.float().numpy() if dtype == torch.bfloat16 else tensor.numpy()
    assert (
        got.dtype == want.dtype
        and got.shape == want.shape
        and np.array_equal(got, want, equal_nan=dtype.is_floating_point)
    )


def test_bfloat16_is_exact() -> None:
    bits = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    got = np.asarray(load_torch(torch_bytes(bits), "x.pt"))
    assert np.array_equal(got.view(np.uint32), bits.float().numpy().view(np.uint32))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
def test_nested_tensors(layout: torch.layout) -> None:
    rows = [torch.arange(n, dtype=torch.float32) + n for n in (3, 0, 5)]
    got = load_torch(torch_bytes({"n": torch.nested.as_nested_tensor(rows, layout=layout)}), "x.pt")["n"]
    assert isinstance(got, Nested)
    assert all(np.array_equal(a, b.numpy()) for a, b in zip(got.rows(), rows, strict=True))


def test_parameters_and_shared_storages() -> None:
    base = torch.arange(10.0)
    got = load_torch(torch_bytes({"p": torch.nn.Parameter(base[2:5]), "q": base[4:]}), "x.pt")
    assert np.array_equal(np.asarray(got["p"]), [2, 3, 4]) and np.array_equal(
        np.asarray(got["q"]), np.arange(4.0, 10.0)
    )


def test_a_view_larger_than_its_storage_is_refused() -> None:
    expanded = torch.zeros(1).expand(1 << 30)
    with pytest.raises(ValueError, match="in a storage of 1"):
        np.asarray(load_torch(torch_bytes({"t": expanded}), "x.pt")["t"])
    storage = load_torch(torch_bytes(torch.arange(4)), "x.pt").storage
    for offset, shape, stride in [
        (0, (5,), (1,)),
        (3, (2,), (1,)),
        (-1, (1,), (1,)),
        (0, (2,), (-1,)),
        (0, (2, 2), (3, 1)),
    ]:
        with pytest.raises(ValueError, match="a tensor of"):
            np.asarray(Tensor(storage, "int64", offset, shape, stride))


def test_old_and_foreign_files() -> None:
    with pytest.raises(BadInput, match=r"old format.*torch\.save it again"):
        load_torch(torch_bytes([1], _use_new_zipfile_serialization=False), "x.pt")
    with pytest.raises(Damaged, match=r"not a file of torch\.save"):
        load_torch(memoryview(b"hello, world"), "x.pt")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("readme.txt", "x")
    with pytest.raises(BadInput, match=r"not one of torch\.save"):
        load_torch(memoryview(buffer.getvalue()), "x.pt")


def test_compressed_entries_are_refused() -> None:
    """A zip bomb: 20 MB of zeros in 20 kB."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data.pkl", b"\x80\x02" + b"\x00" * 20_000_000)
    with pytest.raises(BadInput, match="compressed"):
        load_torch(memoryview(buffer.getvalue()), "x.pt")


def test_every_cut_of_a_torch_file_is_noticed() -> None:
    whole = bytes(torch_bytes({"a": torch.arange(3), "b": [1.0, 2.0]}))
    for size in range(0, len(whole), 7):
        with pytest.raises(BadInput):
            load_torch(memoryview(whole[:size]), "x.pt")
