"""The one exception that means "your input, not our bug": a single line that says what is wrong and what to do.

The command line prints it and exits with code 2, so every message must stand on its own, without a traceback.
"""

from __future__ import annotations


class BadInput(ValueError):
    """Input that timscope cannot use. The message is one line and names the remedy."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))
