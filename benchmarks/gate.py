"""Does the gate fire when nothing changed, and does it see a tilt that was moved elsewhere?

    python -m benchmarks.gate [--comparisons 1000]

Oracle embeddings have a known tilt by shape and by hue. Two models that are alike are two draws of
noise on the same embeddings. A model that was corrected for show is one whose tilt by shape was
taken away and put on hue instead.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from scipy.stats import binom

from tiltmeter.judge.gate.comparison import BETTER, WORSE, verdicts
from tiltmeter.judge.gate.exchange import swap_tests
from tiltmeter.judge.gate.run_embeddings import PairedRuns
from tiltmeter.metrics.arrays import unit
from tiltmeter.metrics.convention import get_convention
from tiltmeter.testbed.language import GROUPS
from tiltmeter.testbed.oracle import Oracle
from tiltmeter.testbed.world import World
from tiltmeter.types import Floats, Prompt

IMAGES, WORDS, K = 1000, 30, (50, 200)
SWAPS, BOOTSTRAPS = 199, 99
ATTRIBUTES = ("shape", "hue", "shape*hue")


def embedded(
    seed: int, images: int = IMAGES, words: int = WORDS, strength: float = 1.0, even: bool = False
):
    """Texts, images and groups of the planted world, for some of its words."""
    rng = np.random.default_rng(seed)
    groups = rng.permutation(np.arange(images) % len(GROUPS)) if even else None
    made = Oracle(World.plant(strength)).embeddings(images, rng, groups=groups)
    chosen = rng.permutation(len(made.texts))[:words]
    return made.texts[chosen], made.images, made.groups, rng


def pair_of(texts: Floats, first: Floats, second: Floats, groups) -> PairedRuns:
    prompts = [Prompt(f"word {at}", f"word {at}", "{}") for at in range(len(texts))]
    return PairedRuns(prompts, groups, (texts, texts), (first, second))


def noisy(images: Floats, rng: np.random.Generator, size: float) -> Floats:
    """The same images as another model might see them."""
    return unit(images + size * rng.normal(size=images.shape) / np.sqrt(images.shape[1]), "images")


def alike(seed: int, *, size: float = 0.3, **world: float) -> PairedRuns:
    """Two draws of noise on the same embeddings."""
    texts, images, groups, rng = embedded(seed, **world)
    return pair_of(texts, noisy(images, rng, size), noisy(images, rng, size), groups)


def moved(seed: int, *, size: float = 0.3, share: float = 1.0) -> PairedRuns:
    """Noise on both; in the second model a word's tilt by shape is gone, and stands on hue.

    Scores are moved, not vectors: an image gets a dimension of its own for every word. What a word
    lost between the shapes, `share` of it, it gets between red and the other hues.
    """
    texts, images, groups, rng = embedded(seed)
    first, second = noisy(images, rng, size), noisy(images, rng, size)
    scores = [texts @ one.T for one in (first, second)]
    shape, red = groups["shape"].codes, (groups["hue"].codes == 0).astype(float)
    gap = np.array([row[shape == 1].mean() - row[shape == 0].mean() for row in scores[1]])
    level = (shape == 1) - np.mean(shape == 1)
    side = red - red.mean()
    already = np.array([row[red == 1].mean() - row[red == 0].mean() for row in scores[1]])
    sign = np.where(already < 0, -1.0, 1.0)  # further away from 0, not across it
    scores[1] = scores[1] - gap[:, None] * level + share * (sign * np.abs(gap))[:, None] * side
    return pair_of(np.eye(len(texts)), scores[0].T, scores[1].T, groups)


def mirrored(seed: int, *, size: float = 0.3) -> PairedRuns:
    """Noise on both; in the second model every tilt by shape is as large, and points the other way.

    Shapes are as many as each other, so that the ideal is the same for both.
    """
    texts, images, groups, rng = embedded(seed, images=len(GROUPS) * 72, even=True)
    hues = len(groups["hue"].names)
    axes = np.arange(images.shape[1])
    crossed = 1 + np.arange(2 * hues)  # where the oracle puts the groups, shapes first
    axes[crossed] = np.roll(crossed, hues)
    return pair_of(texts, noisy(images, rng, size), noisy(images[:, axes], rng, size), groups)


def judged(pair: PairedRuns, seed: int, attributes=ATTRIBUTES) -> dict[str, set[str]]:
    """By attribute, the verdicts that the gate gives."""
    convention = get_convention("tiltmeter").with_(k=K)
    tests = swap_tests(pair, attributes, convention, draws=SWAPS, bootstraps=BOOTSTRAPS, seed=seed)
    found: dict[str, set[str]] = {name: set() for name in attributes}
    for key, verdict in zip(tests.keys, verdicts(tests.columns(), None), strict=True):
        found[key["attribute"]].add(verdict)
    return found


def false_alarms(
    comparisons: int, make=alike, attributes=ATTRIBUTES, **world: float
) -> tuple[int, int]:
    """Comparisons of models that are alike where something is called worse, or worse or better."""
    worse = either = 0
    for seed in range(comparisons):
        said = set().union(*judged(make(seed, **world), seed, attributes).values())
        worse += WORSE in said
        either += bool(said & {WORSE, BETTER})
    return worse, either


def caught(comparisons: int, **how: float) -> tuple[int, int]:
    """Comparisons where hue is called worse, and where shape is called better."""
    hue = shape = 0
    for seed in range(comparisons):
        said = judged(moved(seed, **how), seed)
        hue += WORSE in said["hue"]
        shape += BETTER in said["shape"]
    return hue, shape


def speed(images: int = 10_000, words: int = 200, swaps: int = 999) -> float:
    """Seconds for one comparison: shape, hue and their crossing, 400 resamples."""
    pair = alike(0, images=images, words=words)
    convention = get_convention("tiltmeter")
    started = time.perf_counter()
    swap_tests(pair, ATTRIBUTES, convention, draws=swaps, bootstraps=400, seed=0).columns()
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--comparisons", type=int, default=1000)
    many = parser.parse_args().comparisons
    print("| two draws of noise on | comparisons | something worse | worse or better | bound |")
    print("|---|---|---|---|---|")
    bound = int(binom.ppf(0.995, many, 0.05))
    for name, how in (
        ("a tilted world", {}),
        ("a world without tilt", {"strength": 0.0}),
        ("a tilted world and its mirror", {"make": mirrored, "attributes": ("shape",)}),
    ):
        worse, either = false_alarms(many, **how)
        rates = f"{worse / many:.1%} | {either / many:.1%} | {bound / many:.1%}"
        print(f"| {name} | {many:,} | {rates} |", flush=True)
    print("\n| of shape's tilt, put on hue | comparisons | hue worse | shape better |")
    print("|---|---|---|---|")
    for share in (1.0, 0.5, 0.25):
        hue, shape = caught(50, share=share)
        print(f"| {share:.0%} | 50 | {hue} | {shape} |")
    print(f"\n10,000 images x 200 words x 999 swaps: {speed():.1f} s")


if __name__ == "__main__":
    main()
