"""Calibration measurements: each setting at several doses, noise levels and sizes.

Every dataset has its own random generator, seeded by seed, setting, dose, size, noise and number: a
result does not depend on what else is measured.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.judge.calibration.protocols import share, simulated_rows, world_of
from tiltmeter.judge.calibration.settings import SETTINGS, MetricReading, Readings, Setting
from tiltmeter.judge.calibration.trained import TRAINED, trained_rows
from tiltmeter.judge.calibration.verdict import LEVEL, MetricSummary, summarize
from tiltmeter.metrics import METRICS
from tiltmeter.metrics.propagation import spearman
from tiltmeter.stats import defined
from tiltmeter.types import Floats, Progress

DOSES = (0.0, 0.125, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0)
SIZES = (100, 300, 1000, 3000, 10_000)
IMAGES = 1000  # per value, where the size is not varied
REPLICATES = 16
#: Datasets at dose 0 per replicate elsewhere: false positives are rare.
AT_ZERO = 4
#: Doses whose power is measured, on a quarter of the datasets: each has many tests.
POWER_DOSES, FOR_POWER = (0.5, 1.0), 4
NOISE = 1.0  # of scores, in units of PMI
#: A nearly fair model with little noise: a thousandth of the bias and of the noise.
LOW_NOISE = 0.001
#: A correction that removes noise and no bias.
HALF_NOISE = 0.5
#: Replicates per dataset of lift by protocol: each has hundreds of words.
PER_PROTOCOL = 16

#: One row per result. Undefined values are null, with the reason in `note`.
CALIBRATION = pa.schema(
    [
        ("metric", pa.string()),
        ("setting", pa.string()),
        # response, order, false positives, floor, low noise, half noise, power, or of `protocols`
        ("statistic", pa.string()),
        ("dose", pa.float64()),
        ("noise", pa.float64()),
        ("n", pa.int64()),  # images or instances per value
        ("value", pa.float64()),
        ("spread", pa.float64()),  # standard deviation over datasets
        ("ci_low", pa.float64()),
        ("ci_high", pa.float64()),
        ("count", pa.int64()),  # datasets; for shares, words (or pairs, sets) in all of them
        ("over", pa.string()),  # units of an order: words, pairs of words, doses
        ("seed", pa.int64()),
        ("note", pa.string()),
        # lift by protocol, and tests on trained models: the setting is the model, n is per group
        ("protocol", pa.string()),  # cosine, matching, masked
        ("attribute", pa.string()),
        ("planted", pa.float64()),  # least planted lift of the words, nats
    ]
)
Row = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Calibration:
    """Results of a calibration.

    Attributes
    ----------
    table : pyarrow.Table
        Rows of the schema `CALIBRATION`.
    """

    table: pa.Table

    def __post_init__(self) -> None:
        if self.table.schema != CALIBRATION:
            raise InputError("the table of a calibration must have the schema CALIBRATION")

    @cached_property
    def summaries(self) -> list[MetricSummary]:
        """One summary per metric, with its verdict."""
        rows = self.table.to_pylist()
        names = dict.fromkeys(row["metric"] for row in rows)
        return [summarize([row for row in rows if row["metric"] == name]) for name in names]

    @classmethod
    def load(cls, path: str | Path) -> Calibration:
        """Read `calibration.parquet` of a directory."""
        file = Path(path) / "calibration.parquet"
        if not file.is_file():
            raise InputError(
                f"{path} is not a calibration: it has no calibration.parquet. Make "
                "one with tiltmeter calibrate"
            )
        return cls(pq.read_table(file).cast(CALIBRATION))


def calibrate(
    names: Sequence[str] | None = None,
    *,
    doses: Sequence[float] = DOSES,
    sizes: Sequence[int] = SIZES,
    images: int = IMAGES,
    replicates: int = REPLICATES,
    seed: int = 0,
    trained: Sequence[tuple[str, str]] = TRAINED,
    progress: Progress | None = None,
) -> Calibration:
    """Test metrics against known bias, in planted worlds of several strengths.

    Parameters
    ----------
    names : sequence of str, optional
        Metrics. Defaults to all that are registered.
    doses : sequence of float
        Strengths of the planted bias, from 0 to 3; must include 0 and 1.
    sizes : sequence of int
        Numbers of images at which power is measured, at least 100.
    images : int
        Number of images for everything else, at least 100.
    replicates : int
        Datasets per dose, at least 2.
    seed : int
        Seed of all datasets.
    trained : sequence of (spec, protocol)
        Models of the testbed on which metrics are tested as well, and how they score words; ()
        for none.
    progress : callable, optional
        Called as `progress(what, share)`.

    Returns
    -------
    Calibration

    Raises
    ------
    UnknownNameError
        If a metric is unknown.
    InputError
        If an option is out of range.
    """
    metrics = list(dict.fromkeys(names or METRICS))
    doses = _check_options(metrics, doses, sizes, images, replicates, seed)
    settings: dict[Setting, list[str]] = {}
    for name in metrics:
        settings.setdefault(SETTINGS[name], []).append(name)
    rows_by_metric: dict[str, list[Row]] = {}
    for index, (setting, members) in enumerate(settings.items()):
        lab = _Experiment(setting, members, seed)
        steps = list(_steps(doses, sizes, images, replicates))
        for step, (dose, n, noise, count) in enumerate(steps):
            if progress:
                share = (index + step / len(steps)) / len(settings)
                progress(f"{setting.__name__}, dose {dose:g}", share)
            lab.run(dose, n, noise, count)
        for name in members:
            rows_by_metric[name] = list(_metric_rows(name, lab, doses, sizes, images, replicates))
    if "lift" in rows_by_metric:
        rows_by_metric["lift"] += simulated_rows(max(1, replicates // PER_PROTOCOL), seed)
    for row in trained_rows(metrics, trained, seed):
        rows_by_metric[row["metric"]].append(row)
    if progress:
        progress("done", 1.0)
    return Calibration(_table(row for name in metrics for row in rows_by_metric[name]))


def _check_options(
    names: Sequence[str],
    doses: Sequence[float],
    sizes: Sequence[int],
    images: int,
    replicates: int,
    seed: int,
) -> tuple[float, ...]:
    """Check the options, and return the doses in order."""
    for name in names:
        if name not in METRICS:
            raise UnknownNameError("metric", name, METRICS)
        if name not in SETTINGS:
            raise InputError(
                f"{name} has no setting: add it to tiltmeter.judge.calibration.settings.SETTINGS"
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
        raise InputError(f"replicates must be at least 2; got {replicates}")
    if not 0 <= seed < 2**63:
        raise InputError(f"seed must be an integer from 0 to 2^63 - 1; got {seed}")
    return doses


def _steps(
    doses: Sequence[float], sizes: Sequence[int], images: int, replicates: int
) -> Iterator[tuple[float, int, float, int]]:
    """Dose, images, noise and number of datasets of each step, without duplicates."""
    for dose in doses:
        yield dose, images, NOISE, replicates * (AT_ZERO if dose == 0 else 1)
    yield LOW_NOISE, images, LOW_NOISE, replicates
    yield 1.0, images, HALF_NOISE * NOISE, max(2, replicates // FOR_POWER)
    for dose in POWER_DOSES:
        for n in sizes:
            if n != images or dose not in doses:
                yield dose, n, NOISE, max(1, replicates // FOR_POWER)


class _Experiment:
    """One setting, and the readings of all its datasets."""

    def __init__(self, setting: Setting, members: Sequence[str], seed: int) -> None:
        self.setting, self.members, self.seed = setting, members, seed
        self.readings: dict[tuple[float, int, float], list[Readings]] = {}

    def run(self, dose: float, n: int, noise: float, count: int) -> None:
        key = zlib.crc32(f"{self.setting.__name__} {dose!r} {n} {noise!r}".encode())
        world = world_of(dose)
        self.readings[dose, n, noise] = [
            self._check_options(
                self.setting(world, n, noise, np.random.default_rng([self.seed, key, replicate]))
            )
            for replicate in range(count)
        ]

    def of(self, name: str, dose: float, n: int, noise: float = NOISE) -> list[MetricReading]:
        return [readings[name] for readings in self.readings[dose, n, noise]]

    def _check_options(self, readings: Readings) -> Readings:
        for name in self.members:
            if name not in readings:
                raise InputError(f"the setting {self.setting.__name__} has no reading of {name}")
            values, _, truth, p, _ = readings[name]
            if truth is not None and truth.shape != values.shape:
                raise InputError(
                    f"truth of {name} has the shape {truth.shape}, its values {values.shape}"
                )
            if p is not None and len(p) != len(values):
                raise InputError(f"{name} has {len(values)} units and p-values of {len(p)}")
            if p is not None and not ((p >= 0) & (p <= 1)).all():
                raise InputError(f"p-values of {name} must be between 0 and 1")
        return readings


def _metric_rows(
    name: str,
    lab: _Experiment,
    doses: Sequence[float],
    sizes: Sequence[int],
    images: int,
    replicates: int,
) -> Iterator[Row]:
    """All rows of one metric."""
    constants = {"metric": name, "setting": lab.setting.__name__, "seed": lab.seed, "noise": NOISE}
    distances = {dose: _distances(lab.of(name, dose, images)) for dose in doses}
    for dose, values in distances.items():
        yield constants | {"statistic": "response", "dose": dose, "n": images, **_mean(values)}
    yield constants | {"statistic": "order", "n": images, **_order(lab, name, distances, images)}
    yield constants | {"statistic": "false positives", "dose": 0.0, "n": images,
                  **_rejection_rate(lab.of(name, 0.0, images))}  # fmt: skip
    full = float(defined.mean(distances[1.0]))
    yield constants | {
        "statistic": "floor",
        "dose": 0.0,
        "n": images,
        **_ratio(distances[0.0], full),
    }
    low_noise = _distances(lab.of(name, LOW_NOISE, images, LOW_NOISE))
    yield constants | {"statistic": "low noise", "dose": LOW_NOISE, "n": images,
                  **_ratio(low_noise, full), "noise": LOW_NOISE}  # fmt: skip
    half_noise = _distances(lab.of(name, 1.0, images, HALF_NOISE * NOISE))
    yield constants | {"statistic": "half noise", "dose": 1.0, "n": images,
                  **_ratio(half_noise, full), "noise": HALF_NOISE * NOISE}  # fmt: skip
    for dose in POWER_DOSES:
        for n in sizes:
            tested = lab.of(name, dose, n)[: max(1, replicates // FOR_POWER)]
            yield constants | {
                "statistic": "power",
                "dose": dose,
                "n": n,
                **_rejection_rate(tested),
            }


def _distances(readings: Iterable[MetricReading]) -> Floats:
    """Mean distance of the values from their ideal for each dataset; NaN if none is defined."""
    distances = [np.abs(reading.values - reading.ideal) for reading in readings]
    return np.array([x[~np.isnan(x)].mean() if (~np.isnan(x)).any() else np.nan for x in distances])


def _mean(values: Floats) -> Row:
    defined_values = values[~np.isnan(values)]
    if len(defined_values) < 2:
        return {"count": len(defined_values), "note": "undefined in nearly all datasets"}
    return {
        "value": defined_values.mean(),
        "spread": defined_values.std(ddof=1),
        "count": len(defined_values),
    }


def _ratio(values: Floats, full: float) -> Row:
    if not full > 0:
        return {"note": "no response at dose 1"}
    return _mean(values / full)


def _order(lab: _Experiment, name: str, distances: dict[float, Floats], images: int) -> Row:
    """Rank correlation with the planted truth at dose 1, or of the response with the dose."""
    readings = lab.of(name, 1.0, images)
    if readings[0].truth is None:
        dose = np.repeat(list(distances), [len(values) for values in distances.values()])
        rho = _rho(np.concatenate(list(distances.values())), dose)
        note = "undefined in nearly all datasets" if np.isnan(rho) else None
        return {"value": rho, "count": len(dose), "over": readings[0].over, "note": note}
    correlations = np.array([_rho(reading.values, reading.truth) for reading in readings])
    return {"dose": 1.0, **_mean(correlations), "over": readings[0].over}


def _rho(x: Floats, y: Any) -> float:
    x, y = x.ravel(), np.asarray(y).ravel()
    known = ~(np.isnan(x) | np.isnan(y))
    return float(spearman(x[known], y[known])[0]) if known.any() else np.nan


def _rejection_rate(readings: Iterable[MetricReading]) -> Row:
    """Share of significant tests, with Wilson's interval.

    Groups of one word are not independent: a word is one trial, with the share of its groups.
    """
    fired_shares = [
        (reading.p <= LEVEL).mean(axis=1) for reading in readings if reading.p is not None
    ]
    if not fired_shares:
        return {"note": "this metric has no test"}
    return share(np.concatenate(fired_shares))


def _table(rows: Iterable[Row]) -> pa.Table:
    row_list = list(rows)
    arrays = [
        pa.array([row.get(column.name) for row in row_list], type=column.type, from_pandas=True)
        for column in CALIBRATION
    ]
    return pa.Table.from_arrays(arrays, schema=CALIBRATION)
