"""Small runs for the gate: a model that reads texts from a table, and images with known groups."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

import tiltmeter as tm
from tiltmeter.results import Run
from tiltmeter.types import Faces, Groups, Prompt

IMAGES, WORDS, NEUTRAL, SIZE = 240, 8, 40, 12


class Speaks:
    """A dual encoder of listed texts."""

    def __init__(self, vectors: dict[str, Any], scale: float, name: str = "speaks") -> None:
        self.vectors, self.logit_scale, self.name = vectors, scale, name
        self.prompts = prompts()

    def encode_texts(self, texts: Sequence[str]) -> Any:
        other = np.ones(SIZE)  # of texts that name a group
        return np.array([self.vectors.get(text, other) for text in texts])


def prompts() -> list[Prompt]:
    word = [Prompt(f"a thing {w}", f"thing {w}", "a {}", "things", pos="adjective")
            for w in range(WORDS)]  # fmt: skip
    neutral = [Prompt(f"a plain {w}", f"plain {w}", "a {}", "plain", "placebo", "adjective")
               for w in range(NEUTRAL)]  # fmt: skip
    return word + neutral


def planted(
    *, lean: float = 0.4, age: float = 0.8, neutral: float = 0.0, scale: float = 20.0,
    shift: int = 0, size: float = 1.0, images: int = IMAGES,
) -> tuple[Speaks, Faces]:  # fmt: skip
    """A model whose words lean by gender and by age, and whose neutral words lean by gender.

    `shift` takes other images, `size` spreads what images have beside their groups.
    """
    rng = np.random.default_rng(0)
    texts = rng.normal(size=(WORDS + NEUTRAL, SIZE))
    signs = np.where(np.arange(len(texts)) % 2, 1.0, -1.0)
    texts[:, 0] = signs * np.where(np.arange(len(texts)) < WORDS, lean, neutral)
    texts[:, 1] = signs[::-1] * np.where(np.arange(len(texts)) < WORDS, age, 0.0)
    texts[:, 2] = 10.0  # length: what texts share changes no ranking
    drawn = np.random.default_rng([1, shift])
    gender, old = np.arange(images) % 2, np.arange(images) // 2 % 2
    vectors = 0.3 * size * drawn.normal(size=(images, SIZE))
    vectors[:, 0] += gender - 0.5
    vectors[:, 1] += old - 0.5
    vectors[:, 2] = 3.0
    groups = {
        "gender": Groups(gender, ("man", "woman"), "gender"),
        "age": Groups(old, ("young", "old"), "age"),
    }
    ids = tuple(f"{shift}-{row}" for row in range(images))
    faces = Faces(ids, groups, vectors=vectors.astype(np.float32), name="planted")
    return Speaks({p.text: t for p, t in zip(prompts(), texts, strict=True)}, scale), faces


@cache
def audited(*, probes: tuple[str, ...] = ("lift", "ranking"), bootstraps: int = 0,
            **how: float) -> Run:  # fmt: skip
    """An audit of such a model."""
    model, faces = planted(**how)
    return tm.audit(
        model, faces, probes=list(probes), k=[20], permutations=0,
        bootstraps=bootstraps, options={"lift": {"splits": 0}} if "lift" in probes else {},
    )  # fmt: skip
