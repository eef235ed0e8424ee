"""Who is near what: association tests on cosines (PROTOCOLS of WEAT, SC-EAT and So-B-IT)."""

from __future__ import annotations

from typing import Any

from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.metrics.arrays import as_groups, like, matrix, namespace, unit
from tiltmeter.metrics.summary import Moments
from tiltmeter.types import Array, Groups

#: What the spread in an effect size is divided by: n - 1 or n.
DDOF = {"caliskan": 1, "wefe": 0}
#: A spread of this size, beside the values themselves, is what rounding leaves of none at all.
ROUNDING = 1e-12


def association(w: Array, a: Array, b: Array) -> Array:
    """Mean cosine to `a` minus mean cosine to `b`, for each row of `w`.

    >>> association([[1.0, 0.0]], a=[[1.0, 0.0]], b=[[0.0, 1.0]])
    array([1.])
    """
    w, a, b = _in_one_space(w=w, a=a, b=b)
    return (w @ a.T).mean(1) - (w @ b.T).mean(1)


def weat(x: Array, y: Array, a: Array, b: Array, *, ddof: str = "caliskan") -> Array:
    """d = (mean_X s - mean_Y s) / std_{X u Y} s, with s(w) = mean_a cos(w,a) - mean_b cos(w,b).

    NaN where no two of X and Y differ. The vectors are scaled to length 1 first.

    >>> weat([[1.0, 0.1], [1.0, 0.2]], [[0.1, 1.0], [0.3, 1.0]],
    ...      a=[[1.0, 0.0]], b=[[0.0, 1.0]]).round(3)
    np.float64(1.722)
    """
    s_x, s_y = association(x, a, b), association(y, a, b)
    xp = namespace(s_x)
    s = xp.concatenate([s_x, s_y])
    return _over(s_x.mean() - s_y.mean(), _std(s, ddof))


def sc_eat(w: Array, a: Array, b: Array, *, ddof: str = "caliskan") -> Array:
    """es(w) = (mean_a cos(w,a) - mean_b cos(w,b)) / std_{A u B} cos(w,.), one for each row of w.

    >>> sc_eat([[1.0, 0.0]], a=[[1.0, 0.1], [1.0, 0.3]], b=[[0.0, 1.0], [0.2, 1.0]]).round(3)
    array([1.71])
    """
    w, a, b = _in_one_space(w=w, a=a, b=b)
    near, far = w @ a.T, w @ b.T
    spread = _std(namespace(near).concatenate([near, far], axis=1), ddof)
    return _over(near.mean(1) - far.mean(1), spread)


def c_asc(scores: Array, groups: Groups | Array) -> Array:
    """C-ASC(G) = (mean_G s - mean_{not G} s) / std s, queries x groups; ideal 0.

    The spread is over all items (n - 1). The size never exceeds 1 / sqrt(p (1 - p)) for a group
    of share p: 2 for halves. NaN for a group that has no items or all of them, and where all
    scores are equal.

    >>> c_asc([[1.0, 2.0, 3.0, 4.0]], [0, 0, 1, 1]).round(3)
    array([[-1.549,  1.549]])
    """
    scores = matrix(scores, "scores", "queries", "items")
    return c_asc_of_moments(Moments.of(scores, as_groups(groups, scores.shape[1])))


def c_asc_of_moments(moments: Moments) -> Array:
    """C-ASC from counts, means and centred second moments by group."""
    all_ = moments.total()
    n, n_g = all_.count[0], moments.count
    spread = (all_.m2 / (n - 1 if n > 1 else n * float("nan"))) ** 0.5
    spread = spread * (spread > ROUNDING * abs(all_.mean))
    # mean_not_G = (n mean - n_G mean_G) / (n - n_G), hence the gap n / (n - n_G) (mean_G - mean)
    gap = _over(n * (moments.mean - all_.mean), (n - n_g) * (n_g > 0))
    return _over(gap, spread)


def c_asc_bound(groups: Groups) -> Array:
    """1 / sqrt(p (1 - p)): the largest size C-ASC can have for each group.

    >>> c_asc_bound(Groups.from_labels(["a", "a", "b", "b"]))
    array([2., 2.])
    """
    p = groups.shares
    return _over(p * 0 + 1.0, (p * (1 - p)) ** 0.5)


def _std(x: Array, ddof: str) -> Array:
    if ddof not in DDOF:
        raise UnknownNameError("ddof", ddof, DDOF)
    n = x.shape[-1]
    away = x - x.mean(-1)[..., None]
    m2 = (away * away).sum(-1)
    if n == DDOF[ddof]:
        return m2 * float("nan")
    spread = (m2 / (n - DDOF[ddof])) ** 0.5
    return spread * (spread > ROUNDING * namespace(x).amax(abs(x), -1))


def _over(top: Array, bottom: Array) -> Array:
    """top / bottom, NaN where bottom is 0."""
    xp = namespace(bottom)
    return xp.where(bottom != 0, top / xp.where(bottom != 0, bottom, 1.0), float("nan"))


def _in_one_space(**vectors: Any) -> list[Array]:
    """Unit vectors, checked to have the same dimensions, in double precision."""
    found = {name: unit(x, name) for name, x in vectors.items()}
    sizes = {name: x.shape[1] for name, x in found.items()}
    if len(set(sizes.values())) > 1:
        raise InputError(
            "vectors must live in one space, but their dimensions differ: "
            + ", ".join(f"{name} has {size}" for name, size in sizes.items())
        )
    return [like(x, x) for x in found.values()]
