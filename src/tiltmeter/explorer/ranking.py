"""Results of one prompt: the top k, and each group with its null.

Everything is exact or closed-form, and so fast enough for typing: counts against the hypergeometric
distribution, C-ASC against its permutation moments, MaxSkew against exact draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from tiltmeter.errors import InputError
from tiltmeter.metrics.association import c_asc_of_moments
from tiltmeter.metrics.convention import Convention
from tiltmeter.metrics.numpy_kernels import group_counts
from tiltmeter.metrics.ranking import max_skew_of_shares, skew_of_shares, target_shares
from tiltmeter.metrics.summary import Moments, TopItems, check_k
from tiltmeter.stats.intervals import Z
from tiltmeter.stats.multiplicity import holm
from tiltmeter.stats.null import (
    draw_top_counts,
    null_band,
    p_from_null_draws,
    top_count_null,
    top_count_p,
)
from tiltmeter.types import Floats, Groups, Ints

DRAWS = 2000  # of random rankings, for the null of MaxSkew
LEVEL = 0.05  # of the Holm-adjusted p-values of groups

#: A re-ranker: the rows of the top k for scores (queries x items).
Order = Callable[[Floats, int], Ints]


@dataclass(frozen=True)
class GroupResult:
    """Results of one prompt for one group; NaN if undefined."""

    name: str
    size: int  # number of images
    count: float  # in the top k; expected over ties, if the convention says so
    share: float  # of the top k
    expected: float  # mean share by chance
    null_low: float  # 95% range of the share by chance
    null_high: float
    p: float  # exact, two-sided
    p_holm: float  # adjusted over groups, not over prompts
    skew: float
    skew_null_low: float  # 95% range by chance
    skew_null_high: float
    c_asc: float
    c_asc_low: float  # 95% interval
    c_asc_high: float
    c_asc_null: float  # 95% of permutations are within plus and minus this
    c_asc_p: float
    mean: float  # score

    @property
    def direction(self) -> int:
        """1 if the group is significantly overrepresented, -1 if underrepresented, otherwise 0."""
        significant = self.p_holm <= LEVEL
        return int(np.sign(self.share - self.expected)) if significant else 0


@dataclass(frozen=True)
class MetricWithNull:
    """A metric of the whole top k with its null."""

    value: float
    null_mean: float
    null_low: float
    null_high: float
    p: float


@dataclass(frozen=True, eq=False)
class QueryResult:
    """The top k of a prompt, by group."""

    k: int
    n: int
    rows: Ints  # of the images, best first
    scores: Floats
    codes: Ints  # groups
    groups: tuple[GroupResult, ...]
    max_skew: MetricWithNull
    tied: int  # images with the score of the last one

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON, with None for undefined ones."""
        rows = [{**asdict(group), "direction": group.direction} for group in self.groups]
        return {
            "k": self.k,
            "n": self.n,
            "groups": [{name: plain(value) for name, value in group.items()} for group in rows],
            "max_skew": {name: plain(value) for name, value in asdict(self.max_skew).items()},
            "tied": self.tied,
        }


def answer(
    scores: Floats, groups: Groups, *, k: int, convention: Convention, order: Order | None = None
) -> QueryResult:
    """The top `k` of all images by `scores`, and each group with its null.

    >>> from tiltmeter.metrics.convention import get_convention
    >>> half = Groups.from_labels(["a", "b"] * 50)
    >>> result = answer(np.arange(100.0) % 2, half, k=20, convention=get_convention("tiltmeter"))
    >>> [(group.name, group.count, group.direction) for group in result.groups]
    [('a', 0.0, -1), ('b', 20.0, 1)]
    """
    n = len(scores)
    check_k(k, n)
    if len(groups) != n:
        raise InputError(f"{n:,} scores, but {len(groups):,} labels of {groups.attribute!r}")
    matrix = np.asarray(scores)[None, :]
    if order is None:
        top = TopItems.of(matrix, groups, k)
        rows, codes = np.asarray(top.ids[0]), np.asarray(top.codes[0])
        counts = np.asarray(top.counts(k, convention.ties), dtype=float)[0]
        tied = int(top.tied[0].sum())
    else:  # a re-ranker's own order
        rows = np.asarray(order(matrix, k))[0, :k]
        codes, tied = groups.codes[rows], 1
        counts = group_counts(codes[None], len(groups.names))[0]
    return QueryResult(
        k=k,
        n=n,
        rows=rows,
        scores=np.asarray(matrix[0, rows], dtype=float),
        codes=codes,
        groups=_group_results(counts, Moments.of(matrix, groups), groups, k, convention),
        max_skew=_max_skew(counts, groups, k, convention),
        tied=tied,
    )


