"""Random draws in compiled loops: the published generator, uniform, the same on any machine."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from tiltmeter.metrics import numpy_kernels
from tiltmeter.stats.random_draws import _below, _next, permuted_rows, resampled_weights


def test_the_generator_gives_the_published_numbers() -> None:
    """xoshiro256++ from the state 1, 2, 3, 4: the reference code of its authors."""
    state = np.array([1, 2, 3, 4], np.uint64)
    found = [int(_next(state)) for _ in range(4)]
    assert found == [41943041, 58720359, 3588806011781223, 3591011842654386]


def test_every_order_is_equally_likely() -> None:
    rows = permuted_rows(np.arange(4, dtype=np.uint8), 48_000, np.random.default_rng(1))
    orders, counts = np.unique(rows, axis=0, return_counts=True)
    assert len(orders) == 24
    assert stats.chisquare(counts).pvalue > 0.001


def test_numbers_below_a_bound_are_equally_likely() -> None:
    state = np.random.default_rng(0).integers(0, 2**64, 4, np.uint64)
    found = np.bincount([_below(7, state) for _ in range(70_000)], minlength=7)
    assert len(found) == 7
    assert stats.chisquare(found).pvalue > 0.001


def test_weights_are_resamples_within_groups() -> None:
    codes, sizes = np.array([0, 1, 0, 1, 1, 0, 2]), np.array([3, 3, 1])
    weights = resampled_weights(codes, sizes, 20_000, np.random.default_rng(0))
    for code, size in enumerate(sizes):
        assert (weights[:, codes == code].sum(axis=1) == size).all()
    # binomial: 3 draws, each image with probability 1/3
    assert weights[:, 0].mean() == pytest.approx(1, abs=0.03)
    assert weights[:, 0].var() == pytest.approx(2 / 3, abs=0.03)
    many = resampled_weights(np.zeros(1, int), np.array([1]), 3, np.random.default_rng(0))
    assert many.tolist() == [[1], [1], [1]]


def test_draws_do_not_depend_on_the_number_of_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = np.random.default_rng(0).integers(0, 3, 50)

    def both() -> list[np.ndarray]:
        rng = np.random.default_rng(5)
        return [
            permuted_rows(codes, 40, rng),
            resampled_weights(codes, np.bincount(codes), 40, rng),
        ]

    several = both()
    monkeypatch.setattr(numpy_kernels, "_limit", 1)
    for one, many in zip(both(), several, strict=True):
        assert (one == many).all()
    assert len(np.unique(several[0], axis=0)) == 40
