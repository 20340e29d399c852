"""One step of a run while it is being gathered: rows of tokens and sequences, gradients, and step metrics.

The caller says things in the order in which a training loop learns them (rollouts first, then what the trainer made of
them), in as many calls as it likes; rows are numbered in the order of `rollout` calls. A call copies what it is given
and returns; the work on it is done when the step is written, on the writer's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from timscope.loggers.arrays import Array, count_rows
from timscope.loggers.fitting import fitted
from timscope.loggers.guard import Guard
from timscope.loggers.pinned import hold, pending, resolve
from timscope.loggers.rows import Rows
from timscope.loggers.step_tables import gradient_table, metric_row


class Step:
    """What one optimizer step saw. Made by `Recorder.step`; every method takes lists, numpy arrays or tensors.

    Shapes: B sequences in the call, a response of n_b tokens each. A token column may be ragged (B rows of n_b), padded
    (B, C) in the layout of the `completion_ids` it belongs to, (B, 1) to repeat along the row, or flat (sum of n_b,).
    None and masked entries mean "not measured" and are stored as NULL; NaN and infinities are stored as they are.

    With `strict` what lies on the host is worked on in the call, so that the call can raise. `resume` goes into the
    step's row; `digest_of` gives the digest of a weights version, as far as one is known by then.
    """

    def __init__(
        self,
        number: int,
        guard: Guard,
        rank: int = 0,
        world_size: int = 1,
        *,
        resume: int = 0,
        digest_of: Callable[[int], str | None] | None = None,
    ) -> None:
        self.number, self._guard, self._rank = number, guard, rank
        self._resume, self._digest_of = resume, digest_of
        self._rows = Rows(guard, rank, world_size)
        self._named = 0  # rows that `rollout` calls have named so far
        self._later: list[Callable[[], None]] = []
        self._writing = False
        self._metrics: dict[str, Any] = {}
        self._gradients: list[Any] = []
        self.tokens = 0  # as far as they are known before the work is done
        self.ended = False  # the optimizer has stepped: only metrics may still come
        self.failed = False  # its block raised: nothing more will come

    def rollout(
        self,
        *,
        prompt_ids: Any,
        completion_ids: Any,
        prompt_mask: Any = None,
        completion_mask: Any = None,
        sequence: Any = None,
        **columns: Any,
    ) -> range:
        """Add sequences as the rollout engine made them; returns their row numbers, for `rows=` later.

        `prompt_ids`, `completion_ids`: ragged, or padded on either side with a mask that is true on real tokens (tool
        results are real tokens; what is in the loss is `mask` of `trainer`). Further columns: `rollout_logprob`,
        `rescore_logprob` (nats, one a token), and one value a sequence or one for all: `weight_version` (a list of
        lists where it changes inside a sequence), `finish_reason`, `prompt`, `completion` (texts), `uid`, `group_id`,
        `turns`, `engine_prompt_ids` (B lists, as the engine saw them). `sequence`: own row numbers, unique over ranks;
        default 0, 1, ... interleaved by rank.
        """
        start = self._named
        if self._guard.on("rollout"):
            with self._guard.column("rollout"):
                count = count_rows(completion_ids)
                if isinstance(completion_ids, (list, tuple)):
                    self.tokens += sum(map(len, completion_ids))
                ids = [self._hold(v) for v in (prompt_ids, prompt_mask, completion_ids, completion_mask, sequence)]
                held = self._each(columns, self._hold)
                self._named += count
                added = range(start, self._named)
                self._say(lambda: self._add(ids, added, held), [*ids, *held.values()])
        return range(start, self._named)

    def trainer(self, *, rows: Any = None, **columns: Any) -> None:
        """Say what the trainer computed for `rows` (all by default), in that order: a micro-batch may be permuted.

        Token columns: `old_logprob` (before the update), `loss_logprob` (inside the loss), `ref_logprob`, `entropy`,
        all in nats, `rollout_is_weight` (the correction weight applied) and `mask` (true: in the loss; without it every
        response token counts). Sequence columns: `micro_batch`, `pad_left`, `pad_right`, and `old_logprob_sum`,
        `ref_logprob_sum` (nats) where the trainer keeps nothing finer.
        """
        self._take(rows, columns)

    def scores(self, *, rows: Any = None, rewards: Mapping[str, Any] | None = None, **columns: Any) -> None:
        """Rewards and advantages of `rows`.

        `reward` (B,); `advantage` (B,) or, where it varies inside a sequence, a token column; `rewards`: by reward
        function, each (B,), stored as `reward/<function>`.
        """
        with self._guard.column("rewards"):
            named = {} if rewards is None or not self._guard.on("rewards") else dict(rewards)
            columns |= {f"reward/{name}": values for name, values in named.items()}
        self._take(rows, columns)

    def gradients(self, groups: Any) -> None:
        """Gradients before clipping, by parameter group: an L2 norm, or a mapping with `norm`, `max_abs`,
        `zero_share`, `nonfinite`, `sketch`; or an object whose `result()` gives that mapping, called on the writer's
        thread. Rank 0 only; other ranks' calls are ignored."""
        if self._rank or not self._guard.on("gradients"):
            return
        with self._guard.column("gradients"):
            self._gradients.append({k: hold(v) for k, v in groups.items()} if isinstance(groups, Mapping) else groups)

    def metrics(self, values: Mapping[str, Any] | None = None, **named: Any) -> None:
        """Step metrics under their own names: `loss`, `reward`, `grad_norm` (before clipping), `learning_rate`,
        `entropy`, `time_s`, `weight_version` (of the weights being trained), or any other number. Texts are left out.
        Rank 0 only; other ranks' calls are ignored."""
        if self._rank:
            return
        said: dict[str, Any] = {}
        with self._guard.column("metrics"):
            said = {} if values is None else dict(values)
        for name, value in {**said, **named}.items():
            if not self._guard.on(f"steps.{name}") or isinstance(value, str):
                continue
            with self._guard.column(f"steps.{name}"):
                held = hold(value)
                self._metrics[name] = held if pending(held) or held is None else float(held)

    def later(self, fill: Callable[[Step], None]) -> None:
        """Run `fill(step)` on the writer's thread when the step is written: for work too dear for the training loop.
        What it holds on to must not change any more."""

        def guarded() -> None:
            if self._guard.on("later"):
                with self._guard.column("later"):
                    fill(self)

        self._later.append(guarded)

    def _take(self, rows: Any, columns: Mapping[str, Any]) -> None:
        if not self._guard.on("rollout") or not self._guard.on("rows"):
            return
        with self._guard.column("rows"):
            which, held = self._hold(rows), self._each(columns, self._hold)
            self._say(lambda: self._fill(which, held), [which, *held.values()])

    def _hold(self, values: Any) -> Any:
        # What a job of `later` says is used at once: nobody can change it before.
        return values if self._writing else hold(values)

    def _each(self, columns: Mapping[str, Any], work: Callable[[Any], Any]) -> dict[str, Any]:
        """`work` on each column by itself: one that cannot be copied or fetched turns itself off."""
        done: dict[str, Any] = {}
        for name, values in columns.items():
            if self._guard.on(name):
                with self._guard.column(name):
                    done[name] = work(values)
        return done

    def _say(self, work: Callable[[], None], held: list[Any]) -> None:
        if self._writing or (self._guard.strict and not self._later and not any(map(pending, held))):
            work()
        else:
            self._later.append(work)

    def _add(self, ids: list[Any], added: range, columns: Mapping[str, Any]) -> None:
        if self._guard.on("rollout"):
            with self._guard.column("rollout"):
                self._rows.add(*(resolve(v) for v in ids))
                self._rows.take(np.arange(added.start, added.stop), self._each(columns, resolve))

    def _fill(self, rows: Any, columns: Mapping[str, Any]) -> None:
        if self._guard.on("rollout") and self._guard.on("rows"):
            with self._guard.column("rows"):
                chosen: Array = self._rows.choose(resolve(rows))
                self._rows.take(chosen, self._each(columns, resolve))

    def tables(self) -> dict[str, dict[str, Any]]:
        """The step's columns by table, for the writer; a table without rows is empty."""
        self._writing = True
        for work in self._later:
            work()
        self._later.clear()
        sequences = fitted("sequences", self._rows.sequence_table(), self._guard)
        tables = {"tokens": self._rows.token_table(), "sequences": sequences}
        if self._rank == 0:
            tables["gradients"] = fitted(
                "gradients", gradient_table(self._gradients, self._guard), self._guard, "gradients."
            )
            row = metric_row(self._metrics, self._guard)
            version = row.get("weight_version")
            digest = self._digest_of(version) if self._digest_of and version is not None else None
            listed = {k: [v] for k, v in {**row, "weight_digest": digest, "resume": self._resume}.items()}
            tables["steps"] = fitted("steps", listed, self._guard, "steps.")
        return tables