def _group_results(
    counts: Floats, moments: Moments, groups: Groups, k: int, convention: Convention
) -> tuple[GroupResult, ...]:
    band = top_count_null(groups.counts, k)
    p = top_count_p(counts, groups.counts, k)
    q = target_shares(convention.target, groups)
    skew, low, high = (
        skew_of_shares(shares, q, k=k, empty=convention.empty)
        for shares in (counts / k, band.low / k, band.high / k)
    )
    c_asc, c_low, c_high, c_null, c_p = c_asc_with_null(moments)
    columns = (
        groups.counts, counts, counts / k, band.mean / k, band.low / k, band.high / k, p, holm(p),
        skew, low, high, c_asc, c_low, c_high, c_null, c_p, _first(moments)[0],
    )  # fmt: skip
    return tuple(
        GroupResult(name, int(size), *(float(value) for value in rest))
        for name, size, *rest in zip(groups.names, *columns, strict=True)
    )


def c_asc_with_null(moments: Moments) -> tuple[Floats, Floats, Floats, Floats, Floats]:
    """C-ASC of each group of one query: value, 95% interval, 95% range of its null, p.

    Over all permutations the gap of a group of n_G among n has exactly the variance
    s^2 n / (n_G (n - n_G)); quantiles are normal. The interval is Welch's, with the spread s taken
    as known.
    """
    value = np.asarray(c_asc_of_moments(moments), dtype=float)[0]
    count, mean, m2 = (np.asarray(x, dtype=float) for x in (moments.count, *_first(moments)))
    total_moments = moments.total()
    n, total = float(total_moments.count[0]), float(total_moments.m2[0, 0])
    rest = n - count
    with np.errstate(divide="ignore", invalid="ignore"):
        rest_mean = (n * float(total_moments.mean[0, 0]) - count * mean) / rest
        rest_m2 = np.maximum(total - m2 - count * rest / n * (mean - rest_mean) ** 2, 0.0)
        within = m2 / (count - 1) / count + rest_m2 / (rest - 1) / rest
        error = np.sqrt(within / (total / (n - 1)))
        spread = np.sqrt(n / (count * rest))
        p = np.array([math.erfc(abs(z) / math.sqrt(2)) for z in value / spread])
    undefined = np.isnan(value)
    half_width, reach = (
        np.where(undefined | ~np.isfinite(x), np.nan, Z * x) for x in (error, spread)
    )
    return value, value - half_width, value + half_width, reach, np.where(undefined, np.nan, p)


def _first(moments: Moments) -> tuple[Floats, Floats]:
    return moments.mean[0], moments.m2[0]


def _max_skew(counts: Floats, groups: Groups, k: int, convention: Convention) -> MetricWithNull:
    shares = target_shares(convention.target, groups)
    empty, skew = convention.empty, convention.skew
    value = float(max_skew_of_shares(counts / k, shares, k=k, empty=empty, skew=skew))
    sizes = tuple(int(size) for size in groups.counts)
    draws = _max_skew_draws(sizes, tuple(shares.tolist()), k, empty, skew)
    band = null_band(draws)
    p = float(p_from_null_draws(value, draws, "greater"))
    return MetricWithNull(value, float(band.mean), float(band.low), float(band.high), p)


@lru_cache(maxsize=256)  # the same for all prompts of an attribute and k
def _max_skew_draws(
    sizes: tuple[int, ...], shares: tuple[float, ...], k: int, empty: str, skew: str
) -> Floats:
    drawn = draw_top_counts(np.array(sizes), k, DRAWS, np.random.default_rng(0)) / k
    return np.asarray(max_skew_of_shares(drawn, np.array(shares), k=k, empty=empty, skew=skew))


def plain(value: Any) -> Any:
    """The value for JSON: None if it is not finite."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
