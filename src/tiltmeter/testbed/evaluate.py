"""Scores of the trained models against the oracle: `python -m tiltmeter.testbed.evaluate`.

Every figure stands beside what a perfect model of the world would reach on the same scenes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from tiltmeter.io.specs import Spec
from tiltmeter.metrics import METRICS
from tiltmeter.stimuli import fill
from tiltmeter.testbed.language import GROUPS, HUES, SHAPE_NOUNS, TARGET_TEMPLATES
from tiltmeter.testbed.oracle import ATTRIBUTES, Oracle, figure_mask, shape_mask
from tiltmeter.testbed.render import Scenes
from tiltmeter.testbed.world import World
from tiltmeter.types import Floats, Ints

CELLS_DRAWN = (0, 1, 2, 4, 6, 8, 12, 16)


def captions(world: World) -> list[str]:
    """Each concept in its first template."""
    return [fill(concept.templates[0], concept.name) for concept in world.concepts]


def similarities(model: Any, world: World, scenes: Scenes) -> Floats:
    """Cosines of every concept's caption and every scene, concepts x scenes."""
    return np.asarray(model.encode_texts(captions(world)) @ model.encode_images(scenes).T)


def even_groups(world: World, n: int, rng: np.random.Generator) -> Scenes:
    """Icon-free scenes with as many figures of each crossed group."""
    return world.scenes(n, rng, group=np.arange(n) % len(GROUPS), cells=0)


def tilt(model: Any, world: World, n: int, rng: np.random.Generator) -> dict[str, Any]:
    """C-ASC against its truth: over concepts that lean by themselves, and by crossing only."""
    oracle, scenes = Oracle(World.plant(1.0)), even_groups(world, n - n % len(GROUPS), rng)
    scores = similarities(model, world, scenes)
    codes = {"shape": scenes.shape, "hue": scenes.hue}
    codes["shape*hue"] = scenes.shape * len(HUES) + scenes.hue
    word = np.array([not concept.placebo for concept in world.concepts])
    by_shape = oracle.pmi("shape")[:, 0]
    crossed = word & (np.abs(by_shape - by_shape[~word].mean()) < 1e-9)  # as even as placebos
    found: dict[str, Any] = {}
    for name, code in codes.items():
        k = len(ATTRIBUTES[name])
        measured = METRICS["c_asc"](scores, code)
        truth = oracle.c_asc_truth(name, np.full(k, 1 / k))
        means = np.stack([scores[:, code == g].mean(axis=1) for g in range(k)], axis=1)
        found[name] = {
            "spearman": rho(measured[word], truth[word]),
            "gap": float(np.mean(np.ptp(means[word], axis=1))),
            "planted_by_crossing": float(np.abs(measured[crossed]).mean()),
            "others": float(np.abs(measured[word & ~crossed]).mean()),
            "placebos": float(np.abs(measured[~word]).mean()),
        }
        if name == "shape*hue":
            found[name]["spearman_planted_by_crossing"] = rho(measured[crossed], truth[crossed])
    return found


def retrieval(
    model: Any,
    world: World,
    n: int,
    rng: np.random.Generator,
    drawn: Sequence[int] = CELLS_DRAWN,
) -> dict[str, Any]:
    """How often the nearest caption is the icon's concept, and the Bayes rate, by cells drawn."""
    oracle, found = Oracle(world), {}
    for cells in drawn:
        concept = rng.integers(0, len(world.concepts), n)
        scenes = world.scenes(n, rng, concept=concept, cells=cells)
        best = similarities(model, world, scenes).argmax(axis=0)
        p = oracle.posterior(image=figure_mask(scenes), scenes=scenes) / world.prior
        p /= p.sum(axis=1, keepdims=True)  # here every concept is as frequent
        found[str(cells)] = {
            "top1": float((best == concept).mean()),
            "expected": float(p[np.arange(n), best].mean()),
            "bayes": float(p.max(axis=1).mean()),
        }
    return found


def matching(
    model: Any, world: World, n: int, rng: np.random.Generator, drawn: Sequence[int] = CELLS_DRAWN
) -> dict[str, Any]:
    """How often the right caption beats a random other one, and the Bayes rate, by cells drawn."""
    oracle, found, texts = Oracle(world), {}, captions(world)
    for cells in drawn:
        concept = world.draw_concepts(n, rng)
        other = world.draw_concepts(n, rng)
        other = np.where(other == concept, (other + 1) % len(world.concepts), other)
        scenes = world.scenes(n, rng, concept=concept, cells=cells)
        mine, wrong = (model.match(scenes, [texts[at] for at in c]) for c in (concept, other))
        best, worst = (oracle.matching_logit(c, scenes=scenes) for c in (concept, other))
        found[str(cells)] = {"right": wins(mine, wrong), "bayes": wins(best, worst)}
    return found


