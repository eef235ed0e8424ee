"""More rows of the probe `counterfactual`: what a changed picture does, and what a text alone does.

Flip rates, changes of log-probability beside those of noise, and attacked against true pictures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tiltmeter.probes.counterfactual_rows import METHOD, beside, means, ratio
from tiltmeter.results import combined, rows
from tiltmeter.stats.bootstrap import interval
from tiltmeter.stats.intervals import Z, wilson
from tiltmeter.types import Faces, Floats

if TYPE_CHECKING:
    from tiltmeter.probes.counterfactual_measuring import Asked, Measured
    from tiltmeter.stats.resampling import Resampling


def flip_row(
    before: Floats, after: Floats, experiment: str, note: str, constants: dict[str, Any]
) -> pa.Table:
    """How often the more likely bias word flips among pictures read right; how far it moves."""
    right = before > 0
    n, flipped = int(right.sum()), int((right & (after < 0)).sum())
    low, high = wilson(np.array([flipped]), np.array([n]))
    shift = before - after
    half = Z * shift.std(ddof=1) / np.sqrt(len(shift)) if len(shift) > 1 else np.nan
    return combined(
        [
            rows(1, **constants, metric="flip_rate", experiment=experiment,
                 value=[flipped / n if n else np.nan], ci_low=low, ci_high=high,
                 ci_method="Wilson", n=n, n_undefined=len(before) - n,
                 note=note or (None if n else "no picture is read right at first")),
            rows(1, **constants, metric="odds_shift", experiment=experiment,
                 value=[shift.mean()], ci_low=[shift.mean() - half],
                 ci_high=[shift.mean() + half], ci_method="normal", n=len(shift),
                 note=note or None),
        ]
    )  # fmt: skip


def flips(found: Measured, constants: dict[str, Any]) -> pa.Table:
    """The flip rate of a source, and that of noise of the same size."""
    before = found.odds(0)
    tables = [flip_row(before, found.odds(1), found.source, found.told, constants)]
    if found.noise_bias is not None:
        note = "every pixel up or down by epsilon at random"
        tables.append(flip_row(before, found.odds(noise=True), "noise", note, constants))
    return combined(tables)


def shift_table(
    found: Measured, asked: Asked, resampling: Resampling, rng: np.random.Generator,
    constants: dict[str, Any],
) -> pa.Table:  # fmt: skip
    """Mean change of log P(target) by the picture, towards the first group; and its size."""
    tables = []
    for noise in (False, True):
        if noise and found.noise_targets is None:
            continue
        experiment, moved = "noise" if noise else found.source, found.shifts(noise=noise)
        each = means(moved, found.clusters, resampling, rng)
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


def halves(found: Measured, data: Faces, asked: Asked) -> tuple[Floats, Floats, tuple[str, str]]:
    """Two sets of pictures that share none: by another attribute of two groups, else by turns.

    A change under attack and a change to a true counterfactual both subtract the score of the
    original: over the same pictures they would agree without any reason.
    """
    for name, groups in data.groups.items():
        codes = groups.codes[found.rows]
        if name != asked.swap.attribute and found.source != "redrawn" and len(set(codes)) == 2:
            one, other = sorted(set(codes))
            return codes == one, codes == other, (groups.names[one], groups.names[other])
    even = found.clusters % 2 == 0
    return even, ~even, ("one half", "the other half")


def comparison(
    attacked: Measured, true: Measured, data: Faces, asked: Asked, resampling: Resampling,
    rng: np.random.Generator, constants: dict[str, Any],
) -> pa.Table:  # fmt: skip
    """Do attacked pictures move the same words as true counterfactuals, and as far?

    Mean shifts of each word: of attacked pictures in one half against true ones in the other;
    beside it noise (the floor) and true against true (the ceiling). The slope is the size factor.
    """
    from scipy.stats import spearmanr

    count = int(max(attacked.clusters.max(), true.clusters.max())) + 1
    weights = rng.multinomial(count, np.full(count, 1 / count), resampling.bootstraps)
    weights = np.concatenate([np.ones((1, count)), weights])  # the first row is the data

    def word_means(some: Measured, half: Floats, *, noise: bool = False) -> Floats:
        moved = np.where(half[:, None], some.shifts(noise=noise), np.nan)
        there = ~np.isnan(moved)
        weight = weights[:, some.clusters]
        return ratio(weight @ np.where(there, moved, 0.0), weight @ there)  # draws x targets

    mine, theirs, names = halves(attacked, data, asked)
    true_halves = halves(true, data, asked)[:2]
    tables = []
    for at, name in enumerate(names):
        here, there = (mine, theirs)[at], true_halves[1 - at]
        against = word_means(true, there)
        pairs = {
            attacked.source: word_means(attacked, here),
            true.source: word_means(true, true_halves[at]),
        }
        if attacked.noise_targets is not None:
            pairs["noise"] = word_means(attacked, here, noise=True)
        for label, means_ in pairs.items():
            figures = {
                "shift_pearson": lambda a, b: np.corrcoef(a, b)[0, 1],
                "shift_spearman": lambda a, b: spearmanr(a, b).statistic,
                "shift_slope": lambda a, b: np.polyfit(b, a, 1)[0],
            }
            for metric, figure in figures.items():
                drawn = np.array(
                    [_figure(figure, a, b) for a, b in zip(means_, against, strict=True)]
                )
                none = (np.float64(np.nan),) * 2
                low, high = interval(drawn[1:], drawn[0]) if resampling.bootstraps else none
                tables.append(
                    rows(
                        1,
                        **constants,
                        metric=metric,
                        experiment=f"{label} against {true.source}",
                        group=name,
                        value=drawn[:1],
                        ci_low=[low],
                        ci_high=[high],
                        ci_method=METHOD if resampling.bootstraps else None,
                        n=len(asked.targets),
                        note="no picture is in both halves"
                        if not np.isnan(drawn[0])
                        else "words do not differ",
                    )
                )
    return combined(tables)


def _figure(figure: Any, a: Floats, b: Floats) -> float:
    there = ~np.isnan(a) & ~np.isnan(b)
    if there.sum() < 3 or np.ptp(a[there]) == 0 or np.ptp(b[there]) == 0:
        return float("nan")
    return float(figure(a[there], b[there]))


def text_table(
    lean: Floats, how: str, asked: Asked, resampling: Resampling, rng: np.random.Generator,
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
        low, high = interval(drawn, size.mean()) if len(size) > 1 and len(drawn) else (np.nan,) * 2
        tables.append(
            rows(1, **constants, metric="abs_text_bias", ideal=0.0, category=name,
                 value=[size.mean()], ci_low=[low], ci_high=[high],
                 ci_method=None if np.isnan(low) else "bootstrap over targets", n=len(size))
        )  # fmt: skip
    return combined(tables)
