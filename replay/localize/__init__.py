"""Where two computations of the same tokens part, and which one operation accounts for a mismatch."""

from __future__ import annotations

from timscope.replay.localize.localise import localize

__all__ = ["localize"]
