"""The fingerprint made by torch and by Triton is the one that numpy makes, and it is of the model as it is held."""

from __future__ import annotations

from typing import Any

import pytest

from timscope.data.digest import combine_rows, fingerprint, tensor_header

torch = pytest.importorskip("torch")

from small_model import Small  # noqa: E402
from torch import nn  # noqa: E402

from timscope.loggers import fingerprint_torch  # noqa: E402
from timscope.loggers.fingerprint import Fingerprinter, fingerprint_later  # noqa: E402
from timscope.loggers.fingerprint_torch import row_hashes  # noqa: E402
from timscope.loggers.weights import (  # noqa: E402
    dtype_of,
    flat_bytes,
    weight_items,
    weight_tensors,
    weights_digest,
)


def test_torch_makes_the_same_fingerprint(monkeypatch: Any) -> None:
    """The code for a GPU without Triton, here on the CPU: many shapes, several batches, words that are not aligned."""
    monkeypatch.setattr(fingerprint_torch, "_BATCH_ROWS", 5)
    monkeypatch.setattr(fingerprint_torch, "_OWN_LAUNCH_ROWS", 3)
    torch.manual_seed(1)
    pool = torch.randint(0, 256, (4_000_000,), dtype=torch.uint8)
    tensors = {
        "aligned": pool[: 12 * 65536 + 40].view(torch.float32),
        "odd": pool[3 : 3 + 7 * 65536 + 5],
        "half": pool[2 : 2 + 8 * 65536].view(torch.bfloat16).view(16, -1),
        "turned": torch.randn(300, 400).t(),
        "exact": torch.zeros(16384, dtype=torch.int32),
        **{f"small{i}": torch.randn(i, 3) for i in range(40)},
        **{name: t.detach() for name, t in weight_tensors(Small()).items()},
    }
    headers = [tensor_header(name, dtype_of(t), tuple(t.shape)) for name, t in tensors.items()]
    parts, hashes = row_hashes(list(enumerate(tensors.values())))
    items = [(n, dtype_of(t), tuple(t.shape), memoryview(flat_bytes(t).numpy())) for n, t in tensors.items()]
    assert combine_rows(headers, parts, hashes.numpy()) == fingerprint(items)
    hashes[7, 1] += 1
    assert combine_rows(headers, parts, hashes.numpy()) != fingerprint(items)


def test_digests_are_of_the_model_as_it_is_held() -> None:
    model = Small()
    assert fingerprint_later(model).result() == fingerprint(weight_items(model))
    untied = Small()
    untied.lm_head.weight = nn.Parameter(untied.embed.weight.detach().clone())
    assert weights_digest(untied) != weights_digest(model)
    assert fingerprint_later(untied).result() != fingerprint_later(model).result()
    assert fingerprint_later(Small().double()).result() != fingerprint_later(model).result()


def test_a_wrapper_does_not_change_names() -> None:
    model = Small()
    assert weights_digest(torch.compile(nn.DataParallel(model))) == weights_digest(model)


class Wide(nn.Module):
    """Rows that end everywhere: whole, one element more, odd bytes, none; and negative words."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        for size in (16384, 16385, 16383, 1, 0, 300_001):
            self.register_parameter(f"f{size}", nn.Parameter(-torch.rand(size)))
            self.register_parameter(f"h{size}", nn.Parameter(-torch.rand(size).bfloat16()))
            self.register_buffer(f"b{size}", torch.randint(-128, 127, (size,), dtype=torch.int8))


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [Wide, Small])
def test_on_a_gpu_triton_and_torch_make_the_same(kind: type[nn.Module]) -> None:
    model = kind().cuda()
    tensors = [tensor.contiguous() for tensor in weight_tensors(model).values()]
    said = [(name, dtype_of(t), tuple(t.shape)) for name, t in weight_tensors(model).items()]
    parts, hashes = row_hashes(list(enumerate(tensors)))
    wanted = fingerprint(weight_items(model))
    assert combine_rows([tensor_header(*s) for s in said], parts, hashes.cpu().numpy()) == wanted
    maker = Fingerprinter()
    assert maker.later(model).result() == wanted
    assert (maker._plan is not None) is (kind is Wide), "a turned tensor is not for the kernel"
    with torch.no_grad():
        next(p for p in model.parameters() if p.numel()).add_(1)
    changed = maker.later(model).result()
    assert changed == fingerprint(weight_items(model)) != wanted
    if kind is Wide:
        model.f1 = nn.Parameter(torch.rand(1).cuda())  # another tensor in its place
        assert maker.later(model).result() == fingerprint(weight_items(model)) != changed
