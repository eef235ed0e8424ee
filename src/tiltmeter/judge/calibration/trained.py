"""Metrics on the testbed's trained models: lift by protocol, and tests where there is no bias.

Without bias a trained model still differs a little between groups, and its scores hardly vary
otherwise: a test of random labels finds those differences, however small they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

from tiltmeter.judge.calibration.protocols import (
    ATTRIBUTES,
    GROUP_IMAGES,
    Row,
    judge_all,
    lift_rows,
    share,
)
from tiltmeter.judge.calibration.settings import (
    UNITS,
    Readings,
    biased_words,
    masked_readings,
    score_readings,
    vector_readings,
)
from tiltmeter.judge.calibration.verdict import LEVEL
from tiltmeter.metrics.arrays import unit
from tiltmeter.models.match_grid import match_grid
from tiltmeter.probes.counterfactual.sources.words import MASK, read
from tiltmeter.stimuli import fill
from tiltmeter.testbed.data import planted_faces
from tiltmeter.testbed.language import GROUPS, HUES, NEUTRAL_NOUN, SHAPE_NOUNS
from tiltmeter.testbed.oracle import PlantedEmbeddings
from tiltmeter.types import Faces, Floats, Groups

#: Models, and how they score words. Each has a twin without bias.
TRAINED = (
    ("testbed:dual", "cosine"),
    ("testbed:dual?twin=fair", "cosine"),
    ("testbed:fusion", "masked"),
    ("testbed:fusion?twin=fair", "masked"),
)
#: Matching heads score pairs of word and image: minutes per model.
MATCHING = tuple(
    (f"testbed:{kind}{twin}", "matching")
    for kind in ("fusion", "stream")
    for twin in ("", "?twin=fair")
)
WORDS = 100  # for tests of metrics of scores


class Scored(NamedTuple):
    """Scores of all concepts of a world in nats, and p-values of other metrics than lift."""

    scores: Floats  # concepts x images
    tests: dict[str, Floats]  # units x tests; only of models without bias


def trained_rows(
    names: Sequence[str], models: Sequence[tuple[str, str]], seed: int
) -> Iterator[Row]:
    """Lift on trained models, and the tests of all metrics on those without bias.

    Parameters
    ----------
    names
        Metrics that are calibrated; models that score for none of them are not loaded.
    models
        Specs of models of the testbed, and protocols.
    seed
        Seed of the images.
    """
    if find_spec("torch") is None:
        return
    from tiltmeter.models import load_model

    for spec, protocol in models:
        score, images, tested = PROTOCOLS[protocol]
        if not {"lift", *tested} & {*names}:
            continue
        model = load_model(spec)
        faces = planted_faces(model.world, images, np.random.default_rng(seed))
        scores, tests = score(model, faces, np.random.default_rng([seed, 1]))
        place = {"setting": model.name, "protocol": protocol, "dose": model.world.strength,
                 "seed": seed}  # fmt: skip
        for attribute in ATTRIBUTES if "lift" in names else ():
            groups = faces.groups[attribute]
            for size in GROUP_IMAGES:
                if size > groups.counts.min():
                    continue
                some = _first_images(groups, size)
                judged = judge_all(model.world, scores[:, some], groups[some])
                tests["lift"] = judged.verdicts.p[:, None]
                yield from ({**place, "metric": "lift", "attribute": attribute, "n": size} | row
                            for row in lift_rows([judged], model.world.strength))  # fmt: skip
        if model.world.strength == 0:
            for name in (name for name in names if name in tests):
                yield {**place, "metric": name, "statistic": "false positives",
                       **share((tests[name] <= LEVEL).mean(axis=1))}  # fmt: skip


def cosine_scores(model: Any, faces: Faces, rng: np.random.Generator) -> Scored:
    """Scaled cosines; tests of metrics of scores and of embeddings."""
    world = model.world
    texts = model.encode_texts(_captions(model))
    crossed = faces.groups["shape"].codes * len(HUES) + faces.groups["hue"].codes
    embedded = PlantedEmbeddings(
        np.asarray(unit(texts)), np.asarray(unit(model.encode_images(faces.images))), crossed
    )
    scores = model.logit_scale * embedded.texts.astype(float) @ embedded.images.T
    if world.strength > 0:
        return Scored(scores, {})
    words = biased_words("hue", WORDS)
    readings = {
        **score_readings(world, words, scores[words], embedded.groups["hue"], rng),
        **vector_readings(world, embedded),
    }
    return Scored(scores, _tests(readings))


def masked_scores(model: Any, faces: Faces, rng: np.random.Generator) -> Scored:
    """Log-probabilities of the masked word of a caption; tests of counterfactual metrics."""
    world, images = model.world, faces.images
    by_text: dict[str, list[int]] = {}
    for row, (concept, text) in enumerate(zip(world.concepts, _captions(model), strict=True)):
        by_text.setdefault(text.replace(concept.name, MASK), []).append(row)
    scores = np.empty((len(world.concepts), len(faces)))
    for text, rows in by_text.items():
        names = [world.concepts[row].name for row in rows]
        scores[rows] = read(model, images, [text] * len(faces), names).T
    if world.strength > 0:
        return Scored(scores, {})
    words = biased_words("shape", UNITS, among_targets=True)
    shape, t, b = faces.groups["shape"].codes, [], []
    for shown in (shape, 1 - shape):  # factual, counterfactual
        scenes = images.redrawn(shape=shown)
        names = [world.concepts[word].name for word in words]
        t.append(np.exp(read(model, scenes, [f"The {NEUTRAL_NOUN} is {MASK}"] * len(faces), names)))
        nouns = np.exp(
            read(model, scenes, [f"a {MASK} is in the picture"] * len(faces), SHAPE_NOUNS)
        )
        b.append(nouns[np.arange(len(faces)), shape] / nouns.sum(axis=1))
    return Scored(scores, _tests(masked_readings(world, words, t, b, shape == 0, rng)))


def matching_scores(model: Any, faces: Faces, rng: np.random.Generator) -> Scored:
    """Logits of a matching head for every pair of word and image."""
    texts = _captions(model)
    return Scored(match_grid(model, faces.images, texts).T, {})


#: How words are scored, on how many images, and which metrics are tested besides lift.
PROTOCOLS: dict[
    str, tuple[Callable[[Any, Faces, np.random.Generator], Scored], int, tuple[str, ...]]
] = {
    "cosine": (
        cosine_scores,
        GROUP_IMAGES[-1] * len(HUES),
        ("c_asc", "composition", "max_skew", "min_skew", "ndkl", "normalized_entropy", "sc_eat",
         "skew", "weat"),
    ),
    "masked": (
        masked_scores, GROUP_IMAGES[0] * len(HUES), ("counterfactual_bias", "directed_bias")
    ),
    "matching": (matching_scores, 3 * len(GROUPS), ()),
}  # fmt: skip


def _tests(readings: Readings) -> dict[str, Floats]:
    return {name: found.p for name, found in readings.items() if found.p is not None}


def _captions(model: Any) -> list[str]:
    return [fill(concept.templates[0], concept.name) for concept in model.world.concepts]


def _first_images(groups: Groups, size: int) -> Any:
    """The first `size` images of each group."""
    codes = range(len(groups.names))
    return np.concatenate([np.flatnonzero(groups.codes == code)[:size] for code in codes])
