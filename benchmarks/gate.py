"""Does the gate fail when nothing changed, and does it find an attribute that was amplified?

    python -m benchmarks.gate [--comparisons 300]

Oracle embeddings have a known bias by shape and by hue. Pairs without a change are two disjoint
samples of images, and two draws of training noise: every text is moved, and all images go through a
linear map near the identity, so single words do change.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace

import numpy as np
from scipy.stats import beta

from tiltmeter.judge.gate.association import LiftRuns, WordTexts, association_tests
from tiltmeter.judge.gate.change_verdict import MARGIN, WORSE, question_of
from tiltmeter.judge.gate.comparison import judged_tests
from tiltmeter.judge.gate.retrieval import retrieval_tests
from tiltmeter.judge.gate.run_embeddings import PairedRuns, RunImages
from tiltmeter.metrics.arrays import unit
from tiltmeter.metrics.convention import get_convention
from tiltmeter.testbed.oracle import Oracle
from tiltmeter.testbed.world import World
from tiltmeter.types import Floats, Prompt

ATTRIBUTES = ("shape", "hue", "shape*hue")
COSINE = 0.03  # of one nat; the scale of the model is its inverse
WORDS, NEUTRAL, K = 40, 300, (50, 200)


def embedded(seed: int, images: int = 1000, strength: float = 1.0, words: int = WORDS):
    """Words and neutral words as texts, images with groups, and a generator."""
    rng = np.random.default_rng(seed)
    world = World.plant(strength)
    made = Oracle(world).embeddings(images, rng, scale=COSINE, noise=0.5)
    placebo = np.array([concept.placebo for concept in world.concepts])
    chosen = [rng.permutation(np.flatnonzero(kind))[:n]
              for kind, n in ((~placebo, words), (placebo, NEUTRAL))]  # fmt: skip
    return made.texts[np.concatenate(chosen)], RunImages(made.images, made.groups), rng


def runs_of(texts: tuple[Floats, Floats], images: tuple[RunImages, RunImages], paired: bool = True):
    """Two models on one scale."""
    count = len(texts[0]) - NEUTRAL
    scaled = tuple(one / COSINE for one in texts)
    return LiftRuns([WordTexts([(f"word {w}", "") for w in range(count)], scaled)], images, paired)


def samples(seed: int, **world: float) -> LiftRuns:
    """One model on two disjoint samples of images."""
    texts, faces, rng = embedded(seed, **world)
    order = rng.permutation(len(faces.images))
    halves = [order[: len(order) // 2], order[len(order) // 2 :]]
    first, second = (
        RunImages(faces.images[rows], {name: one[rows] for name, one in faces.groups.items()})
        for rows in halves
    )
    return runs_of((texts, texts), (first, second), paired=False)


def noise(seed: int, size: float = 0.1, **world: float) -> LiftRuns:
    """Two draws of training noise on one model."""
    texts, faces, rng = embedded(seed, **world)
    d = texts.shape[1]
    sides, images = [], []
    for _ in range(2):
        sides.append(unit(texts + size * rng.normal(size=texts.shape) / np.sqrt(d), "texts"))
        turn = np.eye(d) + size * rng.normal(size=(d, d)) / np.sqrt(d)
        images.append(replace(faces, images=unit(faces.images @ turn, "images")))
    return runs_of((sides[0], sides[1]), (images[0], images[1]))


def amplified(seed: int, attribute: str = "shape", times: float = 1.25, **world: float) -> LiftRuns:
    """The same model, and one in which the groups of an attribute are so much farther apart."""
    texts, faces, _ = embedded(seed, **world)
    groups = faces.groups[attribute]
    means = np.stack([faces.images[groups.codes == g].mean(0) for g in range(len(groups.names))])
    axes = np.linalg.svd(means - means.mean(0), full_matrices=False)[2][: len(means) - 1]
    grown = faces.images + (times - 1) * (faces.images @ axes.T) @ axes
    return runs_of((texts, texts), (faces, replace(faces, images=grown)))


def verdicts(runs: LiftRuns, *, retrieval: bool = True, margin: float = MARGIN, seed: int = 0):
    """Rows of the gate: association, and retrieval where images are paired."""
    tests = {"association": association_tests(runs, ATTRIBUTES)[0]}
    if retrieval and runs.paired:
        words = runs.classes[0].words
        prompts = [Prompt(word, word, "{}") for word, _ in words]
        texts = tuple(one[: len(words)] for one in runs.classes[0].sides)
        images = tuple(one.images for one in runs.images)
        pair = PairedRuns(prompts, runs.images[0].groups, texts, images)
        convention = get_convention("tiltmeter").with_(k=K)
        tests["retrieval"] = retrieval_tests(
            pair, ATTRIBUTES, convention, bootstraps=39, seed=seed
        ).tests
    return judged_tests(tests, margin).to_pylist()


def alarms(comparisons: int, make, retrieval: bool = True, **how: float) -> int:
    """Comparisons in which anything is called worse."""
    return sum(
        any(row["verdict"] == WORSE for row in verdicts(make(seed, **how), retrieval=retrieval))
        for seed in range(comparisons)
    )


def caught(comparisons: int, attribute: str, **how: float) -> int:
    """Comparisons in which association by an amplified attribute is called worse."""
    return sum(
        any(row["verdict"] == WORSE and row["attribute"] == attribute and row["category"] is None
            and question_of(row) == "association"
            for row in verdicts(amplified(seed, attribute, **how), retrieval=False))
        for seed in range(comparisons)
    )  # fmt: skip


def upper_bound(found: int, comparisons: int) -> float:
    """Upper 95% bound of a rate (Clopper and Pearson, one-sided)."""
    return float(beta.ppf(0.95, found + 1, comparisons - found)) if found < comparisons else 1.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--comparisons", type=int, default=300)
    many = parser.parse_args().comparisons
    print("| no change: pairs of | comparisons | alarms | upper 95% bound |")
    print("|---|---|---|---|")
    for name, make, how in (
        ("disjoint samples of images, biased model", samples, {}),
        ("disjoint samples of images, model without bias", samples, {"strength": 0.0}),
        ("training noise, biased model", noise, {}),
        ("training noise, model without bias", noise, {"strength": 0.0}),
        ("training noise, biased model, 5 words", noise, {"words": 5}),
        ("training noise twice as large, biased model", noise, {"size": 0.2}),
    ):
        found = alarms(many, make, **how)
        print(f"| {name} | {many:,} | {found} | {upper_bound(found, many):.1%} |", flush=True)
    print("\n| an attribute amplified | comparisons | association by it worse |")
    print("|---|---|---|")
    for attribute in ("shape", "hue"):
        for times in (1.25, 1.1):
            found = caught(many // 3, attribute, times=times)
            print(f"| {attribute} x {times} | {many // 3} | {found} |", flush=True)
    started = time.perf_counter()
    verdicts(noise(0, images=10_000, words=200))
    print(f"\n10,000 images x 200 words: {time.perf_counter() - started:.1f} s")


if __name__ == "__main__":
    main()
