"""How fast the writer is and how small its files are, on log-probs of a real run; JSON lines beside it for scale.

Run by hand: python tests/bench/bench_writer.py [TOKENS] [RUN] [--repeats N]. CPU seconds are the whole process's, over
all threads, from the opening of the run until it is closed, so encoding, compression and file writes are in. The ways
of writing take turns, TOKENS tokens at a time, because a shared machine is not equally fast all the time; beside them
stands what zstd alone does on one core meanwhile. Exit code 1 where the standard columns cost more than 13 bytes a
token or, in the median, less than 10 M tokens are written in a CPU second.

The tokens are whole sequences drawn again and again from the recorded run, 16 of its short answers (18 tokens) to a
sequence, and no value comes twice: the trainer's log-probs and entropies are scaled by a random 5 % and put back on the
grid of float32 sums that real ones lie on, the gap between the engines is drawn anew the same way, and token ids are
drawn one by one from a Zipf law over 49,152 ids (10.9 bits of entropy each, no repeats for zstd to find).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
from numpy.typing import NDArray

import timscope.data
from timscope.data import RunWriter, open_run
from timscope.loggers import Recorder

SAMPLE = Path(timscope.data.__file__).parent / "samples" / "smollm2-grpo"
STEP_TOKENS, PROMPT, JOINED, VOCABULARY, GRID = 500_000, 64, 16, 49_152, 2.0**19
STANDARD = ("token_id", "mask", "rollout_logprob", "old_logprob", "entropy")
Columns = dict[str, NDArray[Any]]


def draw(source: dict[str, NDArray[Any]], starts: Any, ends: Any, tokens: int, rng: Any) -> Columns:
    """One step of about `tokens` tokens: sequences drawn from `source`, all values new."""
    answers = ends - starts
    chosen = rng.integers(0, len(starts), (int(tokens / answers.mean() / JOINED), JOINED))
    index = np.concatenate([np.arange(starts[i], ends[i]) for i in chosen.reshape(-1)])
    lengths, size = answers[chosen].sum(1), len(index)

    def jitter(values: NDArray[Any]) -> NDArray[Any]:
        return values[index] * np.exp(0.05 * rng.standard_normal(size))

    old = np.minimum(np.round(jitter(source["old_logprob"]) * GRID) / GRID, 0)
    gap = jitter(source["rollout_logprob"] - source["old_logprob"])
    drift = 1e-3 * rng.standard_normal(size) * np.abs(old)
    weights = np.arange(1, VOCABULARY + 1) ** -1.0
    ids = rng.permutation(VOCABULARY)[np.searchsorted(np.cumsum(weights / weights.sum()), rng.random(size))]
    return {
        "sequence": np.repeat(np.arange(len(chosen)), lengths),
        "position": np.concatenate([PROMPT + np.arange(n) for n in lengths]).astype(np.int32),
        "token_id": np.minimum(ids, VOCABULARY - 1).astype(np.int32),
        "mask": np.ones(size, bool),
        "rollout_logprob": np.minimum(old + gap, 0).astype(np.float32),
        "old_logprob": old.astype(np.float32),
        "entropy": (np.round(jitter(source["entropy"]) * GRID) / GRID).astype(np.float32),
        "loss_logprob": np.minimum(np.round((old + drift) * GRID) / GRID, 0).astype(np.float32),
        "rollout_is_weight": np.exp(-gap).astype(np.float32),
    }


def steps(run: Path, tokens: int) -> list[Columns]:
    """`tokens` tokens in steps, from a recorded run."""
    with open_run(run) as opened:
        frame = opened.sql("SELECT * FROM tokens ORDER BY step, sequence, position")
    key = frame["step"].to_numpy().astype(np.int64) * 1_000_000 + frame["sequence"].to_numpy()
    starts = np.flatnonzero(np.concatenate([[True], np.diff(key) != 0]))
    ends = np.concatenate([starts[1:], [len(key)]])
    names = ("old_logprob", "rollout_logprob", "entropy")
    source = {name: frame[name].to_numpy().astype(np.float64) for name in names}
    rng = np.random.default_rng(0)
    return [draw(source, starts, ends, min(STEP_TOKENS, tokens), rng) for _ in range(-(-tokens // STEP_TOKENS))]


def size(folder: Path) -> int:
    """Bytes of all files below."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def parquet(folder: Path, data: list[Columns], columns: tuple[str, ...]) -> None:
    """The writer alone, given flat columns."""
    with RunWriter(folder, strict=True) as writer:
        for number, step in enumerate(data):
            writer.put("tokens", number, {name: step[name] for name in ("sequence", "position", *columns)})
            writer.complete(number)


