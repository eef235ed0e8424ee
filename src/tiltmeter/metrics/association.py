"""Association tests on cosines: WEAT, SC-EAT and C-ASC (So-B-IT)."""

from __future__ import annotations

from typing import Any

from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.metrics.arrays import as_groups, like, matrix, namespace, unit
from tiltmeter.metrics.summary import Moments
from tiltmeter.types import Array, Groups

#: Delta degrees of freedom of the standard deviation: it divides by n - 1 or by n.
DDOF = {"caliskan": 1, "wefe": 0}
#: A standard deviation this small, relative to the values, is zero up to rounding.
ROUNDING = 1e-12
LARGEST = 1e150  # scores beyond it, or below its inverse, cannot be squared


def association(w: Array, a: Array, b: Array) -> Array:
    """Mean cosine to `a` minus mean cosine to `b`, for each row of `w`.

    Parameters
    ----------
    w, a, b : array of shape (rows, dimensions)
        Embeddings from one model; rows are scaled to length 1.

    Returns
    -------
    array of shape (rows of w,)
        From -2 to 2; 0 is no association.

    Raises
    ------
    InputError
        The dimensions differ, or a row is zero, NaN or infinite.

    Examples
    --------
    >>> association([[1.0, 0.0]], a=[[1.0, 0.0]], b=[[0.0, 1.0]])
    array([1.])
    """
    w, a, b = _in_one_space(w=w, a=a, b=b)
    return (w @ a.T).mean(1) - (w @ b.T).mean(1)


def weat(x: Array, y: Array, a: Array, b: Array, *, ddof: str = "caliskan") -> Array:
    """WEAT effect size d (Caliskan et al. 2017).

    d = (mean_X s - mean_Y s) / std_{X u Y} s, with s(w) = mean_a cos(w, a) - mean_b cos(w, b).

    Parameters
    ----------
    x, y : array of shape (words, dimensions)
        Embeddings of the two target sets.
    a, b : array of shape (words, dimensions)
        Embeddings of the two attribute sets.
    ddof : {"caliskan", "wefe"}
        Whether the standard deviation divides by n - 1 or by n.

    Returns
    -------
    float
        From -2 to 2, ideal 0; NaN if all associations are equal.

    Raises
    ------
    InputError
        The dimensions differ, or a row is zero, NaN or infinite.
    UnknownNameError
        `ddof` is neither.

    Examples
    --------
    >>> weat([[1.0, 0.1], [1.0, 0.2]], [[0.1, 1.0], [0.3, 1.0]],
    ...      a=[[1.0, 0.0]], b=[[0.0, 1.0]]).round(3)
    np.float64(1.722)
    """
    s_x, s_y = association(x, a, b), association(y, a, b)
    xp = namespace(s_x)
    s = xp.concatenate([s_x, s_y])
    return _over(s_x.mean() - s_y.mean(), _std(s, ddof))


def sc_eat(w: Array, a: Array, b: Array, *, ddof: str = "caliskan") -> Array:
    """SC-EAT effect size of each row of `w`.

    es(w) = (mean_a cos(w, a) - mean_b cos(w, b)) / std_{A u B} cos(w, .)

    Parameters
    ----------
    w : array of shape (words, dimensions)
        Embeddings of the single words (or images) to test.
    a, b : array of shape (items, dimensions)
        Embeddings of the two attribute sets.
    ddof : {"caliskan", "wefe"}
        Whether the standard deviation divides by n - 1 or by n.

    Returns
    -------
    array of shape (words,)
        Ideal 0; NaN where all cosines are equal.

    Raises
    ------
    InputError
        The dimensions differ, or a row is zero, NaN or infinite.
    UnknownNameError
        `ddof` is neither.

    Examples
    --------
    >>> sc_eat([[1.0, 0.0]], a=[[1.0, 0.1], [1.0, 0.3]], b=[[0.0, 1.0], [0.2, 1.0]]).round(3)
    array([1.71])
    """
    w, a, b = _in_one_space(w=w, a=a, b=b)
    near, far = w @ a.T, w @ b.T
    spread = _std(namespace(near).concatenate([near, far], axis=1), ddof)
    return _over(near.mean(1) - far.mean(1), spread)


