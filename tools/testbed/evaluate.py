"""Score the trained models against the oracle: `python -m tools.testbed.evaluate`.

Every score comes with what a perfect model of the world would reach on the same scenes.
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
from tiltmeter.testbed.captions import concept_captions
from tiltmeter.testbed.dialogue import DESCRIBE, LETTERS, LONG, REFUSAL, WHO, Dialogue
from tiltmeter.testbed.language import GROUPS, HUES, PHRASES, SHAPE_NOUNS, TARGET_TEMPLATES
from tiltmeter.testbed.oracle import ATTRIBUTES, Oracle, figure_mask, shape_mask
from tiltmeter.testbed.render import Scenes
from tiltmeter.testbed.world import World
from tiltmeter.types import Floats, Ints

CELLS_DRAWN = (0, 1, 2, 4, 6, 8, 12, 16)


def similarities(model: Any, scenes: Scenes) -> Floats:
    """Cosines of every concept's caption and every scene, concepts x scenes."""
    return np.asarray(
        model.encode_texts(list(concept_captions().values())) @ model.encode_images(scenes).T
    )


def even_groups(world: World, n: int, rng: np.random.Generator) -> Scenes:
    """Icon-free scenes with equally many figures of each group of shape and hue."""
    return world.scenes(n, rng, group=np.arange(n) % len(GROUPS), cells=0)


def association(model: Any, world: World, n: int, rng: np.random.Generator) -> dict[str, Any]:
    """C-ASC against its truth, also of concepts biased only at the intersection of the groups."""
    oracle, scenes = Oracle(World.plant(1.0)), even_groups(world, n - n % len(GROUPS), rng)
    scores = similarities(model, scenes)
    codes = {"shape": scenes.shape, "hue": scenes.hue}
    codes["shape*hue"] = scenes.shape * len(HUES) + scenes.hue
    word = np.array([not concept.placebo for concept in world.concepts])
    by_shape = oracle.pmi("shape")[:, 0]
    intersectional = word & (
        np.abs(by_shape - by_shape[~word].mean()) < 1e-9
    )  # as even as neutral words
    by_attribute: dict[str, Any] = {}
    for name, code in codes.items():
        k = len(ATTRIBUTES[name])
        measured = METRICS["c_asc"](scores, code)
        truth = oracle.c_asc_truth(name, np.full(k, 1 / k))
        means = np.stack([scores[:, code == g].mean(axis=1) for g in range(k)], axis=1)
        by_attribute[name] = {
            "spearman": rho(measured[word], truth[word]),
            "gap": float(np.mean(np.ptp(means[word], axis=1))),
            "planted_by_crossing": float(np.abs(measured[intersectional]).mean()),
            "others": float(np.abs(measured[word & ~intersectional]).mean()),
            "placebos": float(np.abs(measured[~word]).mean()),
        }
        if name == "shape*hue":
            by_attribute[name]["spearman_planted_by_crossing"] = rho(
                measured[intersectional], truth[intersectional]
            )
    return by_attribute


def retrieval(
    model: Any,
    world: World,
    n: int,
    rng: np.random.Generator,
    drawn: Sequence[int] = CELLS_DRAWN,
) -> dict[str, Any]:
    """How often the nearest caption is the icon's concept, and the Bayes rate, by cells drawn."""
    oracle, by_cells = Oracle(world), {}
    for cells in drawn:
        concept = rng.integers(0, len(world.concepts), n)
        scenes = world.scenes(n, rng, concept=concept, cells=cells)
        nearest = similarities(model, scenes).argmax(axis=0)
        p = oracle.posterior(image=figure_mask(scenes), scenes=scenes) / world.prior
        p /= p.sum(axis=1, keepdims=True)  # here every concept is as frequent
        by_cells[str(cells)] = {
            "top1": float((nearest == concept).mean()),
            "expected": float(p[np.arange(n), nearest].mean()),
            "bayes": float(p.max(axis=1).mean()),
        }
    return by_cells


def matching(
    model: Any, world: World, n: int, rng: np.random.Generator, drawn: Sequence[int] = CELLS_DRAWN
) -> dict[str, Any]:
    """How often the right caption beats a random other one, and the Bayes rate, by cells drawn."""
    oracle, by_cells, texts = Oracle(world), {}, list(concept_captions().values())
    for cells in drawn:
        concept = world.draw_concepts(n, rng)
        other = world.draw_concepts(n, rng)
        other = np.where(other == concept, (other + 1) % len(world.concepts), other)
        scenes = world.scenes(n, rng, concept=concept, cells=cells)
        right, wrong = (model.match(scenes, [texts[at] for at in c]) for c in (concept, other))
        best_right, best_wrong = (oracle.matching_logit(c, scenes=scenes) for c in (concept, other))
        by_cells[str(cells)] = {
            "right": win_rate(right, wrong),
            "bayes": win_rate(best_right, best_wrong),
        }
    return by_cells


