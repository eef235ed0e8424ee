"""Transport: groups that differ one way here and the other way there, carried onto each other."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import sqrtm

pytest.importorskip("sklearn")

from tests.debiasers.making import planted
from tiltmeter.debiasers.leace import Leace
from tiltmeter.debiasers.transport import FEWEST, Transport, barycentre_maps
from tiltmeter.errors import InputError
from tiltmeter.metrics.ranking import max_skew
from tiltmeter.types import Groups

PLACES, D = 4, 12


def crossed(n: int = 2400, seed: int = 0) -> tuple[np.ndarray, Groups, np.ndarray]:
    """Unit vectors of two groups at four places: which group is ahead, and wider, turns with them.

    The axis after those of the places tells the group, two more lean with place and group.
    """
    rng = np.random.default_rng(seed)
    place, group = rng.permutation(np.arange(n) % PLACES), rng.integers(0, 2, n)
    side = 2.0 * group - 1
    turn = np.where(place % 2 == 0, 1, -1) * side
    x = 0.3 * rng.normal(size=(n, D))
    x[:, PLACES + 1] *= 1 + 0.5 * turn
    x[np.arange(n), place] += 4
    x[:, PLACES] += 2 * side
    x[:, PLACES + 1] += 0.5 * turn
    names = Groups(group, ("a", "b"), "kind")
    return x / np.linalg.norm(x, axis=1, keepdims=True), names, place


def queries() -> np.ndarray:
    """One a place, each of which likes what leans there."""
    found = np.zeros((PLACES, D))
    found[np.arange(PLACES), np.arange(PLACES)] = 1
    found[:, PLACES + 1] = 1
    return found


def skew(images: np.ndarray, groups: Groups) -> float:
    """Mean MaxSkew@100 over the queries."""
    found = max_skew(queries() @ images.T, groups, k=100, target="prior", empty="bounded",
                     ties="expected")  # fmt: skip
    return float(found.mean())


def covariances(count: int, d: int = 5) -> list[np.ndarray]:
    rng = np.random.default_rng(count)
    return [m @ m.T / d + 0.1 * np.eye(d) for m in rng.normal(size=(count, d, d))]


def distance(a: np.ndarray, b: np.ndarray) -> float:
    """The squared Wasserstein distance of two centred normals, with scipy's own root."""
    root = np.real(sqrtm(a))
    return float(np.trace(a + b - 2 * np.real(sqrtm(root @ b @ root))))


@pytest.mark.parametrize("count", [2, 3, 7])
def test_all_are_carried_to_one_covariance(count: int) -> None:
    some = covariances(count)
    shares = np.arange(1.0, count + 1) / np.arange(1.0, count + 1).sum()
    maps = barycentre_maps(some, shares)
    after = [a @ c @ a for a, c in zip(maps, some, strict=True)]
    assert np.ptp(some, axis=0).max() > 0.3  # they differed
    assert np.ptp(after, axis=0).max() < 1e-6
    # each is the gradient of a convex function: no other map to that normal moves less (Brenier)
    assert np.abs(maps - maps.transpose(0, 2, 1)).max() < 1e-9
    assert np.linalg.eigvalsh(maps).min() > 0
    # and their weighted mean is the identity: the barycentre's own equation
    there = np.einsum("g,gij->ij", shares, np.linalg.inv(maps))
    assert np.abs(there - np.eye(5)).max() < 1e-6


def test_two_meet_on_the_line_between_them() -> None:
    """The closed form for two, by scipy's root: a share of the way from one to the other."""
    first, second = covariances(2)
    root = np.real(sqrtm(first))
    inverse = np.linalg.inv(root)
    whole = inverse @ np.real(sqrtm(root @ second @ root)) @ inverse
    maps = barycentre_maps([first, second], np.array([0.7, 0.3]))
    assert np.abs(maps[0] - (0.7 * np.eye(5) + 0.3 * whole)).max() < 1e-6


def test_no_other_meeting_place_is_nearer() -> None:
    some, shares = covariances(3), np.array([0.5, 0.3, 0.2])
    maps = barycentre_maps(some, shares)
    there = maps[0] @ some[0] @ maps[0]

    def moved(place: np.ndarray) -> float:
        return sum(s * distance(c, place) for s, c in zip(shares, some, strict=True))

    least = moved(there)
    # how far the maps go is that distance
    gone = [
        np.trace((a - np.eye(5)) @ c @ (a - np.eye(5))) for a, c in zip(maps, some, strict=True)
    ]
    assert shares @ gone == pytest.approx(least, rel=1e-6)
    rng = np.random.default_rng(1)
    for _ in range(20):
        turn = np.eye(5) + 0.05 * rng.normal(size=(5, 5))
        assert moved(turn @ there @ turn.T) > least
    assert moved(sum(s * c for s, c in zip(shares, some, strict=True))) > least * 1.01


