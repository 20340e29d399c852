"""`timscope check` as a user meets it: text and JSON, exit codes, rows to look at, and what to do next."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import timscope.data
from timscope.analysis.check import RULES
from timscope.app import cli
from timscope.data import Manifest, RunWriter, open_run
from timscope.data.importers.convert import import_dump
from timscope.data.manifest import Imported, ImportFinding

SAMPLE = Path(timscope.data.__file__).parent / "samples" / "smollm2-grpo"
R, T, N = "rollout_logprob", "old_logprob", "loss_logprob"
Change = Callable[[pl.DataFrame], pl.DataFrame]


@dataclass
class Result:
    returncode: int
    stdout: str
    stderr: str

    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.stdout)
        return found

    def failed(self) -> set[str]:
        return {rule["name"] for rule in self.json()["rules"] if rule["passed"] is False}


Timscope = Callable[..., Result]


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Timscope:
    """`timscope check`, in this process: a process a call would take longer than the tests."""

    def call(*arguments: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["timscope", "check", *map(str, arguments)])
        code: Any = 0
        try:
            cli.main()
        except SystemExit as end:
            code = end.code or 0
        said = capsys.readouterr()
        return Result(code, said.out, said.err)

    return call


def damaged(path: Path, change: Change, **manifest: Any) -> Path:
    """A copy of the sample's tokens and sequences with changed tokens, as a run."""
    with open_run(SAMPLE) as run:
        tokens, sequences, made = change(run.tokens()), run.sequences(), run.manifest.model_copy(update=manifest)
    with RunWriter(path, made, strict=True) as writer:
        for step in sequences["step"].unique().sort():
            for name, frame in (("tokens", tokens), ("sequences", sequences)):
                part = frame.filter(pl.col("step") == step).drop("step")
                schema = timscope.data.schema.TABLES[name].names
                columns = {c: part[c].to_list() for c in part.columns if c in schema and part[c].count()}
                writer.put(name, step, columns)
            writer.complete(step)
    return path


def same(tokens: pl.DataFrame) -> pl.DataFrame:
    return tokens


def one_line(result: Result, *words: str) -> None:
    assert (result.returncode, result.stdout) == (2, ""), result
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("timscope: ") and "Traceback" not in result.stderr
    for word in words:
        assert word in lines[0], lines[0]


# --- the bundled run -----------------------------------------------------------------------------------------------


def test_the_bundled_run_is_comparable_by_all_18_rules(check: Timscope) -> None:
    result = check(SAMPLE)
    assert result.returncode == 0 and result.stderr == ""
    assert [line.split()[:2] for line in result.stdout.splitlines() if re.match(r"[a-z0-9-]+ +ok ", line)] == [
        [name, "ok"] for name in RULES
    ]
    assert len(RULES) == 18
    assert "\ncomparable: 9,218 tokens of 512 sequences" in result.stdout
    assert f"next: timscope diagnose {SAMPLE}" in result.stdout.replace("\n  ", " ")
    # What the letters mean is said before they are used, and nothing is wider than a terminal.
    assert "d = t - r in nats, w = exp(d)" in result.stdout.splitlines()[1]
    assert all(len(line) <= 100 for line in result.stdout.splitlines())


def test_its_json_is_the_contract(check: Timscope) -> None:
    result = check(SAMPLE, "--json")
    found = result.json()
    assert result.returncode == 0 and found["comparable"] is True and found["problems"] == []
    assert [rule["name"] for rule in found["rules"]] == list(RULES)
    for rule in found["rules"]:
        assert rule["passed"] is True and isinstance(rule["evidence"], dict) and rule["remedy"] is None
    assert found["context"]["tokens"] == 9218 and found["context"]["mean_abs"] == pytest.approx(0.0447, abs=1e-4)


def test_one_rule_with_all_its_evidence(check: Timscope) -> None:
    result = check(SAMPLE, "--rule", "off-by-one", "--rule", "units")
    assert result.returncode == 0 and '"mean_abs_at_lag"' in result.stdout and "integrity" not in result.stdout
    named = check(SAMPLE, "--rule", "units", "--json").json()
    assert [rule["name"] for rule in named["rules"]] == ["units"] and named["comparable"] is True


# --- damaged copies ------------------------------------------------------------------------------------------------


def shifted(tokens: pl.DataFrame) -> pl.DataFrame:
    return tokens.with_columns(pl.col(R).shift(1).over("step", "sequence").fill_null(-1.5))


