"""The closed form of Lian et al. (2026): bias and utility give way in the same proportion.

A unit vector e has a part in the attribute's subspace, of length a, and one outside, of length o.
Turned towards the latter until alpha is left of a, it loses 1 - cos(e, u) of itself, at most 1 - o.
The map stops where both shares are equal: (1 - cos(e, u)) / (1 - o) = alpha / a.
"""

from __future__ import annotations

from tiltmeter.debiasers.debiaser import GroupTexts
from tiltmeter.debiasers.subspace import NOTHING, TextMap, basis, differences, matched
from tiltmeter.metrics.arrays import namespace, unit
from tiltmeter.types import Array, Floats


class ClosedForm(TextMap):
    """Closed form (Lian et al. 2026): turns vectors off the groups' differences, half way.

    The subspace is that of differences of the groups' prompts, as in `difference`; both towers are
    turned. A vector without any part in it stays as it is, and so does one with nothing else.
    """

    def __init__(self, towers: str = "both", rank: int | None = None) -> None:
        self.towers = towers
        self.rank = rank

    def learn(self, texts: GroupTexts) -> None:
        self.basis_: Floats = basis(differences(texts), self.rank)

    def map(self, vectors: Array) -> Array:
        self.check_fitted()
        return turned(vectors, self.basis_) if len(self.basis_) else vectors


def turned(vectors: Array, directions: Floats) -> Array:
    """Unit vectors turned off the directions until both losses are equal."""
    xp = namespace(vectors)
    b = matched(directions, vectors)
    e = unit(vectors)
    inside = (e @ b.T) @ b
    outside = e - inside
    a2, o2 = ((part * part).sum(-1) for part in (inside, outside))
    stays = (a2 == 0) | (o2 <= NOTHING**2)
    o = xp.sqrt(xp.where(stays, xp.ones_like(o2), o2))
    share = share_left(o)
    longer = xp.sqrt(1 - share * share * a2) / o
    moved = longer[:, None] * outside + share[:, None] * inside
    return xp.where(stays[:, None], vectors, unit(xp.where(stays[:, None], e, moved)))


def share_left(o: Array) -> Array:
    """alpha / a for a vector whose part outside has length o.

    alpha = (E - o sqrt(E^2 - a^2)) / (E^2 + o^2) with E = a + (1 - o) / a. Since a^2 = 1 - o^2, E
    is a k with k = 1 + 1 / (1 + o), and alpha / a = 1 / (k + o sqrt(k^2 - 1)): no a is divided by.
    """
    xp = namespace(o)
    k = 1 + 1 / (1 + o)
    return 1 / (k + o * xp.sqrt(k * k - 1))
