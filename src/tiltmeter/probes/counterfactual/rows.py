"""Rows of the probe `counterfactual`: means over instances with their intervals and nulls.

Instances of one scene form a cluster (an image without a scene is a cluster of its own). Intervals
resample clusters. The null flips the sign of each cluster at random: without bias, either sign is
equally likely. All targets share one set of draws, so that `p_fwer` (maxT) keeps their dependence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from tiltmeter.results import INSTANCES, combined, rows
from tiltmeter.stats import defined
from tiltmeter.stats.bootstrap import widen_for_few_units
from tiltmeter.stats.intervals import wilson
from tiltmeter.stats.significance import Interval, columns
from tiltmeter.types import Faces, Floats, Ints

if TYPE_CHECKING:
    from tiltmeter.probes.counterfactual.measuring import CounterfactualQuery, MaskedScores
    from tiltmeter.stats.resampling import Resampling

METHOD = "bootstrap over clusters of images"
UNDEFINED = "no counterfactual changed the probability of its bias word enough"
NOT_SHOWN = "no image shows this target"


class Means(NamedTuple):
    """Means over instances (the first axis), with bootstrap and null draws."""

    value: Floats
    resampled: Floats  # bootstrap resamples x ...
    sign_flipped: Floats  # draws with flipped signs x ...
    n: Ints
    undefined: Ints
    units: Ints  # clusters that have a value


def means(
    values: Floats, clusters: Ints, resampling: Resampling, rng: np.random.Generator
) -> Means:
    """Means over the defined `values` (instances x ...), with bootstrap and null draws."""
    clusters = np.unique(clusters, return_inverse=True)[1].reshape(-1)
    count = int(clusters.max()) + 1
    known = ~np.isnan(values)
    sums, sizes = (np.zeros((count, *values.shape[1:])) for _ in range(2))
    np.add.at(sums, clusters, np.where(known, values, 0.0))
    np.add.at(sizes, clusters, known.astype(float))
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


def statistics_of(means: Means, side: str) -> dict[str, Any]:
    """Columns of value, null, p, interval and n for a table, flattened."""
    signed = side == "two"  # noise alone increases a mean of absolute values
    return {
        **columns(
            means.value,
            null=means.sign_flipped,
            side=side,
            family="maxT",
            interval=Interval(
                boot=means.resampled,
                regular=signed,
                stretch=widen_for_few_units(means.units) if signed else 1.0,
                method=METHOD,
            ),
        ),
        "n": means.n.ravel(),
        "n_undefined": means.undefined.ravel(),
        "note": [
            None if not np.isnan(value) else UNDEFINED if undefined else NOT_SHOWN
            for value, undefined in zip(means.value.ravel(), means.undefined.ravel(), strict=True)
        ],
    }


def bias_tables(
    scores: MaskedScores,
    query: CounterfactualQuery,
    biases: dict[str, Floats],
    reading: str,
    resampling: Resampling,
    rng: np.random.Generator,
    constants: dict[str, Any],
) -> list[pa.Table]:
    """Bias by target and template, means over lists, quadrants, agreement with human labels."""
    constants = {**constants, "experiment": f"{scores.source}, {reading}"}
    towards = np.where(scores.first, 1.0, -1.0)[:, None, None]  # equation 7
    counts = (scores.asked > 0).sum(axis=0)
    tables, mean_bias = [], {}
    for kind, values in biases.items():
        by_template = means(
            towards * values, scores.clusters, resampling, rng
        )  # templates x targets
        undefined = counts - by_template.n
        mean = Means(
            defined.mean(by_template.value),
            by_template.resampled.mean(axis=1),
            by_template.sign_flipped.mean(axis=1),
            by_template.n.min(axis=0),
            undefined.max(axis=0),
            by_template.units.min(axis=0),
        )
        mean_bias[kind] = mean.value
        if len(query.templates) > 1:
            tables.append(
                rows(
                    by_template.value.size,
                    **constants,
                    metric=f"bias_{kind}",
                    ideal=0.0,
                    target=list(query.targets) * len(query.templates),
                    category=list(query.categories) * len(query.templates),
                    template=np.repeat(query.templates, len(query.targets)).tolist(),
                    **statistics_of(by_template._replace(undefined=undefined), "two"),
                )
            )
        tables.append(
            rows(
                len(query.targets),
                **constants,
                metric=f"bias_{kind}",
                ideal=0.0,
                target=list(query.targets),
                category=list(query.categories),
                **statistics_of(mean, "two"),
            )
        )
        tables += _lists(kind, by_template._replace(undefined=undefined), query, constants)
        tables.append(_spread(kind, values, query, constants))
        tables.append(_agreement(kind, mean.value, query, constants))
    tables.append(_quadrants(mean_bias["V"], mean_bias["L"], query, constants))
    return tables


def _lists(
    kind: str, by_template: Means, query: CounterfactualQuery, constants: dict[str, Any]
) -> list[pa.Table]:
    """The paper's Table 2: mean absolute value over the words of a list, by template and over all.

    Noise alone makes it larger than 0: compare it with its null.
    """
    names = list(dict.fromkeys(query.categories))
    masks = np.array([[category == name for category in query.categories] for name in names])

    def fold(values: Floats) -> Floats:  # (draws x) templates x targets -> (draws x) lists x T+1
        by = np.stack([_mean(np.abs(values[..., in_list])) for in_list in masks], axis=-2)
        return np.concatenate([by, by.mean(axis=-1, keepdims=True)], axis=-1)

    n = np.stack([(~np.isnan(by_template.value[:, in_list])).sum(axis=1) for in_list in masks])
    n = np.column_stack([n, n.max(axis=1)])
    missing = np.stack([by_template.undefined[:, in_list].sum(axis=1) for in_list in masks])
    missing = np.column_stack([missing, missing.max(axis=1)])
    folded_means = Means(
        fold(by_template.value),
        fold(by_template.resampled),
        fold(by_template.sign_flipped),
        n,
        missing,
        n,
    )
    return [
        rows(
            folded_means.value.size,
            **constants,
            metric=f"abs_bias_{kind}",
            ideal=0.0,
            category=np.repeat(names, len(query.templates) + 1).tolist(),
            template=[*query.templates, None] * len(names),
            **statistics_of(folded_means, "greater"),
        )
    ]


def _mean(values: Floats) -> Floats:
    """Mean of the defined values over the last axis."""
    return np.asarray(defined.mean(np.moveaxis(values, -1, 0)))


def _spread(
    kind: str, values: Floats, query: CounterfactualQuery, constants: dict[str, Any]
) -> pa.Table:
    """Standard deviation over the instances of a target (the paper's Figure 2)."""
    by_instance = _mean(np.moveaxis(values, 1, -1))  # mean over templates: instances x targets
    n = (~np.isnan(by_instance)).sum(axis=0)
    return rows(
        len(query.targets),
        **constants,
        metric=f"spread_{kind}",
        target=list(query.targets),
        category=list(query.categories),
        value=np.where(n > 1, defined.std(by_instance), np.nan),
        n=n,
        note=[None if count > 1 else "fewer than two defined instances" for count in n],
    )


def _agreement(
    kind: str, mean_bias: Floats, query: CounterfactualQuery, constants: dict[str, Any]
) -> pa.Table:
    """Share of targets with a human label whose bias has the same sign."""
    from scipy.stats import binomtest

    label = np.array([query.labels.get(target, 0) for target in query.targets])
    labelled = (label != 0) & ~np.isnan(mean_bias)
    n, agreeing = int(labelled.sum()), int((np.sign(mean_bias) == label)[labelled].sum())
    return rows(
        1,
        **constants,
        metric=f"agreement_{kind}",
        null_mean=0.5,
        **columns(
            [agreeing / n if n else np.nan],
            p=binomtest(agreeing, n).pvalue if n else np.nan,
            side="two",
            interval=Interval(edges=wilson(np.array([agreeing]), np.array([n]))),
        ),
        ci_method="Wilson",
        n=n,
        note=None
        if n
        else "no target has a human label: pass a table (--option counterfactual.labels=FILE)",
    )


def _quadrants(
    v: Floats, lang: Floats, query: CounterfactualQuery, constants: dict[str, Any]
) -> pa.Table:
    """Number of targets by sign of the image's and the word's bias (the paper's Figure 7)."""
    first, second = query.swap.words
    sides = [(a, b) for a in (1, -1) for b in (1, -1)]
    names = list(dict.fromkeys(query.categories))
    known = ~np.isnan(v) & ~np.isnan(lang)
    in_list = [
        known & np.array([category == name for category in query.categories]) for name in names
    ]
    word = {1: first, -1: second}
    return rows(
        len(sides) * len(names),
        **constants,
        metric="quadrant",
        category=np.repeat(names, len(sides)).tolist(),
        group=[f"image {word[a]}, text {word[b]}" for a, b in sides] * len(names),
        value=[
            float(((np.sign(v) == a) & (np.sign(lang) == b) & mask).sum())
            for mask in in_list
            for a, b in sides
        ],
        n=[int(mask.sum()) for mask in in_list for _ in sides],
    )


def instances(
    scores: MaskedScores, data: Faces, query: CounterfactualQuery, biases: dict[str, Floats],
    reading: str, constants: dict[str, Any],
) -> pa.Table:  # fmt: skip
    """bias_VL, bias_V and bias_L of every image and target, means over templates."""
    groups = [
        [(name, labels.names[labels.codes[row]]) for name, labels in data.groups.items()]
        for row in scores.rows
    ]
    tables = []
    instance, target = np.nonzero(scores.asked > 0)
    for kind, values in biases.items():
        score = _mean(np.moveaxis(values, 1, -1))[instance, target]
        tables.append(
            rows(
                len(instance),
                INSTANCES,
                model=constants["model"],
                dataset=constants["dataset"],
                experiment=f"bias_{kind}, {scores.source}, {reading}",
                concept=[query.targets[index] for index in target],
                id=[data.ids[scores.rows[index]] for index in instance],
                groups=[groups[index] for index in instance],
                score=score,
            )
        )
    return combined(tables, INSTANCES)
