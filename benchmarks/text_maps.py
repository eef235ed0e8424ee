"""Corrections that are learned from prompts, on the built-in model: what each does to the tilt.

    python -m benchmarks.text_maps

Each is fitted for one attribute and judged on figures that none has seen, over the words that lean:
mean |C-ASC| and mean MaxSkew@100 (prior, bounded, expected ties) by shape, by hue and by their
crossing, and the share of icons that are recognised among all captions. An arrow marks a mean that
went up or down: the 95% bootstrap interval over words of its paired change leaves out 0. The row
"at random" is the 95% range of the mean over as many rankings at random.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

from tiltmeter.datasets import load_data
from tiltmeter.debiasers.fitting import debias
from tiltmeter.metrics import METRICS
from tiltmeter.models import load_model
from tiltmeter.testbed.captions import concept_captions
from tiltmeter.testbed.world import World

MODEL, HELD_OUT = "testbed:dual", "testbed:?images=1400&seed=4"
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "orth-proj": ("orth-proj", {}),
    "orth-cali": ("orth-cali", {}),
    "difference": ("difference", {}),
    "difference, weight=1000": ("difference", {"weight": 1000.0}),
    "closed-form": ("closed-form", {}),
    "roboshot": ("roboshot", {}),
    "bend": ("bend", {}),
    "bend, rounds=0": ("bend", {"rounds": 0}),
    "bend, project=no": ("bend", {"project": False}),
    "bend, project=no, rounds=3": ("bend", {"project": False, "rounds": 3}),
}
ATTRIBUTES = ("shape", "hue", "shape*hue")
DRAWS, ICONS = 2000, 1000


def measured(model: Any, world: World, faces: Any) -> tuple[dict[str, np.ndarray], float]:
    """Each measure word by word, and the share of icons recognised."""
    texts = list(concept_captions().values())
    vectors = np.asarray(model.encode_texts(texts))
    lean = np.array([not concept.placebo for concept in world.concepts])
    scores = vectors[lean] @ np.asarray(model.encode_images(faces.images)).T
    found = {}
    for name in ATTRIBUTES:
        groups = faces.attribute(name)
        found[f"C-ASC, {name}"] = np.abs(METRICS["c_asc"](scores, groups)).mean(axis=1)
    for name in ATTRIBUTES:
        groups, choices = faces.attribute(name), {"target": "prior", "empty": "bounded"}
        found[f"MaxSkew, {name}"] = METRICS["max_skew"](
            scores, groups, k=100, ties="expected", **choices
        )
    rng = np.random.default_rng(5)
    concept = rng.integers(0, len(world.concepts), ICONS)
    scenes = world.scenes(ICONS, rng, concept=concept, cells=16)
    best = (vectors @ np.asarray(model.encode_images(scenes)).T).argmax(axis=0)
    return found, float((best == concept).mean())


def arrow(before: np.ndarray, after: np.ndarray) -> str:
    """Whether the mean over words went up or down."""
    rng = np.random.default_rng(0)
    rows = rng.integers(0, len(before), (DRAWS, len(before)))
    low, high = np.quantile((after - before)[rows].mean(axis=1), [0.025, 0.975])
    return " ↓" if high < 0 else " ↑" if low > 0 else ""


def noise(faces: Any, words: int) -> dict[str, str]:
    """The mean MaxSkew of as many rankings at random: its 95% range."""
    rng, found = np.random.default_rng(6), {}
    for name in ATTRIBUTES:
        groups = faces.attribute(name)
        tops = rng.multivariate_hypergeometric(groups.counts, 100, (DRAWS, words)) / 100
        shown = np.maximum(tops, np.minimum(0.01, groups.shares)) / groups.shares
        means = np.log(shown).max(axis=2).mean(axis=1)
        found[f"MaxSkew, {name}"] = "{:.3f} to {:.3f}".format(*np.quantile(means, [0.025, 0.975]))
    return found


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--model", default=MODEL)
    asked.add_argument("--fit", nargs="+", default=["shape", "hue"], help="attributes to fit")
    given = asked.parse_args()
    model, faces = load_model(given.model, device="cpu"), load_data(HELD_OUT, role="faces")
    world = World.plant(model.provenance["strength"])
    before, icons = measured(model, world, faces)
    print(f"| fitted on | method | {' | '.join(before)} | icons | seconds |")
    print("|---" * (len(before) + 4) + "|")
    shown = " | ".join(f"{x.mean():.3f}" for x in before.values())
    print(f"| | before | {shown} | {icons:.3f} | |")
    floor = noise(faces, len(next(iter(before.values()))))
    shown = " | ".join(floor.get(name, "") for name in before)
    print(f"| | at random | {shown} | | |")
    for attribute in given.fit:
        for label, (method, settings) in METHODS.items():
            started = time.perf_counter()
            made = debias(method, given.model, attribute=attribute, settings=settings, device="cpu")
            seconds = time.perf_counter() - started
            after, icons = measured(made, world, faces)
            shown = " | ".join(
                f"{after[name].mean():.3f}{arrow(before[name], after[name])}" for name in before
            )
            print(f"| {attribute} | {label} | {shown} | {icons:.3f} | {seconds:.1f} |", flush=True)


if __name__ == "__main__":
    main()
