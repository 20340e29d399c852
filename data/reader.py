"""Opening a run: only complete, undamaged steps are read, and everything comes out as Polars frames through DuckDB."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

import duckdb
import polars as pl

from timscope.data.errors import BadInput
from timscope.data.layout import MANIFEST, counted, damage, markers
from timscope.data.manifest import Manifest
from timscope.data.manifest_file import read_manifest
from timscope.data.rank_state import RankState, read_states
from timscope.data.replays import Replay, read_replay, replay_names
from timscope.data.storage import Storage
from timscope.data.views import create_views
from timscope.data.weights import Weights, WeightStore


class Run:
    """A recorded run. Use `open_run`; close it or let it go, nothing on disk is ever changed through it."""

    def __init__(self, storage: Storage, *, replays: Sequence[str] | None, skip_damaged: bool) -> None:
        self.storage = storage
        self.path = storage.full("")
        self.manifest: Manifest = read_manifest(storage)
        self.complete_steps: list[int] = []
        self.incomplete_steps: list[int] = []
        self.problems: list[str] = []
        self.recorders: list[RankState] = []  # by rank: what each rank's recorder lost, and whether it was closed
        parts = self._collect(skip_damaged)
        names = replay_names(storage)
        if replays is not None:
            for name in replays:
                if name not in names:
                    raise BadInput(f"{self.path} has no replay {name!r}: it has {', '.join(names) or 'none'}")
            names = list(replays)
        found = [read_replay(storage, name) for name in names]
        self._replays = {r.name: r for r in sorted(found, key=self._authority)}
        self.connection = duckdb.connect()
        if not storage.local:
            self.connection.register_filesystem(storage.fs)
        with _Explained("opening"):
            create_views(self.connection, parts, list(self._replays.values()))

    def _authority(self, replay: Replay) -> tuple[bool, float, str]:
        """Of several replays with one engine the last in this order speaks: trainer's dtype first, then the newest."""
        same_dtype = replay.manifest.dtype == self.manifest.trainer.dtype
        return same_dtype, replay.manifest.created.timestamp(), replay.name

    def _collect(self, skip_damaged: bool) -> dict[str, list[str]]:
        """Parts of the steps that every rank finished, by table; notes what was left out and why."""
        parts: dict[str, list[str]] = {}
        found = markers(self.storage)
        for step, all_ranks in sorted(found.items()):
            by_rank, missing = counted(all_ranks, self.manifest.world_size)
            if missing:
                self.incomplete_steps.append(step)
                self.problems.append(f"step {step} is left out: not finished by rank {', '.join(map(str, missing))}")
                continue
            wrong = next(filter(None, (damage(self.storage, m) for m in by_rank.values())), None)
            if wrong and not skip_damaged:
                raise BadInput(f"{self.path}/{wrong}: copy that part again, or leave its step out with --skip-damaged")
            if wrong:
                self.incomplete_steps.append(step)
                self.problems.append(f"step {step} is left out: {wrong}")
                continue
            self.complete_steps.append(step)
            for marker in by_rank.values():
                if marker.dropped:
                    tokens = f" ({marker.dropped_tokens:,} tokens)" if marker.dropped_tokens else ""
                    self.problems.append(f"step {step} lacks {marker.dropped} part(s){tokens} the recorder dropped")
                for table, path, _rows, _bytes in marker.parts:
                    parts.setdefault(table, []).append(self.storage.full(path))
        begun = {int(n.split("=")[1]) for n in self.storage.names("tokens") if n.startswith("step=")}
        for step in sorted(begun - set(found)):
            self.incomplete_steps.append(step)
            self.problems.append(f"step {step} is left out: it was never finished")
        self.recorders = read_states(self.storage)
        told = [*self.manifest.recorder.errors, *(line for state in self.recorders for line in state.problems())]
        self.problems += dict.fromkeys(told)
        return parts

    def sql(self, query: str, params: Any = None) -> pl.DataFrame:
        """Run one SQL query over the views. BadInput where DuckDB cannot run it."""
        with _Explained("the query"):
            relation = self.connection.sql(query, params=params)
            # A statement without a result (CREATE, SET) gives no relation.
            frame: pl.DataFrame = pl.DataFrame() if relation is None else relation.pl()
            return frame

    def tokens(self, steps: Iterable[int] | None = None) -> pl.DataFrame:
        """One row a response token with every witness (the view `witnesses`), by step, sequence, position."""
        return self._frame("witnesses", steps, "step, sequence, position")

    def sequences(self, steps: Iterable[int] | None = None) -> pl.DataFrame:
        """One row a sequence: prompt, reward, advantage, finish reason, weight version, how it was batched."""
        return self._frame("sequences", steps, "step, sequence")

    def steps(self) -> pl.DataFrame:
        """One row an optimizer step, with the framework's own metrics under their own names."""
        return self._frame("steps", None, "step")

    def gradients(self) -> pl.DataFrame:
        """One row a step and parameter group: L2 norm before clipping, largest value, zeros, non-finite values."""
        return self._frame("gradients", None, "step, parameter_group")

    @property
    def weight_versions(self) -> list[int]:
        """Versions of the weights that are stored with the run, sorted."""
        return WeightStore(self.storage).versions()

    def weights(self, version: int, *, resume: int | None = None, verify: bool = True) -> Weights:
        """The weights of a version, bit for bit: a mapping from name to RawTensor that reads one tensor at a time.

        `resume`: as in the table `steps`, for a job that was resumed and counted the same version twice (None: the last
        time). `verify`: read everything once and compare the digest. BadInput where the version was never stored, or a
        file is missing or damaged.
        """
        return WeightStore(self.storage).load(version, resume, verify=verify)

    def _frame(self, view: str, steps: Iterable[int] | None, order: str) -> pl.DataFrame:
        where = ""
        if steps is not None:
            wanted = ", ".join(str(int(s)) for s in steps)
            where = f" WHERE step IN ({wanted})" if wanted else " WHERE false"
        return self.sql(f"SELECT * FROM {view}{where} ORDER BY {order}")

    @property
    def replays(self) -> list[str]:
        """Names of the replays; of several with one engine the last speaks in `witnesses`.

        That is the newest of those in the trainer's dtype, or the newest of all where none is.
        """
        return list(self._replays)

    def replay(self, name: str) -> Replay:
        """A replay by name; BadInput where there is none."""
        if name not in self._replays:
            raise BadInput(f"{self.path} has no replay {name!r}: it has {', '.join(self._replays) or 'none'}")
        return self._replays[name]

    def speaking(self, engine: str) -> Replay | None:
        """The replay whose column `witnesses` shows for an engine ("exact", "hf", "vllm"), or None."""
        with_parts = [r for r in self._replays.values() if r.manifest.engine == engine and r.parts]
        return with_parts[-1] if with_parts else None

    def close(self) -> None:
        """Release DuckDB's memory."""
        self.connection.close()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


class _Explained:
    """Turns DuckDB's errors into BadInput with their first line: a user's SQL or a damaged part, never a traceback."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, duckdb.Error):
            first = str(error).strip().split("\n\n")[0]
            raise BadInput(f"{self._what} failed: {first}") from error


def open_run(path: str | os.PathLike[str], *, replays: Sequence[str] | None = None, skip_damaged: bool = False) -> Run:
    """Open a run directory (a path or an fsspec URL).

    `replays` limits which replays are read; by default all. `skip_damaged` leaves out steps with a missing or truncated
    part instead of raising. Raises BadInput where the path is no run, the manifest is damaged or from a newer timscope,
    or a part that a COMPLETE marker lists is not whole.
    """
    storage = Storage(path)
    if not storage.exists():
        raise BadInput(f"{os.fspath(path)} does not exist: give the directory that the recorder wrote")
    if not storage.exists(MANIFEST):
        raise BadInput(
            f"{os.fspath(path)} is not a timscope run (no manifest.json): give the directory that the recorder wrote"
        )
    return Run(storage, replays=replays, skip_damaged=skip_damaged)
