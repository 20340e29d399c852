"""The table of index conventions: in every framework's dump each log-prob lies beside the token that it scores.

Every dump is written from one sample whose log-probs name their token and its absolute position, so a shift by one, a
padding side taken for the other or a mask at the wrong place cannot go unseen. TRL, OpenRLHF, AReaL and tunix write no
dump with token ids.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dump_nemo_rl import write as write_nemo_rl
from dump_prime_rl import write as write_prime_rl
from dump_roll import write_roll
from dump_skyrl import write_skyrl
from dump_slime import write_slime
from dump_verl import write_verl
from reading import read, same
from samples import Sample, recognisable, said

from timscope.data.importers import nemo_rl, prime_rl, roll_pickle, skyrl, slime, verl_batch
from timscope.data.importers.base import Format

Write = Callable[[Path, dict[int, list[Sample]]], Path]


def _all(write: Callable[..., Path], path: Path, steps: dict[int, Any]) -> Path:
    for step, samples in steps.items():
        write(path, step, samples)
    return path


# framework: where column i's log-prob belongs | padding | the mask
CONVENTIONS: dict[str, tuple[Format, Write, bool]] = {
    # tokens[-response_length + i] | none | loss_mask
    "slime": (slime.FORMAT, write_slime, True),
    # the i-th of the last R tokens | left | loss_mask
    "skyrl": (skyrl.FORMAT, write_skyrl, True),
    # responses[i] | none | response_mask
    "verl-batch": (verl_batch.FORMAT, lambda p, s: write_verl(p, {k: [v] for k, v in s.items()}), False),
    # token i + 1 | right | response_mask[:, 1:]
    "roll-pickle": (roll_pickle.FORMAT, write_roll, False),
    # token i itself, column 0 unused | right | token_loss_mask * sample_loss_mask
    "nemo-rl": (nemo_rl.FORMAT, lambda p, s: _all(write_nemo_rl, p, s), True),
    # token i itself | none left in the export | loss_mask
    "prime-rl": (prime_rl.FORMAT, lambda p, s: _all(write_prime_rl, p, {k: [v] for k, v in s.items()}), True),
}


@pytest.mark.parametrize("name", CONVENTIONS)
def test_each_logprob_is_beside_its_token(tmp_path: Path, name: str) -> None:
    source, write, has_trainer = CONVENTIONS[name]
    # Three rows of different shapes, so that every row but one is padded on both sides.
    samples = [recognisable(3, 5, 10), recognisable(1, 7, 100), recognisable(6, 3, 1000)]
    got = read(source, write(tmp_path, {1: samples})).tokens()
    assert len(got) == sum(len(s.response) for s in samples)
    for row, sample in enumerate(samples):
        for i, token in enumerate(sample.response):
            position = len(sample.prompt) + i
            (found,) = [v for (_, _, p), v in got.items() if (v["token_id"], p) == (token, position)]
            assert found["mask"] == sample.sampled[i], (row, i)
            assert same(found["rollout_logprob"], said(token, position) if sample.sampled[i] else None), (row, i)
            trainer = "old_logprob" if found["old_logprob"] is not None else "loss_logprob"
            if has_trainer and sample.sampled[i]:
                assert same(found[trainer], said(token, position) - 0.5), (row, i)
            if not has_trainer:
                assert found["old_logprob"] is None and found["loss_logprob"] is None


def test_the_check_would_see_a_shift() -> None:
    """Negative control: no other token of the samples could have said the same."""
    samples = [recognisable(3, 5, 10), recognisable(1, 7, 100), recognisable(6, 3, 1000)]
    values = [v for s in samples for v in s.rollout]
    assert len(set(values)) == len(values)