def test_within_each_cluster_means_and_covariances_become_equal() -> None:
    """On the fitted rows, with their labels, and before vectors are made unit again."""
    x, groups, _ = crossed()
    made = Transport(shrink=0.0).fit(x, groups)
    y = made.erase(x)
    near = ((y[:, None] - made.centres_) ** 2).sum(axis=2).argmin(axis=1)
    after = made.carry(y, np.eye(2)[groups.codes])
    for at in range(PLACES):
        gaps = []
        for rows in (y, after):
            a, b = (rows[(near == at) & (groups.codes == g)] for g in (0, 1))
            gaps.append((np.abs(a.mean(0) - b.mean(0)).max(),
                         np.abs(np.cov(a.T, ddof=0) - np.cov(b.T, ddof=0)).max()))  # fmt: skip
        assert gaps[0][0] > 0.05
        assert gaps[0][1] > 0.002
        assert gaps[1][0] < 1e-10
        assert gaps[1][1] < 1e-7


def test_tops_become_even_on_rows_it_has_not_seen_and_without_their_labels() -> None:
    x, groups, _ = crossed(6000)
    others, own, _ = crossed(seed=1)
    leace = Leace().fit(x, groups).transform(others)
    means_alone = Transport(shrink=1.0).fit(x, groups).transform(others)
    after = Transport(shrink=0.001).fit(x, groups).transform(others)
    rng = np.random.default_rng(2)
    null = [skew(after, Groups(rng.permutation(own.codes), own.names)) for _ in range(200)]
    top = float(np.quantile(null, 0.975))
    assert skew(others, own) > 3 * top  # it was there
    assert skew(leace, own) > 3 * top  # equal means are not equal tops
    assert skew(means_alone, own) > 1.2 * top  # nor are equal means at every place
    assert skew(after, own) <= top


def test_clusters_hold_every_group() -> None:
    x, groups, place = crossed()
    made = Transport().fit(x, groups)
    y = made.erase(x)
    near = ((y[:, None] - made.centres_) ** 2).sum(axis=2).argmin(axis=1)
    # as many as there are places: more of them would part the groups
    assert len(made.centres_) == PLACES
    assert len({*zip(near.tolist(), place.tolist(), strict=True)}) == PLACES
    assert len(Transport(clusters=1).fit(x, groups).centres_) == 1
    few, theirs, _ = crossed(4 * FEWEST)
    assert len(Transport().fit(few, theirs).centres_) < PLACES


def test_the_probe_tells_the_groups() -> None:
    x, groups = planted(lean=3.0)
    likely = Transport().fit(x, groups)._group_weights(x)
    assert np.allclose(likely.sum(axis=1), 1)
    assert (likely.argmax(axis=1) == groups.codes).mean() > 0.95
    pair = Groups(np.minimum(groups.codes, 1), ("a", "b"))
    likely = Transport().fit(x, pair)._group_weights(x)
    assert (likely.argmax(axis=1) == pair.codes).mean() > 0.95


def test_means_alone_are_carried_at_full_shrinkage() -> None:
    x, groups, _ = crossed()
    made = Transport(shrink=1.0).fit(x, groups)
    assert np.abs(made.maps_ - np.eye(D)).max() < 1e-9
    assert np.abs(Transport(shrink=0.1).fit(x, groups).maps_ - np.eye(D)).max() > 0.05


def test_labels_that_say_nothing_change_nothing() -> None:
    x, _ = planted()
    both = np.r_[x, x]  # each vector once in either group
    groups = Groups(np.repeat([0, 1], len(x)), ("a", "b"))
    assert np.abs(Transport().fit(both, groups).transform(both) - both).max() < 1e-6


def test_a_group_that_no_row_has_is_left_out() -> None:
    x, groups = planted()
    named = Groups(groups.codes, (*groups.names, "nobody"), "kind")
    # an empty column changes how the decomposition rounds, and nothing else
    np.testing.assert_allclose(
        Transport().fit(x, named).transform(x), Transport().fit(x, groups).transform(x), atol=1e-12
    )


def test_same_seed_same_vectors() -> None:
    x, groups, _ = crossed()
    first, second = (Transport(seed=3).fit(x, groups).transform(x) for _ in range(2))
    assert np.array_equal(first, second)


def test_what_it_refuses() -> None:
    x, groups = planted()
    with pytest.raises(InputError, match="clusters must be 1 or more; got 0"):
        Transport(clusters=0).fit(x, groups)
    with pytest.raises(InputError, match="from 0 to 1; got 2"):
        Transport(shrink=2).fit(x, groups)
    with pytest.raises(InputError, match="one group of 'kind'"):
        Transport().fit(x, Groups(np.zeros(len(x), int), groups.names, "kind"))
    with pytest.raises(InputError, match="call fit first"):
        Transport().transform(x)
    with pytest.raises(InputError, match="fitted on 24 dimensions; X has 5"):
        Transport().fit(x, groups).transform(x[:, :5])
