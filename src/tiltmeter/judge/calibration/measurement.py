"""The measurements: each setting at each dose, at zero, in a quiet model, and at several sizes.

Every dataset has its own randomness, made from the seed and from what it is (setting, dose, size,
noise, number): so a figure is the same whatever else is asked for.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.judge.calibration.settings import SETTINGS, MetricReading, Readings, Setting
from tiltmeter.judge.calibration.verdict import LEVEL, MetricSummary, summarize
from tiltmeter.metrics import METRICS
from tiltmeter.metrics.propagation import spearman
from tiltmeter.stats import defined
from tiltmeter.stats.intervals import wilson
from tiltmeter.testbed.world import World
from tiltmeter.types import Floats, Progress

DOSES = (0.0, 0.125, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0)
SIZES = (100, 300, 1000, 3000, 10_000)
IMAGES = 1000  # behind each value, where the size is not what is varied
REPLICATES = 16
#: Data sets at dose 0 for each replicate elsewhere: false alarms are rare.
AT_ZERO = 4
#: Doses whose power is measured, on a quarter of the datasets: there are many tests in each.
POWER_DOSES, FOR_POWER = (0.5, 1.0), 4
NOISE = 1.0  # of scores, in units of PMI
#: A nearly fair model that hardly varies: a thousandth of the tilt, a thousandth of the noise.
QUIET = 0.001

#: One row a figure. Undefined is null, and `note` says why.
CALIBRATION = pa.schema(
    [
        ("metric", pa.string()),
        ("setting", pa.string()),
        ("figure", pa.string()),  # response, order, false alarms, floor, quiet, power
        ("dose", pa.float64()),
        ("noise", pa.float64()),
        ("n", pa.int64()),  # images or instances behind each value
        ("value", pa.float64()),
        ("spread", pa.float64()),  # standard deviation over datasets
        ("ci_low", pa.float64()),
        ("ci_high", pa.float64()),
        ("count", pa.int64()),  # datasets; of shares, words (or pairs, sets) in all of them
        ("over", pa.string()),  # what an order is of: words, pairs of words, doses
        ("seed", pa.int64()),
        ("note", pa.string()),
    ]
)
Row = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Calibration:
    """All figures of all metrics."""

    table: pa.Table

    def __post_init__(self) -> None:
        if self.table.schema != CALIBRATION:
            raise InputError("a calibration's table must have the columns of CALIBRATION")

    @cached_property
    def summaries(self) -> list[MetricSummary]:
        """One a metric, with its verdict."""
        rows = self.table.to_pylist()
        names = dict.fromkeys(row["metric"] for row in rows)
        return [summarize([row for row in rows if row["metric"] == name]) for name in names]

    @classmethod
    def load(cls, path: str | Path) -> Calibration:
        """Reads calibration.parquet of a directory back."""
        file = Path(path) / "calibration.parquet"
        if not file.is_file():
            raise InputError(f"{path} is not a calibration: it has no calibration.parquet")
        return cls(pq.read_table(file).cast(CALIBRATION))


def calibrate(
    names: Sequence[str] | None = None,
    *,
    doses: Sequence[float] = DOSES,
    sizes: Sequence[int] = SIZES,
    images: int = IMAGES,
    replicates: int = REPLICATES,
    seed: int = 0,
    progress: Progress | None = None,
) -> Calibration:
    """Measures metrics (by default all that are registered) in planted worlds of several strengths.

    `doses` are strengths of the world and must hold 0 and 1; `sizes` are numbers of images for
    power; `replicates` are datasets a dose.
    """
    chosen = list(dict.fromkeys(names or METRICS))
    doses = _checked(chosen, doses, sizes, images, replicates, seed)
    settings: dict[Setting, list[str]] = {}
    for name in chosen:
        settings.setdefault(SETTINGS[name], []).append(name)
    found: dict[str, list[Row]] = {}
    for turn, (setting, members) in enumerate(settings.items()):
        lab = _Lab(setting, members, seed)
        steps = list(_steps(doses, sizes, images, replicates))
        for at, (dose, n, noise, count) in enumerate(steps):
            if progress:
                share = (turn + at / len(steps)) / len(settings)
                progress(f"{setting.__name__}, dose {dose:g}", share)
            lab.run(dose, n, noise, count)
        for name in members:
            found[name] = list(_figures(name, lab, doses, sizes, images, replicates))
    if progress:
        progress("done", 1.0)
    return Calibration(_table(row for name in chosen for row in found[name]))


@cache
def _world(dose: float) -> World:
    return World.plant(dose)


def _checked(
    names: Sequence[str],
    doses: Sequence[float],
    sizes: Sequence[int],
    images: int,
    replicates: int,
    seed: int,
) -> tuple[float, ...]:
    """The doses, in order; an error for what cannot be measured."""
    for name in names:
        if name not in METRICS:
            raise UnknownNameError("metric", name, METRICS)
        if name not in SETTINGS:
            raise InputError(
                f"{name} has no setting: add one to tiltmeter.judge.calibration.settings.SETTINGS"
            )
    doses = tuple(sorted({float(dose) for dose in doses}))
    if not {0.0, 1.0} <= set(doses) or len(doses) < 3 or not 0 <= doses[0] <= doses[-1] <= 3:
        raise InputError(
            "doses must be at least three different numbers from 0 to 3, with 0 and 1 among them; "
            f"got {', '.join(f'{dose:g}' for dose in doses)}"
        )
    if min((images, *sizes), default=0) < 100 or not sizes:
        raise InputError(f"sizes and images must be 100 or more; got {list(sizes)} and {images}")
    if replicates < 2:
        raise InputError(f"a spread takes at least 2 replicates; got {replicates}")
    if not 0 <= seed < 2**63:
        raise InputError(f"the seed must be a whole number from 0 to 2^63 - 1; got {seed}")
    return doses


def _steps(
    doses: Sequence[float], sizes: Sequence[int], images: int, replicates: int
) -> Iterator[tuple[float, int, float, int]]:
    """Dose, images, noise and number of datasets of each part of the work, no part twice."""
    for dose in doses:
        yield dose, images, NOISE, replicates * (AT_ZERO if dose == 0 else 1)
    yield QUIET, images, QUIET, replicates
    for dose in POWER_DOSES:
        for n in sizes:
            if n != images or dose not in doses:
                yield dose, n, NOISE, max(1, replicates // FOR_POWER)


class _Lab:
    """One setting, and the readings of all datasets that were made in it."""

    def __init__(self, setting: Setting, members: Sequence[str], seed: int) -> None:
        self.setting, self.members, self.seed = setting, members, seed
        self.readings: dict[tuple[float, int, float], list[Readings]] = {}

    def run(self, dose: float, n: int, noise: float, count: int) -> None:
        key = zlib.crc32(f"{self.setting.__name__} {dose!r} {n} {noise!r}".encode())
        world = _world(dose)
        self.readings[dose, n, noise] = [
            self._checked(
                self.setting(world, n, noise, np.random.default_rng([self.seed, key, one]))
            )
            for one in range(count)
        ]

    def of(self, name: str, dose: float, n: int, noise: float = NOISE) -> list[MetricReading]:
        return [readings[name] for readings in self.readings[dose, n, noise]]

    def _checked(self, readings: Readings) -> Readings:
        for name in self.members:
            if name not in readings:
                raise InputError(f"the setting {self.setting.__name__} gives no {name}")
            values, _, truth, p, _ = readings[name]
            for what, other in (("truth", truth), ("p", p)):
                if other is not None and other.shape != values.shape:
                    raise InputError(
                        f"{what} of {name} has the shape {other.shape}, its values {values.shape}"
                    )
            if p is not None and not ((p >= 0) & (p <= 1)).all():
                raise InputError(f"p-values of {name} must lie between 0 and 1")
        return readings


def _figures(
    name: str,
    lab: _Lab,
    doses: Sequence[float],
    sizes: Sequence[int],
    images: int,
    replicates: int,
) -> Iterator[Row]:
    """All rows of one metric."""
    same = {"metric": name, "setting": lab.setting.__name__, "seed": lab.seed, "noise": NOISE}
    away = {dose: _away(lab.of(name, dose, images)) for dose in doses}
    for dose, values in away.items():
        yield same | {"figure": "response", "dose": dose, "n": images, **_mean(values)}
    yield same | {"figure": "order", "n": images, **_order(lab, name, away, images)}
    yield same | {"figure": "false alarms", "dose": 0.0, "n": images,
                  **_fired(lab.of(name, 0.0, images))}  # fmt: skip
    full = float(defined.mean(away[1.0]))
    yield same | {"figure": "floor", "dose": 0.0, "n": images, **_ratio(away[0.0], full)}
    quiet = _away(lab.of(name, QUIET, images, QUIET))
    yield same | {"figure": "quiet", "dose": QUIET, "n": images, **_ratio(quiet, full),
                  "noise": QUIET}  # fmt: skip
    for dose in POWER_DOSES:
        for n in sizes:
            tested = lab.of(name, dose, n)[: max(1, replicates // FOR_POWER)]
            yield same | {"figure": "power", "dose": dose, "n": n, **_fired(tested)}


def _away(readings: Iterable[MetricReading]) -> Floats:
    """Mean distance of the values from their ideal, one a dataset; NaN where none is defined."""
    found = [np.abs(one.values - one.ideal) for one in readings]
    return np.array([x[~np.isnan(x)].mean() if (~np.isnan(x)).any() else np.nan for x in found])


def _mean(values: Floats) -> Row:
    there = values[~np.isnan(values)]
    if len(there) < 2:
        return {"count": len(there), "note": "undefined in nearly all data sets"}
    return {"value": there.mean(), "spread": there.std(ddof=1), "count": len(there)}


def _ratio(values: Floats, full: float) -> Row:
    if not full > 0:
        return {"note": "nothing is read at dose 1"}
    return _mean(values / full)


def _order(lab: _Lab, name: str, away: dict[float, Floats], images: int) -> Row:
    """Rank correlation with the planted truth at dose 1, or of the reading with the dose."""
    readings = lab.of(name, 1.0, images)
    if readings[0].truth is None:
        dose = np.repeat(list(away), [len(values) for values in away.values()])
        rho = _rho(np.concatenate(list(away.values())), dose)
        note = "undefined in nearly all data sets" if np.isnan(rho) else None
        return {"value": rho, "count": len(dose), "over": readings[0].over, "note": note}
    found = np.array([_rho(one.values, one.truth) for one in readings])
    return {"dose": 1.0, **_mean(found), "over": readings[0].over}


def _rho(x: Floats, y: Any) -> float:
    x, y = x.ravel(), np.asarray(y).ravel()
    there = ~(np.isnan(x) | np.isnan(y))
    return float(spearman(x[there], y[there])[0]) if there.any() else np.nan


def _fired(readings: Iterable[MetricReading]) -> Row:
    """Share of tests that fire, with Wilson's interval.

    Groups of one word are not independent: a word is one trial, with the share of its groups.
    """
    fired = [(one.p <= LEVEL).mean(axis=1) for one in readings if one.p is not None]
    if not fired:
        return {"note": "has no test of its own"}
    shares = np.concatenate(fired)
    low, high = wilson(shares.sum(), np.array(len(shares)))
    return {"value": shares.mean(), "ci_low": float(low), "ci_high": float(high),
            "count": len(shares)}  # fmt: skip


def _table(rows: Iterable[Row]) -> pa.Table:
    listed = list(rows)
    arrays = [
        pa.array([row.get(column.name) for row in listed], type=column.type, from_pandas=True)
        for column in CALIBRATION
    ]
    return pa.Table.from_arrays(arrays, schema=CALIBRATION)
