"""Draws that are made when they are asked for equal those that were made at once."""

from __future__ import annotations

import numpy as np
import pytest

from tiltmeter.probes.ranking.levels import Level, RowUnit
from tiltmeter.probes.ranking.tabulate import drawn_means, means
from tiltmeter.stats import null
from tiltmeter.stats.draws import BootstrapDraws


@pytest.fixture(params=[null.AT_ONCE, 7], ids=["at once", "in parts"], autouse=True)
def at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(null, "AT_ONCE", request.param)


@pytest.fixture
def counts() -> np.ndarray:
    """Prompts x draws x groups."""
    return np.random.default_rng(0).integers(0, 9, (6, 5, 3)).astype(np.uint8)


def spread(counts: np.ndarray) -> np.ndarray:
    return np.log1p(counts.astype(float)).std(axis=-1, keepdims=True)


@pytest.mark.parametrize("prompts", [[0, 1, 2, 3, 4, 5], [2, 3], [4], [5, 0, 3]])
def test_some_prompts_and_some_draws(counts: np.ndarray, prompts: list[int]) -> None:
    whole = spread(counts).swapaxes(0, 1)
    draws = BootstrapDraws(counts, spread)
    np.testing.assert_array_equal(draws.at(np.array(prompts)), whole[:, prompts])
    rows = slice(1, 4)
    np.testing.assert_array_equal(draws.at(np.array(prompts), rows), whole[rows][:, prompts])
    assert (len(draws), draws.prompts) == (5, 6)


def test_neighbours_are_not_copied(counts: np.ndarray) -> None:
    assert np.shares_memory(BootstrapDraws(counts).at(np.array([2, 3, 4])), counts)
    assert not np.shares_memory(BootstrapDraws(counts).at(np.array([2, 4, 3])), counts)


def test_means_of_units(counts: np.ndarray) -> None:
    def unit(prompts: list[int], words: list[int]) -> RowUnit:
        return RowUnit(np.array(prompts), np.array(words), np.arange(len(prompts)))

    values = np.where(counts == 8, np.nan, counts)
    assert np.isnan(values).any()
    level = Level([unit([0, 1, 2], [0, 0, 1]), unit([5, 3], [2, 3]), unit([4], [4])])
    expected = means(values.swapaxes(0, 1), level)
    np.testing.assert_array_equal(drawn_means(BootstrapDraws(values), level), expected)
    undefined = [np.isnan(values[unit.prompts, 0]).sum(axis=0) for unit in level]
    np.testing.assert_array_equal(level.undefined(values[:, 0]), undefined)
    singles = Level([unit([4], [0]), unit([1], [1])])
    np.testing.assert_array_equal(
        drawn_means(BootstrapDraws(values), singles), values.swapaxes(0, 1)[:, [4, 1]]
    )


def test_means_of_categories_from_those_of_words() -> None:
    draws = BootstrapDraws(np.random.default_rng(0).normal(size=(6, 700, 3)))

    def unit(words: list[int]) -> RowUnit:  # every word in two templates
        prompts = [prompt for word in words for prompt in (2 * word, 2 * word + 1)]
        return RowUnit(np.array(prompts), np.repeat(words, 2), np.tile([0, 1], len(words)))

    of_words = drawn_means(draws, Level([unit([0]), unit([1]), unit([2])]))
    categories = Level([unit([0, 2]), unit([1]), unit([0, 1, 2])])
    found = drawn_means(draws, categories, of_words)
    np.testing.assert_allclose(found, drawn_means(draws, categories), rtol=1e-12)
    np.testing.assert_allclose(found[:, 1], of_words[:, 1], rtol=1e-12)
