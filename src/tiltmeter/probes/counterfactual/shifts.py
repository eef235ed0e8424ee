"""More rows of the probe `counterfactual`: what a changed image does, and what a text alone does.

Flip rates, changes of log-probability beside those of noise, and attacked against true images.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tiltmeter.probes.counterfactual.rows import METHOD, beside, means, ratio
from tiltmeter.results import combined, rows
from tiltmeter.stats import defined
from tiltmeter.stats.intervals import Z, fieller, wilson
from tiltmeter.stats.significance import Interval, columns
from tiltmeter.types import Faces, Floats

if TYPE_CHECKING:
    from tiltmeter.probes.counterfactual.measuring import MaskedQuery, MaskedScores
    from tiltmeter.stats.resampling import Resampling

#: How intervals of the comparison with true counterfactuals are made.
METHODS = {
    "shift_pearson": f"standard error of the {METHOD}, Fisher's z",
    "shift_spearman": f"standard error of the {METHOD}, Fisher's z",
    "shift_slope": f"Fieller, {METHOD}",
}
UNSURE = "true counterfactuals do not move the same words in both halves clearly enough"


def flip_row(
    before: Floats, after: Floats, experiment: str, note: str, constants: dict[str, Any]
) -> pa.Table:
    """How often the more likely bias word flips among images read right; how far it moves."""
    right = before > 0
    n, flipped = int(right.sum()), int((right & (after < 0)).sum())
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
                 note=note or (None if n else "no picture is read right at first")),
            rows(1, **constants, metric="odds_shift", experiment=experiment,
                 **columns(mean, interval=Interval(edges=(mean - half, mean + half))),
                 ci_method="normal", n=len(shift), note=note or None),
        ]
    )  # fmt: skip


def flips(found: MaskedScores, constants: dict[str, Any]) -> pa.Table:
    """The flip rate of a source, and that of noise of the same size."""
    before = found.odds(0)
    tables = [flip_row(before, found.odds(1), found.source, found.told, constants)]
    if found.noise_bias is not None:
        note = "every pixel up or down by epsilon at random"
        tables.append(flip_row(before, found.odds(noise=True), "noise", note, constants))
    return combined(tables)


def shift_table(
    found: MaskedScores, asked: MaskedQuery, resampling: Resampling, rng: np.random.Generator,
    constants: dict[str, Any],
) -> pa.Table:  # fmt: skip
    """Mean change of log P(target) by the image, towards the first group; and its size."""
    tables = []
    for noise in (False, True):
        if noise and found.noise_targets is None:
            continue
        experiment, moved = "noise" if noise else found.source, found.shifts(noise=noise)
        each = means(moved, found.clusters, resampling, rng)
        each = each._replace(undefined=(found.there > 0).sum(axis=0) - each.n)
        tables.append(
            rows(
                len(asked.targets),
                **constants,
                metric="log_shift",
                experiment=experiment,
                ideal=0.0,
                target=list(asked.targets),
                category=list(asked.categories),
                **beside(each, "two"),
            )
        )
        size = np.sqrt(np.nanmean(moved**2))
        tables.append(rows(1, **constants, metric="log_change_rms", experiment=experiment,
                           value=[size], n=int((~np.isnan(moved)).sum())))  # fmt: skip
    return combined(tables)


def halves(
    found: MaskedScores, data: Faces, asked: MaskedQuery
) -> tuple[Floats, Floats, tuple[str, str]]:
    """Two sets of images that share none: by another attribute of two groups, else by turns.

    A change under attack and a change to a true counterfactual both subtract the score of the
    original: over the same images they would agree without any reason.
    """
    for name, groups in data.groups.items():
        codes = groups.codes[found.rows]
        if name != asked.swap.attribute and found.source != "redrawn" and len(set(codes)) == 2:
            one, other = sorted(set(codes))
            return codes == one, codes == other, (groups.names[one], groups.names[other])
    even = found.clusters % 2 == 0
    return even, ~even, ("one half", "the other half")


def comparison(
    attacked: MaskedScores, true: MaskedScores, data: Faces, asked: MaskedQuery,
    resampling: Resampling, rng: np.random.Generator, constants: dict[str, Any],
) -> pa.Table:  # fmt: skip
    """Do attacked images move the same words as true counterfactuals, and how much further?

    Mean shifts of each word: of attacked images in one half against true ones in the other;
    beside it noise (the floor) and true against true (the ceiling). Correlations are those of such
    samples, lowered by the noise of both means. The size factor is not: see `size_factor`.
    """
    from scipy.special import stdtrit
    from scipy.stats import spearmanr

    codes = np.unique(np.concatenate([attacked.clusters, true.clusters]), return_inverse=True)[1]
    clusters = np.split(codes.reshape(-1), [len(attacked.clusters)])
    count = int(codes.max()) + 1
    draws = resampling.bootstraps if count > 1 else 0  # one cluster says nothing of others
    weights = rng.multinomial(count, np.full(count, 1 / count), draws)
    weights = np.concatenate([np.ones((1, count)), weights])  # the first row is the data
    # clusters may be few, and a resample varies by a little less than another sample
    quantile = float(stdtrit(count - 1, 0.975) * np.sqrt(count / max(count - 1, 1)))

    def word_means(some: MaskedScores, half: Floats, *, noise: bool = False) -> Floats:
        moved = np.where(half[:, None], some.shifts(noise=noise), np.nan)
        there = ~np.isnan(moved)
        weight = weights[:, clusters[some is true]]
        return ratio(weight @ np.where(there, moved, 0.0), weight @ there)  # draws x targets

    mine, theirs, names = halves(attacked, data, asked)
    true_halves = halves(true, data, asked)[:2]
    tables = []
    for at, name in enumerate(names):
        here = (mine, theirs)[at]
        true_here, against = (word_means(true, true_halves[half]) for half in (at, 1 - at))
        pairs = {attacked.source: word_means(attacked, here), true.source: true_here}
        if attacked.noise_targets is not None:
            pairs["noise"] = word_means(attacked, here, noise=True)
        for label, means_ in pairs.items():
            correlations = {
                "shift_pearson": lambda a, b: np.corrcoef(a, b)[0, 1],
                "shift_spearman": lambda a, b: spearmanr(a, b).statistic,
            }
            found = {}
            for metric, figure in correlations.items():
                drawn = np.array(
                    [_figure(figure, a, b) for a, b in zip(means_, against, strict=True)]
                )
                low, high = correlation_interval(drawn[1:], drawn[0], len(asked.targets), quantile)
                found[metric] = drawn[0], low, high, "words do not differ"
            if label != true.source:  # its own size factor is 1
                found["shift_slope"] = *size_factor(means_, true_here, against, quantile), UNSURE
            for metric, (value, low, high, why) in found.items():
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
                        n=len(asked.targets),
                        note=why if np.isnan(value) else "no picture is in both halves",
                    )
                )
    return combined(tables)


def size_factor(
    moved: Floats, true: Floats, against: Floats, quantile: float
) -> tuple[float, float, float]:
    """How much further words are `moved` than by true counterfactuals, with Fieller's interval.

    All three are mean shifts, draws x words, the first row the data: `moved` and `true` of one half
    of the images, `against` of true counterfactuals in the other half. The factor is
    cov(moved, against) / cov(true, against): neither has the noise of one half on both sides. The
    slope of `moved` on `against` would have it in its denominator: it is too small, and smaller
    still in every resample. NaN where the denominator cannot be told from 0.
    """
    top, bottom = (_covariance(one, against) for one in (moved, true))
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

    Not percentiles: a resample adds noise to noisy means, so its correlation is lower, and on z it
    varies less. So the standard error is at least Fisher's own, 1 / sqrt(words - 3).
    """
    if not len(draws) or words <= 3 or not abs(value) < 1:
        return np.nan, np.nan
    with np.errstate(divide="ignore", invalid="ignore"):  # draws may be 1
        error = max(float(defined.std(np.arctanh(draws))), (words - 3) ** -0.5)
        low, high = np.tanh(np.arctanh(value) + quantile * error * np.array([-1, 1]))
    return float(low), float(high)