def zeros_at_the_end(tokens: pl.DataFrame) -> pl.DataFrame:
    last = pl.col("position") == pl.col("position").max().over("step", "sequence")
    return tokens.with_columns(pl.when(last & (pl.col(T) < -0.1)).then(0.0).otherwise(pl.col(R)).alias(R))


def every(value: float, count: int, column: str = R) -> Change:
    def change(tokens: pl.DataFrame) -> pl.DataFrame:
        rows = pl.int_range(pl.len()) % (tokens.height // count) == 3
        return tokens.with_columns(pl.when(rows).then(value).otherwise(pl.col(column)).alias(column))

    return change


def scaled(factor: float) -> Change:
    return lambda tokens: tokens.with_columns(pl.col(R) * factor)


def filled(tokens: pl.DataFrame) -> pl.DataFrame:
    return tokens.with_columns(pl.lit(0.0).alias(T), pl.lit(None, pl.Float32).alias(N))


def tempered(tokens: pl.DataFrame) -> pl.DataFrame:
    return tokens.with_columns((pl.col(T) + 0.25 * (pl.col(T) + pl.col("entropy"))).clip(upper_bound=-1e-5).alias(T))


DAMAGE: dict[str, tuple[str, Change]] = {
    "shifted": ("off-by-one", shifted),
    "zeros at the end": ("placeholder", zeros_at_the_end),
    "nan": ("non-finite", every(float("nan"), 5)),
    "minus 100": ("placeholder", every(-100.0, 40)),
    "base ten": ("units", scaled(0.4342944819)),
    "divided": ("logprob-divided-by-temperature", scaled(1.25)),
    "zeros of the trainer": ("zero-filled-old", filled),
    "temperature": ("temperature-one-sided", tempered),
    "ids": ("integrity", lambda tokens: tokens.with_columns(pl.col("token_id") + 49_152)),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_the_right_rule_fires_and_says_what_to_do(check: Timscope, tmp_path: Path, damage: str) -> None:
    name, change = DAMAGE[damage]
    run = damaged(tmp_path / "run", change)
    machine = check(run, "--json")
    assert machine.returncode == 1 and machine.json()["comparable"] is False
    assert machine.failed() == {name} and machine.json()["reason"] == name
    (rule,) = [rule for rule in machine.json()["rules"] if rule["name"] == name]
    assert rule["severity"] == "error" and rule["evidence"] and rule["remedy"]
    text = check(run)
    assert text.returncode == 1 and f"\nnot comparable: {name}\nnext: fix what FAILED" in text.stdout
    assert text.stdout.count("FAILED  ") == 1 and text.stdout.count("to do: ") == 1
    assert all(len(line) <= 100 for line in text.stdout.splitlines())


def test_an_undamaged_copy_by_the_same_way_is_comparable(check: Timscope, tmp_path: Path) -> None:
    result = check(damaged(tmp_path / "run", same), "--json")
    assert result.returncode == 0 and result.failed() == set()


def test_rows_show_where_to_look(check: Timscope, tmp_path: Path) -> None:
    change = every(float("nan"), 5)
    run = damaged(tmp_path / "run", change)
    with open_run(SAMPLE) as original:
        row = change(original.tokens()).filter(pl.col(R).is_nan()).row(0, named=True)
    shown = next(line for line in check(run).stdout.splitlines() if "rollout nan" in line)
    place = f"step {row['step']}, sequence {row['sequence']}, position {row['position']}, token {row['token_id']}"
    assert shown.strip().startswith(place)
    (rule,) = [rule for rule in check(run, "--json").json()["rules"] if rule["name"] == "non-finite"]
    first = rule["evidence"]["rows"][0]
    assert (first["step"], first["sequence"], first["position"]) == (row["step"], row["sequence"], row["position"])
    assert first[R] is None  # strict JSON has no NaN


def test_two_faults_are_told_in_the_order_of_repair(check: Timscope, tmp_path: Path) -> None:
    run = damaged(tmp_path / "run", lambda tokens: shifted(tempered(tokens)))
    result = check(run)
    assert "not comparable: off-by-one, temperature-one-sided" in result.stdout
    assert "note: off-by-one undone in memory" in result.stdout
    assert result.stdout.index("off-by-one  ") < result.stdout.index("temperature-one-sided  ")


def test_a_warning_leaves_the_run_comparable(check: Timscope, tmp_path: Path) -> None:
    run = damaged(tmp_path / "run", lambda tokens: tokens.with_columns(pl.col(R).round(3)))
    result = check(run)
    assert result.returncode == 0 and "warn" in result.stdout and "mind storage-dtype" in result.stdout
    assert "to do: log log-probs as float32" in result.stdout


def test_weights_that_are_not_one_say_why_without_a_rule(check: Timscope, tmp_path: Path) -> None:
    result = check(damaged(tmp_path / "run", lambda tokens: tokens.with_columns(pl.col(R) - 0.05)))
    assert result.returncode == 1 and "FAILED" not in result.stdout
    assert "not comparable: E[w] = 1.051" in result.stdout and "next: check what the engine logs" in result.stdout


# --- nothing to compare --------------------------------------------------------------------------------------------


def test_a_text_only_dump_says_what_is_missing_once(check: Timscope, tmp_path: Path) -> None:
    dump = tmp_path / "dump"
    dump.mkdir()
    for step in (1, 2):
        lines = [{"input": "q", "output": "a", "gts": "4", "score": 1.0, "step": step, "uid": str(i)} for i in range(4)]
        (dump / f"{step}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    import_dump(dump, tmp_path / "run")
    result = check(tmp_path / "run")
    assert result.returncode == 1
    said = " ".join(result.stdout.split())
    assert "nothing to compare, rollout_logprob, mask and old_logprob missing" in said
    assert "the dump holds texts and rewards" in said and "timscope.attach" in said
    # One line for all rules that lack the columns, not one each.
    assert said.count("needs rollout_logprob, mask, old_logprob") == 1 and len(result.stdout.splitlines()) < 20
    machine = check(tmp_path / "run", "--json").json()
    assert machine["comparable"] is False and len(machine["rules"]) == 18
    assert {rule["passed"] for rule in machine["rules"]} == {None, True}


def test_brackets_of_an_importer_are_text_and_no_markup(check: Timscope, tmp_path: Path) -> None:
    finding = ImportFinding(kind="truncated-dump", detail="[bold]half[/bold] a line in [x]", count=1)
    told = Imported(format="x", source="y", tier="T3", findings=[finding])
    result = check(damaged(tmp_path / "run", same, imported=told))
    assert result.returncode == 0 and "[bold]half[/bold] a line" in " ".join(result.stdout.split())


# --- bad input -----------------------------------------------------------------------------------------------------


def test_a_run_that_is_not_there(check: Timscope, tmp_path: Path) -> None:
    one_line(check(tmp_path / "nowhere"), "does not exist")
    (tmp_path / "empty").mkdir()
    one_line(check(tmp_path / "empty"), "not a timscope run", "manifest.json")
    (tmp_path / "file").write_text("x")
    one_line(check(tmp_path / "file"), "file")


def test_a_run_without_a_finished_step(check: Timscope, tmp_path: Path) -> None:
    with RunWriter(tmp_path / "run", Manifest(), strict=True):
        pass
    one_line(check(tmp_path / "run"), "holds no finished step")
    with RunWriter(tmp_path / "begun", Manifest(), strict=True) as writer:
        ones = np.ones(3)
        writer.put("tokens", 4, {"sequence": np.zeros(3, int), "position": np.arange(3), R: -ones, T: -ones})
    one_line(check(tmp_path / "begun"), "holds no finished step", "step 4 is left out", "never finished")


def test_a_broken_manifest(check: Timscope, tmp_path: Path) -> None:
    shutil.copytree(SAMPLE, tmp_path / "run")
    manifest = tmp_path / "run" / "manifest.json"
    manifest.write_text(manifest.read_text()[:-40])
    one_line(check(tmp_path / "run"), "manifest.json", "not valid JSON")


def test_a_truncated_part_and_how_to_leave_it_out(check: Timscope, tmp_path: Path) -> None:
    shutil.copytree(SAMPLE, tmp_path / "run")
    part = tmp_path / "run/tokens/step=000007/rank=0-000.parquet"
    part.write_bytes(part.read_bytes()[:100])
    one_line(check(tmp_path / "run"), "step=000007", "--skip-damaged")
    result = check(tmp_path / "run", "--skip-damaged")
    assert result.returncode == 0 and "note: step 7 is left out" in result.stdout
    assert "truncated-dump                  warn" in result.stdout
    assert "truncated" in check(tmp_path / "run", "--skip-damaged", "--json").json()["problems"][0]


def test_an_unknown_rule_and_a_missing_argument(check: Timscope) -> None:
    one_line(check(SAMPLE, "--rule", "off-by-two"), "'off-by-two' is no rule", "off-by-one")
    assert check().returncode == 2 and check(SAMPLE, "--nonsense").returncode == 2
