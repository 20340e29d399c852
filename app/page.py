"""The report: one HTML file with the verdict, the plots and the figures, that opens anywhere and needs nothing else."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from timscope.analysis import plots
from timscope.analysis.findings import Diagnosis
from timscope.analysis.metrics import pair_metrics
from timscope.analysis.verdict import diagnose
from timscope.app.certify import check_rows
from timscope.app.output import number
from timscope.app.style import CSS
from timscope.data import Run
from timscope.data.errors import BadInput

# The figures that the table shows, with what each one says. Definitions: analysis/formulas.
ROWS = {
    "tokens": "tokens compared",
    "mean_abs": "mean |d|: typical difference of log-probs, nats",
    "max_abs": "max |d|",
    "exact_equal": "share of tokens with equal bits",
    "k1": "k1: KL estimate, unbiased but noisy",
    "k3": "k3: KL estimate, never negative",
    "k3_reverse": "k3 with the sides exchanged",
    "f_1_1": "F(1.1): share of tokens whose ratio leaves [1/1.1, 1.1]",
    "f_2": "F(2): share of tokens whose ratio leaves [1/2, 2]",
    "ess_token": "effective sample size, token weights",
    "ess_sequence": "effective sample size, sequence weights",
    "chi2_token": "chi-squared, token weights",
    "log_ppl_diff": "difference of log-perplexity, mean over sequences",
    "pearson_logprobs": "Pearson correlation of log-probs",
    "pearson_probs": "Pearson correlation of probabilities",
    "mean_weight": "E[w]: 1 where the rollout's log-probs are genuine",
    "mean_weight_z": "z of E[w] = 1, clustered by sequence",
}


def write_report(run: Run, out: Path, found: Diagnosis | None = None) -> int:
    """Write the page; returns its bytes. BadInput where nothing can be compared or the file cannot be written."""
    found = found or diagnose(run)
    if found.missing:
        raise BadInput(found.reason)
    page = render(run, found)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        return out.write_bytes(page.encode())
    except OSError as error:
        raise BadInput(f"cannot write {out}: {error.strerror}: give another -o FILE") from error


def render(run: Run, found: Diagnosis) -> str:
    """The page as text."""
    name = Path(run.path).name
    body = [
        f"<header><p class='kind'>timscope report</p><h1>{_e(name)}</h1>{_facts(run)}</header>",
        f"<section class='verdict {found.verdict}'><h2>Verdict: {found.verdict}</h2>"
        f"{_paragraphs(found.lines)}</section>",
        *_figures(run),
        _metrics(run),
        _witnesses(run),
        _provenance(run),
    ]
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>timscope: {_e(name)}</title><style>{CSS}</style></head>"
        f"<body><main>{''.join(body)}</main></body></html>\n"
    )


def _e(text: object) -> str:
    return html.escape(str(text))


def _paragraphs(lines: Iterable[str]) -> str:
    return "".join(f"<p>{_e(line)}</p>" for line in lines if line.strip())


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    top = "".join(f"<th>{_e(h)}</th>" for h in head)
    lines = ("<tr>" + "".join(f"<td>{_e(number(v))}</td>" for v in row) + "</tr>" for row in rows)
    return f"<div class='scroll'><table><thead><tr>{top}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"


def _facts(run: Run) -> str:
    m = run.manifest
    tokens, sequences = run.sql("SELECT count(*), count(DISTINCT (step, sequence)) FROM tokens").row(0)
    said = [
        ("model", m.model.name),
        ("framework", f"{m.framework.name} {m.framework.version or ''}" if m.framework else None),
        ("algorithm", f"{m.algorithm.name or '?'}, {m.algorithm.loss_mode} mode"),
        ("rollout", _engine(m.rollout)),
        ("trainer", _engine(m.trainer)),
        ("recorded", f"{len(run.complete_steps)} steps, {sequences:,} sequences, {tokens:,} tokens"),
    ]
    items = "".join(f"<div><dt>{_e(k)}</dt><dd>{_e(v)}</dd></div>" for k, v in said if v)
    return f"<dl class='facts'>{items}</dl>"


def _engine(engine: Any) -> str:
    return " ".join(str(v) for v in (engine.name, engine.version, engine.dtype) if v)


def _figures(run: Run) -> list[str]:
    """Every plot that the run has data for, each under the question it answers."""
    sections = []
    for title, caption, draw in plots.REPORT:
        figure = draw(run)
        if figure is not None:
            sections.append(
                f"<section><h2>{_e(title)}</h2>{_picture(figure, title)}<p class='note'>{_e(caption)}</p></section>"
            )
    return sections


def _picture(figure: Figure, title: str) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=160)
    data = base64.b64encode(buffer.getvalue()).decode()
    return f"<img alt='{_e(title)}' src='data:image/png;base64,{data}'>"


def _metrics(run: Run) -> str:
    """All figures for each pair of witnesses that the run holds, on the tokens where both spoke."""
    pairs = {
        "rollout vs trainer (A, C)": ("rollout_logprob", "old_logprob"),
        "rollout vs exact (A, Z)": ("rollout_logprob", "exact_logprob"),
        "exact vs trainer (Z, C)": ("exact_logprob", "old_logprob"),
    }
    found = {title: pair_metrics(run, *pair, by_step=False).row(0, named=True) for title, pair in pairs.items()}
    shown = {title: row for title, row in found.items() if row["tokens"]}
    rows = [[text, *(row.get(key) for row in shown.values())] for key, text in ROWS.items()]
    note = "d is the second witness minus the first; w = exp(d)."
    return f"<section><h2>The figures</h2>{_table(['', *shown], rows)}<p class='note'>{note}</p></section>"


def _witnesses(run: Run) -> str:
    """What the letters mean."""
    rows = [
        ("A", "rollout_logprob", "the engine that sampled the token, as it decoded"),
        ("C", "old_logprob", "the trainer, before the update, under the same weights"),
        (
            "Z",
            "exact_logprob",
            "the exact engine: one fixed order of every sum, so batch, padding and decoding change no bit",
        ),
    ]
    return f"<section><h2>The witnesses</h2>{_table(['', 'column', 'who says it'], rows)}</section>"


def _provenance(run: Run) -> str:
    """Where the exact log-probs come from, and whether their engine was proved on the machine that made them."""
    parts = []
    for name in run.replays:
        replay = run.replay(name)
        proof = "certified bitwise exact" if replay.certified else "NOT certified"
        m = replay.manifest
        parts.append(f"<p>Replay <b>{_e(name)}</b>: {_e(m.engine)} engine, {_e(m.dtype)} on {_e(m.device)}, {proof}; ")
        parts.append(f"step(s) {_e(', '.join(map(str, replay.complete_steps)))}.</p>")
        if rows := check_rows(replay.certificate or {}):
            parts.append(f"<details><summary>{len(rows)} checks</summary>")
            parts.append(_table(["check", "bits", "tokens", "max difference"], rows) + "</details>")
    parts += [f"<p class='note'>{_e(problem)}</p>" for problem in run.problems]
    parts.append(
        f"<details><summary>manifest</summary><pre>{_e(run.manifest.model_dump_json(indent=2))}</pre></details>"
    )
    return f"<section><h2>Provenance</h2>{''.join(parts)}</section>"