def _covariance(a: Floats, b: Floats) -> Floats:
    """Over words, for each draw."""
    centred = (one - one.mean(axis=1, keepdims=True) for one in (a, b))
    return np.asarray(np.multiply(*centred).mean(axis=1))


def _figure(figure: Any, a: Floats, b: Floats) -> float:
    there = ~np.isnan(a) & ~np.isnan(b)
    if there.sum() < 3 or np.ptp(a[there]) == 0 or np.ptp(b[there]) == 0:
        return float("nan")
    return float(figure(a[there], b[there]))


def text_table(
    lean: Floats, how: str, asked: MaskedQuery, resampling: Resampling, rng: np.random.Generator,
    constants: dict[str, Any],
) -> pa.Table:  # fmt: skip
    """Equations 12 and 13: log P(target) by the bias word alone, and its mean size over lists."""
    constants = {**constants, "experiment": how}
    note = "no picture, so nothing to draw anew: the mean over templates"
    each = lean.mean(axis=0)
    tables = [
        rows(len(asked.targets), **constants, metric="text_bias", ideal=0.0,
             target=list(asked.targets), category=list(asked.categories), value=each,
             n=len(asked.templates), note=note),
    ]  # fmt: skip
    for name in dict.fromkeys(asked.categories):
        size = np.abs(lean[:, [one == name for one in asked.categories]]).mean(axis=0)
        drawn = size[rng.integers(0, len(size), (resampling.bootstraps, len(size)))].mean(axis=1)
        found = columns(
            size.mean(),
            interval=Interval(
                boot=drawn if len(size) > 1 else None, method="bootstrap over targets"
            ),
        )
        tables.append(
            rows(1, **constants, metric="abs_text_bias", ideal=0.0, category=name, **found,
                 n=len(size))
        )  # fmt: skip
    return combined(tables)
