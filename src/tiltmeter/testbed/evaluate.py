"""Scores of the trained models against the oracle: `python -m tiltmeter.testbed.evaluate`.

Every figure stands beside what a perfect model of the world would reach on the same scenes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import Tensor

from tiltmeter.metrics import METRICS
from tiltmeter.stimuli import fill
from tiltmeter.testbed.language import (
    GROUPS,
    HUES,
    SHAPE_NOUNS,
    TARGET_TEMPLATES,
    encode,
    vocabulary,
)
from tiltmeter.testbed.networks import NETWORKS, Dual, trained
from tiltmeter.testbed.oracle import ATTRIBUTES, Oracle, figure_mask, shape_mask
from tiltmeter.testbed.render import Scenes, render
from tiltmeter.testbed.world import World
from tiltmeter.types import Floats, Ints

CELLS_DRAWN = (0, 1, 2, 4, 6, 8, 12, 16)
BLOCK = 512


def pixels(scenes: Scenes) -> Tensor:
    """Pictures as networks take them: n x 3 x 32 x 32, from 0 to 1."""
    return torch.as_tensor(render(scenes)).permute(0, 3, 1, 2).float() / 255


def in_blocks(work: Callable[..., Tensor], *given: Tensor) -> Floats:
    """`work` done on a few rows at a time, without gradients."""
    with torch.inference_mode():
        parts = [work(*some) for some in zip(*(torch.split(x, BLOCK) for x in given), strict=True)]
    return np.asarray(torch.cat(parts).numpy())


def captions(world: World) -> Tensor:
    """Each concept in its first template."""
    texts = [fill(concept.templates[0], concept.name) for concept in world.concepts]
    return torch.as_tensor(encode(texts))


def similarities(network: Dual, world: World, scenes: Scenes) -> Floats:
    """Cosines of every concept's caption and every scene, concepts x scenes."""
    texts = in_blocks(lambda x: network.text_vector(network.read(x)), captions(world))
    images = in_blocks(lambda x: network.image_vector(network.see(x)), pixels(scenes))
    return np.asarray(texts @ images.T)


def even_groups(world: World, n: int, rng: np.random.Generator) -> Scenes:
    """Icon-free scenes with as many figures of each crossed group."""
    return world.scenes(n, rng, group=np.arange(n) % len(GROUPS), cells=0)


def tilt(network: Dual, world: World, n: int, rng: np.random.Generator) -> dict[str, Any]:
    """C-ASC against its truth: over concepts that lean by themselves, and by crossing only."""
    oracle, scenes = Oracle(World.plant(1.0)), even_groups(world, n - n % len(GROUPS), rng)
    scores = similarities(network, world, scenes)
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


def retrieval(network: Dual, world: World, n: int, rng: np.random.Generator) -> dict[str, Any]:
    """How often the nearest caption is the icon's concept, and the Bayes rate, by cells drawn."""
    oracle, found = Oracle(world), {}
    for cells in CELLS_DRAWN:
        concept = rng.integers(0, len(world.concepts), n)
        scenes = world.scenes(n, rng, concept=concept, cells=cells)
        best = similarities(network, world, scenes).argmax(axis=0)
        p = oracle.posterior(image=figure_mask(scenes), scenes=scenes) / world.prior
        p /= p.sum(axis=1, keepdims=True)  # here every concept is as frequent
        found[str(cells)] = {
            "top1": float((best == concept).mean()),
            "expected": float(p[np.arange(n), best].mean()),
            "bayes": float(p.max(axis=1).mean()),
        }
    return found


def matching(network: Any, world: World, n: int, rng: np.random.Generator) -> dict[str, Any]:
    """How often the right caption beats a random other one, and the Bayes rate, by cells drawn."""
    oracle, found, texts = Oracle(world), {}, captions(world)
    for cells in CELLS_DRAWN:
        concept = world.draw_concepts(n, rng)
        other = world.draw_concepts(n, rng)
        other = np.where(other == concept, (other + 1) % len(world.concepts), other)
        scenes = world.scenes(n, rng, concept=concept, cells=cells)
        shown = pixels(scenes)
        mine, wrong = (in_blocks(network.match, shown, texts[c]) for c in (concept, other))
        best, worst = (oracle.matching_logit(c, scenes=scenes) for c in (concept, other))
        found[str(cells)] = {"right": wins(mine, wrong), "bayes": wins(best, worst)}
    return found


def masked(network: Any, world: World, n: int, rng: np.random.Generator) -> dict[str, Any]:
    """Masked targets against the posterior: total variation by cells, and the counterfactual."""
    oracle, targets, found = Oracle(world), world.targets, {}
    names = [world.concepts[at].name for at in targets]
    number = np.array([vocabulary()[name] for name in names])

    def guess(scenes: Scenes, shape: Ints, template: str) -> tuple[Floats, Floats]:
        texts = [template.replace("{g}", noun).replace("{}", "[MASK]") for noun in SHAPE_NOUNS]
        tokens = torch.as_tensor(encode(texts))[shape]
        place = (tokens == vocabulary()["[MASK]"]).int().argmax(dim=1)

        def work(x: Tensor, t: Tensor, at: Tensor) -> Tensor:
            return network.word_logits(x, t)[torch.arange(len(t)), at].softmax(dim=-1)  # type: ignore[no-any-return]

        p = in_blocks(work, pixels(scenes), tokens, place)[:, number]
        return p, p / p.sum(axis=1, keepdims=True)

    def truth(scenes: Scenes, shape: Ints) -> Floats:
        return oracle.posterior(
            image=figure_mask(scenes), text=shape_mask(shape), scenes=scenes, among=targets
        )

    for cells in CELLS_DRAWN:
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


def evaluate(network: Any, strength: float, *, n: int = 2000, seed: int = 1) -> dict[str, Any]:
    """All figures of a network that was trained on the world of that strength."""
    world, rng = World.plant(strength), np.random.default_rng(seed)
    found: dict[str, Any] = {}
    if isinstance(network, Dual):
        found["c_asc"] = tilt(network, world, 2 * n, rng)
        found["retrieval"] = retrieval(network, world, n // 2, rng)
    if hasattr(network, "match"):
        found["matching"] = matching(network, world, n, rng)
        found["masked"] = masked(network, world, n // 4, rng)
    return dict(rounded(found))


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
    names = [*NETWORKS, *(f"{name}-fair" for name in NETWORKS)]
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", default=names)
    for name in parser.parse_args().names:
        scores = evaluate(trained(name), 0.0 if name.endswith("-fair") else 1.0)
        print(name, json.dumps(scores), flush=True)


if __name__ == "__main__":
    main()
