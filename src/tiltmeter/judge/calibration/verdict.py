"""From figures to words: what one metric is good for, by thresholds that are named here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

LEVEL = 0.05  # of every test
#: Rank correlation with the planted truth from which the order is recovered, or is so in part.
RECOVERS, PARTLY = 0.9, 0.7
#: A response is saturated where it grows less than this share as fast as in the beginning.
SATURATED = 0.5
#: It falls again where it loses more than this share of what it had risen.
FALLS = 0.25
#: A test cries wolf where false alarms are surely above this: the level, and a point for chance.
FALSE_ALARMS = 0.06
#: A value cries wolf where zero tilt reads as more than this share of dose 1.
FLOOR = 0.25
#: So does one that reads a thousandth of the tilt, in a model with little noise, as more than this.
QUIET_SHARE = 0.25
POWER = 0.8
#: Power that does not rise by this from the smallest to the largest size is not a matter of size.
STUCK = 0.1

Row = dict[str, Any]


@dataclass(frozen=True)
class MetricSummary:
    """One metric in short. None: not defined, or not reached."""

    metric: str
    setting: str
    order: float | None  # Spearman
    order_over: str  # words, pairs of words, doses
    saturates: float | None  # the dose above which the response hardly grows
    falls: float | None  # the dose above which it falls again
    false_alarms: float | None
    false_alarms_low: float | None
    false_alarms_high: float | None
    floor: float | None  # reading at zero, in units of that at dose 1
    quiet: float | None  # the same for a thousandth of the tilt in a quiet model
    needed: int | None  # images for POWER at dose 1
    power: float | None  # at the largest size
    largest: int | None
    smallest: int | None  # sizes that were tried
    stuck: bool  # POWER is not reached, and the largest size gains next to nothing on the smallest
    verdict: str


def summarize(rows: Sequence[Row]) -> MetricSummary:
    """The summary of one metric from its rows of the calibration's table."""
    one = {row["figure"]: row for row in rows if row["figure"] not in ("response", "power")}
    response = [(row["dose"], row["value"]) for row in rows if row["figure"] == "response"]
    power = sorted(
        (row["n"], row["value"]) for row in rows if row["figure"] == "power" and row["dose"] == 1.0
    )
    tested = [(n, share) for n, share in power if share is not None]
    found: Row = {
        "metric": rows[0]["metric"],
        "setting": rows[0]["setting"],
        "order": one["order"]["value"],
        "order_over": one["order"]["over"],
        "saturates": saturation(response),
        "falls": fall(response),
        "false_alarms": one["false alarms"]["value"],
        "false_alarms_low": one["false alarms"]["ci_low"],
        "false_alarms_high": one["false alarms"]["ci_high"],
        "floor": one["floor"]["value"],
        "quiet": one["quiet"]["value"],
        "needed": images_for_power(tested),
        "power": tested[-1][1] if tested else None,
        "largest": tested[-1][0] if tested else None,
        "smallest": tested[0][0] if tested else None,
    }
    found["stuck"] = (
        bool(tested) and found["needed"] is None and tested[-1][1] - tested[0][1] < STUCK
    )
    grows = growth(response) > 0
    return MetricSummary(**found, verdict="; ".join(_sentences(found, grows)) + ".")


def growth(response: Sequence[tuple[float, float | None]]) -> float:
    """The steepest mean growth from dose 0 to any dose; 0 where none is above the value at 0.

    >>> growth([(0, 0.1), (1, 0.5), (2, 0.7)])
    0.4
    """
    points = [(dose, value) for dose, value in response if value is not None]
    if not points or points[0][0] != 0:
        return 0.0
    start = points[0][1]
    return max([0.0, *((value - start) / dose for dose, value in points[1:])])


def saturation(response: Sequence[tuple[float, float | None]]) -> float | None:
    """The dose above which no step grows even half as fast as the response did in the beginning.

    >>> saturation([(0, 0.0), (1, 1.0), (2, 1.2), (3, 1.3)])
    1
    >>> saturation([(0, 0.0), (1, 1.0), (2, 2.0), (3, 3.0)])
    """
    points = [(dose, value) for dose, value in response if value is not None]
    least, found = SATURATED * growth(response), None
    for (dose, value), (after, more) in reversed(list(pairwise(points))):
        if dose == 0 or (more - value) / (after - dose) >= least:
            break
        found = dose
    return found if least > 0 else None


def fall(response: Sequence[tuple[float, float | None]]) -> float | None:
    """The dose of the largest response, if much of the rise is lost again after it.

    >>> fall([(0, 0.0), (1, 1.0), (2, 0.5)])
    1
    >>> fall([(0, 0.0), (1, 1.0), (2, 0.9)])
    """
    points = [(dose, value) for dose, value in response if value is not None]
    if growth(response) == 0:
        return None
    dose, top = max(points, key=lambda point: point[1])
    return dose if top - points[-1][1] > FALLS * (top - points[0][1]) else None


def images_for_power(power: Sequence[tuple[int, float]]) -> int | None:
    """Images at which the power is reached, between two sizes on the scale of logarithms.

    >>> images_for_power([(100, 0.6), (1000, 1.0)])
    320
    >>> images_for_power([(100, 0.1), (1000, 0.4)])
    """
    for at, (n, share) in enumerate(power):
        if share >= POWER:
            if at == 0:
                return n
            before, below = power[at - 1]
            part = (POWER - below) / (share - below)
            exact = np.exp(np.log(before) + part * np.log(n / before))
            return int(float(f"{exact:.2g}"))
    return None


def _sentences(found: Row, grows: bool) -> list[str]:
    """The verdict, part by part."""
    parts = [_order(found["order"], found["order_over"])]
    if not grows:
        parts.append("does not grow with the dose")
    elif found["falls"] is not None:
        parts.append(f"rises to dose {found['falls']:g} and falls again")
    elif found["saturates"] is not None:
        parts.append(f"saturates above dose {found['saturates']:g}")
    else:
        parts.append("grows over all doses")
    alarms, low = found["false_alarms"], found["false_alarms_low"]
    if alarms is None:
        parts.append("has no test of its own")
    elif low > FALSE_ALARMS:
        parts.append(f"cries wolf: its test fires at zero in {alarms:.1%}")
    else:
        parts.append(f"its test holds at zero ({alarms:.1%} fire)")
    if found["floor"] is not None and found["floor"] > FLOOR:
        parts.append(
            f"cries wolf without its null: zero tilt reads as {found['floor']:.0%} of dose 1"
        )
    if found["quiet"] is not None and found["quiet"] > QUIET_SHARE:
        parts.append(
            "cries wolf in a quiet model: a thousandth of tilt and noise reads as "
            f"{found['quiet']:.0%} of dose 1"
        )
    if found["needed"] is not None:
        few = " or fewer" if found["needed"] == found["smallest"] else ""
        parts.append(
            f"finds {POWER:.0%} of tilts at dose 1 with about {found['needed']:,} images{few}"
        )
    elif found["power"] is not None:
        more = ", and more images do not help" if found["stuck"] else ""
        parts.append(
            f"finds {found['power']:.0%} of tilts at dose 1 with {found['largest']:,} images{more}"
        )
    return parts


def _order(rho: float | None, over: str) -> str:
    if rho is None:
        return "its order is undefined"
    if rho >= RECOVERS:
        what = "recovers the order"
    elif rho >= PARTLY:
        what = "recovers the order in part"
    else:
        what = "does not recover the order"
    return f"{what} (over {over}, Spearman {rho:.2f})"
