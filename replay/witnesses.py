"""Which witness a replay adds: for each engine name, how a loaded model scores one step, and what is stamped on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from timscope.data import BadInput, Run
from timscope.replay import trainer_layout
from timscope.replay.engines import Maker, version_of
from timscope.replay.hf_engine import HF_VERSION, HfEngine
from timscope.replay.replay_input import StepInput
from timscope.replay.scoring import Progress, Scores
from timscope.replay.trainer_layout import Emulation, Row
from timscope.replay.vllm_engine import VllmEngine, check_vllm

ENGINES = ("exact", "hf", "vllm")

StepScorer = Callable[[StepInput, Progress | None], list[Scores]]


@dataclass(frozen=True)
class Witness:
    """`opened` gives a model's scorer of steps as a context; `version` names what computes; `emulation` how, for hf
    and vllm, where the name alone does not say it."""

    opened: Callable[[Any], AbstractContextManager[StepScorer]]
    version: str
    emulation: dict[str, Any] = field(default_factory=dict)


def exact_witness(maker: Maker, temperature: float) -> Witness:
    """The exact engine, whichever implementation."""

    @contextmanager
    def opened(model: Any) -> Iterator[StepScorer]:
        with maker(model) as engine:
            yield lambda item, progress: engine.score(item.prompts, item.completions, temperature, progress)

    return Witness(opened, version_of(maker))


def hf_witness(run: Run, items: Sequence[StepInput], asked: Emulation, temperature: float) -> Witness:
    """The trainer's forward imitated; every step's layout is read now, while the run is open."""
    how = trainer_layout.emulation(run, asked)
    layouts: dict[tuple[int, int], list[list[Row]]] = {
        (item.step, item.sequences[0]): trainer_layout.batches(run, item, how) for item in items if item.sequences
    }

    @contextmanager
    def opened(model: Any) -> Iterator[StepScorer]:
        with HfEngine(model, how, temperature).installed() as engine:
            yield lambda item, progress: engine.score(item, layouts[item.step, item.sequences[0]], progress)

    return Witness(opened, HF_VERSION, how.said())


def vllm_witness(temperature: float, batch_invariant: bool) -> Witness:
    """vLLM's prefill."""
    version = check_vllm(temperature, batch_invariant)

    @contextmanager
    def opened(model: Any) -> Iterator[StepScorer]:
        with VllmEngine.opened(model) as engine:
            yield lambda item, progress: engine.score(item.prompts, item.completions, progress)

    return Witness(opened, version, {"batch_invariant": batch_invariant})


def check_engine(engine: str) -> None:
    """BadInput for a name that is none of ENGINES."""
    if engine not in ENGINES:
        raise BadInput(f"there is no engine {engine!r}: choose {', '.join(ENGINES[:-1])} or {ENGINES[-1]}")
