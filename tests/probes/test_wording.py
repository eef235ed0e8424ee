"""Variance shares find the factor that was planted."""

from __future__ import annotations

import numpy as np
import pytest

import tiltmeter as tm
from tiltmeter.models.embeddings import StoredTexts
from tiltmeter.types import Faces, Groups, Prompt

WORDS, TEMPLATES, IMAGES = 8, 4, 600


def shares(by_word: float, by_template: float, by_both: float) -> dict[str, dict]:
    """An audit whose texts lean to one group by word, by template, or by the pair of them."""
    rng = np.random.default_rng(0)
    codes = np.arange(IMAGES) % 2
    images = rng.normal(size=(IMAGES, 40))
    images[:, 0] = 2.0 * codes - 1
    lean = (
        by_word * rng.normal(size=(WORDS, 1))
        + by_template * rng.normal(size=TEMPLATES)
        + by_both * rng.normal(size=(WORDS, TEMPLATES))
    )
    texts = rng.normal(size=(WORDS * TEMPLATES, 40)) * 0.3
    texts[:, 0] = lean.ravel()
    prompts = [
        Prompt(f"text {word} {template}", f"word {word}", f"template {template}", pos="noun")
        for word in range(WORDS)
        for template in range(TEMPLATES)
    ]
    faces = Faces(
        tuple(f"{row}" for row in range(IMAGES)), {"side": Groups(codes, ("a", "b"), "side")},
        vectors=images,
    )  # fmt: skip
    run = tm.audit(
        StoredTexts("planted", prompts, texts), faces, k=[50], permutations=0, bootstraps=60
    )
    rows = run.where(metric="c_asc", group="b", experiment="noun")
    return {row["factor"]: row for row in rows if row["factor"]}


@pytest.mark.parametrize(
    ("planted", "factor"),
    [((1.5, 0, 0), "word"), ((0, 1.5, 0), "template"), ((0, 0, 1.5), "interaction")],
)
def test_the_planted_factor_has_the_largest_share(planted: tuple[float, ...], factor: str) -> None:
    found = shares(*planted)
    assert sum(row["value"] for row in found.values()) == pytest.approx(1)
    assert max(found, key=lambda name: found[name]["value"]) == factor
    assert found[factor]["ci_low"] <= found[factor]["value"] <= found[factor]["ci_high"]
    assert found[factor]["n"] == WORDS


def test_without_any_lean_the_images_decide() -> None:
    found = shares(0, 0, 0)
    assert found["image"]["value"] > 0.2
