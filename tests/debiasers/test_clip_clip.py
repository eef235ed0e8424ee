"""CLIP-clip: its estimate of mutual information, and what is cut off."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import digamma

from tests.debiasers.making import planted
from tiltmeter.debiasers.clip_clip import ClipClip, mutual_information
from tiltmeter.errors import InputError


def slow_information(x: np.ndarray, labels: np.ndarray, k: int) -> float:
    """Ross (2014), point by point."""
    n = len(x)
    terms = []
    for i in range(n):
        same = np.flatnonzero(labels == labels[i])
        near = min(k, len(same) - 1)
        radius = np.sort(np.abs(x[same] - x[i]))[near]  # the first is the point itself
        m = int((np.abs(x - x[i]) < radius).sum())
        terms.append(digamma(near) - digamma(len(same)) - digamma(m))
    return max(0.0, float(digamma(n) + np.mean(terms)))


def test_mutual_information_is_that_of_the_slow_way() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 80)
    x = rng.normal(size=(80, 4)) + np.array([0, 0.5, 1, 3]) * labels[:, None]
    found = mutual_information(x, labels)
    expected = [slow_information(x[:, at], labels, 3) for at in range(4)]
    assert np.abs(found - expected).max() < 1e-12
    assert (np.diff(found[1:]) > 0).all()


def test_mutual_information_of_two_normals() -> None:
    """Half and half, means 2 apart, variance 1: 0.337 nats, by numerical integration."""
    grid = np.linspace(-9, 9, 20_001)
    a, b = (np.exp(-((grid - m) ** 2) / 2) / (2 * np.pi) ** 0.5 for m in (-1, 1))
    mixed = (a + b) / 2
    parts = (np.where(p > 0, p * np.log(np.maximum(p, 1e-300) / mixed), 0).sum() for p in (a, b))
    truth = sum(parts) / 2 * (grid[1] - grid[0])
    rng = np.random.default_rng(1)
    labels = np.arange(6000) % 2
    x = rng.normal(size=6000) + 2 * labels - 1
    assert truth == pytest.approx(0.337, abs=1e-3)
    assert mutual_information(x[:, None], labels)[0] == pytest.approx(truth, abs=0.03)


def test_a_label_that_occurs_once_is_left_out() -> None:
    rng = np.random.default_rng(2)
    x, labels = rng.normal(size=(41, 2)), np.r_[np.arange(40) % 2, 2]
    assert np.allclose(mutual_information(x, labels), mutual_information(x[:-1], labels[:-1]))


def test_keeping_all_changes_nothing() -> None:
    x, groups = planted()
    assert ClipClip(keep=24).fit(x, groups).transform(x) is x


def test_the_dimension_that_tells_goes_first() -> None:
    rng = np.random.default_rng(3)
    x, groups = planted(lean=0.0)
    x = x + 0.0
    x[:, 5] += 0.3 * groups.codes + 0.01 * rng.normal(size=len(x))
    fitted = ClipClip(keep=23).fit(x, groups)
    assert set(range(24)) - set(fitted.kept_.tolist()) == {5}
    assert fitted.transform(x).shape == (600, 23)
    assert np.allclose(np.linalg.norm(fitted.transform(x), axis=1), 1)
    # one map for both towers, so that scores are products of what both kept
    texts = rng.normal(size=(3, 24))
    assert np.allclose(
        fitted.map_texts(texts, ["a", "b", "c"], lambda some: texts), fitted.transform(texts)
    )


def test_keep_is_a_number_or_a_share() -> None:
    x, groups = planted()
    assert len(ClipClip(keep=0.5).fit(x, groups).kept_) == 12
    for wrong in (0, 25, -1):
        with pytest.raises(InputError, match="a number from 1 to 24"):
            ClipClip(keep=wrong).fit(x, groups)
    with pytest.raises(InputError, match="fitted on 24 dimensions; X has 3"):
        ClipClip(keep=12).fit(x, groups).transform(x[:, :3])
