"""Shares of a metric's variance due to word, template, their interaction and the images.

Berg et al. (2022, App. C) ask how sensitive a metric is to the syntax of its prompts. Words that
share their templates form a table, words x templates; each share of its variance is a row, one per
factor.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tiltmeter.probes.ranking.levels import AggregationLevels
from tiltmeter.results import combined, rows
from tiltmeter.stats import defined
from tiltmeter.stats.draws import BootstrapDraws
from tiltmeter.stats.estimate import MetricEstimate
from tiltmeter.stats.null import slices_of_draws
from tiltmeter.stats.significance import Interval, columns
from tiltmeter.stats.variance import VarianceShares, variance_shares
from tiltmeter.types import Floats, Ints

FEWEST_WORDS = 5
DRAWS = 200  # bootstrap resamples of words, for intervals


def wording(
    estimate: MetricEstimate,
    layout: AggregationLevels,
    *,
    rng: np.random.Generator,
    constants: dict[str, object],
) -> pa.Table:
    """Shares of the variance by word, template, their interaction and the images."""
    tables = []
    for (pos, _), prompts in layout.grids.items():
        if len(prompts) < FEWEST_WORDS or estimate.boot is None:
            continue
        values = estimate.values[prompts]  # words x templates x columns
        noise = _variance(estimate.boot, prompts)
        drawn = rng.integers(0, len(prompts), (DRAWS, len(prompts)))
        for column in range(values.shape[2]):
            tables.append(
                _rows(
                    estimate, column, values[..., column], noise[..., column], pos, drawn, constants
                )
            )
    return combined(tables)


def _variance(draws: BootstrapDraws, prompts: Ints) -> Floats:
    """Variance over draws of each word and template: words x templates x columns."""
    shape = (len(draws), *prompts.shape, draws.shape[2])
    variances = []
    for part in slices_of_draws(shape, 1):
        drawn = draws.at(prompts[part].ravel())
        by_template = drawn.reshape(len(drawn), -1, prompts.shape[1], drawn.shape[2])
        variances.append(defined.std(by_template) ** 2)
    return np.concatenate(variances)


def _rows(
    estimate: MetricEstimate,
    column: int,
    values: Floats,
    noise: Floats,
    pos: str,
    drawn: Ints,
    constants: dict[str, object],
) -> pa.Table:
    complete = ~np.isnan(values).any(axis=1)
    shares: Floats = np.full(len(VarianceShares._fields), np.nan)
    ci = shares, shares
    if complete.sum() >= FEWEST_WORDS:
        values, noise = values[complete], noise[complete]
        shares = np.array(variance_shares(values, noise))
        resampled = drawn % len(values)  # the same draws, of the remaining words
        counts = np.stack([np.bincount(draw, minlength=len(values)) for draw in resampled])
        resampled_shares = np.stack(variance_shares(values, noise, counts), axis=1)
        ci = tuple(defined.quantile(resampled_shares, (0.025, 0.975)))
    return rows(
        len(VarianceShares._fields),
        **constants,
        metric=estimate.metric,
        experiment=pos or None,
        attribute=estimate.groups.attribute,
        group=estimate.groups.names[column] if estimate.by_group else None,
        k=estimate.k,
        factor=list(VarianceShares._fields),
        **columns(shares, interval=Interval(edges=ci)),
        ci_method="bootstrap over words",
        n=int(complete.sum()),
        n_undefined=int((~complete).sum()),
        note=["no variance, or too few words with a defined value" if np.isnan(x) else None
              for x in shares],
    )  # fmt: skip