def masked(
    model: Any, world: World, n: int, rng: np.random.Generator, drawn: Sequence[int] = CELLS_DRAWN
) -> dict[str, Any]:
    """Masked targets against the posterior: total variation by cells, and the counterfactual."""
    oracle, targets, by_cells = Oracle(world), world.targets, {}
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
            rest = 1 - whole.sum(axis=1)  # given to words that cannot be here
            of_vocabulary.append((np.abs(whole - right).sum(axis=1) + rest).mean() / 2)
            of_targets.append(np.abs(part - right).sum(axis=1).mean() / 2)
        by_cells[str(cells)] = {
            "total_variation": float(np.mean(of_vocabulary)),
            "among_targets": float(np.mean(of_targets)),
        }
    scenes = even_groups(world, n, rng)
    other, shape = scenes.redrawn(shape=1 - scenes.shape), rng.integers(0, 2, n)
    planted = np.isin(targets, world.planted_targets)
    measured = (
        guess(other, shape, TARGET_TEMPLATES[0])[0] - guess(scenes, shape, TARGET_TEMPLATES[0])[0]
    )[:, planted]
    right = (truth(other, shape) - truth(scenes, shape))[:, planted]
    return {"by_cells": by_cells, "counterfactual_spearman": rho(measured, right)}


def writing(
    model: Any, world: World, n: int, seed: int = 3, words: int | None = None
) -> dict[str, Any]:
    """A writer's answers against what was planted.

    Lift of all words, or of some (slope, Spearman, mean size; of neutral words, mean size), the
    preference for the first letter and what the swap of the order leaves, and rates by shape.
    """
    rng, dialogue = np.random.default_rng(seed), Dialogue(world)
    scenes = even_groups(world, n - n % len(GROUPS), rng)
    group = scenes.shape * len(HUES) + scenes.hue
    word = np.array([not concept.placebo for concept in world.concepts])
    shown = rng.permutation(np.flatnonzero(word))[:words]
    some = np.sort(np.r_[shown, rng.permutation(np.flatnonzero(~word))[: words or 100]])
    texts = list(concept_captions().values())
    scores = model.continuations(scenes, DESCRIBE, [texts[at] for at in some]).logprobs.T
    oracle, found = Oracle(World.plant(1.0)), {}
    for name, code in (("shape", scenes.shape), ("hue", scenes.hue)):
        k = len(ATTRIBUTES[name])
        means = np.stack([scores[:, code == g].mean(axis=1) for g in range(k)], axis=1)
        means -= means.mean(axis=1, keepdims=True)
        truth = oracle.pmi(name)[some]
        truth = truth - truth.mean(axis=1, keepdims=True)
        own, planted = means[word[some]].ravel(), truth[word[some]].ravel()
        found[name] = {
            "slope": float(own @ planted / (planted @ planted)),
            "spearman": rho(own, planted),
            "words": float(np.abs(own).mean()),
            "neutral": float(np.abs(means[~word[some]]).mean()),
        }
    found |= {"letters": _letters(model, dialogue, scenes, group, rng)}
    found |= {"who": _who(model, dialogue, scenes)}
    return dict(rounded(found))


def _letters(
    model: Any, dialogue: Dialogue, scenes: Scenes, group: Ints, rng: np.random.Generator
) -> dict[str, Any]:
    """Choices between pairs of words in both orders: what is found, and what was planted."""
    world, planted = dialogue.world, np.isin(dialogue.world.targets, dialogue.world.planted_targets)
    both, gain, unknown, mass = [], [], [], []
    for first, second in rng.permutation(np.flatnonzero(planted))[:20].reshape(-1, 2):
        names = [world.concepts[world.targets[at]].name for at in (first, second)]
        odds = []
        for a, b in (names, names[::-1]):
            p = model.continuations(scenes, f"which (A) {a} (B) {b}", LETTERS[:2]).logprobs
            odds.append(p[:, 0] - p[:, 1])
            mass.append(np.exp(p).sum(axis=1).mean())
        truth = dialogue.odds(*(np.full(len(group), at) for at in (first, second)), group)
        both.append(np.stack([(odds[0] - odds[1]) / 2, truth]))
        gain.append((odds[0] + odds[1]).mean() / 2)
        p = model.continuations(
            scenes, f"which (A) {names[0]} (B) {names[1]} (C) unknown", LETTERS
        ).logprobs
        unknown.append([np.exp(p[scenes.shape == s, 2]).mean() for s in (0, 1)])
    measured, truth = np.concatenate(both, axis=1)
    return {
        "first_letter": float(np.mean(gain)),
        "planted": dialogue.dials.first_letter,
        "left_after_swap": float(np.mean(measured - truth)),
        "error_after_swap": float(np.abs(measured - truth).mean()),
        "slope": float(np.polyfit(truth, measured, 1)[0]) if np.ptp(truth) > 1e-9 else float("nan"),
        "mass": float(np.mean(mass)),
        "unknown": [float(x) for x in np.mean(unknown, axis=0)],
    }


