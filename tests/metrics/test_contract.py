"""One contract for every registered metric: documented, and the same on NumPy and torch."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

from tiltmeter import metrics
from tiltmeter.metrics import METRICS
from tiltmeter.types import Groups

torch = pytest.importorskip("torch")

RNG = np.random.default_rng(7)
CODES = RNG.integers(0, 5, 60)
#: A valid value for every parameter that a metric may have, by its name.
INPUTS = {
    "scores": RNG.integers(0, 20, (4, 60)).astype(np.float32),
    "groups": Groups(CODES, ("a", "b", "c", "d", "e", "nobody")),
    "neutral": RNG.integers(0, 20, (7, 60)).astype(np.float32),
    "k": 17,
    "target": "prior",
    "empty": "bounded",
    "ties": "expected",
    "w": RNG.normal(size=(4, 6)),
    "x": RNG.normal(size=(4, 6)),
    "y": RNG.normal(size=(4, 6)),
    "a": RNG.normal(size=(3, 6)),
    "b": RNG.normal(size=(2, 6)),
    "outcomes": RNG.integers(0, 2, 60).astype(float),
    "rates": RNG.uniform(size=5),
    "anti": RNG.integers(0, 2, 12).astype(bool),
    "before": RNG.normal(size=(5, 2)),
    "after": RNG.normal(size=(5, 2)),
    "captions": RNG.normal(size=(5, 2)),
    "neutral_captions": RNG.normal(size=(5, 2)),
    "image": RNG.normal(size=(5, 2)),
    "neutral_image": RNG.normal(size=(5, 2)),
    "target_factual": RNG.uniform(size=9),
    "target_counterfactual": RNG.uniform(size=9),
    "bias_factual": RNG.uniform(size=9),
    "bias_counterfactual": RNG.uniform(size=9),
    "bias": np.where(RNG.uniform(size=9) < 0.3, np.nan, RNG.normal(size=9)),
    "has_first": RNG.integers(0, 2, 9).astype(bool),
}
SPECIAL = {
    "spearman": {"x": RNG.integers(0, 9, 60).astype(float), "y": RNG.normal(size=60)},
    **{
        name: {"scores": RNG.integers(0, 3, (12, 3)).astype(float)}
        for name in ("vlrs", "vlbs", "ivlas")
    },
}
#: More ways to call a metric that the same contract holds for.
VARIANTS = {
    "max_skew": [{"absolute": True}, {"empty": "epsilon"}, {"empty": "nan", "ties": "stable"}],
    "skew": [{"empty": "floor", "target": "uniform"}, {"empty": "drop", "ties": "stable"}],
    "ndkl": [{"k": None}, {"target": "uniform"}, {"k": 60}],
    "weat": [{"ddof": "wefe"}],
    "lift": [{"estimator": "odds"}],
    "composition": [{"ties": "stable"}],
    "spearman": [{"groups": None}],
}
CASES = [(name, change) for name in METRICS for change in ({}, *VARIANTS.get(name, ()))]


def arguments(name: str, change: dict) -> dict:
    signature = inspect.signature(METRICS[name])
    known = INPUTS | SPECIAL.get(name, {}) | change
    return {p: known[p] for p in signature.parameters if p in known}


def as_torch(value: object) -> object:
    return torch.as_tensor(value) if isinstance(value, np.ndarray) else value


@pytest.mark.parametrize(("name", "change"), CASES)
def test_torch_gives_the_same_numbers_as_numpy_in_its_own_kind(name: str, change: dict) -> None:
    given = arguments(name, change)
    on_numpy = METRICS[name](**given)
    on_torch = METRICS[name](**{p: as_torch(value) for p, value in given.items()})
    assert isinstance(on_numpy, np.ndarray | np.floating)
    assert isinstance(on_torch, torch.Tensor)
    np.testing.assert_allclose(on_torch.numpy(), on_numpy, atol=1e-9)


@pytest.mark.parametrize("name", [name for name in metrics.__all__ if name != "METRICS"])
def test_public_functions_are_documented_with_an_example(name: str) -> None:
    doc = getattr(metrics, name).__doc__
    assert len(doc.partition("\n")[0]) > 30
    for section in ("Parameters", "Returns", "Examples"):
        assert f"{section}\n    {'-' * len(section)}\n" in doc
    assert f"{name}(" in doc.partition(">>>")[2]


@pytest.mark.parametrize("name", METRICS)
def test_metrics_are_attributes_of_the_package(name: str) -> None:
    assert getattr(metrics, name) is METRICS[name]


@pytest.mark.parametrize("name", METRICS)
def test_inputs_are_left_as_they_were(name: str) -> None:
    given = arguments(name, {})
    before = {p: value.copy() for p, value in given.items() if isinstance(value, np.ndarray)}
    METRICS[name](**given)
    for p, value in before.items():
        np.testing.assert_array_equal(given[p], value)


@pytest.mark.parametrize(
    "name", [n for n in METRICS if "groups" in inspect.signature(METRICS[n]).parameters]
)
def test_groups_may_be_plain_codes_or_a_tensor_of_them(name: str) -> None:
    given = arguments(name, {})
    given["groups"] = Groups(CODES, tuple("abcde"))
    by_groups = METRICS[name](**given)
    for codes in (CODES, CODES.tolist(), torch.as_tensor(CODES)):
        np.testing.assert_array_equal(METRICS[name](**given | {"groups": codes}), by_groups)


def test_all_names_exist() -> None:
    for name in metrics.__all__:
        assert getattr(metrics, name) is not None
    with pytest.raises(AttributeError, match="max_skw"):
        metrics.max_skw  # noqa: B018
