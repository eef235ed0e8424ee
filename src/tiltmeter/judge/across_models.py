"""What several models together say of propagation and of caption choice.

The meta-analysis of all rhos and whether they rise with size (bias propagation); McNemar's test of
two models on the same images, and whether who sees more stereotypes more (VLStereoSet).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

import pyarrow as pa

from tiltmeter.errors import InputError
from tiltmeter.probes.propagation.meta_analysis import by_size, meta_analysis
from tiltmeter.probes.stereotype.across_models import compare_choices, relevance_and_bias
from tiltmeter.results import Run, rows

READINGS = ("matching", "cosine")


def over_models(runs: Sequence[Run], constants: dict[str, Any], seed: int) -> Iterator[pa.Table]:
    """Rows of a panel, as far as its runs have the probes."""
    propagating = [
        run
        for run in runs
        if any(row["value"] is not None for row in run.where(probe="propagation", metric="rho"))
    ]
    if len(propagating) > 1:
        yield from _propagation(propagating, constants, seed)
    for reading in READINGS:
        choosing = [
            run
            for run in runs
            if any(
                row["value"] is not None
                for row in run.where(probe="stereotype", metric="vlbs", experiment=reading)
            )
        ]
        yield from _choices(choosing, reading, constants)


def _propagation(runs: Sequence[Run], constants: dict[str, Any], seed: int) -> Iterator[pa.Table]:
    found = meta_analysis(runs)
    yield rows(
        len(found),
        **constants,
        metric="rho_mean",
        experiment=[f"propagation, {name or 'all experiments'}" for name in found],
        value=[one.fisher for one in found.values()],
        ci_low=[one.ci_low for one in found.values()],
        ci_high=[one.ci_high for one in found.values()],
        ci_method="Student's over analyses, Fisher's z",
        n=[one.analyses for one in found.values()],
        note=[f"plain mean {one.mean:.3f} ± {one.sd:.3f}" for one in found.values()],
    )
    try:
        trend = by_size(runs, seed=seed)
    except InputError:  # a model that does not tell its size, or one model on several datasets
        return
    sizes = ", ".join(f"{one['model']} {one['parameters']:,.0f}" for one in trend.models)
    yield rows(
        1,
        **constants,
        metric="size_trend",
        experiment=f"propagation, {trend.method}",
        value=trend.trend,
        p=trend.p,
        p_side="two",
        n=len(trend.models),
        note=f"parameters: {sizes}",
    )


def _choices(runs: Sequence[Run], reading: str, constants: dict[str, Any]) -> Iterator[pa.Table]:
    for first, second in combinations(runs, 2):
        try:
            found = compare_choices(first, second, reading)
        except InputError:  # other images or other captions: nothing is paired
            continue
        names = [run.where(probe="stereotype")[0]["model"] for run in (first, second)]
        yield rows(
            len(found),
            **constants,
            metric="vlbs_change",
            experiment=f"{reading}, {names[1]} less {names[0]}",
            category=[one.category for one in found],
            value=[100 * one.test.difference for one in found],
            ideal=0.0,
            ci_low=[100 * one.test.ci_low for one in found],
            ci_high=[100 * one.test.ci_high for one in found],
            ci_method="Agresti and Min",
            p=[one.test.p for one in found],
            p_side="two",
            p_bh=[one.p_bh for one in found],
            n=[one.n for one in found],
            n_undefined=[one.tied for one in found],
            note="McNemar's exact test on the same pictures",
        )
    try:
        found_r = relevance_and_bias(runs, reading)
    except InputError:  # fewer than three models
        return
    yield rows(
        1,
        **constants,
        metric="pearson",
        experiment=f"{reading}, vlrs with vlbs over models",
        value=found_r.pearson,
        ci_low=found_r.ci_low,
        ci_high=found_r.ci_high,
        ci_method="Fisher's z",
        p=found_r.p,
        p_side="two",
        n=len(found_r.models),
    )
