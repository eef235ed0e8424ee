"""Rows of results from estimates, on four levels.

These are: each prompt, each concept (mean over its templates), each category, and all words.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from tiltmeter.metrics.convention import Convention
from tiltmeter.metrics.numpy_kernels import weighted_means
from tiltmeter.probes.ranking.levels import AggregationLevels, Kind, Level, RowUnit
from tiltmeter.results import combined, rows
from tiltmeter.results.schema import chosen
from tiltmeter.stats.bootstrap import (
    bootstrap_mean_of_words,
    interval,
    mean_of_shares,
    resampled_shares,
    standard_error_interval,
    widen_for_few_words,
)
from tiltmeter.stats.draws import BootstrapDraws
from tiltmeter.stats.estimate import MetricEstimate
from tiltmeter.stats.kernels import means_of_rows
from tiltmeter.stats.multiplicity import standardised_max_t
from tiltmeter.stats.null import (
    NullBand,
    null_band,
    null_band_and_scale,
    p_from_null_draws,
    p_from_shared_null,
    slices_of_draws,
)
from tiltmeter.stats.placebo import FEWEST_PLACEBOS, leave_one_out, p_placebo, verdicts
from tiltmeter.stats.significance import Interval, columns
from tiltmeter.types import Floats, Ints

ALIKE = "null and interval assume that all prompts vary together, which is conservative"


def means(values: Floats, level: Level) -> Floats:
    """Mean over each unit's words of the mean over the word's prompts; axis -2 is prompts.

    Undefined values are left out; a mean of only undefined values is undefined.
    """
    if level.single.all():
        return values[..., level.prompts, :]
    found = np.empty((*values.shape[:-2], len(level), values.shape[-1]))
    batches, others = level.batches
    for numbers, grid in batches:
        found[..., numbers, :] = _mean_of(values[..., grid, :], level[numbers[0]])
    for number in others:
        unit = level[number]
        found[..., number, :] = _mean_of(values[..., unit.prompts, :], unit)
    return found


def drawn_means(draws: BootstrapDraws, level: Level, of_words: Floats | None = None) -> Floats:
    """`means` of each draw; of many words from those `of_words`, if all draws are defined."""
    if of_words is not None:
        words = [np.unique(unit.words) for unit in level]
        return means_of_rows(of_words.swapaxes(0, 1), words).swapaxes(0, 1)
    if level.single.all():
        return draws.at(level.prompts)
    count, _, columns = draws.shape
    # unit by unit, as statistics read them: what they read is then in one piece
    found = np.empty((len(level), count, draws.columns)).swapaxes(0, 1)
    batches, others = level.batches
    for numbers, grid in batches:
        for part in slices_of_draws((count, len(numbers), grid.shape[1] * columns), 1):
            drawn = draws.at(grid[part].ravel())
            drawn = drawn.reshape(count, -1, grid.shape[1], draws.columns)
            found[:, numbers[part]] = _mean_of(drawn, level[numbers[0]])
    for number in others:
        unit = level[number]
        for part in slices_of_draws((count, len(unit.prompts), columns), 0):
            found[part, number] = _mean_of(draws.at(unit.prompts, part), unit)
    return found


def _mean_of(part: Floats, unit: RowUnit) -> Floats:
    """Mean over the prompts of a unit, which are the axis before the last."""
    lead = part.shape[:-2]
    four = part[(None,) * (4 - part.ndim)] if part.ndim < 4 else part
    return weighted_means(four, unit.even).reshape(*lead, part.shape[-1])


def under_convention(estimate: MetricEstimate, convention: Convention) -> MetricEstimate:
    """C-ASC divided by the standard deviation that the convention chooses; others as they are."""
    if estimate.metric != "c_asc" or convention.spread == "sample":
        return estimate
    n = float(estimate.groups.counts.sum())
    return estimate.scaled((n / (n - 1)) ** 0.5)


def tabulate(
    estimate: MetricEstimate,
    layout: AggregationLevels,
    *,
    rng: np.random.Generator,
    constants: dict[str, object],
    truth: Floats | None = None,
) -> pa.Table:
    """Rows of one estimate on every level, and of the neutral words.

    `truth` is the planted truth, prompts x columns, if known.
    """
    if truth is None:
        truth = np.full(estimate.values.shape, np.nan)
    tables, null_of_words = [], _null_of_words(estimate, layout.words)
    for level, kinds in zip(layout.levels, layout.units_of, strict=True):
        p_placebo = _against_placebos(estimate, level, kinds, layout.kinds)
        null = None if kinds and level is not layout.words else null_of_words
        planted = means(truth, level)
        tables.append(_level_rows(estimate, level, p_placebo, planted, rng, constants, null=null))
    for kind in layout.shown:
        if level := layout.kinds[kind]:
            values = means(estimate.values, level)
            p_placebo = np.stack([leave_one_out(column) for column in values.T], axis=1)
            planted = means(truth, level)
            tables.append(
                _level_rows(estimate, level, p_placebo, planted, rng, constants, placebo=True)
            )
    return combined(tables)


def _null_of_words(estimate: MetricEstimate, words: Level) -> Floats | None:
    """Null draws of words in several templates, from which those of categories follow."""
    null = estimate.null
    if null is None or not null.complete or not _reaches(null, words):
        return None
    return None if words.single.any() else drawn_means(null, words)


def _against_placebos(
    estimate: MetricEstimate, level: Level, kinds: dict[Kind, Ints], placebos: dict[Kind, Level]
) -> Floats:
    values = means(estimate.values, level)
    p_values = np.full(values.shape, np.nan)
    for kind, of_kind in kinds.items():
        if len(placebos[kind]) >= FEWEST_PLACEBOS:
            pool = means(estimate.values, placebos[kind])
            for column in range(values.shape[1]):
                p_values[of_kind, column] = p_placebo(values[of_kind, column], pool[:, column])
    return p_values


def _level_rows(
    estimate: MetricEstimate,
    level: Level,
    p_placebo: Floats,
    truth: Floats,
    rng: np.random.Generator,
    constants: dict[str, object],
    *,
    placebo: bool = False,
    null: Floats | None = None,
) -> pa.Table:
    values = means(estimate.values, level)  # units x columns
    units, n_columns = values.shape
    single, first = level.single, level.first
    band, p, p_fwer = _against_null(
        estimate, level, values, single, first, family=not placebo, of_words=null
    )
    low, high, method = _intervals(estimate, level, values, single, first, rng)
    found = None
    if level[0].concept and not placebo:  # totals have no neutral words to compare with
        found = verdicts(p_fwer.ravel(), p_placebo.ravel())
    counts = estimate.groups.counts
    names = estimate.groups.names
    return rows(
        values.size,
        **constants,
        metric=estimate.metric,
        attribute=estimate.groups.attribute,
        k=estimate.k,
        ideal=estimate.ideal,
        n=len(estimate.groups),
        **level.names(n_columns),
        group=chosen(names, np.tile(np.arange(n_columns), units)) if estimate.by_group else None,
        n_group=np.tile(counts, units) if estimate.by_group else None,
        truth=truth.ravel(),
        n_undefined=level.undefined(estimate.values).ravel(),
        **columns(
            values,
            null=band,
            p=p,
            side=estimate.side,
            family=None if placebo else "bh",
            interval=Interval(
                edges=(low, high), bounds=estimate.bounds, method=np.array(method)[:, None]
            ),
        ),
        p_fwer=p_fwer.ravel(),
        p_placebo=p_placebo.ravel(),
        verdict=found,
        note=_notes(estimate, values, single, first),
    )


def _notes(estimate: MetricEstimate, values: Floats, single: Ints, first: Ints) -> Floats:
    remarks = estimate.notes or [None] * len(estimate.values)
    of_means = None if estimate.alike is None else ALIKE
    of_units = np.array(
        [remarks[row] if a else of_means for row, a in zip(first, single, strict=True)], object
    )
    return np.where(np.isnan(values), estimate.undefined, of_units[:, None]).ravel()


def _against_null(
    estimate: MetricEstimate,
    level: Level,
    values: Floats,
    single: Ints,
    first: Ints,
    *,
    family: bool,
    of_words: Floats | None = None,
) -> tuple[NullBand, Floats, Floats]:
    """Null band, p and family-wise p of each unit and column."""
    empty = np.full(values.shape, np.nan)
    band, p, p_fwer = NullBand(empty.copy(), empty.copy(), empty.copy()), empty.copy(), empty.copy()
    exact = bool(single.all()) and estimate.exact_null is not None and estimate.exact_p is not None
    if estimate.null is not None and _reaches(estimate.null, level) and (family or not exact):
        if exact:  # only the family needs the draws, and streams them
            p_fwer = standardised_max_t(values, estimate.null.select(first), estimate.side)
        else:
            draws: Any = estimate.null.select(first)  # draws x units x columns
            if not single.all():
                draws = drawn_means(estimate.null, level, of_words)
            centre, spread = empty.copy(), empty.copy()
            for at in slices_of_draws(draws.shape, 1):
                some = draws[:, at]
                found, (centre[at], spread[at]) = null_band_and_scale(some, values[at])
                band.mean[at], band.low[at], band.high[at] = found
                p[at] = p_from_null_draws(values[at], some, estimate.side)
            if family:
                p_fwer = standardised_max_t(values, draws, estimate.side, (centre, spread))
    if estimate.exact_null is not None:
        for edge, exact_edge in zip(band, estimate.exact_null, strict=True):
            edge[single] = exact_edge
    if estimate.exact_p is not None:
        p[single] = estimate.exact_p[first[single]]
    if estimate.alike is not None:
        for edge, exact_edge in zip(band, null_band(estimate.alike), strict=True):
            edge[~single] = exact_edge
        p[~single] = p_from_shared_null(values[~single], estimate.alike, estimate.side)
    return band, p, np.where(np.isnan(p_fwer), np.nan, np.fmax(p_fwer, p))


def _intervals(
    estimate: MetricEstimate,
    level: Level,
    values: Floats,
    single: Ints,
    first: Ints,
    rng: np.random.Generator,
) -> tuple[Floats, Floats, list[str]]:
    low, high = np.full(values.shape, np.nan), np.full(values.shape, np.nan)
    method = ["bootstrap over images" if a else "crossed bootstrap" for a in single]
    edges = interval if estimate.regular else standard_error_interval
    if estimate.boot is not None and _reaches(estimate.boot, level):
        if single.any() and estimate.exact_ci is None:
            alone, numbers = estimate.boot.select(first[single]), np.flatnonzero(single)
            for part in slices_of_draws(alone.shape, 1):
                at = numbers[part]
                low[at], high[at] = edges(alone[:, part], values[at], estimate.stretch)
        batches, others = level.batches
        for numbers, grid in batches:
            if grid.shape[1] > 1:
                _word_intervals(estimate, edges, values, (numbers, grid), (low, high), rng)
        for row in others:
            unit = level[row]
            prompts = unit.prompts
            share = resampled_shares(unit.words, unit.templates, len(estimate.boot), rng)
            shape = (len(share), len(prompts), estimate.boot.columns)
            drawn = np.concatenate([
                mean_of_shares(estimate.boot.at(prompts, part), share[part])
                for part in slices_of_draws(shape, 0)
            ])  # fmt: skip
            stretch = widen_for_few_words(
                estimate.values[prompts], unit.words, unit.templates, drawn
            )
            low[row], high[row] = edges(drawn, values[row], estimate.stretch * stretch)
        method = [m if estimate.regular else f"{m}, standard error" for m in method]
    if estimate.exact_ci is not None and single.any():
        low[single], high[single] = (edge[first[single]] for edge in estimate.exact_ci)
        method = [estimate.exact_ci_method if a else m for a, m in zip(single, method, strict=True)]
    return low, high, method


def _word_intervals(
    estimate: MetricEstimate,
    edges: Callable[..., tuple[Floats, Floats]],
    values: Floats,
    batch: tuple[Ints, Ints],
    out: tuple[Floats, Floats],
    rng: np.random.Generator,
) -> None:
    """Fill in the intervals of words in equally many templates, resampled alike."""
    assert estimate.boot is not None
    numbers, grid = batch
    templates, seed = grid.shape[1], int(rng.integers(2**63))
    codes = np.zeros(templates, int), np.arange(templates)
    count, _, columns = estimate.boot.shape
    for part in slices_of_draws((count, len(numbers), templates * columns), 1):
        prompts, at = grid[part].T, numbers[part]
        drawn = estimate.boot.at(prompts.ravel())
        drawn = drawn.reshape(count, templates, -1, estimate.boot.columns)
        means = bootstrap_mean_of_words(drawn, *codes, np.random.default_rng(seed))
        stretch = widen_for_few_words(estimate.values[prompts], *codes, means)
        for edge, found in zip(
            out, edges(means, values[at], estimate.stretch * stretch), strict=True
        ):
            edge[at] = found


def _reaches(draws: BootstrapDraws, level: Level) -> bool:
    """Whether all prompts of the level have draws: the costly ones are made for words only."""
    return level.last < draws.prompts