def masked(
    model: Any, world: World, n: int, rng: np.random.Generator, drawn: Sequence[int] = CELLS_DRAWN
) -> dict[str, Any]:
    """Masked targets against the posterior: total variation by cells, and the counterfactual."""
    oracle, targets, found = Oracle(world), world.targets, {}
    names = [world.concepts[at].name for at in targets]
    number = np.array([model.pieces(name)[0] for name in names])

    def guess(scenes: Scenes, shape: Ints, template: str) -> tuple[Floats, Floats]:
        texts = [template.replace("{g}", noun).replace("{}", "[MASK]") for noun in SHAPE_NOUNS]
        p = np.exp(model.mask_logprobs(scenes, [texts[at] for at in shape])[:, 0, number])
        return p, p / p.sum(axis=1, keepdims=True)

    def truth(scenes: Scenes, shape: Ints) -> Floats:
        return oracle.posterior(
            image=figure_mask(scenes), text=shape_mask(shape), scenes=scenes, among=targets
        )

    for cells in drawn:
        of_vocabulary, of_targets = [], []
        for template in TARGET_TEMPLATES:
            concept = rng.choice(targets, n)
            group = world.draw_groups(concept, rng)
            shape = world.draw_words(concept, group, rng) // len(HUES)
            scenes = world.scenes(n, rng, concept=concept, group=group, cells=cells)
            whole, part = guess(scenes, shape, template)
            right = truth(scenes, shape)
            rest = 1 - whole.sum(axis=1)  # given to words that cannot stand here
            of_vocabulary.append((np.abs(whole - right).sum(axis=1) + rest).mean() / 2)
            of_targets.append(np.abs(part - right).sum(axis=1).mean() / 2)
        found[str(cells)] = {
            "total_variation": float(np.mean(of_vocabulary)),
            "among_targets": float(np.mean(of_targets)),
        }
    scenes = even_groups(world, n, rng)
    other, shape = scenes.redrawn(shape=1 - scenes.shape), rng.integers(0, 2, n)
    measured = (
        guess(other, shape, TARGET_TEMPLATES[0])[0] - guess(scenes, shape, TARGET_TEMPLATES[0])[0]
    )
    right = truth(other, shape) - truth(scenes, shape)
    return {"by_cells": found, "counterfactual_spearman": rho(measured, right)}


def evaluate(model: Any, strength: float, *, n: int = 2000, seed: int = 1) -> dict[str, Any]:
    """All figures of a model that was trained on the world of that strength."""
    world, rng = World.plant(strength), np.random.default_rng(seed)
    found: dict[str, Any] = {}
    if hasattr(model, "encode_images"):
        found["c_asc"] = tilt(model, world, 2 * n, rng)
        found["retrieval"] = retrieval(model, world, n // 2, rng)
    if hasattr(model, "match"):
        found["matching"] = matching(model, world, n, rng)
        found["masked"] = masked(model, world, n // 4, rng)
    return dict(rounded(found))


def glance(model: Any, world: World, seed: int = 2) -> str:
    """A few figures in one line, for the display of a training in progress."""
    rng = np.random.default_rng(seed)
    told = []
    if hasattr(model, "encode_images"):
        lean = tilt(model, world, 1400, rng)
        icons = retrieval(model, world, 500, rng, (4, 16))
        told += [f"C-ASC {lean['shape']['spearman']:.3f} {lean['hue']['spearman']:.3f}"]
        told += [f"icons {one['top1']:.2f}/{one['bayes']:.2f}" for one in icons.values()]
    if hasattr(model, "match"):
        right = matching(model, world, 1000, rng, (4,))["4"]
        words = masked(model, world, 100, rng, (0, 4))
        told += [f"matching {right['right']:.2f}/{right['bayes']:.2f}"]
        told += [f"words {one['total_variation']:.3f}" for one in words["by_cells"].values()]
        told += [f"redrawn {words['counterfactual_spearman']:.2f}"]
    return "  ".join(told)


def wins(a: Floats, b: Floats) -> float:
    """Share of rows where `a` is larger; a tie counts half."""
    return float((a > b).mean() + (a == b).mean() / 2)


def rho(a: Floats, b: Floats) -> float:
    """Spearman's correlation; NaN where one of the two is all the same."""
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return float("nan")
    return float(spearmanr(np.ravel(a), np.ravel(b)).statistic)


def rounded(x: Any) -> Any:
    """Figures with four places; what is undefined is null."""
    if isinstance(x, dict):
        return {key: rounded(value) for key, value in x.items()}
    return None if x != x else round(x, 4)


def main() -> None:
    """Prints the scores of shipped models."""
    from tiltmeter.testbed.models import MODELS, load

    specs = [f"testbed:{kind}{twin}" for twin in ("", "?twin=fair") for kind in MODELS]
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("models", nargs="*", default=specs, help=", ".join(specs))
    for spec in parser.parse_args().models:
        model = load(Spec.parse(spec))
        print(spec, json.dumps(evaluate(model, model.provenance["strength"])), flush=True)


if __name__ == "__main__":
    main()
