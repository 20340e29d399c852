"""How far cosines from sketches of real gradients are off, and what the sketches of a step take on disk.

Run by hand: python tests/bench/bench_sketch_real.py [--device cuda] [--seeds N]. Gradients of SmolLM2
(loggers/examples/smollm2.py) on four texts, 6 GB of memory and two minutes a seed. Columns as in bench_sketch.py.
"""

from __future__ import annotations

import argparse
import gc
import io
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from bench_gradients import carrying
from bench_sketch import BUCKETS, UNIT, cosine, ideal, line

from timscope.analysis.formulas import sketch_cosine
from timscope.data.parts import encoding
from timscope.data.schema import GRADIENTS
from timscope.loggers.gradients import gradient_groups
from timscope.loggers.parameter_names import group_of
from timscope.loggers.sketch import SketchPlan, rounded

TEXTS = (
    "The gradient of a deep network points in the direction of steepest ascent of the loss.",
    "In 1805 Admiral Nelson defeated the combined French and Spanish fleets off Cape Trafalgar.",
    "def add(a, b):\n    return a + b\n\nprint(add(2, 3))  # prints 5",
    "Mix the flour with two eggs, a pinch of salt and enough milk to make a thin batter.",
)


def real_gradients(device: str) -> dict[str, dict[str, torch.Tensor]]:
    """Language-model gradients of SmolLM2: each text in float32, and the first one computed in bfloat16."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from timscope.loggers.examples.smollm2 import model_directory

    tokenizer = AutoTokenizer.from_pretrained(model_directory())
    found = {}
    for dtype, texts in ((torch.float32, TEXTS), (torch.bfloat16, TEXTS[:1])):
        model: Any = AutoModelForCausalLM.from_pretrained(model_directory(), dtype=dtype).to(device)
        for number, text in enumerate(texts):
            model.zero_grad(set_to_none=True)
            ids = tokenizer(text, return_tensors="pt").input_ids.to(device)
            model(input_ids=ids, labels=ids).loss.backward()
            found[f"{dtype}-{number}"] = {n: p.grad.clone() for n, p in model.named_parameters()}
    return found


def real(seeds: int, device: str) -> dict[str, dict[str, Any]]:
    """Estimated against true cosines by group and in total; returns one gradient's measured groups."""
    gradients = real_gradients(device)
    gradients["half"] = {n: (g + gradients["torch.float32-1"][n]) / 2 for n, g in gradients["torch.float32-0"].items()}
    kinds = {
        "different texts": [(f"torch.float32-{i}", f"torch.float32-{j}") for i in range(4) for j in range(i)],
        "a text and a batch that holds it": [("torch.float32-0", "half")],
        "bf16 and fp32 of one batch": [("torch.float32-0", "torch.bfloat16-0")],
    }
    # The true cosines, and the ideal sketches, group by group.
    groups: dict[str, list[str]] = {"total": sorted(gradients["half"])}
    for name in groups["total"]:
        groups.setdefault(group_of(name), []).append(name)
    true: dict[tuple[str, str, str], float] = {}
    best: list[dict[str, dict[str, np.ndarray]]] = [{key: {} for key in gradients} for _ in range(seeds)]
    for group, names in groups.items():
        flat = {k: torch.cat([g[n].float().reshape(-1) for n in names]).cpu().numpy() for k, g in gradients.items()}
        for pairs in kinds.values():
            true.update({(group, a, b): cosine(flat[a], flat[b]) for a, b in pairs})
        for seed, kept in enumerate(best):
            made = ideal(list(flat.values()), np.random.default_rng((seed, len(true))))
            for key, sketch in zip(flat, made, strict=True):
                kept[key][group] = sketch
        gc.collect()
    ours: list[dict[str, dict[str, Any]]] = []
    unrounded: list[dict[str, dict[str, Any]]] = []
    for seed in range(seeds):
        plan = SketchPlan(BUCKETS, seed)
        measured = {key: gradient_groups(carrying(g), 1.0, plan) for key, g in gradients.items()}
        ours.append({k: {g: row["sketch"] for g, row in m.result().items()} for k, m in measured.items()})
        unrounded.append({})
        for key, m in measured.items():
            made = {g: sketch for g, (_, sketch) in m._parts[0].totals().items()}
            unrounded[-1][key] = {**made, "total": sum(made.values())}
    for kind, pairs in kinds.items():
        for label, chosen in (("by group", [g for g in groups if g != "total"]), ("total", ["total"])):
            every = [(s, g, a, b) for s in range(seeds) for g in chosen for a, b in pairs]
            t = [true[g, a, b] for _, g, a, b in every]
            o = [sketch_cosine(ours[s][a][g], ours[s][b][g]).cosine for s, g, a, b in every]
            u = [sketch_cosine(unrounded[s][a][g], unrounded[s][b][g]).cosine for s, g, a, b in every]
            i = [sketch_cosine(best[s][a][g], best[s][b][g]).cosine for s, g, a, b in every]
            line(f"{kind}, {label}", t, o, i)
            away = 1 - np.array(t)
            relative = np.sqrt(np.mean(((np.array(o) - t) / away) ** 2))
            moved = np.abs(np.array(o) - u) / UNIT
            rms = np.sqrt(np.mean(moved**2))
            print(
                f"    1 - cosine off by {relative:.1%}; rounding moved it by {rms:.5f} RMS, {moved.max():.5f} at most"
            )
    return {g: {"sketch": s, "full": unrounded[0]["half"][g]} for g, s in ours[0]["half"].items()}


def on_disk(measured: dict[str, dict[str, Any]]) -> None:
    """Bytes of a step's sketches under the table's encoding, with and without BYTE_STREAM_SPLIT and rounding."""
    schema = pa.schema([GRADIENTS.field("step"), GRADIENTS.field("parameter_group"), GRADIENTS.field("sketch")])
    settings = encoding(schema)
    split = {**settings, "column_encoding": {**settings["column_encoding"], "sketch.list.element": "BYTE_STREAM_SPLIT"}}
    for what in ("full", "sketch"):
        rows = [np.asarray(row[what], np.float32) for row in measured.values()]
        table = pa.table([[1] * len(rows), list(measured), rows], schema=schema)
        for name, chosen in (("plain", settings), ("BYTE_STREAM_SPLIT", split)):
            sink = io.BytesIO()
            pq.write_table(table, sink, **chosen)
            label = "rounded to 8 bits" if what == "sketch" else "float32"
            print(f"{label}, {name}: {sink.tell():,} bytes for {len(rows)} groups x {BUCKETS}")
    assert all((rounded(r["sketch"]) == r["sketch"]).all() for r in measured.values())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", help="where the gradients and their sketches are made")
    parser.add_argument("--seeds", type=int, default=3)
    chosen = parser.parse_args()
    on_disk(real(chosen.seeds, chosen.device))
