"""Tool results inside a completion: recorded as tokens, scored by the trainer, sampled by nobody, out of the loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from timscope.data import open_run

pytest.importorskip("trl")

import torch
from trl_jobs import fingerprint, rows, score, train

RESULT = [12, 13, 14]  # what the tool says, in token ids


def use_tool(trainer: Any) -> None:
    """Stand in TRL's tool loop: completions that hold a vowel get a result and a second turn from the engine."""

    def loop(prompts: Any, prompt_ids: Any, ids: Any, completions: Any, logprobs: Any, images: Any, fields: Any) -> Any:
        mask = [[1] * len(row) for row in ids]
        rows = [i for i, row in enumerate(ids) if i % 2 == 0 and len(row) <= 4]
        if rows:
            asked = [prompt_ids[i] + ids[i] + RESULT for i in rows]
            more, said = trainer._generate_single_turn(asked, None, {}, num_generations=1)
            for place, i in enumerate(rows):
                room = trainer.max_completion_length - len(ids[i]) - len(RESULT)
                new = list(more[place][:room])
                ids[i] = ids[i] + RESULT + new
                mask[i] += [0] * len(RESULT) + [1] * len(new)
                if logprobs is not None:
                    logprobs[i] += [0.0] * len(RESULT) + said[place][:room]
        return mask, completions, ids, logprobs, len(rows), 0, []

    trainer.tools, trainer._standalone_tools, trainer._tool_call_loop = [print], [print], loop
    trainer.generation_config.max_new_tokens = 8


@pytest.fixture(scope="module", params=["vllm", "hf"])
def job(request: Any, tmp_path_factory: Any) -> Any:
    folder = tmp_path_factory.mktemp(request.param)
    options = {"vllm": request.param == "vllm", "max_completion_length": 12, "max_steps": 3}
    trainer, versions = train(folder, hook=True, change=use_tool, gradient_accumulation_steps=2, **options)
    with open_run(folder / "run") as run:
        yield options, trainer, versions, run


def test_final_weights_are_the_same_bits(job: Any, tmp_path: Path) -> None:
    options, hooked, _, _ = job
    plain, _ = train(tmp_path, hook=False, change=use_tool, gradient_accumulation_steps=2, **options)
    assert fingerprint(plain.model) == fingerprint(hooked.model)


def test_tool_tokens(job: Any) -> None:
    options, _, versions, run = job
    assert run.problems == []
    turns = set()
    for row, tokens in rows(run):
        ids, start = row["prompt_ids"] + tokens["token_id"].to_list(), len(row["prompt_ids"])
        tool = ~tokens["mask"].to_numpy()
        assert tokens["token_id"].to_numpy()[tool].tolist() in ([], RESULT)
        now = score(versions.states[row["step"] - 1], ids, start, 0.9)
        np.testing.assert_allclose(tokens["loss_logprob"].to_numpy(), now, atol=2e-5)  # the forward saw them all
        if options["vllm"]:
            sampled = tokens["rollout_logprob"].is_not_null().to_numpy()
            assert np.array_equal(sampled, ~tool) and np.array_equal(sampled, tokens["rollout_is_weight"].is_not_null())
            assert row["engine_prompt_ids"] == row["prompt_ids"], "of the first turn, not of a later one"
        expected = 1 + int(tool.any()) * (0 if tool[-1] else 1)
        assert row["turns"] == expected and row["num_tokens"] == len(tokens)
        turns.add(row["turns"])
    assert 2 in turns, "or no tool was ever used"


def test_a_rollout_function_with_its_own_mask(tmp_path: Path) -> None:
    """TRL's other way to multi-turn: the user's rollout function, with `env_mask` 0 on what the environment said."""

    def rollout(prompts: list[str], trainer: Any) -> dict[str, Any]:
        draw = torch.Generator().manual_seed(len(prompts))
        ids = [[*torch.randint(2, 30, (6,), generator=draw).tolist(), 1] for _ in prompts]
        prompt_ids = trainer.processing_class(text=prompts)["input_ids"]
        logprobs = [[-0.5, -1.0, 0.0, 0.0, float("-inf"), -0.25, -0.125] for _ in prompts]
        return {
            "prompt_ids": prompt_ids,
            "completion_ids": ids,
            "logprobs": logprobs,
            "env_mask": [[1, 1, 0, 0, 1, 1, 1]] * len(prompts),
        }

    train(tmp_path, hook=True, vllm=False, max_steps=2, extra={"rollout_func": rollout})
    with open_run(tmp_path / "run") as run:
        for row, tokens in rows(run):
            assert tokens["mask"].to_list() == [True, True, False, False, True, True, True]
            said = tokens["rollout_logprob"].to_list()
            assert said == [-0.5, -1.0, None, None, float("-inf"), -0.25, -0.125], "the engine's own infinity stays"
            assert row["turns"] == 2 and row["finish_reason"] == "eos" and row["engine_prompt_ids"] is None
