"""`timscope certify`: the bitwise proof of the exact engine on this machine and model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from timscope.app.extras import needs_torch
from timscope.app.output import Json, console, print_json, table


def certify(
    model: Annotated[str, typer.Argument(help="Hugging Face directory, .gguf file, or smollm2 (packaged).")],
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")] = "cpu",
    dtype: Annotated[list[str] | None, typer.Option(help="float32, bfloat16; repeat for both (the default).")] = None,
    implementation: Annotated[
        str, typer.Option(help="fast (CUDA), tiles, or auto: what a replay takes on that device.")
    ] = "auto",
    long: Annotated[bool, typer.Option("--long", help="Also sequences of up to 32,768 tokens (fast).")] = False,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Also write the certificate to this file.")] = None,
    as_json: Json = False,
) -> None:
    """Prove that the exact engine is bitwise exact here (batch, padding, chunks, decode, threads); exit 1 if not."""
    needs_torch("certify")
    from timscope.replay.certify import certify as run_certify

    certificate = run_certify(
        model,
        device=device,
        dtypes=tuple(dtype or ("float32", "bfloat16")),
        progress=not as_json,
        implementation=implementation,
        long=long,
    )
    if out is not None:
        out.write_text(json.dumps(certificate, indent=2) + "\n")
    if as_json:
        print_json(certificate)
    else:
        show(certificate)
    raise typer.Exit(0 if certificate["exact"] else 1)


def show(certificate: dict[str, Any]) -> None:
    """The certificate as text."""
    console.print(table(["check", "bits", "tokens", "max |difference|"], check_rows(certificate)))
    controls = [
        (c["name"], "failed, as it must" if c["failed_as_it_must"] else "blind here: plain transformers passes it too")
        for c in certificate["negative_controls"]
    ]
    console.print(table(["negative control (plain transformers)", "result"], controls))
    engine = certificate["environment"].get("engine", "")
    console.print(f"{engine}: [bold]{'exact' if certificate['exact'] else 'NOT exact'}[/bold] on this machine")


def check_rows(certificate: dict[str, Any]) -> list[tuple[Any, ...]]:
    """One row a check: name, outcome, tokens, largest difference."""
    checks = certificate.get("checks", [])
    return [(c["name"], "equal" if c["equal"] else "DIFFERS", c["tokens"], c["max_abs_diff"]) for c in checks]
