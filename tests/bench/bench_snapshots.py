"""How large a delta of the weights is, on real training, and how fast snapshots are written and restored.

Run by hand: `python tests/bench/bench_snapshots.py [STEPS]`. SmolLM2-135M-Instruct in float32 and in bfloat16 is
trained with AdamW (gradients clipped to norm 1, no weight decay, as in most GRPO recipes) at two learning rates on the
language-model loss of a few English texts. After each step a delta to the version before is written as a run would
write it, and the last version is restored and verified. What else could be done with the same bytes is measured beside
it: XOR without byte planes, and the difference of the bits as integers instead of XOR.
"""

from __future__ import annotations

import sys
import tempfile
import time
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from timscope.data.storage import Storage
from timscope.data.weights import RawTensor, WeightStore
from timscope.loggers.examples.smollm2 import model_directory
from timscope.loggers.host_copy import HostCopy
from timscope.loggers.weights import weight_tensors

TOKENS, BATCH = 64, 2
TEXTS = (
    "The committee met on Tuesday to decide how the new bridge should be paid for. Three plans were on the table, and "
    "none of them was cheap. The first would raise the toll for lorries, the second would borrow against next year's "
    "taxes, and the third would simply wait until the old bridge could carry no more traffic and the state had to act.",
    "To find the area of a triangle, multiply the base by the height and divide by two. If the base is 14 cm and the "
    "height is 9 cm, the product is 126, so the area is 63 square centimetres. Check the units: a length times a "
    "length is an area, so centimetres times centimetres gives square centimetres, which is what was asked for.",
    "Water boils at a lower temperature in the mountains because the air presses less on its surface. A pot of beans "
    "that is soft after an hour at the coast may need two at four thousand metres, and cooks there use a closed pot, "
    "which keeps the steam in and the pressure up. The same reasoning explains why a kettle sings before it boils.",
)


def _batch(tokenizer: Any, step: int) -> torch.Tensor:
    rows = [tokenizer(TEXTS[(step + i) % len(TEXTS)]).input_ids[:TOKENS] for i in range(BATCH)]
    return torch.tensor([row + [tokenizer.eos_token_id] * (TOKENS - len(row)) for row in rows])


def _train(model: Any, optimizer: Any, ids: torch.Tensor) -> float:
    loss = model(ids, labels=ids).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return float(loss.detach())


def _otherwise(new: dict[str, RawTensor], old: dict[str, RawTensor]) -> str:
    """Shares of a full snapshot that other encodings of the same step need."""
    codec = pa.Codec("zstd", compression_level=1)
    sizes = {"XOR, no planes": 0, "difference, planes": 0}
    total = 0
    for name, tensor in new.items():
        kind = f"u{tensor.itemsize}"
        a, b = (t.flat.view(kind) for t in (tensor, old[name]))
        total += a.nbytes
        sizes["XOR, no planes"] += len(codec.compress((a ^ b).view(np.uint8).data, asbytes=True))
        signed = (a - b).view(f"i{tensor.itemsize}")
        zigzag = ((signed << 1) ^ (signed >> (8 * tensor.itemsize - 1))).view(np.uint8)
        planes = np.ascontiguousarray(zigzag.reshape(-1, tensor.itemsize).T)
        sizes["difference, planes"] += len(codec.compress(planes.reshape(-1).data, asbytes=True))
    return ", ".join(f"{name} {size / total:.3f}" for name, size in sizes.items())


def measure(folder: Any, dtype: torch.dtype, rate: float, steps: int) -> None:
    """Print one line for a dtype and a learning rate."""
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
    copies = [HostCopy(), HostCopy()]
    with tempfile.TemporaryDirectory() as run:
        store = WeightStore(Storage(run))
        copies[0].take(weight_tensors(model))
        held = copies[0].wait()
        start = time.perf_counter()
        entry = store.write_full(0, held)
        full_s = time.perf_counter() - start
        total = entry.tensor_bytes or 0
        shares, delta_s, losses = [], [], []
        for step in range(1, steps + 1):
            losses.append(_train(model, optimizer, _batch(tokenizer, step)))
            copies[step % 2].take(weight_tensors(model))
            new = copies[step % 2].wait()
            start = time.perf_counter()
            entry = store.write_delta(step, new, entry, held)
            delta_s.append(time.perf_counter() - start)
            shares.append(entry.files[0].bytes / total)
            other = _otherwise(new, held) if step == steps else ""
            held = new
        start = time.perf_counter()
        store.load(steps)
        load_s = time.perf_counter() - start
    name = str(dtype).removeprefix("torch.")
    mb = total / 1e6
    print(
        f"{name}, lr {rate:.0e}: {mb:.0f} MB; delta's share by step {' '.join(f'{s:.3f}' for s in shares)}; "
        f"loss {losses[0]:.2f} to {losses[-1]:.2f}\n"
        f"  MB/s: full {mb / full_s:.0f}, delta {mb / min(delta_s):.0f}, restore a chain of {steps} and verify "
        f"{mb / load_s:.0f}; last step otherwise: {other}",
        flush=True,
    )


def main(steps: int = 6) -> None:
    """Measure both dtypes at both learning rates."""
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {BATCH} x {TOKENS} tokens a step")
    folder = model_directory()
    for dtype in (torch.float32, torch.bfloat16):
        for rate in (1e-6, 1e-5):
            measure(folder, dtype, rate, steps)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
