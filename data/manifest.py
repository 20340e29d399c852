"""The manifest: what a run is, so that its numbers can be read years later without the code that made them.

pydantic models, because this is the one file that people and other tools write by hand. Fields that a framework cannot
know stay None; further fields are kept, never rejected, as long as the schema version is one that this code reads.
"""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from timscope.data.schema import SCHEMA_VERSION

LossMode = Literal["recompute", "bypass", "unknown"]


class _Part(BaseModel):
    model_config = ConfigDict(extra="allow", protected_namespaces=())


class Framework(_Part):
    """The RL framework that ran the job."""

    name: str
    version: str | None = None


class Model(_Part):
    """The policy. `source` is where anyone can get the first recorded weights."""

    name: str | None = None
    source: str | None = None
    architecture: str | None = None
    config: dict[str, Any] = Field(default_factory=dict)
    vocab_size: int | None = None
    dtype: str | None = None
    num_parameters: int | None = None


class Tokenizer(_Part):
    """The tokenizer as the trainer saw it; `vocab_size` counts added tokens."""

    name: str | None = None
    vocab_size: int | None = None


class Engine(_Part):
    """One side of the run: the rollout engine or the trainer's forward."""

    name: str | None = None
    version: str | None = None
    dtype: str | None = None
    device: str | None = None
    attention: str | None = None
    options: dict[str, Any] = Field(default_factory=dict)


class Algorithm(_Part):
    """The loss. recompute: ratio to the trainer's own old log-probs; bypass: ratio to the rollout's."""

    name: str | None = None
    loss_mode: LossMode = "unknown"
    num_iterations: int | None = None
    options: dict[str, Any] = Field(default_factory=dict)


class Sampling(_Part):
    """Sampling parameters of the rollouts. top_k None or 0 means off."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_tokens: int | None = None
    seed: int | None = None


class LogprobMode(_Part):
    """What a log-prob column holds. processed: after temperature and truncation; raw: log-softmax of the logits."""

    mode: Literal["raw", "processed"] | None = None
    temperature: float | None = None


class WeightVersion(_Part):
    """One version of the weights. `source` lets a replay load it, `digest` proves that it is the one."""

    version: int
    digest: str | None = None
    source: str | None = None


class Sketch(_Part):
    """How the gradient sketches were made: two sketches can be compared only where all of this is equal."""

    buckets: int
    seed: int
    method: str


class ImportFinding(_Part):
    """Something an importer saw in a dump and did not repair. `kind` is a slug of the fault list where one fits."""

    kind: str
    detail: str
    count: int = 1
    evidence: dict[str, Any] = Field(default_factory=dict)


class Imported(_Part):
    """Where an imported run came from and what it can be used for.

    tier: T0 metrics, T1 text and rewards, T2 token ids and rollout log-probs, T3 with trainer log-probs and advantages,
    T4 with weight versions and micro-batches. `cannot` maps a command to the reason why this run cannot serve it.
    """

    format: str
    source: str
    tier: Literal["T0", "T1", "T2", "T3", "T4"]
    cannot: dict[str, str] = Field(default_factory=dict)
    findings: list[ImportFinding] = Field(default_factory=list)


class RecorderState(_Part):
    """What the recorder itself lost or could not do."""

    drops: int = 0
    errors: list[str] = Field(default_factory=list)
    resumes: int = 0
    closed: bool = False


class Manifest(_Part):
    """Everything about a run that is not a table."""

    schema_version: int = SCHEMA_VERSION
    run_id: str = Field(default_factory=lambda: uuid.uuid4().hex)
    created: datetime = Field(default_factory=lambda: datetime.now(UTC))
    timscope_version: str | None = None
    framework: Framework | None = None
    model: Model = Field(default_factory=Model)
    tokenizer: Tokenizer = Field(default_factory=Tokenizer)
    rollout: Engine = Field(default_factory=Engine)
    trainer: Engine = Field(default_factory=Engine)
    algorithm: Algorithm = Field(default_factory=Algorithm)
    sampling: Sampling = Field(default_factory=Sampling)
    logprobs: dict[str, LogprobMode] = Field(default_factory=dict)
    weights: list[WeightVersion] = Field(default_factory=list)
    world_size: int = 1
    environment: dict[str, Any] = Field(default_factory=dict)
    sketch: Sketch | None = None
    imported: Imported | None = None
    recorder: RecorderState = Field(default_factory=RecorderState)


class ReplayManifest(_Part):
    """What a replay is: which engine scored which steps under which weights."""

    schema_version: int = SCHEMA_VERSION
    name: str
    engine: Literal["exact", "hf", "vllm"]
    created: datetime = Field(default_factory=lambda: datetime.now(UTC))
    timscope_version: str | None = None
    run_id: str | None = None
    model_source: str | None = None
    model_digest: str | None = None
    weight_version: int | None = None
    dtype: str | None = None
    device: str | None = None
    temperature: float = 1.0
    exact: bool | None = None
    emulation: dict[str, Any] = Field(default_factory=dict)  # how hf or vllm was set up, where the name does not say it
    environment: dict[str, Any] = Field(default_factory=dict)
