"""One clear line where a command needs a package that the base install leaves out."""

from __future__ import annotations

from importlib.util import find_spec

from timscope.data.errors import BadInput


def needs_torch(command: str) -> None:
    """BadInput where torch or transformers is missing."""
    missing = [name for name in ("torch", "transformers") if find_spec(name) is None]
    if missing:
        raise BadInput(f"timscope {command} needs {' and '.join(missing)}: pip install 'timscope[replay]'")
