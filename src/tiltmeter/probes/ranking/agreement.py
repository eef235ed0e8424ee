"""Agreement of a metric with the planted truth, where that is known."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tiltmeter.metrics.propagation import spearman
from tiltmeter.probes.ranking.levels import AggregationLevels
from tiltmeter.probes.ranking.tabulate import means
from tiltmeter.results import combined, rows
from tiltmeter.stats import defined
from tiltmeter.stats.estimate import MetricEstimate
from tiltmeter.stats.significance import Interval, columns
from tiltmeter.types import Floats

DRAWS = 200  # bootstrap resamples of words, for the interval


def agreement(
    estimate: MetricEstimate,
    layout: AggregationLevels,
    truth: Floats | None,
    *,
    rng: np.random.Generator,
    constants: dict[str, object],
) -> pa.Table:
    """Spearman's correlation of estimates and planted truth, over words and groups."""
    words = layout.words
    if truth is None or len(words) < 3:
        return combined([])
    value, planted = means(estimate.values, words), means(truth, words)
    defined_rows = ~np.isnan(value + planted).any(axis=1)
    value, planted = value[defined_rows], planted[defined_rows]
    if len(value) < 3 or np.ptp(planted) < 1e-9:  # nothing was planted: no order to agree with
        return combined([])
    drawn = rng.integers(0, len(value), (DRAWS, len(value)))
    resampled = [_rho(value[words_drawn], planted[words_drawn]) for words_drawn in drawn]
    return rows(
        1,
        **constants,
        metric="spearman",
        experiment=f"{estimate.metric} against planted",
        attribute=estimate.groups.attribute,
        k=estimate.k,
        ideal=1.0,
        **columns(
            _rho(value, planted),
            interval=Interval(
                edges=defined.quantile(np.array(resampled), (0.025, 0.975)),
                method="bootstrap over words",
            ),
        ),
        n=int(value.size),
        n_undefined=int((~defined_rows).sum()),
    )


def _rho(value: Floats, planted: Floats) -> float:
    return float(spearman(value.ravel(), planted.ravel())[0])
