"""Every registered debiaser, fitted small, to be audited on one engine and on another.

Embeddings are in double precision: in single precision the products themselves differ in their
last digits, depending on how many images a matrix holds.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import tiltmeter as tm
from tiltmeter.debiasers import DEBIASERS
from tiltmeter.debiasers.debiased import Debiased
from tiltmeter.debiasers.debiaser import ModelEdit, Reranker
from tiltmeter.debiasers.fitting import debias
from tiltmeter.metrics.arrays import to_numpy
from tiltmeter.results import Run
from tiltmeter.testbed.captioned import draw_captioned_scenes
from tiltmeter.testbed.world import World
from tiltmeter.types import Faces, Prompt

FITTED, OTHERS = "testbed:?images=280&seed=3", "testbed:?images=280&seed=4"
WORDS = ("nurse", "clerk", "pilot", "baker", "judge", "sheriff")
#: A few steps of those that are trained.
QUICK: dict[str, dict[str, Any]] = {
    "fairvlp": {"variant": "vanilla", "steps": 1, "batch": 8},
    "prompt-array": {"epochs": 1, "warmup": 1, "block": 1, "batch": 32},
}
#: What the registry has, `pipeline` by two of its parts.
NAMES = ["clip-clip+leace" if name == "pipeline" else name for name in DEBIASERS]
KEY = ("metric", "attribute", "group", "concept", "category", "template", "k")


class Double:
    """A model of the testbed in double precision, with few words of its own."""

    def __init__(self, spec: str) -> None:
        self.under = tm.load_model(spec)
        self.prompts = tuple(
            Prompt(f"a photo of a {word}", word, "a photo of a {}", "work", "word", "noun")
            for word in WORDS
        )

    def encode_texts(self, texts: Any) -> np.ndarray:
        return np.asarray(to_numpy(self.under.encode_texts(texts)), np.float64)

    def encode_images(self, images: Any) -> np.ndarray:
        return np.asarray(to_numpy(self.under.encode_images(images)), np.float64)

    def __getattr__(self, name: str) -> Any:
        if name == "under":
            raise AttributeError(name)
        return getattr(self.under, name)


@cache
def uncorrected(spec: str) -> Double:
    return Double(spec)


@cache
def supplied(model: Any, spec: str) -> Faces:
    """Images with embeddings of the model before it was corrected, as users bring them."""
    faces = tm.load_data(spec)
    return replace(faces, vectors=model.encode_images(faces.images), images=None)


def fitted(name: str) -> tuple[Any, Faces, Faces]:
    """The corrected model, the images that it was fitted on, and others."""
    spec = "testbed:fusion" if name == "fairvlp" else "testbed:dual"
    if name in DEBIASERS and issubclass(DEBIASERS[name], ModelEdit):
        captions = draw_captioned_scenes(World.plant(), 200, np.random.default_rng(0))
        made = debias(name, spec, FITTED, attribute="shape", captions=captions,
                      settings=QUICK[name], device="cpu")  # fmt: skip
        edited = Double(spec)
        edited.under = made
        return edited, tm.load_data(FITTED), tm.load_data(OTHERS)
    model = uncorrected(spec)
    faces = supplied(model, FITTED)
    return debias(name, model, faces, attribute="shape"), faces, supplied(model, OTHERS)


def measured(model: Any, faces: Faces, engine: Any) -> Run:
    return tm.audit(
        model, faces, probes=["ranking"], engine=engine, k=[5, 20], cross=["shape*hue"],
        permutations=200, bootstraps=400,
    )  # fmt: skip


def by_key(run: Run) -> dict[tuple[Any, ...], dict[str, Any]]:
    return {tuple(row[name] for name in KEY): row for row in run.table.to_pylist()}


def check_same(whole: Run, parts: Run) -> None:
    """Point values to 1e-9; nulls, p-values and intervals within Monte Carlo error."""
    here, there = by_key(whole), by_key(parts)
    assert set(here) <= set(there)
    for key, row in here.items():
        other = there[key]
        assert (row["n"], row["n_group"], row["truth"]) == (
            other["n"], other["n_group"], other["truth"]
        )  # fmt: skip
        if row["value"] is None:
            assert other["value"] is None
            continue
        assert other["value"] == pytest.approx(row["value"], abs=1e-9), key
        small = (row["n_group"] or 1000) < 100  # by parts, means are taken for normal
        if row["p"] is not None and key[0] not in ("ndkl", "weat") and not small:
            tail = row["p"] / 2  # a two-sided p is twice the share of one tail
            noise = 2 * np.sqrt(max(tail * (1 - tail), 0.0005) / 200)
            assert abs(row["p"] - other["p"]) < 4 * noise + 0.01, key
        if row["ci_low"] is not None and row["concept"] and key[0] == "skew":
            width = row["ci_high"] - row["ci_low"]
            assert abs(row["ci_low"] - other["ci_low"]) < 0.35 * width + 1e-9, key
    shown, beside = (run.instances["ranking"] for run in (whole, parts))
    assert beside.drop_columns(["score"]).equals(shown.drop_columns(["score"]))
    np.testing.assert_allclose(beside["score"], shown["score"], atol=1e-12)
    counts, others = (run.vectors["counts"].to_pylist() for run in (whole, parts))
    for one, other in zip(counts, others, strict=True):
        assert one["top"] == other["top"]
        assert (one["mean"] is None) == (other["mean"] is None)
        assert one["mean"] is None or other["mean"] == pytest.approx(one["mean"], abs=1e-12)
    assert set(whole.meta) == set(parts.meta)
    assert whole.meta["model"] == parts.meta["model"]
    assert parts.vectors["faces"].equals(whole.vectors["faces"])


def changes_ranking(model: Any) -> bool:
    return isinstance(model, Debiased) and isinstance(model.debiaser, Reranker)
