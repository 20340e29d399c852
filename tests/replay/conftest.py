"""Token ids, a saved model and one thread for this folder; and lets its tests import `recorded_runs` by name."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from timscope.replay.paths import Texts, random_texts
from timscope.replay.tiny import tiny_model

sys.path.insert(0, str(Path(__file__).parent))

PROMPTS = [70, 3, 18, 33, 1, 64, 17]


@pytest.fixture
def texts() -> Texts:
    """Seven sequences of uneven lengths around the tile edges of 16 and 64, 12 response tokens each."""
    return random_texts(391, PROMPTS, 12)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A directory with a random Qwen2 in float32."""
    target = tmp_path / "model"
    tiny_model("qwen2").save_pretrained(target)
    return target


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    """Tests are small: barriers between cores would cost more than they save."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
