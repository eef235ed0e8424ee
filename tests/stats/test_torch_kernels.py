"""The same draws from tensors as from NumPy arrays."""

from __future__ import annotations

import numpy as np
import pytest

from tiltmeter.metrics import numpy_kernels
from tiltmeter.metrics.summary import TopItems
from tiltmeter.stats import kernels
from tiltmeter.stats.bootstrap import bootstrap_weights_within_groups
from tiltmeter.types import Groups

torch = pytest.importorskip("torch")
on_tensors = pytest.importorskip("tiltmeter.stats.torch_kernels")
ITEMS, QUERIES, DRAWS = 300, 5, 6


@pytest.fixture(scope="module")
def given() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    groups = Groups(rng.permutation(np.repeat(np.arange(3), [150, 100, 50])), tuple("abc"))
    scores = rng.normal(size=(QUERIES, ITEMS)).astype(np.float32)
    scores[0] = 0.25  # no spread
    weights = bootstrap_weights_within_groups(groups, DRAWS, rng)
    heavy = np.flatnonzero(groups.codes == 0)
    weights[0, heavy], weights[0, heavy[0]] = 0, len(heavy)  # one item, many times
    return {
        "scores": scores,
        "order": numpy_kernels.rank(scores),
        "codes": groups.codes,
        "labels": rng.integers(0, 6, (DRAWS, ITEMS)).astype(np.uint8),
        "of": np.array([0, 2, 1, 0, 2, 2]),
        "weights": weights,
        "shares": np.array([0.5, 0.2, 0.3]),
    }


def tensors(given: dict[str, np.ndarray]) -> dict[str, object]:
    kinds = {"order": np.int64, "codes": np.int64}
    return {
        name: one if name == "shares" else torch.as_tensor(one.astype(kinds.get(name, one.dtype)))
        for name, one in given.items()
    }


@pytest.fixture(params=[2**27, 1000], ids=["at once", "in parts"], autouse=True)
def numbers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_tensors, "NUMBERS", request.param)


def test_sums(given: dict[str, np.ndarray]) -> None:
    x, t = given, tensors(given)
    z = kernels.standardized(x["scores"])
    zt = on_tensors.standardized(t["scores"])
    np.testing.assert_allclose(zt.numpy(), z, rtol=1e-5, atol=1e-6)
    assert np.isnan(z[:, 0]).all()
    assert not np.isnan(z[:, 1:]).any()
    np.testing.assert_allclose(
        on_tensors.relabelled_sums(zt, t["labels"], 3, t["of"]),
        kernels.relabelled_sums(z, x["labels"], 3, x["of"]),
        atol=1e-4,
    )
    np.testing.assert_allclose(
        on_tensors.weighted_sums(zt, t["codes"], t["weights"], 3),
        kernels.weighted_sums(z, x["codes"], x["weights"], 3),
        rtol=1e-4,
        atol=1e-3,
    )
    np.testing.assert_allclose(
        on_tensors.weighted_squares(zt, t["weights"]),
        kernels.weighted_squares(z, x["weights"]),
        rtol=1e-4,
        atol=1e-3,
    )


def test_top_counts(given: dict[str, np.ndarray]) -> None:
    x, t = given, tensors(given)
    found = on_tensors.relabelled_top_counts(t["order"][:, :60], t["labels"], (20, 60), 3, t["of"])
    expected = kernels.relabelled_top_counts(x["order"], x["labels"], (20, 60), 3, x["of"])
    np.testing.assert_array_equal(found, expected)
    for k in (5, 60, 290):  # a top k of two or three items, and nearly all of them
        np.testing.assert_array_equal(
            on_tensors.weighted_top_counts(t["order"], t["codes"], t["weights"], k, 3),
            kernels.weighted_top_counts(x["order"], x["codes"], x["weights"], k, 3),
        )


def test_ndkl(given: dict[str, np.ndarray]) -> None:
    x, t = given, tensors(given)
    np.testing.assert_allclose(
        on_tensors.relabelled_ndkl(t["order"], t["labels"], x["shares"], t["of"]),
        kernels.relabelled_ndkl(x["order"], x["labels"], x["shares"], x["of"]),
        atol=1e-12,
    )
    np.testing.assert_allclose(
        on_tensors.weighted_ndkl(t["order"], t["codes"], t["weights"], x["shares"]),
        kernels.weighted_ndkl(x["order"], x["codes"], x["weights"], x["shares"]),
        atol=1e-12,
    )


@pytest.mark.parametrize("ties", ["stable", "expected"])
def test_counts_of_known_rankings(given: dict[str, np.ndarray], ties: str) -> None:
    scores = given["scores"].round(1)  # ties everywhere
    order, groups = numpy_kernels.rank(scores), Groups(given["codes"], ("a", "b", "c"))
    assert numpy_kernels.tied_ranks(scores, order).min() > 0.5
    here = TopItems.of(scores, groups, ITEMS, order=order)
    there = TopItems.of(
        torch.as_tensor(scores), groups, ITEMS, order=torch.as_tensor(order.astype(np.int64))
    )
    for k in (1, 40, ITEMS):
        np.testing.assert_allclose(there.counts(k, ties), here.counts(k, ties), atol=1e-12)
