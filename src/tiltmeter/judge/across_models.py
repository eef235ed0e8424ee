"""Results of propagation and caption choice across models.

The meta-analysis of all rhos and their trend with model size (bias propagation); McNemar's test of
two models on the same images, and the correlation of relevance and bias (VLStereoSet).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

import pyarrow as pa

from tiltmeter.errors import InputError
from tiltmeter.probes.propagation.meta_analysis import by_size, meta_analysis, pooled_z
from tiltmeter.probes.stereotype.across_models import compare_choices, relevance_and_bias
from tiltmeter.results import Run, rows

READINGS = ("matching", "cosine")


def rows_across_models(
    runs: Sequence[Run], constants: dict[str, Any], seed: int
) -> Iterator[pa.Table]:
    """Rows across models, for the probes that the runs have."""
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
    choosing = [run for run in runs if run.where(probe="stereotype", metric="vlbs")]
    yield from _relevance_and_bias(choosing, None, constants)


def _propagation(runs: Sequence[Run], constants: dict[str, Any], seed: int) -> Iterator[pa.Table]:
    pooled = meta_analysis(runs)
    yield rows(
        len(pooled),
        **constants,
        metric="rho_mean",
        experiment=[f"propagation, {name or 'all experiments'}" for name in pooled],
        value=[entry.fisher for entry in pooled.values()],
        ci_low=[entry.ci_low for entry in pooled.values()],
        ci_high=[entry.ci_high for entry in pooled.values()],
        ci_method="Student's over analyses, Fisher's z",
        null_mean=[entry.reference for entry in pooled.values()],
        n=[entry.analyses for entry in pooled.values()],
        note=[f"plain mean {entry.mean:.3f} ± {entry.sd:.3f}" for entry in pooled.values()],
    )
    for table in pooled_z((run.table for run in runs), constants):
        named = [f"propagation, {name}" for name in table["experiment"].to_pylist()]
        at = table.schema.get_field_index("experiment")
        yield table.set_column(at, table.schema.field(at), pa.array(named))
    try:
        trend = by_size(runs, seed=seed)
    except InputError:  # unknown size, or one model on several datasets
        return
    sizes = ", ".join(f"{entry['model']} {entry['parameters']:,.0f}" for entry in trend.models)
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
            comparisons = compare_choices(first, second, reading)
        except InputError:  # different images or captions: nothing to pair
            continue
        names = [run.where(probe="stereotype")[0]["model"] for run in (first, second)]
        yield rows(
            len(comparisons),
            **constants,
            metric="vlbs_change",
            experiment=f"{reading}, {names[1]} less {names[0]}",
            category=[comparison.category for comparison in comparisons],
            value=[100 * comparison.test.difference for comparison in comparisons],
            ideal=0.0,
            ci_low=[100 * comparison.test.ci_low for comparison in comparisons],
            ci_high=[100 * comparison.test.ci_high for comparison in comparisons],
            ci_method="Agresti and Min",
            p=[comparison.test.p for comparison in comparisons],
            p_side="two",
            p_bh=[comparison.p_bh for comparison in comparisons],
            n=[comparison.n for comparison in comparisons],
            n_undefined=[comparison.tied for comparison in comparisons],
            note="McNemar's exact test on the same images",
        )
    yield from _relevance_and_bias(runs, reading, constants)


def _relevance_and_bias(
    runs: Sequence[Run], reading: str | None, constants: dict[str, Any]
) -> Iterator[pa.Table]:
    """The correlation over models; without a reading, each model by its first, as in the paper."""
    try:
        correlation = relevance_and_bias(runs, reading)
    except InputError:  # fewer than three models
        return
    if reading is None and len({name.rpartition("(")[2] for name in correlation.models}) < 2:
        return  # all have the same reading: it was done
    yield rows(
        1,
        **constants,
        metric="pearson",
        experiment=f"{reading or 'any reading'}, vlrs with vlbs over models",
        value=correlation.pearson,
        ci_low=correlation.ci_low,
        ci_high=correlation.ci_high,
        ci_method="Fisher's z",
        p=correlation.p,
        p_side="two",
        n=len(correlation.models),
    )