def recorder(folder: Path, data: list[Columns], columns: tuple[str, ...]) -> None:
    """Through the recorder: ragged ids and flat columns copied on the way in, rows built on the writer's thread."""
    with Recorder(folder) as made:
        for number, said in enumerate(data):
            with made.step(number) as step:
                rows = np.split(said["token_id"], np.flatnonzero(np.diff(said["sequence"])) + 1)
                prompts = [np.arange(PROMPT, dtype=np.int32)] * len(rows)
                step.rollout(prompt_ids=prompts, completion_ids=rows)
                step.trainer(**{name: said[name] for name in columns if name != "token_id"})


def json_lines(folder: Path, data: list[Columns], columns: tuple[str, ...]) -> None:
    """What most frameworks dump: one JSON object a sequence with a list a column, here by a fast JSON writer."""
    folder.mkdir()
    option = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE
    for number, step in enumerate(data):
        edges = np.flatnonzero(np.diff(step["sequence"])) + 1
        pieces = {name: np.split(step[name], edges) for name in columns}
        with (folder / f"{number}.jsonl").open("wb") as handle:
            for row in range(len(edges) + 1):
                key = {"step": number, "sequence": row, "start": PROMPT}
                handle.write(orjson.dumps({**key, **{n: rows[row] for n, rows in pieces.items()}}, option=option))


def zstd_alone(values: NDArray[Any]) -> float:
    """MB that one core compresses in a CPU second with zstd level 1, of floats as they lie in memory."""
    codec, raw = pa.Codec("zstd", compression_level=1), values.tobytes()
    start = time.process_time()
    codec.compress(raw)
    return len(raw) / (time.process_time() - start) / 1e6


def measure(data: list[Columns], repeats: int) -> tuple[dict[str, tuple[float, list[float]]], list[float]]:
    """By way of writing: bytes a token and M tokens a CPU second of each repeat; and MB/s of zstd alone. The first
    round warms up and does not count."""
    every = (*STANDARD, "loss_logprob", "rollout_is_weight")
    ways: dict[str, tuple[Callable[..., None], tuple[str, ...]]] = {
        "standard columns": (parquet, STANDARD),
        "with loss_logprob and IS weight": (parquet, every),
        "standard, through the recorder": (recorder, STANDARD),
        "JSON lines, standard": (json_lines, STANDARD),
    }
    total = sum(len(step["sequence"]) for step in data)
    found: dict[str, tuple[float, list[float]]] = {name: (0.0, []) for name in ways}
    scale: list[float] = []
    for _ in range(repeats + 1):
        for name, (write, columns) in ways.items():
            with tempfile.TemporaryDirectory() as work:
                cpu = time.process_time()
                write(Path(work) / "run", data, columns)
                cpu = time.process_time() - cpu
                found[name] = (size(Path(work)) / total, [*found[name][1], total / cpu / 1e6])
        scale.append(zstd_alone(data[0]["old_logprob"]))
    return {name: (each, rates[1:]) for name, (each, rates) in found.items()}, scale[1:]


def main(tokens: int, run: Path, repeats: int) -> int:
    """Print a line a way of writing; 1 where the standard columns miss their target."""
    data = steps(run, tokens)
    total = sum(len(step["sequence"]) for step in data)
    found, scale = measure(data, repeats)
    print(f"{total:,} tokens in {len(data)} steps, drawn from {run.name}; {repeats} repeats, the ways taking turns")
    for name, (each, rates) in found.items():
        print(
            f"{name:34s} {each:6.2f} bytes a token  {statistics.median(rates):6.2f} M tokens a CPU second "
            f"(best {max(rates):.2f}, worst {min(rates):.2f})"
        )
    print(f"{'zstd level 1 alone, one core':34s} {statistics.median(scale):.0f} MB/s (best {max(scale):.0f})")
    each, rates = found["standard columns"]
    return int(each > 13 or statistics.median(rates) < 10)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tokens", type=int, nargs="?", default=2_000_000, help="a repeat and way of writing")
    parser.add_argument("run", type=Path, nargs="?", default=SAMPLE, help="recorded run to draw from")
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    sys.exit(main(options.tokens, options.run, options.repeats))
