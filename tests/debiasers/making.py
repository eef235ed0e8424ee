"""Unit vectors with a planted attribute, and debiasers of each kind that are not registered."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tiltmeter.debiasers.debiaser import GroupTexts, Reranker, VectorMap
from tiltmeter.types import Groups


def planted(
    n: int = 600, d: int = 24, groups: int = 3, lean: float = 1.0, seed: int = 0
) -> tuple[np.ndarray, Groups]:
    """Correlated vectors, each moved along a direction of its group, made unit."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, groups, n)
    mixed = rng.normal(size=(n, d)) @ rng.normal(size=(d, d)) / d**0.5 + 0.5
    x = mixed + lean * rng.normal(size=(groups, d))[codes]
    names = tuple(f"g{at}" for at in range(groups))
    return x / np.linalg.norm(x, axis=1, keepdims=True), Groups(codes, names, "kind")


@dataclass(eq=False)
class Nothing(VectorMap):
    """Does nothing."""

    def fit(self, X=None, groups=None, *, texts=None):
        self.seen_ = len(X)
        return self

    def _transform(self, X):
        return X


@dataclass(eq=False)
class OffPrompts(VectorMap):
    """Texts lose the directions of the group prompts (Orth-Proj): learns from texts alone."""

    needs = ("prompts",)

    def fit(self, X=None, groups=None, *, texts: GroupTexts | None = None):
        assert texts is not None
        said = [one for some in texts.group_prompts.values() for one in some]
        basis, _ = np.linalg.qr(np.asarray(texts.encode(said), np.float64).T)
        self.basis_ = basis
        return self

    def map_images(self, X):
        return X

    def map_texts(self, X, texts, encode):
        off = X - X @ self.basis_ @ self.basis_.T
        return off / np.linalg.norm(off, axis=1, keepdims=True)


@dataclass(eq=False)
class QueryForms(VectorMap):
    """Each query is projected off the differences of its own forms (BEND-VLM's first step)."""

    words: tuple[str, ...] = ("round", "square")

    def fit(self, X=None, groups=None, *, texts=None):
        self.seen_ = len(X)
        return self

    def map_images(self, X):
        return X

    def map_texts(self, X, texts, encode):
        found = []
        for vector, text in zip(X, texts, strict=True):
            forms = np.asarray(encode([f"{text} {word}" for word in self.words]), np.float64)
            basis, _ = np.linalg.qr((forms[1:] - forms[:1]).T)
            found.append(vector - basis @ (basis.T @ vector))
        return np.stack(found)


@dataclass(eq=False)
class InTurns(Reranker):
    """One item of each group in turn, the best of it that is left."""

    def fit(self, X=None, groups=None, *, texts=None):
        self.seen_ = len(X)
        return self

    def order(self, scores, groups, k, *, vectors=None):
        found = []
        for row in np.asarray(scores):
            best = np.argsort(-row, kind="stable")
            queues = [list(best[groups.codes[best] == g]) for g in range(len(groups.names))]
            picked = []
            while len(picked) < k:
                for queue in queues:
                    if queue and len(picked) < k:
                        picked.append(queue.pop(0))
            found.append(picked)
        return np.array(found)