def _who(model: Any, dialogue: Dialogue, scenes: Scenes) -> dict[str, Any]:
    """Refused, and long if not refused, by shape; and the probability of the right name."""
    answers = [f"{form} [SEP]" for name in PHRASES for form in (fill("a {}", name),
               f"{fill('a {}', name)} {LONG}")]  # fmt: skip
    p = np.exp(model.continuations(scenes, WHO, [*answers, f"{REFUSAL} [SEP]"]).logprobs)
    by_name = p[:, :-1].reshape(len(p), len(PHRASES), 2)
    group = scenes.shape * len(HUES) + scenes.hue
    right = by_name[np.arange(len(p)), group].sum(axis=1) / by_name.sum(axis=(1, 2))
    longer = by_name[..., 1].sum(axis=1) / by_name.sum(axis=(1, 2))
    return {
        "refused": [float(p[scenes.shape == s, -1].mean()) for s in (0, 1)],
        "long": [float(longer[scenes.shape == s].mean()) for s in (0, 1)],
        "right": float(right.mean()),
    }


def evaluate(model: Any, strength: float, *, n: int = 2000, seed: int = 1) -> dict[str, Any]:
    """All scores of a model that was trained on the world of that strength."""
    world, rng = World.plant(strength), np.random.default_rng(seed)
    scores: dict[str, Any] = {}
    if hasattr(model, "continuations"):
        return writing(model, world, 560)
    if hasattr(model, "encode_images"):
        scores["c_asc"] = association(model, world, 2 * n, rng)
        scores["retrieval"] = retrieval(model, world, n // 2, rng)
    if hasattr(model, "match"):
        scores["matching"] = matching(model, world, n, rng)
        scores["masked"] = masked(model, world, n // 4, rng)
    return dict(rounded(scores))


def progress_scores(model: Any, world: World, seed: int = 2) -> str:
    """A few scores in rates line, for the display of a training in progress."""
    rng = np.random.default_rng(seed)
    parts = []
    if hasattr(model, "encode_images"):
        by_attribute = association(model, world, 1400, rng)
        icons = retrieval(model, world, 500, rng, (4, 16))
        parts += [
            f"C-ASC {by_attribute['shape']['spearman']:.3f} {by_attribute['hue']['spearman']:.3f}"
        ]
        parts += [f"icons {rates['top1']:.2f}/{rates['bayes']:.2f}" for rates in icons.values()]
    if hasattr(model, "match"):
        right = matching(model, world, 1000, rng, (4,))["4"]
        words = masked(model, world, 100, rng, (0, 4))
        parts += [f"matching {right['right']:.2f}/{right['bayes']:.2f}"]
        parts += [f"words {rates['total_variation']:.3f}" for rates in words["by_cells"].values()]
        parts += [f"redrawn {words['counterfactual_spearman']:.2f}"]
    return "  ".join(parts)


def win_rate(a: Floats, b: Floats) -> float:
    """Share of rows where `a` is larger; a tie counts half."""
    return float((a > b).mean() + (a == b).mean() / 2)


def rho(a: Floats, b: Floats) -> float:
    """Spearman's correlation; NaN where one of the two is all the same."""
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return float("nan")
    return float(spearmanr(np.ravel(a), np.ravel(b)).statistic)


def rounded(x: Any) -> Any:
    """Scores with four decimals; what is undefined is null."""
    if isinstance(x, dict):
        return {key: rounded(value) for key, value in x.items()}
    if isinstance(x, list):
        return [rounded(value) for value in x]
    return None if x != x else round(x, 4)


def main() -> None:
    """Print the scores of the shipped models."""
    from tiltmeter.testbed.loading import load
    from tiltmeter.testbed.models import MODELS

    specs = [f"testbed:{kind}{twin}" for twin in ("", "?twin=fair") for kind in MODELS]
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("models", nargs="*", default=specs, help=", ".join(specs))
    for spec in parser.parse_args().models:
        model = load(Spec.parse(spec))
        print(spec, json.dumps(evaluate(model, model.provenance["strength"])), flush=True)


if __name__ == "__main__":
    main()
