"""The closed form of Lian et al. (2026): bias and utility are reduced in the same proportion.

A unit vector e has a part in the attribute's subspace, of length a, and one outside, of length o.
Turned towards the latter until alpha is left of a, it loses 1 - cos(e, u) of itself, at most 1 - o.
The map stops where both shares are equal: (1 - cos(e, u)) / (1 - o) = alpha / a.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiltmeter.debiasers.debiaser import GroupTexts
from tiltmeter.debiasers.subspace import NOTHING, TextMap, basis, group_differences, like_vectors
from tiltmeter.metrics.arrays import namespace, unit
from tiltmeter.types import Array, Floats


@dataclass(eq=False)
class ClosedForm(TextMap):
    """Closed form (Lian et al. 2026): turns vectors off the groups' differences, half way.

    The subspace is that of differences of the groups' prompts, as in `difference`. A vector without
    any part in the subspace, or with no part outside of it, is unchanged.

    Parameters
    ----------
    towers
        Embeddings to change: `texts`, `images` or `both`.
    rank
        Number of directions of the subspace, the largest first; None: all.

    Attributes
    ----------
    basis_ : array of shape (rank, n_dimensions)
        The subspace.
    """

    towers: str = "both"
    rank: int | None = None

    def _fit(self, texts: GroupTexts) -> None:
        self.basis_: Floats = basis(group_differences(texts), self.rank)

    def _transform(self, X: Array) -> Array:
        return turn_off(X, self.basis_) if len(self.basis_) else X


def turn_off(X: Array, directions: Floats) -> Array:
    """Return unit vectors turned off the directions until both losses are equal."""
    xp = namespace(X)
    b = like_vectors(directions, X)
    e = unit(X)
    inside = (e @ b.T) @ b
    outside = e - inside
    a2, o2 = ((part * part).sum(-1) for part in (inside, outside))
    stays = (a2 == 0) | (o2 <= NOTHING**2)
    o = xp.sqrt(xp.where(stays, xp.ones_like(o2), o2))
    share = share_left(o)
    longer = xp.sqrt(1 - share * share * a2) / o
    moved = longer[:, None] * outside + share[:, None] * inside
    return xp.where(stays[:, None], X, unit(xp.where(stays[:, None], e, moved)))


def share_left(o: Array) -> Array:
    """Return alpha / a for a vector whose part outside has length o.

    alpha = (E - o sqrt(E^2 - a^2)) / (E^2 + o^2) with E = a + (1 - o) / a. Since a^2 = 1 - o^2, E
    is a k with k = 1 + 1 / (1 + o), and alpha / a = 1 / (k + o sqrt(k^2 - 1)): no division by a.
    """
    xp = namespace(o)
    k = 1 + 1 / (1 + o)
    return 1 / (k + o * xp.sqrt(k * k - 1))
