"""Rows of the probe `counterfactual` for changed images, and for texts alone.

Flip rates, changes of log-probability compared with noise, and attacked against true images.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tiltmeter.probes.counterfactual.rows import METHOD, means, ratio, statistics_of
from tiltmeter.results import combined, rows
from tiltmeter.stats import defined
from tiltmeter.stats.intervals import Z, fieller, wilson
from tiltmeter.stats.significance import Interval, columns
from tiltmeter.types import Faces, Floats

if TYPE_CHECKING:
    from tiltmeter.probes.counterfactual.measuring import CounterfactualQuery, MaskedScores
    from tiltmeter.stats.resampling import Resampling

#: Interval methods of the comparison with true counterfactuals.
METHODS = {
    "shift_pearson": f"standard error of the {METHOD}, Fisher's z",
    "shift_spearman": f"standard error of the {METHOD}, Fisher's z",
    "shift_slope": f"Fieller, {METHOD}",
}
UNSURE = "true counterfactuals do not shift the same words consistently in both halves"


def flip_row(
    before: Floats, after: Floats, experiment: str, note: str, constants: dict[str, Any]
) -> pa.Table:
    """Share of correctly read images whose bias word flips, and the mean shift of its log-odds."""
    read_correctly = before > 0
    n, flipped = int(read_correctly.sum()), int((read_correctly & (after < 0)).sum())
    rate = columns(
        [flipped / n if n else np.nan],
        interval=Interval(edges=wilson(np.array([flipped]), np.array([n]))),
    )
    shift = before - after
    mean = shift.mean()
    half = Z * shift.std(ddof=1) / np.sqrt(len(shift)) if len(shift) > 1 else np.nan
    return combined(
        [
            rows(1, **constants, metric="flip_rate", experiment=experiment,
                 **rate, ci_method="Wilson", n=n, n_undefined=len(before) - n,
                 note=note or (None if n else "no original image is read correctly")),
            rows(1, **constants, metric="odds_shift", experiment=experiment,
                 **columns(mean, interval=Interval(edges=(mean - half, mean + half))),
                 ci_method="normal", n=len(shift), note=note or None),
        ]
    )  # fmt: skip


def flips(scores: MaskedScores, constants: dict[str, Any]) -> pa.Table:
    """Flip rates of a source and of noise of the same size."""
    before = scores.odds(0)
    tables = [flip_row(before, scores.odds(1), scores.source, scores.settings, constants)]
    if scores.noise_bias is not None:
        note = "every pixel moved up or down by epsilon at random"
        tables.append(flip_row(before, scores.odds(noise=True), "noise", note, constants))
    return combined(tables)


def shift_table(
    scores: MaskedScores, query: CounterfactualQuery, resampling: Resampling,
    rng: np.random.Generator, constants: dict[str, Any],
) -> pa.Table:  # fmt: skip
    """Mean change of log P(target) due to the image, towards the first group; and its size."""
    tables = []
    for noise in (False, True):
        if noise and scores.noise_targets is None:
            continue
        experiment, moved = "noise" if noise else scores.source, scores.shifts(noise=noise)
        by_target = means(moved, scores.clusters, resampling, rng)
        by_target = by_target._replace(undefined=(scores.asked > 0).sum(axis=0) - by_target.n)
        tables.append(
            rows(
                len(query.targets),
                **constants,
                metric="log_shift",
                experiment=experiment,
                ideal=0.0,
                target=list(query.targets),
                category=list(query.categories),
                **statistics_of(by_target, "two"),
            )
        )
        size = np.sqrt(np.nanmean(moved**2))
        tables.append(rows(1, **constants, metric="log_change_rms", experiment=experiment,
                           value=[size], n=int((~np.isnan(moved)).sum())))  # fmt: skip
    return combined(tables)


def halves(
    scores: MaskedScores, data: Faces, query: CounterfactualQuery
) -> tuple[Floats, Floats, tuple[str, str]]:
    """Split the images in two: by another attribute with two groups, otherwise alternately.

    A change under attack and a change to a true counterfactual both subtract the score of the
    original: over the same images they would correlate for that reason alone.
    """
    for name, groups in data.groups.items():
        codes = groups.codes[scores.rows]
        if name != query.swap.attribute and scores.source != "redrawn" and len(set(codes)) == 2:
            first, second = sorted(set(codes))
            return codes == first, codes == second, (groups.names[first], groups.names[second])
    even = scores.clusters % 2 == 0
    return even, ~even, ("one half", "the other half")


def comparison(
    attacked: MaskedScores, true: MaskedScores, data: Faces, query: CounterfactualQuery,
    resampling: Resampling, rng: np.random.Generator, constants: dict[str, Any],
) -> pa.Table:  # fmt: skip
    """Compare the shifts of words under attack with those of true counterfactuals.

    Mean shifts of each word, of attacked images in one half against true ones in the other; with
    noise (the floor) and true against true (the ceiling). Correlations are attenuated by the noise
    of both means; the size factor is not: see `size_factor`.
    """
    from scipy.special import stdtrit
    from scipy.stats import spearmanr

    codes = np.unique(np.concatenate([attacked.clusters, true.clusters]), return_inverse=True)[1]
    clusters = np.split(codes.reshape(-1), [len(attacked.clusters)])
    count = int(codes.max()) + 1
    draws = resampling.bootstraps if count > 1 else 0  # one cluster cannot be resampled
    weights = rng.multinomial(count, np.full(count, 1 / count), draws)
    weights = np.concatenate([np.ones((1, count)), weights])  # the first row is the data
    # widened for few clusters: resamples vary slightly less than new samples
    quantile = float(stdtrit(count - 1, 0.975) * np.sqrt(count / max(count - 1, 1)))

    def word_means(scores: MaskedScores, half: Floats, *, noise: bool = False) -> Floats:
        moved = np.where(half[:, None], scores.shifts(noise=noise), np.nan)
        known = ~np.isnan(moved)
        weight = weights[:, clusters[scores is true]]
        return ratio(weight @ np.where(known, moved, 0.0), weight @ known)  # draws x targets

    first_half, second_half, names = halves(attacked, data, query)
    true_halves = halves(true, data, query)[:2]
    tables = []
    for side, name in enumerate(names):
        half_mask = (first_half, second_half)[side]
        true_here, against = (word_means(true, true_halves[half]) for half in (side, 1 - side))
        pairs = {attacked.source: word_means(attacked, half_mask), true.source: true_here}
        if attacked.noise_targets is not None:
            pairs["noise"] = word_means(attacked, half_mask, noise=True)
        for label, shifts in pairs.items():
            correlations = {
                "shift_pearson": lambda a, b: np.corrcoef(a, b)[0, 1],
                "shift_spearman": lambda a, b: spearmanr(a, b).statistic,
            }
            estimates = {}
            for metric, correlation in correlations.items():
                draws_of = np.array(
                    [_correlation(correlation, a, b) for a, b in zip(shifts, against, strict=True)]
                )
                low, high = correlation_interval(
                    draws_of[1:], draws_of[0], len(query.targets), quantile
                )
                estimates[metric] = draws_of[0], low, high, "the shifts of words do not vary"
            if label != true.source:  # its size factor is 1 by definition
                estimates["shift_slope"] = (
                    *size_factor(shifts, true_here, against, quantile),
                    UNSURE,
                )
            for metric, (value, low, high, undefined_note) in estimates.items():
                tables.append(
                    rows(
                        1,
                        **constants,
                        metric=metric,
                        experiment=f"{label} against {true.source}",
                        group=name,
                        **columns(
                            value, interval=Interval(edges=(low, high), method=METHODS[metric])
                        ),
                        n=len(query.targets),
                        note=undefined_note if np.isnan(value) else "no image is in both halves",
                    )
                )
    return combined(tables)


def size_factor(
    moved: Floats, true: Floats, against: Floats, quantile: float
) -> tuple[float, float, float]:
    """Size of the shifts `moved` relative to true counterfactuals, with Fieller's interval.

    All three are mean shifts, draws x words, the first row the data: `moved` and `true` of one half
    of the images, `against` of true counterfactuals in the other half. The factor is
    cov(moved, against) / cov(true, against): neither covariance has the noise of one half on both
    sides. The slope of `moved` on `against` would, in its denominator: it is too small, and smaller
    still in every resample. NaN if the denominator is not significantly above 0.
    """
    top, bottom = (_covariance(shifts, against) for shifts in (moved, true))
    low = high = np.nan
    if len(top) > 1:
        low, high = fieller(top[0], bottom[0], top[1:], bottom[1:], quantile)
    if not bottom[0] > 0 or (len(top) > 1 and np.isnan(low)):
        return np.nan, np.nan, np.nan
    return float(top[0] / bottom[0]), low, high


def correlation_interval(
    draws: Floats, value: float, words: int, quantile: float
) -> tuple[float, float]:
    """Interval of a correlation over `words`, on Fisher's z, from bootstrap draws of it.

    Percentiles would be biased: a resample adds noise to noisy means, so its correlation is lower,
    and varies less on z. The standard error is at least Fisher's, 1 / sqrt(words - 3).
    """
    if not len(draws) or words <= 3 or not abs(value) < 1:
        return np.nan, np.nan
    with np.errstate(divide="ignore", invalid="ignore"):  # draws may be 1
        error = max(float(defined.std(np.arctanh(draws))), (words - 3) ** -0.5)
        low, high = np.tanh(np.arctanh(value) + quantile * error * np.array([-1, 1]))
    return float(low), float(high)


def _covariance(a: Floats, b: Floats) -> Floats:
    """Covariance over words, for each draw."""
    centred = (values - values.mean(axis=1, keepdims=True) for values in (a, b))
    return np.asarray(np.multiply(*centred).mean(axis=1))


def _correlation(correlation: Any, a: Floats, b: Floats) -> float:
    known = ~np.isnan(a) & ~np.isnan(b)
    if known.sum() < 3 or np.ptp(a[known]) == 0 or np.ptp(b[known]) == 0:
        return float("nan")
    return float(correlation(a[known], b[known]))


def text_table(
    text_biases: Floats,
    image: str,
    query: CounterfactualQuery,
    resampling: Resampling,
    rng: np.random.Generator,
    constants: dict[str, Any],
) -> pa.Table:
    """Equations 12 and 13: bias of log P(target) due to the bias word alone, and its mean size."""
    constants = {**constants, "experiment": image}
    note = "mean over templates; no images, so no interval"
    by_target = text_biases.mean(axis=0)
    tables = [
        rows(len(query.targets), **constants, metric="text_bias", ideal=0.0,
             target=list(query.targets), category=list(query.categories), value=by_target,
             n=len(query.templates), note=note),
    ]  # fmt: skip
    for name in dict.fromkeys(query.categories):
        size = np.abs(text_biases[:, [category == name for category in query.categories]]).mean(
            axis=0
        )
        resampled = size[rng.integers(0, len(size), (resampling.bootstraps, len(size)))].mean(
            axis=1
        )
        statistics = columns(
            size.mean(),
            interval=Interval(
                boot=resampled if len(size) > 1 else None, method="bootstrap over targets"
            ),
        )
        tables.append(
            rows(1, **constants, metric="abs_text_bias", ideal=0.0, category=name, **statistics,
                 n=len(size))
        )  # fmt: skip
    return combined(tables)
