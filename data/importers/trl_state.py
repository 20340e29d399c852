"""transformers' `trainer_state.json`: the metrics of a TRL run by step, and the names of its reward functions."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from timscope.data.importers.base import ROW_FAULTS, Findings
from timscope.data.importers.step_files import numbered

_CHECKPOINT = re.compile(r"checkpoint-(\d+)")
_REWARD = re.compile(r"rewards/(.+)/mean")


class TrainerState:
    """`steps`: metrics by step, `functions`: reward function names. Both empty where there is no such file."""

    def __init__(self, output: Path, findings: Findings) -> None:
        self.steps: dict[int, dict[str, Any]] = {}
        self.functions: set[str] = set()
        places = [output, *(folder for _, folder in reversed(numbered(output, _CHECKPOINT)))]
        file = next((f for p in places if (f := p / "trainer_state.json").is_file()), None)
        if file is None:
            return
        try:
            history = json.loads(file.read_bytes())["log_history"]
            for entry in history:
                row = self.steps.setdefault(int(entry["step"]), {})
                row.update({name: value for name, value in entry.items() if name != "step"})
        except (OSError, *ROW_FAULTS) as error:
            findings.note("truncated-dump", "trainer_state.json is not whole: what can be read of it is used",
                          file=str(file.name), error=str(error))  # fmt: skip
        for row in self.steps.values():
            self.functions |= {match[1] for name in row if (match := _REWARD.fullmatch(name))}
            if "step_time" in row:
                row["time_s"] = row["step_time"]
