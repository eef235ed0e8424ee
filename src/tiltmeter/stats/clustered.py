"""Errors of a mean whose units share something: morphs their parents, phrases their words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tiltmeter.errors import InputError
from tiltmeter.types import Floats, Groups

#: What each unit shares with others: one or two names, or none.
Clusters = Sequence[tuple[str, ...]]


class MeanError(NamedTuple):
    """Squared standard error of a mean, and its degrees of freedom."""

    variance: float
    freedom: float


def mean_error(values: Floats, clusters: Clusters = ()) -> MeanError:
    """Squared standard error of a mean over units of which some share a cluster.

    Two units are dependent if they share a cluster, whatever else they have (dyadic-robust errors,
    Fafchamps and Gubert 2007, Aronow, Samii and Assenova 2015). With one cluster per unit this is
    the usual cluster-robust error. It is never taken below that of independent units.

    Parameters
    ----------
    values : array of shape (units,)
        One value per unit.
    clusters : sequence of tuple of str
        At most two clusters of each unit; empty for independent units.

    Returns
    -------
    MeanError
        NaN for fewer than two units. Degrees of freedom: clusters, divided by how many a unit has,
        minus 1.

    Examples
    --------
    >>> mean_error(np.array([1.0, 2.0, 3.0, 4.0])).variance.__round__(4)
    0.4167
    >>> pairs = mean_error(np.array([1.0, 1.0, 3.0, 3.0]), [("a",), ("a",), ("b",), ("b",)])
    >>> pairs.variance.__round__(4), pairs.freedom
    (1.0, 1.0)
    """
    n = len(values)
    if n < 2:
        return MeanError(float("nan"), float("nan"))
    residuals = np.asarray(values, dtype=float) - np.mean(values)
    alone = MeanError(float(residuals @ residuals) / (n - 1) / n, n - 1.0)
    if not clusters:
        return alone
    if len(clusters) != n or max(map(len, clusters)) > 2:
        raise InputError("clusters must name one or two clusters of each unit")
    sums: dict[str, float] = {}
    pairs: dict[tuple[str, ...], float] = {}
    for residual, names in zip(residuals.tolist(), clusters, strict=True):
        for name in set(names):
            sums[name] = sums.get(name, 0.0) + residual
        if len(set(names)) == 2:  # counted in both clusters: once too often
            both = tuple(sorted(names))
            pairs[both] = pairs.get(both, 0.0) + residual
    total = sum(x * x for x in sums.values()) - sum(x * x for x in pairs.values())
    freedom = len(sums) * n / sum(len(set(names)) for names in clusters) - 1.0
    if freedom <= 0:
        return MeanError(float("nan"), float("nan"))
    shared = total / n**2 * (freedom + 1) / freedom
    return MeanError(max(shared, alone.variance), min(freedom, alone.freedom))


def group_covariance(values: Floats, groups: Groups, clusters: Clusters = ()) -> Floats:
    """Covariance of the means of groups whose units may share clusters, within and across groups.

    What groups share cancels in their differences: phrases for two races have the same words for a
    gender. In no direction it is taken below that of independent units.

    Parameters
    ----------
    values : array of shape (units,)
        One value per unit.
    groups : Groups
        The group of each unit.
    clusters : sequence of tuple of str
        At most two clusters of each unit; empty for independent units.

    Returns
    -------
    array of shape (groups, groups)
        NaN on the diagonal of a group with fewer than two units.

    Examples
    --------
    >>> two = Groups(np.array([0, 0, 1, 1]), ("a", "b"))
    >>> group_covariance(np.array([1.0, 2.0, 3.0, 5.0]), two)
    array([[0.25, 0.  ],
           [0.  , 1.  ]])
    """
    codes, count = groups.codes, len(groups.names)
    parts = [values[codes == code] for code in range(count)]
    alone = np.diag([part.var(ddof=1) / len(part) if len(part) > 1 else np.nan for part in parts])
    if not clusters or not np.isfinite(alone).all():
        return np.asarray(alone)
    sums: dict[str, Floats] = {}
    pairs: dict[tuple[str, ...], Floats] = {}
    for value, code, names in zip(values, codes, clusters, strict=True):
        residual = (value - parts[code].mean()) / len(parts[code])
        for name in set(names):
            sums.setdefault(name, np.zeros(count))[code] += residual
        if len(set(names)) == 2:
            pairs.setdefault(tuple(sorted(names)), np.zeros(count))[code] += residual
    units = max(len(sums) * len(values) / sum(len(set(names)) for names in clusters), 2.0)
    shared = sum(np.outer(x, x) for x in sums.values())
    shared = shared - sum((np.outer(x, x) for x in pairs.values()), np.zeros((count, count)))
    size, axes = np.linalg.eigh(shared * units / (units - 1) - alone)
    return np.asarray(alone + axes @ np.diag(np.maximum(size, 0.0)) @ axes.T)
