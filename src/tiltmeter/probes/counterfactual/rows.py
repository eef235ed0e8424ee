"""Rows of the probe `counterfactual`: means over instances with their intervals and nulls.

Instances of one scene are drawn together (an image without a scene is a cluster of its own).
Intervals resample clusters. The null turns the sign of each cluster at random: without bias, a
target leans either way as easily. One set of draws serves all targets, so that `p_fwer` (maxT)
keeps their dependence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from tiltmeter.results import INSTANCES, combined, rows
from tiltmeter.stats import defined
from tiltmeter.stats.bootstrap import mean_stretch
from tiltmeter.stats.intervals import wilson
from tiltmeter.stats.significance import Interval, columns
from tiltmeter.types import Faces, Floats, Ints

if TYPE_CHECKING:
    from tiltmeter.probes.counterfactual.measuring import MaskedQuery, MaskedScores
    from tiltmeter.stats.resampling import Resampling

METHOD = "bootstrap over clusters of images"
UNDEFINED = "no instance changed the probability of its bias word enough"
NOT_SHOWN = "no image shows it"


class Means(NamedTuple):
    """Means over instances (first axis gone), with draws of them."""

    value: Floats
    again: Floats  # bootstrap draws x ...
    turned: Floats  # draws under turned signs x ...
    n: Ints
    undefined: Ints
    units: Ints  # clusters that have a value


def means(
    values: Floats, clusters: Ints, resampling: Resampling, rng: np.random.Generator
) -> Means:
    """Means over the defined of `values` (instances x ...), and what other samples would give."""
    clusters = np.unique(clusters, return_inverse=True)[1].reshape(-1)
    count = int(clusters.max()) + 1
    there = ~np.isnan(values)
    sums, sizes = (np.zeros((count, *values.shape[1:])) for _ in range(2))
    np.add.at(sums, clusters, np.where(there, values, 0.0))
    np.add.at(sizes, clusters, there.astype(float))
    weights = rng.multinomial(count, np.full(count, 1 / count), resampling.bootstraps).astype(float)
    signs = rng.choice([-1.0, 1.0], (resampling.permutations, count))
    n = sizes.sum(axis=0)
    return Means(
        ratio(sums.sum(axis=0), n),
        ratio(np.tensordot(weights, sums, 1), np.tensordot(weights, sizes, 1)),
        ratio(np.tensordot(signs, sums, 1), n[None]),
        n.astype(int),
        (len(values) - n).astype(int),
        (sizes > 0).sum(axis=0),
    )


def ratio(a: Floats, b: Floats) -> Floats:
    """a / b, NaN where b is 0."""
    b = np.broadcast_to(b, a.shape)
    return np.asarray(np.divide(a, b, out=np.full(a.shape, np.nan), where=b > 0))


def beside(found: Means, side: str) -> dict[str, Any]:
    """The columns beside a value, flat."""
    signed = side == "two"  # a mean of absolute values is pushed up by noise alone
    return {
        **columns(
            found.value,
            null=found.turned,
            side=side,
            family="maxT",
            interval=Interval(
                boot=found.again,
                regular=signed,
                stretch=mean_stretch(found.units) if signed else 1.0,
                method=METHOD,
            ),
        ),
        "n": found.n.ravel(),
        "n_undefined": found.undefined.ravel(),
        "note": [
            None if not np.isnan(one) else UNDEFINED if left else NOT_SHOWN
            for one, left in zip(found.value.ravel(), found.undefined.ravel(), strict=True)
        ],
    }


def bias_tables(
    found: MaskedScores,
    asked: MaskedQuery,
    biases: dict[str, Floats],
    reading: str,
    resampling: Resampling,
    rng: np.random.Generator,
    constants: dict[str, Any],
) -> list[pa.Table]:
    """By target and template, means over the lists, quadrants, agreement with human labels."""
    constants = {**constants, "experiment": f"{found.source}, {reading}"}
    towards = np.where(found.first, 1.0, -1.0)[:, None, None]  # equation 7
    counts = (found.there > 0).sum(axis=0)
    tables, lean = [], {}
    for kind, values in biases.items():
        each = means(towards * values, found.clusters, resampling, rng)  # templates x targets
        undefined = counts - each.n
        mean = Means(
            defined.mean(each.value),
            each.again.mean(axis=1),
            each.turned.mean(axis=1),
            each.n.min(axis=0),
            undefined.max(axis=0),
            each.units.min(axis=0),
        )
        lean[kind] = mean.value
        if len(asked.templates) > 1:
            tables.append(
                rows(
                    each.value.size,
                    **constants,
                    metric=f"bias_{kind}",
                    ideal=0.0,
                    target=list(asked.targets) * len(asked.templates),
                    category=list(asked.categories) * len(asked.templates),
                    template=np.repeat(asked.templates, len(asked.targets)).tolist(),
                    **beside(each._replace(undefined=undefined), "two"),
                )
            )
        tables.append(
            rows(
                len(asked.targets),
                **constants,
                metric=f"bias_{kind}",
                ideal=0.0,
                target=list(asked.targets),
                category=list(asked.categories),
                **beside(mean, "two"),
            )
        )
        tables += _lists(kind, each._replace(undefined=undefined), asked, constants)
        tables.append(_spread(kind, values, asked, constants))
        tables.append(_agreement(kind, mean.value, asked, constants))
    tables.append(_quadrants(lean["V"], lean["L"], asked, constants))
    return tables


def _lists(kind: str, each: Means, asked: MaskedQuery, constants: dict[str, Any]) -> list[pa.Table]:
    """The paper's Table 2: mean absolute value over the words of a list, by template and over all.

    Noise alone makes it larger than 0: read it beside its null.
    """
    names = list(dict.fromkeys(asked.categories))
    of = np.array([[one == name for one in asked.categories] for name in names])

    def folded(values: Floats) -> Floats:  # (draws x) templates x targets -> (draws x) lists x T+1
        by = np.stack([_mean(np.abs(values[..., mine])) for mine in of], axis=-2)
        return np.concatenate([by, by.mean(axis=-1, keepdims=True)], axis=-1)

    n = np.stack([(~np.isnan(each.value[:, mine])).sum(axis=1) for mine in of])
    n = np.column_stack([n, n.max(axis=1)])
    missing = np.stack([each.undefined[:, mine].sum(axis=1) for mine in of])
    missing = np.column_stack([missing, missing.max(axis=1)])
    whole = Means(folded(each.value), folded(each.again), folded(each.turned), n, missing, n)
    return [
        rows(
            whole.value.size,
            **constants,
            metric=f"abs_bias_{kind}",
            ideal=0.0,
            category=np.repeat(names, len(asked.templates) + 1).tolist(),
            template=[*asked.templates, None] * len(names),
            **beside(whole, "greater"),
        )
    ]


def _mean(values: Floats) -> Floats:
    """Over the last axis, of what is defined."""
    return np.asarray(defined.mean(np.moveaxis(values, -1, 0)))


def _spread(kind: str, values: Floats, asked: MaskedQuery, constants: dict[str, Any]) -> pa.Table:
    """How far single instances of a target lie apart (Figure 2): standard deviation."""
    by_instance = _mean(np.moveaxis(values, 1, -1))  # mean over templates: instances x targets
    n = (~np.isnan(by_instance)).sum(axis=0)
    return rows(
        len(asked.targets),
        **constants,
        metric=f"spread_{kind}",
        target=list(asked.targets),
        category=list(asked.categories),
        value=np.where(n > 1, defined.std(by_instance), np.nan),
        n=n,
        note=[None if one > 1 else "fewer than two defined instances" for one in n],
    )


def _agreement(kind: str, lean: Floats, asked: MaskedQuery, constants: dict[str, Any]) -> pa.Table:
    """Share of the targets with a human label whose bias has its sign."""
    from scipy.stats import binomtest

    label = np.array([asked.labels.get(target, 0) for target in asked.targets])
    told = (label != 0) & ~np.isnan(lean)
    n, right = int(told.sum()), int((np.sign(lean) == label)[told].sum())
    return rows(
        1,
        **constants,
        metric=f"agreement_{kind}",
        null_mean=0.5,
        **columns(
            [right / n if n else np.nan],
            p=binomtest(right, n).pvalue if n else np.nan,
            side="two",
            interval=Interval(edges=wilson(np.array([right]), np.array([n]))),
        ),
        ci_method="Wilson",
        n=n,
        note=None if n else "no target has a human label: give a table of them (option labels)",
    )


def _quadrants(v: Floats, lang: Floats, asked: MaskedQuery, constants: dict[str, Any]) -> pa.Table:
    """How many targets lean where by image and by word (Figure 7)."""
    first, second = asked.swap.words
    sides = [(a, b) for a in (1, -1) for b in (1, -1)]
    names = list(dict.fromkeys(asked.categories))
    there = ~np.isnan(v) & ~np.isnan(lang)
    mine = [there & np.array([one == name for one in asked.categories]) for name in names]
    word = {1: first, -1: second}
    return rows(
        len(sides) * len(names),
        **constants,
        metric="quadrant",
        category=np.repeat(names, len(sides)).tolist(),
        group=[f"picture {word[a]}, text {word[b]}" for a, b in sides] * len(names),
        value=[
            float(((np.sign(v) == a) & (np.sign(lang) == b) & some).sum())
            for some in mine
            for a, b in sides
        ],
        n=[int(some.sum()) for some in mine for _ in sides],
    )


def instances(
    found: MaskedScores, data: Faces, asked: MaskedQuery, biases: dict[str, Floats], reading: str,
    constants: dict[str, Any],
) -> pa.Table:  # fmt: skip
    """bias_VL, bias_V and bias_L of every image and target, means over templates."""
    groups = [
        [(name, some.names[some.codes[row]]) for name, some in data.groups.items()]
        for row in found.rows
    ]
    tables = []
    at, target = np.nonzero(found.there > 0)
    for kind, values in biases.items():
        score = _mean(np.moveaxis(values, 1, -1))[at, target]
        tables.append(
            rows(
                len(at),
                INSTANCES,
                model=constants["model"],
                dataset=constants["dataset"],
                experiment=f"bias_{kind}, {found.source}, {reading}",
                concept=[asked.targets[one] for one in target],
                id=[data.ids[found.rows[one]] for one in at],
                groups=[groups[one] for one in at],
                score=score,
            )
        )
    return combined(tables, INSTANCES)
