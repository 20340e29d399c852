"""A replay of a recorded run: what it stores, what it skips, and which inputs it refuses with one line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from recorded_runs import record

from timscope.data import BadInput, open_run
from timscope.replay.exact import ExactEngine
from timscope.replay.paths import Texts
from timscope.replay.replay_run import replay_run
from timscope.replay.scoring import score
from timscope.replay.tiny import tiny_model


@pytest.fixture
def run(tmp_path: Path, saved: Path, texts: Texts) -> Path:
    return record(tmp_path / "run", saved, texts, steps=3)


def test_it_scores_the_first_version_s_steps_and_stores_a_certificate(run: Path, texts: Texts) -> None:
    seen: list[int] = []
    folder = replay_run(run, progress=seen.append)
    assert sum(seen) == 2 * 7 * 12
    with ExactEngine(model := tiny_model("qwen2")):
        wanted = np.concatenate([s.logprob for s in score(model, texts.prompts, texts.completions, 0.7)])
    with open_run(run) as opened:
        replay = opened.replay(folder.name)
        assert replay.complete_steps == [0, 1] and replay.certified
        assert replay.manifest.dtype == "float32" and replay.manifest.temperature == 0.7
        assert replay.manifest.model_digest == opened.manifest.weights[0].digest
        assert replay.manifest.weight_version == 0
        for step in (0, 1):
            tokens = opened.tokens([step])
            assert np.array_equal(tokens["exact_logprob"].to_numpy(), wanted)
            assert tokens["exact_entropy"].null_count() == 0
        assert opened.tokens([2])["exact_logprob"].null_count() == 7 * 12
    certificate = json.loads((folder / "certificate.json").read_text())
    assert certificate["environment"]["model_digest"] == replay.manifest.model_digest
    assert {"checks", "negative_controls", "exact"} <= certificate.keys()


def test_a_second_run_does_only_what_is_missing(run: Path) -> None:
    replay_run(run, steps=[0], progress=False)
    before = {p: p.stat().st_mtime_ns for p in (run / "replays").rglob("*.parquet")}
    seen: list[int] = []
    replay_run(run, progress=seen.append)
    assert sum(seen) == 7 * 12
    assert all(p.stat().st_mtime_ns == stamp for p, stamp in before.items())


def test_another_dtype_and_the_plain_engine_are_replays_of_their_own(run: Path) -> None:
    replay_run(run, steps=[0], dtype=torch.bfloat16, progress=False)
    plain = replay_run(run, steps=[0], engine="hf", progress=False)
    replay_run(run, steps=[0], progress=False)
    with open_run(run) as opened:
        assert set(opened.replays) == {"exact", "exact-bfloat16", "hf"}
        assert opened.replay("hf").certificate is None and plain.name == "hf"
        tokens = opened.tokens([0])
    apart = (tokens["hf_logprob"] - tokens["exact_logprob"]).abs()
    assert float(apart.max()) < 1e-5  # type: ignore[arg-type]


def test_a_certificate_can_be_given_or_left_out(run: Path) -> None:
    folder = replay_run(run, steps=[0], certificate={"exact": True, "made": "elsewhere"}, progress=False)
    assert json.loads((folder / "certificate.json").read_text())["made"] == "elsewhere"
    folder = replay_run(run, steps=[0], name="bare", certificate=False, progress=False)
    assert not (folder / "certificate.json").exists()


def test_other_weights_are_refused_unless_allowed(run: Path, tmp_path: Path) -> None:
    tiny_model("qwen2", seed=4).save_pretrained(tmp_path / "other")
    with pytest.raises(BadInput, match="not the run's version 0"):
        replay_run(run, model=tmp_path / "other", progress=False)
    folder = replay_run(run, model=tmp_path / "other", steps=[2], allow_other_weights=True, name="o", progress=False)
    with open_run(run) as opened:
        assert opened.replay(folder.name).complete_steps == [2]
    assert not (run / "replays" / "exact").exists()


def test_steps_it_has_no_weights_for(run: Path) -> None:
    with pytest.raises(BadInput, match="step 2 was sampled under weights version 1"):
        replay_run(run, steps=[0, 2])
    with pytest.raises(BadInput, match="step 9 is not a complete step"):
        replay_run(run, steps=[9])
    with pytest.raises(BadInput, match="no engine 'magic'"):
        replay_run(run, engine="magic")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": {"vocab_size": 400}}, "vocabulary of 400"),
        ({"weights": [], "model": {}}, "does not say where its weights are"),
        ({"trainer": {"dtype": "float16"}, "model": {}}, "not float16"),
        ({"logprobs": {"old_logprob": {"mode": "processed", "temperature": 0.0}}}, "temperature of 0.0"),
    ],
)
def test_manifests_that_do_not_fit(tmp_path: Path, saved: Path, texts: Texts, fields, message: str) -> None:
    run = record(tmp_path / "run", saved, texts, **fields)
    with pytest.raises(BadInput, match=message):
        replay_run(run)


def test_ids_outside_the_vocabulary(tmp_path: Path, saved: Path, texts: Texts) -> None:
    wrong = Texts(texts.prompts, [[391, *c[1:]] for c in texts.completions])
    with pytest.raises(BadInput, match="token id 391, outside the model's vocabulary of 391"):
        replay_run(record(tmp_path / "run", saved, wrong))


def test_missing_ids_and_misplaced_positions(tmp_path: Path, saved: Path, texts: Texts) -> None:
    empty = Texts([[] for _ in texts.prompts], texts.completions)
    with pytest.raises(BadInput, match="lacks prompt ids"):
        replay_run(record(tmp_path / "empty", saved, empty))
    with pytest.raises(BadInput, match="do not follow a prompt"):
        replay_run(record(tmp_path / "run", saved, texts, shift=1))


def test_a_missing_run_and_a_missing_model(tmp_path: Path, run: Path) -> None:
    with pytest.raises(BadInput, match="does not exist"):
        replay_run(tmp_path / "nowhere")
    with pytest.raises(BadInput, match="no model at"):
        replay_run(run, model="nowhere")
