"""Permuted labels and bootstrap weights of many images, drawn in compiled loops on all cores.

Each draw has random numbers of its own (xoshiro256++ of Blackman and Vigna 2021), whose state comes
from the generator that is passed in: the draws do not depend on the number of cores.
"""

from __future__ import annotations

import numpy as np

from tiltmeter.metrics.numpy_kernels import in_rows, jit
from tiltmeter.types import Ints

STATE = 4  # words of 64 bits
MOST = 255  # the largest weight


def permuted_rows(labels: Ints, draws: int, rng: np.random.Generator) -> Ints:
    """The labels in `draws` random orders: draws x labels.

    >>> permuted_rows(np.array([0, 0, 1]), 5, np.random.default_rng(0)).sum(axis=1)
    array([1, 1, 1, 1, 1])
    """
    rows, states = np.tile(labels, (draws, 1)), _states(draws, rng)
    in_rows(lambda part: _shuffle(rows[part], states[part]), draws)
    return rows


def resampled_weights(codes: Ints, sizes: Ints, draws: int, rng: np.random.Generator) -> Ints:
    """How often each image is drawn, with replacement within its group: draws x images.

    `codes` are the groups of the images, `sizes` their numbers of images.

    >>> codes = np.array([0, 1, 0])
    >>> resampled_weights(codes, np.array([2, 1]), 9, np.random.default_rng(0)).sum(axis=0)[1]
    np.uint64(9)
    """
    weights, states = np.zeros((draws, len(codes)), np.uint8), _states(draws, rng)
    by_group, sizes = np.argsort(codes, kind="stable"), np.asarray(sizes, np.int64)
    in_rows(lambda part: _resample(by_group, sizes, weights[part], states[part]), draws)
    return weights


def _states(draws: int, rng: np.random.Generator) -> Ints:
    return rng.integers(0, 2**64, (draws, STATE), np.uint64)


@jit
def _shuffle(rows: Ints, states: Ints) -> None:
    """Fisher and Yates, row by row."""
    for row, state in zip(rows, states):  # noqa: B905 (numba knows no `strict`)
        for last in range(len(row) - 1, 0, -1):
            other = _below(last + 1, state)
            row[last], row[other] = row[other], row[last]


@jit
def _resample(by_group: Ints, sizes: Ints, weights: Ints, states: Ints) -> None:
    for row, state in zip(weights, states):  # noqa: B905
        start = 0
        for size in sizes:
            for _ in range(size):
                image = by_group[start + _below(size, state)]
                if row[image] < MOST:
                    row[image] += 1
            start += size


@jit
def _below(count: int, state: Ints) -> int:
    """A random number from 0 to count - 1, all equally likely (Lemire 2019)."""
    bound = np.uint64(count)
    product = (_next(state) >> np.uint64(32)) * bound
    if product & np.uint64(0xFFFFFFFF) < bound:
        least = np.uint64(2**32 - count) % bound
        while product & np.uint64(0xFFFFFFFF) < least:
            product = (_next(state) >> np.uint64(32)) * bound
    return int(product >> np.uint64(32))


@jit
def _next(state: Ints) -> int:
    """The next 64 random bits."""
    total = state[0] + state[3]
    result = ((total << np.uint64(23)) | (total >> np.uint64(41))) + state[0]
    shifted = state[1] << np.uint64(17)
    state[2] ^= state[0]
    state[3] ^= state[1]
    state[1] ^= state[2]
    state[0] ^= state[3]
    state[2] ^= shifted
    state[3] = (state[3] << np.uint64(45)) | (state[3] >> np.uint64(19))
    return result  # type: ignore[no-any-return]
