"""What a part is on disk: other tools read it bit for bit, it keeps within its size, and its key holds no NULL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from timscope.data import BadInput
from timscope.data.parts import to_arrow, write_part
from timscope.data.storage import Storage

ROWS = 300_001  # three row groups, the last one cut short, and a mask that ends inside a byte
ODD = [0x7FC00001, 0xFFC12345, 0x7F800001, 0x80000000, 0xFF800000, 0x00000001]  # NaNs with payloads, -0, -inf, tiny


def columns(rows: int = ROWS) -> dict[str, Any]:
    """Tokens with log-probs whose every bit is used and ids of a large vocabulary, drawn from a Zipf law."""
    rng = np.random.default_rng(7)
    law = 1 / np.arange(1, 151_937)
    ids = rng.permutation(len(law))[np.searchsorted(np.cumsum(law / law.sum()), rng.random(rows)).clip(max=151_935)]
    floats = [rng.exponential(1, rows).astype(np.float32) for _ in range(3)]
    return {
        "sequence": np.arange(rows) // 300,
        "position": (np.arange(rows) % 300).astype(np.int32),
        "token_id": ids.astype(np.int32),
        "mask": rng.random(rows) < 0.9,
        "rollout_logprob": -floats[0],
        "old_logprob": -floats[1],
        "entropy": floats[2],
    }


def write(folder: Path, said: dict[str, Any], name: str = "part") -> str:
    write_part(Storage(folder), f"{name}.parquet", to_arrow("tokens", 3, said))
    return str(folder / f"{name}.parquet")


def test_values_that_share_no_grid_take_13_bytes_at_most(tmp_path: Path) -> None:
    assert Path(write(tmp_path, columns())).stat().st_size <= 13 * ROWS


def test_every_reader_gives_every_bit(tmp_path: Path) -> None:
    said = columns()
    said["old_logprob"][: len(ODD)] = np.array(ODD, np.uint32).view(np.float32)
    path = write(tmp_path, said)
    frames = {
        "duckdb": duckdb.sql(f"SELECT * FROM read_parquet('{path}')").pl(),
        "polars": pl.read_parquet(path),
        "lazy polars": pl.scan_parquet(path).collect(),
        "pyarrow": pl.from_arrow(pq.read_table(path)),
    }
    for name, frame in frames.items():
        assert isinstance(frame, pl.DataFrame) and frame.columns == ["step", *said], name
        assert frame["step"].unique().to_list() == [3]
        for column, values in said.items():
            assert frame[column].to_numpy().tobytes() == values.tobytes(), (name, column)


def test_parts_with_and_without_nulls_are_read_together(tmp_path: Path) -> None:
    """A column is stored as required where it is whole, as optional where it is not, and not at all where it is
    empty."""
    key = {"sequence": [0, 0], "position": [4, 5]}
    said = {"a": [-0.5, -1.5], "b": [None, -2.5], "c": [None, None]}
    paths = {name: write(tmp_path, {**key, "old_logprob": values}, name) for name, values in said.items()}
    schemas = {name: pq.read_schema(path) for name, path in paths.items()}
    assert not schemas["a"].field("old_logprob").nullable and schemas["b"].field("old_logprob").nullable
    assert "old_logprob" not in schemas["c"].names
    for order in (["a", "b", "c"], ["b", "a", "c"]):
        files, want = [paths[name] for name in order], [value for name in order for value in said[name]]
        query = f"SELECT old_logprob FROM read_parquet({files}, union_by_name = true)"
        assert [row[0] for row in duckdb.sql(query).fetchall()] == want
        whole, whole_want = files[:2], want[:4]
        assert pl.scan_parquet(whole).collect()["old_logprob"].to_list() == whole_want
        assert pq.read_table(whole)["old_logprob"].to_pylist() == whole_want


def test_row_groups_can_be_skipped_by_their_keys(tmp_path: Path) -> None:
    metadata = pq.ParquetFile(write(tmp_path, columns())).metadata
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    assert [group.num_rows for group in groups] == [131_072, 131_072, ROWS - 262_144]
    bounds = [groups[1].column(i).statistics for i in range(3)]
    assert [(b.min, b.max) for b in bounds] == [(3, 3), (436, 873), (0, 299)]
    assert groups[0].column(5).statistics is None


@pytest.mark.parametrize("rows", [0, 1, 7, 8, 9])
def test_masks_of_any_length_and_stride(tmp_path: Path, rows: int) -> None:
    mask = np.random.default_rng(rows).random(2 * rows) < 0.5
    path = write(tmp_path, {"sequence": np.zeros(rows, int), "position": np.arange(rows), "mask": mask[::2]})
    assert pq.read_table(path)["mask"].to_pylist() == mask[::2].tolist()


def test_a_key_with_nulls_and_a_mask_of_blocks_are_refused(tmp_path: Path) -> None:
    key = {"sequence": [0, 0], "position": [4, 5]}
    with pytest.raises(BadInput, match="1-dimensional"):
        to_arrow("tokens", 0, {**key, "mask": np.ones((2, 2), bool)})
    with pytest.raises(BadInput, match="part of the key"):
        to_arrow("tokens", 0, {"sequence": [0, 0], "mask": [True, False]})
    with pytest.raises(pa.ArrowInvalid, match="non-nullable"):
        write(tmp_path, {**key, "sequence": [0, None]})
    assert list(tmp_path.iterdir()) == []