def c_asc(scores: Array, groups: Groups | Array) -> Array:
    """C-ASC: how much higher a query scores one group than all others, in standard deviations.

    C-ASC(G) = (mean_G s - mean_{not G} s) / std s, where the standard deviation (n - 1) is over all
    items.

    Parameters
    ----------
    scores : array of shape (queries, items)
        Similarity of each query to each item.
    groups : Groups or array of shape (items,)
        The group of each item.

    Returns
    -------
    array of shape (queries, groups)
        Ideal 0; its size never exceeds `c_asc_bound`. NaN for a group that has no items or all of
        them, and where all scores are equal.

    Raises
    ------
    InputError
        `scores` is not a finite matrix, or too large or small to be squared, or `groups` does not
        label every item.

    Examples
    --------
    >>> c_asc([[1.0, 2.0, 3.0, 4.0]], [0, 0, 1, 1]).round(3)
    array([[-1.549,  1.549]])
    """
    scores = matrix(scores, "scores", "queries", "items")
    largest = namespace(scores).amax(abs(scores), -1) if scores.shape[1] else scores[:, :0]
    largest = like(largest, largest)  # in double precision: the bound is beyond single
    if bool(((largest > LARGEST) | ((largest > 0) & (largest < 1 / LARGEST))).any()):
        raise InputError(
            f"scores must be at most {LARGEST:g} in size, and not all below {1 / LARGEST:g}: their "
            "squares are beyond double precision. Rescale them",
            value=float(largest.max()),
        )
    return c_asc_of_moments(Moments.of(scores, as_groups(groups, scores.shape[1])))


def c_asc_of_moments(moments: Moments) -> Array:
    """C-ASC from counts, means and centred second moments by group: queries x groups."""
    total, spread = moments.total(), standard_deviation(moments)
    n, n_g = total.count[0], moments.count
    # mean_not_G = (n mean - n_G mean_G) / (n - n_G), hence the gap n / (n - n_G) (mean_G - mean)
    gap = _over(n * (moments.mean - total.mean), (n - n_g) * (n_g > 0))
    return _over(gap, spread)


def standard_deviation(moments: Moments) -> Array:
    """Standard deviation of the scores of each query, over all groups; 0 if only by rounding."""
    total = moments.total()
    n = total.count[0]
    spread = (total.m2 / (n - 1 if n > 1 else n * float("nan"))) ** 0.5
    return spread * (spread > ROUNDING * abs(total.mean))


def c_asc_bound(groups: Groups) -> Array:
    """The largest size that C-ASC can have: 1 / sqrt(p (1 - p)) for a group of share p.

    Parameters
    ----------
    groups : Groups
        The groups of all items.

    Returns
    -------
    array of shape (groups,)
        2 for a group of half the items, more for any other; NaN for a group that is empty or all.

    Examples
    --------
    >>> c_asc_bound(Groups.from_labels(["a", "a", "b", "b"]))
    array([2., 2.])
    """
    p = groups.shares
    return _over(p * 0 + 1.0, (p * (1 - p)) ** 0.5)


def _std(x: Array, ddof: str) -> Array:
    if ddof not in DDOF:
        raise UnknownNameError("ddof", ddof, DDOF)
    n = x.shape[-1]
    centred = x - x.mean(-1)[..., None]
    m2 = (centred * centred).sum(-1)
    if n == DDOF[ddof]:
        return m2 * float("nan")
    spread = (m2 / (n - DDOF[ddof])) ** 0.5
    return spread * (spread > ROUNDING * namespace(x).amax(abs(x), -1))


def _over(top: Array, bottom: Array) -> Array:
    """top / bottom, NaN where bottom is 0."""
    xp = namespace(bottom)
    return xp.where(bottom != 0, top / xp.where(bottom != 0, bottom, 1.0), float("nan"))


def _in_one_space(**vectors: Any) -> list[Array]:
    """Unit vectors in double precision, checked to have the same dimensions."""
    units = {name: unit(x, name) for name, x in vectors.items()}
    sizes = {name: x.shape[1] for name, x in units.items()}
    if len(set(sizes.values())) > 1:
        raise InputError(
            "embeddings must come from one model, but their dimensions differ: "
            + ", ".join(f"{name} has {size}" for name, size in sizes.items())
        )
    return [like(x, x) for x in units.values()]
