"""The columns of a run: one Arrow schema a table.

The reader gives every column of a table, NULL where a part does not have it. NULL means "not measured". NaN and
infinities are kept as they came, because they are findings.
"""

from __future__ import annotations

import pyarrow as pa

SCHEMA_VERSION = 1

LOGPROB_COLUMNS = ("rollout_logprob", "rescore_logprob", "old_logprob", "loss_logprob", "ref_logprob")

TOKENS = pa.schema(
    [
        pa.field("step", pa.int32(), nullable=False),
        pa.field("sequence", pa.int64(), nullable=False),  # row number in the step, unique over ranks
        pa.field("position", pa.int32(), nullable=False),  # absolute: index in prompt + response
        ("token_id", pa.int32()),
        ("mask", pa.bool_()),  # true: the token is in the loss
        *((name, pa.float32()) for name in LOGPROB_COLUMNS),  # nats, of the token at `position`
        ("entropy", pa.float32()),  # nats, of the trainer's distribution the token was scored under
        ("rollout_is_weight", pa.float32()),  # correction weight the framework applied
        ("advantage", pa.float32()),  # only where it varies inside a sequence
        ("weight_version", pa.int32()),  # only where it varies inside a sequence
    ]
)

SEQUENCES = pa.schema(
    [
        pa.field("step", pa.int32(), nullable=False),
        pa.field("sequence", pa.int64(), nullable=False),
        ("rank", pa.int32()),
        ("uid", pa.string()),  # names the rollout: the same rollout used in two steps has one uid
        ("group_id", pa.string()),  # completions of one prompt share it
        ("prompt_ids", pa.list_(pa.int32())),  # as the trainer fed them
        ("engine_prompt_ids", pa.list_(pa.int32())),  # as the rollout engine saw them; NULL where not logged apart
        ("prompt", pa.string()),
        ("completion", pa.string()),
        ("num_tokens", pa.int32()),  # response tokens
        ("reward", pa.float32()),
        ("advantage", pa.float32()),
        ("finish_reason", pa.string()),
        ("weight_version", pa.int32()),
        ("turns", pa.int32()),
        ("micro_batch", pa.int32()),  # with the pads: how the trainer laid the row out, for a bitwise emulation
        ("pad_left", pa.int32()),
        ("pad_right", pa.int32()),
    ]
)

STEPS = pa.schema(
    [
        pa.field("step", pa.int32(), nullable=False),
        ("loss", pa.float64()),
        ("reward", pa.float64()),
        ("grad_norm", pa.float64()),  # before clipping
        ("learning_rate", pa.float64()),
        ("entropy", pa.float64()),
        ("time_s", pa.float64()),
        ("weight_version", pa.int32()),  # of the weights being trained: before this step's update
        ("weight_digest", pa.string()),  # of those weights, see data/digest.py
        ("resume", pa.int32()),  # how often the job had been resumed: version counters may restart with it
    ]
)

GRADIENTS = pa.schema(
    [
        pa.field("step", pa.int32(), nullable=False),
        ("parameter_group", pa.string()),
        ("norm", pa.float64()),  # L2, before clipping
        ("max_abs", pa.float64()),
        ("zero_share", pa.float64()),
        ("nonfinite", pa.int64()),
        ("sketch", pa.list_(pa.float32())),  # count-sketch, see manifest.sketch
    ]
)

TABLES: dict[str, pa.Schema] = {"tokens": TOKENS, "sequences": SEQUENCES, "steps": STEPS, "gradients": GRADIENTS}

# Tables that take further float columns under the framework's own names ("reward/<function>", "clip_ratio/...").
OPEN_TABLES = frozenset({"sequences", "steps"})

# The witness that a replay adds, by engine.
REPLAY_COLUMNS = {"exact": "exact_logprob", "hf": "hf_logprob", "vllm": "rescore_logprob"}
REPLAY_ENTROPIES = {"exact": "exact_entropy", "hf": "hf_entropy", "vllm": "rescore_entropy"}


def replay_schema(engine: str) -> pa.Schema:
    """Schema of a replay's token parts: the token key, the engine's log-prob and entropy (nats)."""
    return pa.schema(
        [
            pa.field("step", pa.int32(), nullable=False),
            pa.field("sequence", pa.int64(), nullable=False),
            pa.field("position", pa.int32(), nullable=False),
            (REPLAY_COLUMNS[engine], pa.float32()),
            (REPLAY_ENTROPIES[engine], pa.float32()),
        ]
    )
