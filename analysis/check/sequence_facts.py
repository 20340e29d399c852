"""The table of sequences as the rules need it: lengths and hashes of prompts instead of the prompts themselves."""

from __future__ import annotations

import polars as pl

from timscope.data import Run


def sequence_facts(run: Run) -> pl.DataFrame:
    """One row a sequence: step, sequence, rank, uid, group_id, prompt_tokens, prompt (a hash), num_tokens, reward,
    advantage, weight_version, other_prompt (true where the engine's prompt differs, NULL where it was not logged)."""
    return run.sql(
        """
        SELECT step::BIGINT AS step, sequence, rank, uid, group_id, len(prompt_ids)::BIGINT AS prompt_tokens,
            CASE WHEN prompt_ids IS NOT NULL THEN hash(prompt_ids) WHEN prompt IS NOT NULL THEN hash(prompt)
                 WHEN group_id IS NOT NULL THEN hash(step, group_id) END AS prompt,
            num_tokens::BIGINT AS num_tokens, reward::DOUBLE AS reward, advantage::DOUBLE AS advantage,
            weight_version::BIGINT AS weight_version, prompt_ids <> engine_prompt_ids AS other_prompt
        FROM sequences
        """
    )


def reuse(sequences: pl.DataFrame) -> float:
    """How often a rollout appears on average: copies of one rollout in several steps are no further evidence."""
    if not sequences.height:
        return 1.0
    named = sequences["uid"].drop_nulls()
    distinct = named.n_unique() + sequences.height - named.len()
    return sequences.height / distinct
