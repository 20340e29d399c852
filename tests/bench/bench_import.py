"""How much memory an import takes, and how fast it is, on dumps much larger than one part.

Run by hand: python tests/bench/bench_import.py [--megabytes 800] [--only nemo-rl,slime,skyrl]. Each format is written
at two sizes with files of one size, and once with fewer and larger files; every import runs in a process of its own,
whose peak resident memory the kernel reports. (So does the writing: a child's figure begins at its parent's peak.) Flat
from the small to the large dump means that a 10 GB dump takes no more. The script fails where an import would pass 2 GB
when the line through the two sizes is drawn out to 10 GB.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from import_dumps import FORMATS

TEN_GB, LIMIT_MB = 10_000.0, 2_000.0

CHILD = """
import json, resource, sys, time
from timscope.data.importers.convert import import_dump
start = time.perf_counter()
done = import_dump(sys.argv[1], sys.argv[2])
seconds = time.perf_counter() - start
used = resource.getrusage(resource.RUSAGE_SELF)
cpu = used.ru_utime + used.ru_stime
print(json.dumps({"seconds": seconds, "cpu": cpu, "peak_mb": used.ru_maxrss / 1024, "tokens": done.tokens}))
"""


def measure(name: str, megabytes: float, files: int) -> dict[str, float]:
    """Write a dump of about `megabytes` in `files` files, import it in a process of its own, remove both."""
    samples = max(1, round(megabytes * 1e6 / files / FORMATS[name][1]))
    with tempfile.TemporaryDirectory() as folder:
        dump = Path(folder) / "dump"
        dump.mkdir()
        subprocess.run([sys.executable, __file__, "--write", name, str(dump), str(files), str(samples)], check=True)
        size = sum(p.stat().st_size for p in dump.rglob("*") if p.is_file()) / 1e6
        command = [sys.executable, "-c", CHILD, str(dump), str(Path(folder) / "run")]
        said = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        run = sum(p.stat().st_size for p in (Path(folder) / "run").rglob("*") if p.is_file()) / 1e6
        shutil.rmtree(dump)
    return {"mb": size, "files": files, "run_mb": run, **{k: said[k] for k in ("seconds", "cpu", "peak_mb", "tokens")}}


def write_dump(name: str, folder: str, files: str, samples: str) -> None:
    """A dump of `files` files with `samples` samples each."""
    rng = np.random.default_rng(0)
    for step in range(1, int(files) + 1):
        FORMATS[name][0](Path(folder), step, int(samples), rng)


def main() -> int:
    """Print a line an import and the projection; 1 where it passes the limit."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=float, default=800.0)
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--only", default=",".join(FORMATS))
    parser.add_argument("--write", nargs=4, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.write:
        write_dump(*asked.write)
        return 0
    failed = False
    for name in asked.only.split(","):
        small = measure(name, asked.megabytes / 2, asked.files // 2)
        large = measure(name, asked.megabytes, asked.files)
        coarse = measure(name, asked.megabytes, asked.files // 4)
        for what, m in (("half", small), ("whole", large), ("whole, files 4 times as large", coarse)):
            print(
                f"{name}, {what}: {m['mb']:.0f} MB in {m['files']} files, {m['tokens'] / 1e6:.1f} M tokens: "
                f"{m['seconds']:.1f} s ({m['cpu']:.1f} s of CPU), {m['mb'] / m['cpu']:.0f} MB and "
                f"{m['tokens'] / m['cpu'] / 1e6:.2f} M tokens a CPU-second, peak {m['peak_mb']:.0f} MB, run "
                f"{m['run_mb']:.0f} MB",
                flush=True,
            )
        slope = max(0.0, (large["peak_mb"] - small["peak_mb"]) / (large["mb"] - small["mb"]))
        projected = large["peak_mb"] + slope * (TEN_GB - large["mb"])
        by_file = (coarse["peak_mb"] - large["peak_mb"]) / (
            coarse["mb"] / coarse["files"] - large["mb"] / large["files"]
        )
        print(
            f"{name}: {slope * 1000:.0f} MB more a GB of dump, so {projected:.0f} MB at 10 GB with files of this size; "
            f"{by_file:.2f} MB more a MB of file"
        )
        failed |= projected > LIMIT_MB
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
