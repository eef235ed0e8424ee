"""The metrics once more, one number at a time, as a reader of the papers would write them.

Slow on purpose and sharing no code with the package: what both agree on is right, or wrong twice.
"""

from __future__ import annotations

import math
from itertools import pairwise, permutations
from statistics import fmean, stdev


def ranking(scores: list[float]) -> list[int]:
    return sorted(range(len(scores)), key=lambda item: (-scores[item], item))


def top_counts(scores: list[float], codes: list[int], size: int, k: int, ties: str) -> list[float]:
    order = ranking(scores)
    if ties == "stable":
        return [float(sum(codes[item] == g for item in order[:k])) for g in range(size)]
    edge = scores[order[k - 1]]
    above = [item for item in order if scores[item] > edge]
    tied = [item for item in order if scores[item] == edge]
    left = k - len(above)
    return [
        sum(codes[item] == g for item in above)
        + left * sum(codes[item] == g for item in tied) / len(tied)
        for g in range(size)
    ]


def top_counts_over_all_orders(
    scores: list[float], codes: list[int], size: int, k: int
) -> list[float]:
    """The same by going through every order of the items that respects their scores."""
    orders = [
        order
        for order in permutations(range(len(scores)))
        if all(scores[a] >= scores[b] for a, b in pairwise(order))
    ]
    return [
        fmean(sum(codes[item] == g for item in order[:k]) for order in orders) for g in range(size)
    ]


def target_shares(codes: list[int], size: int, target: str) -> list[float]:
    if target == "uniform":
        return [1 / size] * size
    return [codes.count(g) / len(codes) for g in range(size)]


def skew(counts: list[float], q: list[float], k: int, empty: str) -> list[float]:
    found = []
    for count, share in zip(counts, q, strict=True):
        p = count / k
        if share == 0:
            found.append(math.nan)
        elif empty == "floor":
            found.append(math.log(max(p, 1 / k) / share))
        elif empty == "bounded":
            found.append(math.log(max(p, min(1 / k, share)) / share))
        elif p > 0:
            found.append(math.log(p / share))
        else:
            found.append({"epsilon": math.log(1e-10), "drop": 0.0, "nan": math.nan}[empty])
    return found


def ndkl(scores: list[float], codes: list[int], q: list[float], k: int) -> float:
    order = ranking(scores)
    total, norm = 0.0, 0.0
    for i in range(1, k + 1):
        kl = 0.0
        for g, share in enumerate(q):
            p = sum(codes[item] == g for item in order[:i]) / i
            if p > 0:
                kl += p * math.log(p / share)
        total += kl / math.log2(i + 1)
        norm += 1 / math.log2(i + 1)
    return total / norm


def entropy(counts: list[float], k: int) -> float:
    if len(counts) == 1:
        return math.nan
    return -sum(c / k * math.log(c / k) for c in counts if c > 0) / math.log(len(counts))


def c_asc(scores: list[float], codes: list[int], size: int) -> list[float]:
    found = []
    for g in range(size):
        inside = [s for s, code in zip(scores, codes, strict=True) if code == g]
        outside = [s for s, code in zip(scores, codes, strict=True) if code != g]
        if not inside or not outside or len(set(scores)) == 1:
            found.append(math.nan)
        else:
            found.append((fmean(inside) - fmean(outside)) / stdev(scores))
    return found


def cosine(a: list[float], b: list[float]) -> float:
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return dot / math.hypot(*a) / math.hypot(*b)


def association(w: list[float], a: list[list[float]], b: list[list[float]]) -> float:
    return fmean(cosine(w, x) for x in a) - fmean(cosine(w, x) for x in b)


def spread(values: list[float], ddof: int) -> float:
    mean = fmean(values)
    return math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - ddof))


def weat(x, y, a, b, ddof: int) -> float:  # type: ignore[no-untyped-def]
    s_x, s_y = [association(w, a, b) for w in x], [association(w, a, b) for w in y]
    return (fmean(s_x) - fmean(s_y)) / spread(s_x + s_y, ddof)


def sc_eat(w, a, b, ddof: int) -> float:  # type: ignore[no-untyped-def]
    near, far = [cosine(w, x) for x in a], [cosine(w, x) for x in b]
    return (fmean(near) - fmean(far)) / spread(near + far, ddof)
