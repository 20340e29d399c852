"""What a bitwise claim depends on: engine, libraries, processor, threads, variables that choose instruction sets."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
import transformers

from timscope import __version__
from timscope.replay.exact import ENGINE_VERSION

ISA_VARIABLES = ("ONEDNN_MAX_CPU_ISA", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "ATEN_CPU_CAPABILITY")
FEATURES = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve", "bf16")


def _cpu() -> tuple[str, list[str]]:
    """Model name and the features that matter here; from /proc/cpuinfo where there is one."""
    name, flags = platform.processor() or platform.machine(), set[str]()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return name, []
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            name = value.strip()
        elif key.strip() in ("flags", "Features"):
            flags = set(value.split())
            break
    return name, [f for f in FEATURES if f in flags]


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def environment(device: str | torch.device = "cpu", engine: str = ENGINE_VERSION) -> dict[str, Any]:
    """A flat record to stamp on a certificate or a replay; a claim holds for one such record and no other.

    `engine`: version of the implementation that computes.
    """
    cpu, features = _cpu()
    record: dict[str, Any] = {
        "timscope": __version__,
        "engine": engine,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": str(device),
        "cpu": cpu,
        "cpu_features": features,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "variables": {name: os.environ.get(name) for name in ISA_VARIABLES},
    }
    if torch.device(device).type == "cuda":
        record |= {"gpu": torch.cuda.get_device_name(device), "cuda": torch.version.cuda, "triton": _version("triton")}
    return record
