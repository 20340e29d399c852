"""`--engine hf`: the trainer's forward imitated as the run describes it, down to the bits of its log-probs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from timscope.data import BadInput, Manifest, RunWriter, open_run
from timscope.replay.paths import Texts, random_texts
from timscope.replay.replay_run import replay_run
from timscope.replay.reproduction import reproduction
from timscope.replay.tiny import tiny_model
from timscope.replay.trainer_layout import Emulation, Row, batches, emulation

TEXTS = random_texts(391, [9, 3, 18, 33, 1, 6, 17], 12)


def trainer_logprobs(model, texts: Texts, size: int, extra: int, dtype: torch.dtype) -> list[list[float]]:
    """A trainer of its own: two-sided pads, `extra` more of them on the right, batches of `size`."""
    rows = []
    for start in range(0, len(texts.prompts), size):
        part = texts.take(range(start, min(start + size, len(texts.prompts))))
        left = max(map(len, texts.prompts))
        ids = torch.zeros(len(part.prompts), left + texts.response + extra, dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for i, (p, c) in enumerate(zip(part.prompts, part.completions, strict=True)):
            ids[i, left - len(p) : left + len(c)] = torch.tensor(p + c)
            mask[i, left - len(p) : left + len(c)] = 1
        with torch.no_grad():
            logits = model(input_ids=ids, attention_mask=mask).logits[:, left - 1 : -1].to(dtype)
        every = torch.log_softmax(logits / 0.7, -1).gather(-1, ids[:, left:, None])[..., 0]
        rows += every[:, : texts.response].float().tolist()
    return rows


def recorded(path: Path, old: list[list[float]], extra: int, attention: str, **options) -> Path:
    longest, count, response = max(map(len, TEXTS.prompts)), len(TEXTS.prompts), TEXTS.response
    manifest = {
        "model": {"vocab_size": 391, "dtype": "float32", "source": str(path.parent / "model")},
        "trainer": {"dtype": "float32", "attention": attention, "options": options},
        "logprobs": {"old_logprob": {"mode": "raw", "temperature": 0.7}},
    }
    tiny_model("qwen2").save_pretrained(path.parent / "model")
    writer = RunWriter(path, Manifest.model_validate(manifest))
    sequences = {
        "sequence": np.arange(count), "prompt_ids": TEXTS.prompts, "num_tokens": np.full(count, response),
        "pad_left": [longest - len(p) for p in TEXTS.prompts], "pad_right": [extra] * count,
    }  # fmt: skip
    tokens = {
        "sequence": np.repeat(np.arange(count), response),
        "position": np.concatenate([len(p) + np.arange(response) for p in TEXTS.prompts]),
        "token_id": np.concatenate(TEXTS.completions),
        "old_logprob": np.concatenate(old),
    }
    writer.put("sequences", 0, sequences)
    writer.put("tokens", 0, tokens)
    writer.complete(0)
    writer.close()
    return path


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_the_recorded_layout_gives_the_trainer_s_bits(tmp_path: Path, attention: str) -> None:
    model = tiny_model("qwen2")
    model.set_attn_implementation(attention)
    old = trainer_logprobs(model, TEXTS, 3, 5, torch.float32)
    run = recorded(tmp_path / "run", old, 5, attention, old_logprob_batch=3)
    replay_run(run, engine="hf", steps=[0], progress=False)
    replay_run(run, engine="hf", steps=[0], name="alone", emulation=Emulation(padding="none"), progress=False)
    with open_run(run) as opened:
        found = reproduction(opened, "hf")
        assert found == {"tokens": 84, "equal_share": 1.0, "mean_abs_diff": 0.0, "max_abs_diff": 0.0}
        alone = reproduction(opened, "alone")
        assert alone is not None and alone["equal_share"] < 1 and alone["max_abs_diff"] < 1e-4
        said = opened.replay("hf").manifest.emulation
    assert (said["attention"], said["padding"], said["micro_batch"]) == (attention, "recorded", 3)
    with pytest.raises(BadInput, match="exists with emulation"):
        replay_run(run, engine="hf", steps=[0], emulation=Emulation(micro_batch=2), progress=False)


def test_logits_in_bfloat16_are_another_trainer(tmp_path: Path) -> None:
    old = trainer_logprobs(tiny_model("qwen2"), TEXTS, 7, 0, torch.float32)
    run = recorded(tmp_path / "run", old, 0, "sdpa", old_logprob_batch=7)
    shares = {}
    for logits in ("float32", "head-float32", "bfloat16"):
        how = Emulation(logits=logits)
        replay_run(run, engine="hf", steps=[0], dtype="bfloat16", name=logits, emulation=how, progress=False)
        with open_run(run) as opened:
            shares[logits] = reproduction(opened, logits)
    assert all(s is not None and s["mean_abs_diff"] < 0.2 for s in shares.values())
    assert len({s["mean_abs_diff"] for s in shares.values() if s}) == 3


def test_trl_s_head_is_taken_off_again(tmp_path: Path) -> None:
    pytest.importorskip("trl")
    old = trainer_logprobs(tiny_model("qwen2"), TEXTS, 7, 0, torch.float32)
    run = recorded(tmp_path / "run", old, 0, "sdpa", old_logprob_batch=7)
    replay_run(run, engine="hf", steps=[0], emulation=Emulation(head="trl"), progress=False)
    with open_run(run) as opened:
        found = reproduction(opened, "hf")
        assert opened.tokens([0])["hf_entropy"].null_count() == 0
    assert found is not None and found["max_abs_diff"] < 1e-4


def test_layouts(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", [[-1.0] * 12] * 7, 2, "sdpa", cast_lm_head_to_fp32=True, mixed_precision="bf16")
    from timscope.replay.replay_input import read_step

    with open_run(run) as opened:
        item = read_step(opened, 0)
        plain = emulation(opened, Emulation())
        assert (plain.padding, plain.logits, plain.autocast, plain.micro_batch) == ("none", "head-float32", True, None)
        assert batches(opened, item, plain) == [[Row(i, 0, 0)] for i in range(7)]
        left = batches(opened, item, Emulation(padding="left", micro_batch=4))
        assert left[0] == [Row(0, 24, 0), Row(1, 30, 0), Row(2, 15, 0), Row(3, 0, 0)] and len(left[1]) == 3
        right = batches(opened, item, Emulation(padding="right", micro_batch=4))
        assert right[0][:2] == [Row(0, 0, 24), Row(1, 0, 30)]
        assert batches(opened, item, Emulation(padding="recorded", micro_batch=9))[0][4] == Row(4, 32, 2)
    for wrong in ({"padding": "both"}, {"logits": "int8"}, {"head": "big"}, {"micro_batch": 0}):
        with pytest.raises(BadInput):
            Emulation(**wrong)
