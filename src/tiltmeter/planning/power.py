"""Power analysis before an audit: the smallest detectable effect of each group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tiltmeter.datasets.found_images import describe_size
from tiltmeter.engine.ranking.samples import checked, samples_of
from tiltmeter.metrics.convention import Convention
from tiltmeter.metrics.ranking import max_skew_of_shares, target_shares
from tiltmeter.metrics.summary import check_k
from tiltmeter.stats.null import draw_top_counts, ndkl_null, null_band
from tiltmeter.stats.power import association_count, detectable_lift, smallest_effect
from tiltmeter.types import Faces, Groups

DRAWS = 10_000
NDKL_DRAWS = 200
#: Of a word's score within a group, in nats, relative to neutral words: .9 to 1.1 on real faces.
SPREAD = 1.0


@dataclass(frozen=True)
class GroupPlan:
    """One group: its size, and the smallest effects that an audit detects with the given power.

    Lift is in nats, and None in a group with too few images for a verdict; C-ASC is in standard
    deviations.
    """

    name: str
    n: int
    share: float
    lift: float | None  # of one word, tested at .05
    smallest: float  # C-ASC of one word, tested at .05
    smallest_of_many: float  # any of the words, with the family-wise error at .05


@dataclass(frozen=True)
class MetricNull:
    """A ranking metric without any bias: its mean and its upper 2.5% quantile."""

    metric: str
    k: int | None
    mean: float
    high: float


@dataclass(frozen=True)
class AttributePlan:
    """The power analysis of one attribute."""

    attribute: str
    groups: list[GroupPlan]
    floors: list[MetricNull]


def plan(
    faces: Faces,
    *,
    attributes: Sequence[str],
    convention: Convention,
    words: int,
    power: float = 0.8,
    seed: int = 0,
) -> list[AttributePlan]:
    """The smallest detectable effects and the null values of an audit.

    Parameters
    ----------
    faces
        Labels; images are not needed.
    attributes
        Attributes and intersections.
    convention
        How metrics are computed.
    words
        The number of words in the audit.
    power
        The probability of detecting the effect.
    seed
        For random rankings.

    Returns
    -------
    list of AttributePlan
    """
    rng = np.random.default_rng(seed)
    convention = convention.on(faces.name, faces.groups)
    size = describe_size(faces.name, len(faces), faces.provenance.get("found") or {})
    check_k(max(convention.k), len(faces), size, below=True)
    by = {name: checked(faces.attribute(name)) for name in attributes}
    return [
        _plan(checked(groups), convention, words, power, rng)
        for _, sample in samples_of(by, faces.groups, convention, rng)
        for groups in sample.values()
    ]


def _plan(
    groups: Groups, convention: Convention, words: int, power: float, rng: np.random.Generator
) -> AttributePlan:
    sizes = groups.counts
    for k in convention.k:
        check_k(k, int(sizes.sum()), below=True)
    single = smallest_effect(sizes, power=power)
    many = smallest_effect(sizes, power=power, tests=association_count(words, len(sizes)))
    lifts = detectable_lift(sizes, spread=SPREAD, power=power)
    lift = [float(x) if np.isfinite(x) else None for x in lifts]
    group_plans = [
        GroupPlan(name, int(n), float(n / sizes.sum()), least, float(a), float(b))
        for name, n, least, a, b in zip(groups.names, sizes, lift, single, many, strict=True)
    ]
    q = target_shares(convention.target, groups)
    floors = []
    for k in convention.k:
        drawn = draw_top_counts(sizes, k, DRAWS, rng) / k
        skew = max_skew_of_shares(drawn, q, k=k, empty=convention.empty, skew=convention.skew)
        floors.append(_null("max_skew", k, skew))
    floors.append(_null("ndkl", None, ndkl_null(sizes, q, NDKL_DRAWS, rng)))
    return AttributePlan(groups.attribute, group_plans, floors)


def _null(metric: str, k: int | None, draws: np.ndarray) -> MetricNull:
    band = null_band(draws)
    return MetricNull(metric, k, float(band.mean), float(band.high))
