"""The exact engine: one definition of every reduction order, so a token's bits depend on its own sequence alone."""

from __future__ import annotations

from timscope.replay.exact.engine import ENGINE_VERSION, PARTS, ExactEngine
from timscope.replay.exact.layout import packed_layout
from timscope.replay.exact.logsoftmax import token_logprobs

__all__ = ["ENGINE_VERSION", "PARTS", "ExactEngine", "packed_layout", "token_logprobs"]
