"""A localisation as people read it: where the two part, who adds to it, which swap accounts for the target."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.markup import escape
from rich.table import Table

from timscope.app.output import number, table

_COLOURS = {"removes": "green", "adds": "yellow", "unresolved": "dim"}
_WORDS = {"removes": "removes", "adds": "adds", "unresolved": "unclear"}
_WIDE = 140  # characters a line from which the table also says what each swap changes


def show(said: dict[str, Any], width: int) -> Iterator[str | Table]:
    """Everything, in the order in which a reader asks; a line of `width` characters decides what a table can hold."""
    left, right = said["left"], said["right"]
    yield f"step {said['step']}: {said['tokens']:,} response tokens of {said['sequences']} sequences"
    for side, it in (("left", left), ("right", right)):
        padding = it["padding"]
        rows = f"{padding['batch']} padded sequences a forward" if padding else "one sequence a forward"
        yield f"  {side:<6}{escape(it['name'])}: {it['engine']}, {it['dtype']}, {it['attention']}, {rows}"
    yield ""
    yield from _sites(said)
    yield ""
    yield from _swaps(said, width)
    for path in said["files"]:
        yield f"  {escape(path)}"


def _sites(said: dict[str, Any]) -> Iterator[str | Table]:
    first, apart = said["first"], said["logprob"]
    if first is None:
        yield f"[bold green]no difference:[/bold green] all {len(said['sites'])} sites are bit-equal"
        return
    yield (
        f"[bold]they part at {escape(first['site'])}[/bold] ({escape(first['module'])}): max |d| "
        f"{number(first['max_abs'])}, relative {number(first['relative'])}, {_percent(first['equal_share'])} bit-equal"
    )
    yield (
        f"log-probs: mean |d| {number(apart['mean_abs'])}, max {number(apart['max_abs'])} nats, "
        f"{_percent(apart['equal_share'])} bit-equal"
    )
    check = said.get("trainer_check")
    if check:
        yield (
            f"the emulated trainer against old_logprob: mean |d| {number(check['mean_abs'])} nats, "
            f"{_percent(check['equal_share'])} bit-equal"
        )
    yield ""
    yield _left(table(["operation", "own", "own bit-equal", "all so far", "sites that differ"], _ops(said)))
    yield "own: rms over the rms of the value, with the left side's values as input; all so far: with what came before."


def _ops(said: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    """One row an operation, over all layers, in the order of execution."""
    by_op: dict[str, list[dict[str, Any]]] = {}
    for row in said["sites"]:
        by_op.setdefault(row["op"], []).append(row)
    for op, rows in by_op.items():
        own = max((row["own_relative"] or 0.0) for row in rows)
        after = max((row["relative"] or 0.0) for row in rows)
        parted = sum(row["own_equal_share"] < 1.0 for row in rows)
        equal = sum(row["own_equal_share"] for row in rows) / len(rows)
        yield op, own, _percent(equal), after, f"{parted} of {len(rows)}"


def _swaps(said: dict[str, Any], width: int) -> Iterator[str | Table]:
    found = said["swaps"]
    if found is None:
        yield said.get("swaps_left_out", "no swaps were ranked")
        return
    size = found["mismatch"]
    yield (
        f"[bold]{escape(found['target'])} − {escape(found['start'])}[/bold]: mean |d| {number(size['mean_abs'])} nats, "
        f"standard deviation {number(size['variance'] ** 0.5)}, {found['tokens']:,} tokens"
    )
    wide = width >= _WIDE
    columns = ["swap", "result", "variance removed, %", "mean |d|", "expl.", "size"]
    if wide:
        columns.insert(1, "what it changes")
    moving = [row for row in found["ranking"] if row["state"] != "nothing"]
    listed = _left(table(columns, (_swap_row(row, wide) for row in moving)), 4 if wide else 3)
    for column in listed.columns:
        column.no_wrap = True
    yield listed
    still = [row["name"] for row in found["ranking"] if row["state"] == "nothing" and row["group"] != "control"]
    if still:
        yield f"does nothing here, every bit equal: {', '.join(still)}"
    yield f"negative control, a swap to itself: removes {number(found['control']['removed'])}"
    yield "removed: in %, 95 % interval by sequence. expl.: squared correlation of the swap's change with d."
    yield "size: variance of the change over that of d; near 1 with little explained: the same kind of noise anew."
    yield ""
    yield from _conclusion(found)


def _left(made: Table, columns: int = 1) -> Table:
    """The first columns left-aligned and never broken."""
    for column in made.columns[:columns]:
        column.justify, column.no_wrap = "left", True
    return made


def _swap_row(row: dict[str, Any], wide: bool) -> tuple[Any, ...]:
    word = f"[{_COLOURS[row['state']]}]{_WORDS[row['state']]}[/]"
    mean = row["removed_mean_abs"]
    shares = (_interval(row["removed_variance"]), _interval(mean) if wide else _points(mean["value"]))
    said = (word, *shares, _percent(row["explained"]["value"]), f"{row['size']:.2g}")
    return (row["name"], row["what"], *said) if wide else (row["name"], *said)


def _conclusion(found: dict[str, Any]) -> Iterator[str]:
    ranking = {row["name"]: row for row in found["ranking"]}
    if not found["control_passed"]:
        yield "[bold red]the negative control failed:[/bold red] the start does not repeat itself bit for bit here"
    if found["best"] is None:
        pair = f"{escape(found['target'])} − {escape(found['start'])}"
        yield f"[bold]no single swap explains {pair}[/bold] token by token"
        yield from _sizes(found)
        return
    best = ranking[found["best"]]
    yield (
        f"[bold]{best['name']}[/bold] ({best['what']}) explains most: it removes "
        f"{_interval(best['removed_variance'])} % of the variance, {_interval(best['removed_mean_abs'])} % of mean |d|"
    )
    for row in found["together"][1:]:
        yield f"  {' + '.join(row['names'])}: {_interval(row['removed_variance'])} % of the variance"


def _sizes(found: dict[str, Any]) -> Iterator[str]:
    """Noise cannot be matched token by token, but its size can."""
    whole = [row for row in found["ranking"] if row["group"] == "whole forward" and row["name"] in found["same_size"]]
    if not whole:
        return
    yield f"it has the size of the noise of {_listed(whole)}"
    top = max(row["size"] for row in whole)
    parts = [row for row in found["ranking"] if row["group"] != "whole forward" and 0.01 < row["size"] <= top]
    parts.sort(key=lambda row: -row["size"])
    yield f"largest single parts by size: {_listed(parts[:5])}"


def _listed(rows: list[dict[str, Any]]) -> str:
    return ", ".join(f"{row['name']} ({row['size']:.2g})" for row in rows)


def _percent(share: float | None) -> str:
    return "–" if share is None or share != share else f"{100 * share:.1f} %"


def _interval(it: dict[str, float]) -> str:
    """ "+12.3 [+8.0, +16.1]" in percent; many times the whole is told as a power of ten."""
    value, low, high = (_points(it[key]) for key in ("value", "low", "high"))
    return value if it["low"] != it["low"] else f"{value} [{low}, {high}]"  # NaN: one sequence has no interval


def _points(share: float) -> str:
    points = 100 * share
    return f"{points:+.1f}" if abs(points) < 1e3 else f"{points:+.0f}" if abs(points) < 1e5 else f"{points:+.0e}"
