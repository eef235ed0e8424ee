"""How much of a measure's spread is the word, the wording, and the sample of images?

Berg et al. (2022, App. C) ask how sensitive a measure is to the syntax of its prompts. Words that
all stand in the same templates make a table, words x templates; the shares of its variance are rows
of their own, one per factor.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tiltmeter.probes.ranking.tabulate import RowLayout
from tiltmeter.results import combined, rows
from tiltmeter.stats import defined
from tiltmeter.stats.draws import BootstrapDraws
from tiltmeter.stats.estimate import MetricEstimate
from tiltmeter.stats.null import stretches
from tiltmeter.stats.significance import Interval, columns
from tiltmeter.stats.variance import VarianceShares, variance_shares
from tiltmeter.types import Floats, Ints

FEWEST_WORDS = 5
DRAWS = 200  # of words, for intervals


def wording(
    figure: MetricEstimate,
    layout: RowLayout,
    *,
    rng: np.random.Generator,
    constants: dict[str, object],
) -> pa.Table:
    """Shares of the variance by word, template, their interaction and the images."""
    tables = []
    for (pos, _), prompts in layout.grids.items():
        if len(prompts) < FEWEST_WORDS or figure.boot is None:
            continue
        values = figure.values[prompts]  # words x templates x columns
        noise = _variance(figure.boot, prompts)
        drawn = rng.integers(0, len(prompts), (DRAWS, len(prompts)))
        for column in range(values.shape[2]):
            tables.append(
                _rows(
                    figure, column, values[..., column], noise[..., column], pos, drawn, constants
                )
            )
    return combined(tables)


def _variance(draws: BootstrapDraws, prompts: Ints) -> Floats:
    """Over draws, of each word and template: words x templates x columns."""
    shape = (len(draws), *prompts.shape, draws.kept.shape[-1])
    found = []
    for at in stretches(shape, 1):
        drawn = draws.at(prompts[at].ravel())
        some = drawn.reshape(len(drawn), -1, prompts.shape[1], drawn.shape[2])
        found.append(some.var(axis=0, ddof=1, dtype=np.float64))
    return np.concatenate(found)


def _rows(
    figure: MetricEstimate,
    column: int,
    values: Floats,
    noise: Floats,
    pos: str,
    drawn: Ints,
    constants: dict[str, object],
) -> pa.Table:
    known = ~np.isnan(values).any(axis=1)
    found: Floats = np.full(len(VarianceShares._fields), np.nan)
    ci = found, found
    if known.sum() >= FEWEST_WORDS:
        found = np.array(variance_shares(values[known], noise[known]))
        again = drawn % known.sum()  # the same draws, of the words that are left
        shares = np.stack(variance_shares(values[known][again], noise[known][again]), axis=1)
        ci = tuple(defined.quantile(shares, (0.025, 0.975)))
    return rows(
        len(VarianceShares._fields),
        **constants,
        metric=figure.metric,
        experiment=pos or None,
        attribute=figure.groups.attribute,
        group=figure.groups.names[column] if figure.by_group else None,
        k=figure.k,
        factor=list(VarianceShares._fields),
        **columns(found, interval=Interval(edges=ci)),
        ci_method="bootstrap over words",
        n=int(known.sum()),
        n_undefined=int((~known).sum()),
        note=["nothing varies, or too few words are defined" if np.isnan(x) else None
              for x in found],
    )  # fmt: skip
