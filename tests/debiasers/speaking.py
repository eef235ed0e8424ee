"""Encoders of texts for tests of maps that are learned from them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from tiltmeter.debiasers.debiaser import GroupTexts

D = 24


def said(texts: Sequence[str], d: int = D) -> np.ndarray:
    """Unit vectors that hang on the words of a text, and on each two that meet; not on capitals."""
    rows = []
    for text in texts:
        words = text.lower().split()
        row = sum(_vector(word, d) for word in words)
        rows.append(row + sum(0.3 * _vector(f"{a} {b}", d) for a, b in pairwise(words)))
    found = np.stack(rows)
    return found / np.linalg.norm(found, axis=1, keepdims=True)


def _vector(word: str, d: int) -> np.ndarray:
    seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:8], "little")
    return np.random.default_rng(seed).normal(size=d)


NAMING = {
    "g0": ["a photo of a small person", "the small one"],
    "g1": ["a photo of a tall person", "the tall one"],
    "g2": ["a photo of a broad person", "the broad one"],
}
WORDS = {"g0": "small", "g1": "tall", "g2": "broad"}
ALIKE = [
    (f"a photo of a {one} {job}", f"a photo of a {other} {job}")
    for job in ("nurse", "clerk", "pilot", "judge")
    for one, other in (("small", "tall"), ("tall", "broad"), ("small", "broad"))
]


def texts_of(naming=NAMING, **more) -> GroupTexts:
    """Prompts of three groups."""
    return GroupTexts(said, naming, **{"equivalent": ALIKE, "words": WORDS, **more})


def random_unit(n: int, d: int = D, seed: int = 0) -> np.ndarray:
    x = np.random.default_rng(seed).normal(size=(n, d))
    return x / np.linalg.norm(x, axis=1, keepdims=True)
