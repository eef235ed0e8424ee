"""Summary and verdict of one metric, by the thresholds defined here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from tiltmeter.stats.intervals import wilson

LEVEL = 0.05  # of every test
#: Rank correlations with the planted truth from which the order is recovered, or in part.
RECOVERS, PARTLY = 0.9, 0.7
#: A response is saturated where its slope is below this share of its initial slope.
SATURATED = 0.5
#: It falls again where it loses more than this share of its increase.
FALLS = 0.25
#: A false-positive rate is inflated if it is significantly above this: the level plus one point.
FALSE_POSITIVES = 0.06
#: A value has a high floor if zero bias reads as more than this share of dose 1.
FLOOR = 0.25
#: The same for a thousandth of the bias in a model with little noise.
LOW_NOISE_SHARE = 0.25
POWER = 0.8
#: Power is at a plateau if it increases by less than this from the smallest to the largest size.
PLATEAU = 0.1

Row = dict[str, Any]


@dataclass(frozen=True)
class MetricSummary:
    """Summary of one metric. None: undefined, or not reached."""

    metric: str
    setting: str
    order: float | None  # Spearman
    order_over: str  # words, pairs of words, doses
    saturates_above: float | None  # dose above which the response hardly grows
    falls_above: float | None  # dose above which it falls again
    grows_to: float | None  # the dose up to which the response grows
    false_positives: float | None
    false_positives_low: float | None
    false_positives_high: float | None
    floor: float | None  # response at zero, relative to dose 1
    low_noise: float | None  # the same for a thousandth of the bias and noise
    half_noise: float | None  # response at dose 1 with half of the noise, relative to dose 1
    trained_false_positives: float | None  # false positives on trained models without bias
    trained_false_positives_low: float | None
    trained_false_positives_high: float | None
    images_needed: int | None  # images for POWER at dose 1
    power: float | None  # at the largest size
    largest_n: int | None
    smallest_n: int | None  # of the sizes tried
    power_plateau: bool  # POWER is not reached, and more images hardly help
    verdict: str


def summarize(rows: Sequence[Row]) -> MetricSummary:
    """Summary of one metric from its rows of the calibration table."""
    fair = [row for row in rows if row["protocol"] and row["statistic"] == "false positives"]
    rows = [row for row in rows if not row["protocol"]]
    result = {
        row["statistic"]: row for row in rows if row["statistic"] not in ("response", "power")
    }
    response = [(row["dose"], row["value"]) for row in rows if row["statistic"] == "response"]
    power = sorted(
        (row["n"], row["value"])
        for row in rows
        if row["statistic"] == "power" and row["dose"] == 1.0
    )
    tested = [(n, share) for n, share in power if share is not None]
    summary: Row = {
        "metric": rows[0]["metric"],
        "setting": rows[0]["setting"],
        "order": result["order"]["value"],
        "order_over": result["order"]["over"],
        "saturates_above": saturation(response),
        "falls_above": fall(response),
        "grows_to": _grows_to(response),
        "false_positives": result["false positives"]["value"],
        "false_positives_low": result["false positives"]["ci_low"],
        "false_positives_high": result["false positives"]["ci_high"],
        "floor": result["floor"]["value"],
        "low_noise": result["low noise"]["value"],
        "half_noise": result["half noise"]["value"],
        **_pooled(fair),
        "images_needed": images_for_power(tested),
        "power": tested[-1][1] if tested else None,
        "largest_n": tested[-1][0] if tested else None,
        "smallest_n": tested[0][0] if tested else None,
    }
    summary["power_plateau"] = (
        bool(tested) and summary["images_needed"] is None and tested[-1][1] - tested[0][1] < PLATEAU
    )
    grows = growth(response) > 0
    return MetricSummary(**summary, verdict="; ".join(_verdict_parts(summary, grows)) + ".")


def _pooled(fair: Sequence[Row]) -> Row:
    """False positives of all trained models without bias."""
    count = np.array([row["count"] for row in fair])
    if not count.sum():
        return dict.fromkeys(
            (
                "trained_false_positives",
                "trained_false_positives_low",
                "trained_false_positives_high",
            )
        )
    hits = sum(row["value"] * row["count"] for row in fair)
    low, high = wilson(hits, count.sum())
    return {"trained_false_positives": hits / int(count.sum()),
            "trained_false_positives_low": float(low),
            "trained_false_positives_high": float(high)}  # fmt: skip


def growth(response: Sequence[tuple[float, float | None]]) -> float:
    """The steepest mean slope from dose 0 to any dose; 0 if no value is above that at 0.

    >>> growth([(0, 0.1), (1, 0.5), (2, 0.7)])
    0.4
    """
    points = [(dose, value) for dose, value in response if value is not None]
    if not points or points[0][0] != 0:
        return 0.0
    start = points[0][1]
    return max([0.0, *((value - start) / dose for dose, value in points[1:])])


def saturation(response: Sequence[tuple[float, float | None]]) -> float | None:
    """The dose above which no step has half of the initial slope; None if there is none.

    >>> saturation([(0, 0.0), (1, 1.0), (2, 1.2), (3, 1.3)])
    1
    >>> saturation([(0, 0.0), (1, 1.0), (2, 2.0), (3, 3.0)])
    """
    points = [(dose, value) for dose, value in response if value is not None]
    slowest, saturated = SATURATED * growth(response), None
    for (dose, value), (after, more) in reversed(list(pairwise(points))):
        if dose == 0 or (more - value) / (after - dose) >= slowest:
            break
        saturated = dose
    return saturated if slowest > 0 else None


def fall(response: Sequence[tuple[float, float | None]]) -> float | None:
    """The dose of the largest response, if much of the increase is lost after it.

    >>> fall([(0, 0.0), (1, 1.0), (2, 0.5)])
    1
    >>> fall([(0, 0.0), (1, 1.0), (2, 0.9)])
    """
    points = [(dose, value) for dose, value in response if value is not None]
    if growth(response) == 0:
        return None
    dose, top = max(points, key=lambda point: point[1])
    return dose if top - points[-1][1] > FALLS * (top - points[0][1]) else None


def _grows_to(response: Sequence[tuple[float, float | None]]) -> float | None:
    """The dose at which the response saturates or falls, else the largest; None without growth."""
    if growth(response) == 0:
        return None
    limits = (fall(response), saturation(response), response[-1][0])
    return next(limit for limit in limits if limit is not None)


def images_for_power(power: Sequence[tuple[int, float]]) -> int | None:
    """Number of images at which POWER is reached, interpolated on a logarithmic scale.

    >>> images_for_power([(100, 0.6), (1000, 1.0)])
    320
    >>> images_for_power([(100, 0.1), (1000, 0.4)])
    """
    for index, (n, share) in enumerate(power):
        if share >= POWER:
            if index == 0:
                return n
            before, below = power[index - 1]
            part = (POWER - below) / (share - below)
            exact = np.exp(np.log(before) + part * np.log(n / before))
            return int(float(f"{exact:.2g}"))
    return None


def _verdict_parts(summary: Row, grows: bool) -> list[str]:
    """The parts of the verdict."""
    parts = [_order(summary["order"], summary["order_over"])]
    if not grows:
        parts.append("does not grow with the dose")
    elif summary["falls_above"] is not None:
        parts.append(f"rises to dose {summary['falls_above']:g} and falls again")
    elif summary["saturates_above"] is not None:
        parts.append(f"saturates above dose {summary['saturates_above']:g}")
    else:
        parts.append("grows over all doses")
    false_positives, low = summary["false_positives"], summary["false_positives_low"]
    if false_positives is None:
        parts.append("has no test")
    elif low > FALSE_POSITIVES:
        parts.append(f"inflated false-positive rate: {false_positives:.1%} at zero bias")
    else:
        parts.append(f"false-positive rate {false_positives:.1%} at zero bias")
    if summary["floor"] is not None and summary["floor"] > FLOOR:
        parts.append(
            f"misleading without its null: zero bias reads as {summary['floor']:.0%} of dose 1"
        )
    if summary["low_noise"] is not None and summary["low_noise"] > LOW_NOISE_SHARE:
        parts.append(
            "insensitive to scale: if all differences between scores at dose 1 are made 1000 times "
            f"smaller, the value is still {summary['low_noise']:.0%} of what it was, so a tiny "
            "bias can look large"
        )
    if summary["images_needed"] is not None:
        or_fewer = " or fewer" if summary["images_needed"] == summary["smallest_n"] else ""
        parts.append(
            f"{POWER:.0%} power at dose 1 with about {summary['images_needed']:,} images{or_fewer}"
        )
    elif summary["power"] is not None:
        no_help = ", and more images do not help" if summary["power_plateau"] else ""
        parts.append(
            f"{summary['power']:.0%} power at dose 1 with {summary['largest_n']:,} images{no_help}"
        )
    return parts


def _order(rho: float | None, over: str) -> str:
    if rho is None:
        return "its order is undefined"
    if rho >= RECOVERS:
        text = "recovers the order"
    elif rho >= PARTLY:
        text = "recovers the order in part"
    else:
        text = "does not recover the order"
    return f"{text} (over {over}, Spearman {rho:.2f})"
