"""Scores of dual encoders: scale x cosine, in one pass over the embeddings on any engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from tiltmeter.engine.engines import Engine
from tiltmeter.engine.parts import ImageParts
from tiltmeter.engine.ranking.job import scaled
from tiltmeter.engine.score_moments import score_moments
from tiltmeter.engine.vectors import Vectors
from tiltmeter.metrics.arrays import unit
from tiltmeter.probes.embeddings import text_embeddings
from tiltmeter.probes.lift.scored import CONTRASTIVE, ImageSample, ScoredClass
from tiltmeter.probes.lift.words import prompt_classes
from tiltmeter.probes.ranking.stored import vector_column
from tiltmeter.stats.random_visible_splits import MOST_IMAGES
from tiltmeter.types import Floats, Ints, Progress, Prompt, TextEncoder


@dataclass(frozen=True, eq=False)
class ClassTexts:
    """A class of words with texts whose products with image embeddings are scores."""

    scored: ScoredClass
    vectors: Floats  # (words, then neutral words) x dimensions


def class_texts(model: TextEncoder, prompts: Sequence[Prompt], scale: float) -> list[ClassTexts]:
    """Texts of words and neutral words by class.

    A text is the mean over the templates of a word, minus the mean of the neutral words: what an
    image gives to all words alike is no lift. A class without neutral words has no texts.
    """
    found = []
    for pos, prompts_of in prompt_classes(prompts, model).items():
        by_word = [*prompts_of.words.values(), *prompts_of.neutral.values()]
        scored = ScoredClass(CONTRASTIVE, pos, list(prompts_of.words), list(prompts_of.neutral))
        if not scored.neutral:
            found.append(ClassTexts(scored, np.empty((0, 0))))
            continue
        embedded = text_embeddings(model, [prompt for listed in by_word for prompt in listed])
        unit_texts = scale * np.asarray(unit(embedded, "texts"), float)
        starts = np.cumsum([0, *(len(listed) for listed in by_word[:-1])])
        lengths = np.array([len(listed) for listed in by_word])
        texts = np.add.reduceat(unit_texts, starts, axis=0) / lengths[:, None]
        found.append(ClassTexts(scored, texts - texts[len(scored.words) :].mean(axis=0)))
    return found


def score_embeddings(
    classes: Sequence[ClassTexts], images: Vectors, cells: Ints, count: int, scaling: str,
    engine: Engine, progress: Progress,
) -> list[ScoredClass]:  # fmt: skip
    """Score all images with the texts of all classes, in one pass; `count` is that of cells."""
    known = [one for one in classes if len(one.vectors)]
    if not known:
        return [one.scored for one in classes]
    texts = np.concatenate([one.vectors for one in known])
    parts = ImageParts.of(images, cells, engine)
    scores, failed = score_moments(texts, count, scaling, parts, engine, progress)
    some, sampled = parts.sample(MOST_IMAGES, engine)  # for splits and resamples
    features = np.asarray(scaled(some, scaling), np.float32)
    note = f"{len(failed)} unreadable parts are left out" if failed else None
    done, start = [], 0
    for one in classes:
        own = slice(start, start := start + len(one.vectors))
        if not len(one.vectors):
            done.append(one.scored)
            continue
        seen = ImageSample(sampled, features, one.vectors.astype(np.float32))
        done.append(replace(one.scored, scores=scores.select(own), sample=seen, note=note))
    return done


def kept_texts(classes: Sequence[ClassTexts], scale: float) -> pa.Table:
    """Texts of all words and neutral words, from which `compare` scores images again."""
    known = [one for one in classes if len(one.vectors)]
    words = [
        (one.scored.pos, role, *word)
        for one in known
        for role, listed in (("word", one.scored.words), ("placebo", one.scored.neutral))
        for word in listed
    ]
    names = ("pos", "role", "concept", "category")
    columns: dict[str, Any] = dict(zip(names, zip(*words, strict=True), strict=True))
    vectors = vector_column(np.concatenate([one.vectors for one in known]))
    return pa.table({**columns, "scale": [float(scale)] * len(words), "vector": vectors})
