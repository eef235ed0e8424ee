"""The work that must be fast, beside the bare arithmetic it cannot do without.

Each case times our way first (and reads the peak memory then), the bare work, and a few rounds of
the loop that research code writes, which is scaled up to the whole: `loop` is seconds for all.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tiltmeter.metrics.convention import get_convention
from tiltmeter.metrics.retrieval import top_k
from tiltmeter.models.embeddings import StoredTexts
from tiltmeter.probes.ranking.probe import ranking
from tiltmeter.stats.permutation import sc_eat_test
from tiltmeter.stats.resampling import Resampling
from tiltmeter.types import Faces, Groups, Prompt

DIMENSIONS = 512


@dataclass(frozen=True)
class Timing:
    ours: float
    bare: float  # what the budget is a multiple of
    budget: float
    peak: float  # GB
    peak_budget: float | None
    loop: float
    others: dict[str, float]


def best_of(rounds: int, work: Callable[[], object]) -> float:
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)


def peak_memory() -> float:
    """GB, the most this process ever held."""
    unit = 1 if sys.platform == "darwin" else 1024  # bytes
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9


def unit_vectors(rng: np.random.Generator, rows: int) -> np.ndarray:
    x = rng.standard_normal((rows, DIMENSIONS), dtype=np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return x


class Audit:
    """400 prompts on 86,744 images: FairFace's training set with its number of groups."""

    images, words = 86_744, 400

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.x, self.t = unit_vectors(rng, self.images), unit_vectors(rng, self.words)
        self.groups = {
            "gender": Groups(rng.integers(0, 2, self.images), ("f", "m"), "gender"),
            "race": Groups(rng.integers(0, 7, self.images), tuple("abcdefg"), "race"),
        }
        prompts = [Prompt(f"text {i}", f"word {i}", "{}", pos="noun") for i in range(self.words)]
        ids = tuple(str(i) for i in range(self.images))
        self.faces = Faces(ids, self.groups, self.x)
        self.model = StoredTexts("bench", prompts, self.t)
        self.run(Resampling(2, 2), some=2000)  # compile

    def run(self, resampling: Resampling, some: int | None = None) -> None:
        faces = self.faces
        if some:
            groups = {name: g[:some] for name, g in self.groups.items()}
            faces = Faces(faces.ids[:some], groups, self.x[:some])
        ranking(
            self.model,
            faces,
            prompts=self.model.prompts,
            attributes=["gender", "race", "race*gender"],
            convention=get_convention("tiltmeter"),
            resampling=resampling,
        )

    def bare(self) -> None:
        np.argsort(-(self.t @ self.x.T), axis=1)


def audit() -> Timing:
    """So-B-IT and ranking audit: scores, C-ASC, top k, entropy, MaxSkew, NDKL, exact nulls."""
    case = Audit()
    ours = best_of(3, lambda: case.run(Resampling(0, 0)))
    peak = peak_memory()
    bare = best_of(3, case.bare)
    codes = [g.codes for g in (*case.groups.values(), case.faces.attribute("race*gender"))]

    def one_query() -> None:
        scores = case.x @ case.t[0]
        for labels in codes:
            ranked = labels[np.argsort(-scores)]
            for g in range(labels.max() + 1):
                (scores[labels == g].mean() - scores[labels != g].mean()) / scores.std(ddof=1)
            loop_ndkl(ranked, np.bincount(labels) / len(labels))

    return Timing(ours, bare, 1.5, peak, 1.5, best_of(1, one_query) * case.words, {})


def loop_ndkl(ranked: np.ndarray, q: np.ndarray) -> float:
    """NDKL as it is usually written: the distribution of every prefix, one after the other."""
    count, total, norm = np.zeros(len(q)), 0.0, 0.0
    for i, g in enumerate(ranked, start=1):
        count[g] += 1
        p = count[count > 0] / i
        total += np.sum(p * np.log(p / q[count > 0])) / np.log2(i + 1)
        norm += 1 / np.log2(i + 1)
    return total / norm


def intervals() -> Timing:
    """The row above with 200 bootstrap resamples for every top-k metric, C-ASC and NDKL."""
    case = Audit()
    ours = best_of(1, lambda: case.run(Resampling(0, 200)))
    peak = peak_memory()
    bare = best_of(2, lambda: case.run(Resampling(0, 0)))
    rng = np.random.default_rng(0)
    codes = [g.codes for g in (*case.groups.values(), case.faces.attribute("race*gender"))]

    def one_draw() -> None:
        for labels in codes:
            drawn = np.concatenate(
                [rng.choice(np.flatnonzero(labels == g), (labels == g).sum())
                 for g in range(labels.max() + 1)]
            )  # fmt: skip
            x, some = case.x[drawn], labels[drawn]
            for t in case.t[:4]:
                scores = x @ t
                order = np.argsort(-scores)
                for k in (100, 1000):
                    np.bincount(some[order[:k]], minlength=labels.max() + 1)
                for g in range(labels.max() + 1):
                    (scores[some == g].mean() - scores[some != g].mean()) / scores.std(ddof=1)

    return Timing(ours, bare, 20, peak, None, best_of(1, one_draw) * 200 * case.words / 4, {})


def sc_eat() -> Timing:
    """SC-EAT p-values: 6,000 targets, 25 against 25, 10,000 permutations."""
    rng = np.random.default_rng(0)
    w, a, b = unit_vectors(rng, 6000), unit_vectors(rng, 25), unit_vectors(rng, 25)
    sc_eat_test(w[:10], a, b, draws=10, rng=rng)
    ours = best_of(3, lambda: sc_eat_test(w, a, b, draws=10_000, rng=rng))
    peak = peak_memory()
    masks = rng.standard_normal((10_000, 50), dtype=np.float32)

    def bare() -> None:
        cosines = w @ np.concatenate([a, b]).T
        masks @ cosines.T

    def two_targets() -> None:
        for one in w[:2]:
            cosines = np.concatenate([a, b]) @ one
            seen, hits = cosines[:25].mean() - cosines[25:].mean(), 0
            for _ in range(10_000):
                dealt = rng.permutation(cosines)
                hits += abs(dealt[:25].mean() - dealt[25:].mean()) >= abs(seen)

    return Timing(ours, best_of(3, bare), 10, peak, None, best_of(1, two_targets) * 3000, {})


def retrieval() -> Timing:
    """Retrieval: 6,000 queries, 120,000 items, top 500, exactly."""
    rng = np.random.default_rng(0)
    q, x = unit_vectors(rng, 6000), unit_vectors(rng, 120_000)
    top_k(q[:10], x[:6000], 500)
    ours = best_of(3, lambda: top_k(q, x, 500))
    peak = peak_memory()

    def bare() -> None:
        for start in range(0, len(x), 4096):
            q @ x[start : start + 4096].T

    def hundred_queries() -> None:
        for one in q[:100]:
            np.argsort(-(x @ one))[:500]

    others = {}
    try:
        import faiss
    except ImportError:
        pass
    else:
        index = faiss.IndexFlatIP(DIMENSIONS)
        index.add(x)
        others["faiss IndexFlatIP"] = best_of(3, lambda: index.search(q, 500))
    return Timing(ours, best_of(3, bare), 2, peak, 1.5, best_of(1, hundred_queries) * 60, others)


CASES = {case.__name__: case for case in (audit, intervals, sc_eat, retrieval)}
