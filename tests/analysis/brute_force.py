"""Every estimator once more, in plain Python with 40 decimal digits: slow and obvious."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from decimal import Decimal, Overflow, localcontext

Token = tuple[float, float, int]  # left, right, sequence


def _exp(x: Decimal) -> Decimal:
    with localcontext() as context:
        context.prec = 40
        context.traps[Overflow] = False
        return x.exp()


def _mean(values: Sequence[Decimal]) -> Decimal:
    return sum(values, Decimal(0)) / len(values)


def _k3(x: Decimal) -> Decimal:
    return _exp(x) - 1 - x


def _clip(x: Decimal) -> Decimal:
    return max(Decimal(-20), min(Decimal(20), x))


def _corr(x: Sequence[Decimal], y: Sequence[Decimal]) -> Decimal | None:
    mx, my = _mean(x), _mean(y)
    xx = sum(((a - mx) ** 2 for a in x), Decimal(0))
    yy = sum(((b - my) ** 2 for b in y), Decimal(0))
    if xx == 0 or yy == 0:
        return None
    return sum(((a - mx) * (b - my) for a, b in zip(x, y, strict=True)), Decimal(0)) / (xx * yy).sqrt()


def _ess(logs: Sequence[Decimal]) -> Decimal:
    w = [_exp(x) for x in logs]
    return sum(w, Decimal(0)) ** 2 / (len(w) * sum((x * x for x in w), Decimal(0)))


def _z(values: Sequence[Decimal]) -> Decimal | None:
    m = len(values)
    if m < 2:
        return None
    mean = _mean(values)
    variance = sum(((v - mean) ** 2 for v in values), Decimal(0)) / (m - 1)
    return mean / (variance / m).sqrt() if variance > 0 else None


def brute_force(tokens: Sequence[Token]) -> dict[str, float | None]:
    """All figures of masked-in, finite tokens; None where a figure is not defined."""
    with localcontext() as context:
        context.prec = 40
        left = [Decimal(t[0]) for t in tokens]
        right = [Decimal(t[1]) for t in tokens]
        d = [r - left_ for left_, r in zip(left, right, strict=True)]
        groups: dict[int, list[int]] = defaultdict(list)
        for i, token in enumerate(tokens):
            groups[token[2]].append(i)
        rows = list(groups.values())
        sums = [sum((d[i] for i in row), Decimal(0)) for row in rows]
        excess = [sum((_exp(d[i]) - 1 for i in row), Decimal(0)) for row in rows]
        log_left = [-_mean([left[i] for i in row]) for row in rows]
        log_right = [-_mean([right[i] for i in row]) for row in rows]
        gap = [b - a for a, b in zip(log_left, log_right, strict=True)]
        n = len(tokens)
        found: dict[str, Decimal | None] = {
            "mean_abs": _mean([abs(x) for x in d]),
            "sequence_mean_abs": _mean([_mean([abs(d[i]) for i in row]) for row in rows]),
            "max_abs": max(abs(x) for x in d),
            "rms": _mean([x * x for x in d]).sqrt(),
            "exact_equal": Decimal(sum(t[0] == t[1] for t in tokens)) / n,
            "mean_exp_abs": _mean([_exp(abs(x)) for x in d]),
            "mean_abs_prob_diff": _mean([abs(_exp(b) - _exp(a)) for a, b in zip(left, right, strict=True)]),
            "pearson_probs": _corr([_exp(a) for a in left], [_exp(b) for b in right]),
            "pearson_logprobs": _corr(left, right),
            **{
                name: Decimal(sum(abs(t[1] - t[0]) > math.log(tau) for t in tokens)) / n
                for name, tau in (
                    ("f_1_1", 1.1),
                    ("f_1_5", 1.5),
                    ("f_2", 2.0),
                    ("f_3", 3.0),
                    ("f_5", 5.0),
                    ("f_10", 10.0),
                )
            },
            "k1": -_mean(d),
            "k3": _mean([_k3(x) for x in d]),
            "k3_clamped": _mean([_k3(_clip(x)) for x in d]),
            "k3_reverse": _mean([_k3(-x) for x in d]),
            "k3_reverse_clamped": _mean([_k3(_clip(-x)) for x in d]),
            "chi2_token": _mean([_exp(2 * x) for x in d]) - 1,
            "chi2_token_clamped": _mean([_exp(2 * _clip(x)) for x in d]) - 1,
            "chi2_sequence": _mean([_exp(2 * s) for s in sums]) - 1,
            "chi2_sequence_clamped": _mean([_exp(2 * _clip(s)) for s in sums]) - 1,
            "ess_token": _ess(d),
            "ess_sequence": _ess(sums),
            "left_log_ppl": _mean(log_left),
            "right_log_ppl": _mean(log_right),
            "left_ppl": _mean([_exp(x) for x in log_left]),
            "right_ppl": _mean([_exp(x) for x in log_right]),
            "log_ppl_diff": _mean(gap),
            "log_ppl_abs_diff": _mean([abs(x) for x in gap]),
            "log_ppl_diff_max": max(gap),
            "log_ppl_diff_min": min(gap),
            "ppl_ratio": _mean([_exp(x) for x in gap]),
            "mean_weight": _mean([_exp(x) for x in d]),
            "mean_weight_z": _z(excess),
            "mean_weight_z_sequence_means": _z([e / len(row) for e, row in zip(excess, rows, strict=True)]),
        }
        return {name: None if value is None else float(value) for name, value in found.items()}
