"""The run format: schema, writer, reader. What lies on disk and how it comes back as Polars frames through DuckDB."""

from timscope.data.errors import BadInput
from timscope.data.manifest import Manifest, ReplayManifest
from timscope.data.reader import Run, open_run
from timscope.data.replays import Replay, ReplayWriter
from timscope.data.writer import RunWriter

__all__ = ["BadInput", "Manifest", "Replay", "ReplayManifest", "ReplayWriter", "Run", "RunWriter", "open_run"]
