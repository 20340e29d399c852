"""Teacher-forced scoring: one packed forward gives every response token its log-probability and entropy.

Sequences are laid end to end without padding, and logits are made for response positions only, a slice of rows at a
time, so memory does not grow with the vocabulary times the length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from timscope.replay.exact import packed_layout, token_logprobs

TOKENS_PER_FORWARD = 2048
MIN_TOKENS = 256  # a pack smaller than this wastes the wide tiles
HEAD_ROWS = 256

Progress = Callable[[int], None]


@dataclass(frozen=True)
class Scores:
    """Per response token, in order: log-probability and entropy in nats, float32."""

    logprob: np.ndarray[Any, np.dtype[np.float32]]
    entropy: np.ndarray[Any, np.dtype[np.float32]]


def head_logprobs(model: Any, hidden: Tensor, token_ids: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropies [N] of token_ids [N] from hidden states [N, H], HEAD_ROWS rows at a time."""
    parts = [
        token_logprobs(model.lm_head(hidden[i : i + HEAD_ROWS]), token_ids[i : i + HEAD_ROWS], temperature)
        for i in range(0, hidden.shape[0], HEAD_ROWS)
    ]
    return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])


def packs(lengths: Sequence[int], limit: int) -> Iterator[list[int]]:
    """Indices in packs of at most `limit` tokens, longest first, so that neighbours need alike tiles."""
    pack: list[int] = []
    size = 0
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if pack and size + lengths[i] > limit:
            yield pack
            pack, size = [], 0
        pack.append(i)
        size += lengths[i]
    if pack:
        yield pack


def checked(prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]]) -> tuple[list[int], list[Scores]]:
    """The sequences that have something to score, and a list of empty results for all."""
    results = [Scores(np.empty(0, np.float32), np.empty(0, np.float32))] * len(prompts)
    todo = [i for i, c in enumerate(completions) if len(c)]
    if any(not len(prompts[i]) for i in todo):
        raise ValueError("a completion without a prompt cannot be scored: nothing predicts its first token")
    return todo, results


def _score_pack(model: Any, prompts: list[list[int]], completions: list[list[int]], temperature: float) -> list[Scores]:
    device = model.device
    # The last token predicts nothing that is scored, so it is left out of the forward.
    rows = [(p + c)[:-1] for p, c in zip(prompts, completions, strict=True)]
    lengths = [len(row) for row in rows]
    ids = torch.tensor([t for row in rows for t in row], device=device)[None]
    positions = torch.cat([torch.arange(n) for n in lengths]).to(device)[None]
    layout = packed_layout(lengths, device)
    forward = {"input_ids": ids, "position_ids": positions, "use_cache": False, "exact_layout": layout}
    hidden = model.model(**forward).last_hidden_state[0]
    starts = np.cumsum([0, *lengths[:-1]])
    wanted = [np.arange(s + len(p) - 1, s + n) for s, p, n in zip(starts, prompts, lengths, strict=True)]
    targets = torch.tensor([t for c in completions for t in c], device=device)
    index = torch.from_numpy(np.concatenate(wanted)).to(device)
    logprob, entropy = head_logprobs(model, hidden[index], targets, temperature)
    edges = np.cumsum([len(c) for c in completions])[:-1]
    logprobs, entropies = (np.split(x.cpu().numpy(), edges) for x in (logprob, entropy))
    return [Scores(a, b) for a, b in zip(logprobs, entropies, strict=True)]


def _on_workers(
    jobs: Sequence[Callable[[], list[Scores]]], workers: int, one_thread: bool
) -> Iterator[tuple[int, list[Scores]]]:
    """Run each job, with (job number, result) as they finish; `one_thread`: with one intra-op thread a worker."""
    if not one_thread:
        yield from ((i, job()) for i, job in enumerate(jobs))
        return

    def run(job: Callable[[], list[Scores]]) -> list[Scores]:
        with torch.inference_mode():  # the mode is a property of the thread
            return job()

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(workers) as pool:
            futures = {pool.submit(run, job): i for i, job in enumerate(jobs)}
            for future in as_completed(futures):
                yield futures[future], future.result()
    finally:
        torch.set_num_threads(before)


def score(
    model: Any,
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[int]],
    temperature: float = 1.0,
    progress: Progress | None = None,
    packed: bool = True,
    workers: int | None = None,
) -> list[Scores]:
    """Score completions [i] after prompts [i] under softmax(logits / temperature), in the order given.

    The model must be inside an ExactEngine, which knows packed rows; a plain model takes packed=False, one sequence a
    forward. Prompts must not be empty (nothing predicts the first token of a text). `progress` is called with the
    number of response tokens just scored. On a CPU the packs go to as many workers as torch has intra-op threads, each
    with one such thread: many small products want no barrier between cores, and on 16 cores a GEMM was seen to split
    a 16-row tile's sum by threads. `workers=1` scores in the calling thread with the threads it has.
    """
    todo, results = checked(prompts, completions)
    own_threads = workers is None and packed and model.device.type == "cpu"
    if workers is None:
        workers = torch.get_num_threads() if own_threads else 1
    own_threads = own_threads or workers > 1
    lengths = [len(prompts[i]) + len(completions[i]) for i in todo]
    share = -(-sum(lengths) // workers)
    limit = min(TOKENS_PER_FORWARD, max(share, MIN_TOKENS)) if packed else 0
    chosen = [[todo[i] for i in pack] for pack in packs(lengths, limit)]

    def job(pack: list[int]) -> list[Scores]:
        return _score_pack(model, [list(prompts[i]) for i in pack], [list(completions[i]) for i in pack], temperature)

    with torch.inference_mode():
        jobs = [partial(job, pack) for pack in chosen]
        for number, scores in _on_workers(jobs, max(1, min(workers, len(chosen))), own_threads):
            for i, item in zip(chosen[number], scores, strict=True):
                results[i] = item
            if progress:
                progress(sum(len(completions[i]) for i in chosen[number]))
    return results
