"""Where the truth is known: does a metric order words and groups as was planted?"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tiltmeter.metrics.propagation import spearman
from tiltmeter.probes.ranking.tabulate import RowLayout, means
from tiltmeter.results import combined, rows
from tiltmeter.stats import defined
from tiltmeter.stats.estimate import MetricEstimate
from tiltmeter.stats.significance import Interval, columns
from tiltmeter.types import Floats

DRAWS = 200  # of words, for the interval


def agreement(
    figure: MetricEstimate,
    layout: RowLayout,
    truth: Floats | None,
    *,
    rng: np.random.Generator,
    constants: dict[str, object],
) -> pa.Table:
    """Spearman's correlation of values and planted truth, over words and groups."""
    words = [level for level in layout.levels if level[0].concept][-1]
    if truth is None or len(words) < 3:
        return combined([])
    value, planted = means(figure.values, words), means(truth, words)
    known = ~np.isnan(value + planted).any(axis=1)
    value, planted = value[known], planted[known]
    if len(value) < 3 or np.ptp(planted) < 1e-9:  # nothing was planted, so there is no order
        return combined([])
    drawn = rng.integers(0, len(value), (DRAWS, len(value)))
    again = [_rho(value[some], planted[some]) for some in drawn]
    return rows(
        1,
        **constants,
        metric="spearman",
        experiment=f"{figure.metric} against planted",
        attribute=figure.groups.attribute,
        k=figure.k,
        ideal=1.0,
        **columns(
            _rho(value, planted),
            interval=Interval(
                edges=defined.quantile(np.array(again), (0.025, 0.975)),
                method="bootstrap over words",
            ),
        ),
        n=int(value.size),
        n_undefined=int((~known).sum()),
    )


def _rho(value: Floats, planted: Floats) -> float:
    return float(spearman(value.ravel(), planted.ravel())[0])
