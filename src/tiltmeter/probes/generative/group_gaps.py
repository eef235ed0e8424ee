"""Rates and means by group and the gaps between groups, with images as units.

Several answers about one image count as one value, their mean: so intervals are clustered by image.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from scipy.special import stdtrit

from tiltmeter.metrics.group_lift import gaps
from tiltmeter.results import combined, rows
from tiltmeter.stats.intervals import wilson
from tiltmeter.stats.lift_verdict import TOO_FEW_GROUPS, enough_images, left_out
from tiltmeter.stats.resampling import Resampling
from tiltmeter.stats.significance import Interval, columns
from tiltmeter.types import Floats, Groups, Ints


@dataclass(frozen=True, eq=False)
class Outcome:
    """One value per image.

    Attributes
    ----------
    target
        What it is, such as `refused`.
    values
        One per image; NaN where it is undefined.
    rate
        Whether it is a share, from 0 to 1.
    labels
        Other columns of its rows, such as the experiment.
    truth
        What was planted for each image, where it is known.
    """

    target: str
    values: Floats
    rate: bool = True
    labels: Mapping[str, Any] = field(default_factory=dict)
    truth: Floats | None = None
    note: str | None = None


@dataclass(frozen=True, eq=False)
class GroupMeans:
    """Means of outcomes by group with their edges, outcomes x groups."""

    mean: Floats
    low: Floats
    high: Floats
    count: Ints

    @classmethod
    def of(cls, values: Floats, codes: Ints, groups: int, rate: Sequence[bool]) -> GroupMeans:
        """Wilson's interval of rates, with the effective number of images; Student's of means."""
        known = ~np.isnan(values)
        member = np.eye(groups)[codes]  # images x groups
        count = known @ member
        filled = np.where(known, values, 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = np.where(count > 0, (filled @ member) / count, np.nan)
            apart = np.where(known, (filled - (mean @ member.T)) ** 2, 0.0)
            error = np.sqrt(apart @ member / (count - 1) / count)  # of the mean
            half = stdtrit(count - 1, 0.975) * error
            low, high = mean - half, mean + half
            shares = np.asarray(rate, bool)
            whole = np.array([np.isin(row[~np.isnan(row)], (0, 1)).all() for row in values])
            spread = mean * (1 - mean)
            trials = np.where((error > 1e-9) & (spread > 0) & ~whole[:, None], spread / error**2,
                              count)  # fmt: skip
            edges = wilson(mean * trials, trials)
        low, high = (np.where(shares[:, None], edge, other)
                     for edge, other in zip(edges, (low, high), strict=True))  # fmt: skip
        return cls(mean, low, high, count.astype(int))

    def gap_edges(self) -> tuple[Floats, Floats]:
        """Interval of each group's mean minus the mean of the others (MOVER, as Newcombe's)."""
        down, up = np.square(self.mean - self.low), np.square(self.high - self.mean)
        others = max(self.mean.shape[1] - 1, 1) ** 2
        value = gaps(self.mean)
        below = np.sqrt(down + (up.sum(axis=1, keepdims=True) - up) / others)
        above = np.sqrt(up + (down.sum(axis=1, keepdims=True) - down) / others)
        return np.asarray(value - below), np.asarray(value + above)


def outcome_rows(
    outcomes: Sequence[Outcome], groups: Groups, resampling: Resampling, constants: dict[str, Any],
    *, attributes: int = 1,
) -> pa.Table:  # fmt: skip
    """Rates (or means) and gaps of every outcome and group; all gaps of a probe are one family.

    A gap is a group's mean minus the mean of the other groups' means. Its null permutes the labels
    of images; `p_fwer` is Westfall and Young's maxT over all outcomes and groups, and Bonferroni's
    over the number of `attributes`.
    """
    judged = _enough(groups)
    if judged is None or not outcomes:
        return _undefined(outcomes, groups, constants)
    rows_kept, codes, names, few = judged
    values = np.stack([outcome.values for outcome in outcomes])[:, rows_kept]
    rate = [outcome.rate for outcome in outcomes]
    found = GroupMeans.of(values, codes, len(names), rate)
    truths = [_truth(outcome, rows_kept, codes, len(names)) for outcome in outcomes]
    shape = found.mean.shape
    labels = _labels(outcomes, names, groups.attribute, found, few)
    method = np.where(np.repeat(rate, shape[1]), "Wilson", "Student").tolist()
    means = columns(found.mean, interval=Interval(edges=(found.low, found.high)))
    value = np.asarray(gaps(found.mean))
    null = _permuted_gaps(values, codes, len(names), resampling)
    family = columns(
        value, null=null, side="two", family="maxT", interval=Interval(edges=found.gap_edges())
    )
    if "p_fwer" in family:
        family["p_fwer"] = np.minimum(1.0, attributes * family["p_fwer"])
    metric = [("group_rates" if one else "group_means") for one in rate for _ in names]
    return combined(
        [
            rows(value.size, **constants, **labels, metric=metric, **means, ci_method=method,
                 truth=np.concatenate([one[0] for one in truths])),
            rows(value.size, **constants, **labels, metric="gaps", **family, ideal=0.0,
                 ci_method=[f"{one}, MOVER" for one in method],
                 truth=np.concatenate([one[1] for one in truths])),
        ]
    )  # fmt: skip


def bound_rows(
    outcome: Outcome, refused: Floats, groups: Groups, constants: dict[str, Any]
) -> pa.Table:
    """The gap if refused answers had been given: `gap_low` and `gap_high`, either way.

    `outcome` has the share of all answers about an image that are positive, a refusal counting as
    no; `refused` the share that were refused. In the lowest gap of a group, its refusals count as
    no and those of all others as yes. The interval of a bound is that of its estimate.
    """
    judged = _enough(groups)
    if judged is None:
        return combined([])
    kept, codes, names, few = judged
    both = np.stack([outcome.values, outcome.values + refused])[:, kept]
    ends = GroupMeans.of(both, codes, len(names), [True, True])
    truth = _truth(outcome, kept, codes, len(names))[1]
    tables = []
    for metric, own, other in (("gap_low", 0, 1), ("gap_high", 1, 0)):
        # row g: the group's own end in its place, and the other end of all other groups
        mixed = GroupMeans(*(
            np.where(np.eye(len(names), dtype=bool), part[own], part[other])
            for part in (ends.mean, ends.low, ends.high, ends.count)
        ))  # fmt: skip
        value = np.diag(np.asarray(gaps(mixed.mean)))
        edges = [np.diag(edge) for edge in mixed.gap_edges()]
        tables.append(
            rows(len(names), **constants, **dict(outcome.labels), metric=metric,
                 attribute=groups.attribute, target=outcome.target, group=list(names), value=value,
                 ci_low=edges[0], ci_high=edges[1], ci_method="Wilson, MOVER", truth=truth,
                 n=len(codes), n_group=np.bincount(codes, minlength=len(names)).tolist(),
                 note=_joined("refusals counted either way", few))
        )  # fmt: skip
    return combined(tables)


def _enough(groups: Groups) -> tuple[Ints, Ints, list[str], str | None] | None:
    """Images of groups that are large enough, their codes and names; None for fewer than two."""
    enough = enough_images(groups.counts)
    if len(enough) < 2:
        return None
    place = np.full(len(groups.names), -1)
    place[enough] = np.arange(len(enough))
    kept = np.flatnonzero(place[groups.codes] >= 0)
    names = [groups.names[code] for code in enough]
    return kept, place[groups.codes][kept], names, left_out(groups.names, groups.counts)


def _labels(
    outcomes: Sequence[Outcome], names: Sequence[str], attribute: str, found: GroupMeans,
    few: str | None,
) -> dict[str, Any]:  # fmt: skip
    k = len(names)
    known = {name for outcome in outcomes for name in dict(outcome.labels)}
    own = {name: [dict(outcome.labels).get(name) for outcome in outcomes for _ in names]
           for name in known}  # fmt: skip
    reason = "no image of this group has a value"
    notes = [
        _joined(outcome.note, few, reason if not found.count[row, code] else None)
        for row, outcome in enumerate(outcomes) for code in range(k)
    ]  # fmt: skip
    return {
        **own, "attribute": attribute, "group": list(names) * len(outcomes), "note": notes,
        "target": [outcome.target for outcome in outcomes for _ in names],
        "n": np.repeat(found.count.sum(axis=1), k).tolist(),
        "n_group": found.count.ravel().tolist(),
    }  # fmt: skip


def _truth(outcome: Outcome, kept: Ints, codes: Ints, groups: int) -> tuple[Floats, Floats]:
    """Planted means and gaps of the groups; NaN where they are not known."""
    if outcome.truth is None:
        return np.full(groups, np.nan), np.full(groups, np.nan)
    own = outcome.truth[kept]
    means = np.array([[own[codes == code].mean() for code in range(groups)]])
    return means[0], np.asarray(gaps(means))[0]


def _permuted_gaps(
    values: Floats, codes: Ints, groups: int, resampling: Resampling
) -> Floats | None:
    """Gaps under permuted labels, draws x outcomes x groups."""
    if not resampling.permutations:
        return None
    rng = np.random.default_rng(resampling.seed)
    known, filled = (~np.isnan(values)).astype(float), np.nan_to_num(values)
    draws = np.empty((resampling.permutations, len(values), groups))
    step = max(1, 2_000_000 // (len(codes) * groups))
    for start in range(0, len(draws), step):
        part = draws[start : start + step]
        shuffled = rng.permuted(np.tile(codes, (len(part), 1)), axis=1)
        member = np.eye(groups)[shuffled].transpose(1, 0, 2).reshape(len(codes), -1)
        sums, counts = (x @ member for x in (filled, known))
        with np.errstate(divide="ignore", invalid="ignore"):
            means = (sums / counts).reshape(len(values), len(part), groups)
        part[:] = gaps(means).swapaxes(0, 1)
    return draws


def _undefined(outcomes: Sequence[Outcome], groups: Groups, constants: dict[str, Any]) -> pa.Table:
    return rows(
        len(outcomes), **constants, metric="gaps", attribute=groups.attribute,
        target=[outcome.target for outcome in outcomes], value=np.full(len(outcomes), np.nan),
        note=TOO_FEW_GROUPS,
    )  # fmt: skip


def _joined(*notes: str | None) -> str | None:
    return "; ".join(note for note in notes if note) or None
