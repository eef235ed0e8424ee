"""Scores of models that see image and text together: matching logits, and likely answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tiltmeter.metrics.arrays import to_numpy
from tiltmeter.probes.lift.scored import ScoredClass, images_of, scored_images
from tiltmeter.probes.lift.words import prompt_classes
from tiltmeter.probes.probe import CannotRunError
from tiltmeter.stats.lift_verdict import RULE
from tiltmeter.types import Continuer, Faces, Floats, Groups, Ints, Matcher, Progress, Prompt

BLOCK = 64  # images between two reports of progress
#: Scores of images and texts, images x texts.
PairScores = Callable[[Any, Sequence[str]], Floats]


def matching_logits(model: Matcher, progress: Progress) -> PairScores:
    """The matching logit of every image and text: a forward pass per pair."""

    def score(images: Any, texts: Sequence[str]) -> Floats:
        logits = np.empty((len(images), len(texts)))
        for column, text in enumerate(texts):
            logits[:, column] = to_numpy(model.match(images, [text] * len(images)))
            progress("matching", (column + 1) / len(texts))
        return logits

    return score


def answer_logprobs(model: Continuer, question: str, progress: Progress) -> PairScores:
    """ln P(text) as the answer to a question about every image."""

    def score(images: Any, texts: Sequence[str]) -> Floats:
        blocks = []
        for start in range(0, len(images), BLOCK):
            some = images[start : start + BLOCK]
            found = model.continuations(some, question, texts)
            if not found.exact.all():
                raise CannotRunError(
                    "the server gives only bounds of likelihoods: lift needs a server with "
                    "prompt_logprobs, or the model by hf:"
                )
            blocks.append(found.logprobs)
            progress("answers", (start + len(some)) / len(images))
        return np.concatenate(blocks)

    return score


def score_pairs(
    protocol: str, score: PairScores, model: object, prompts: Sequence[Prompt], faces: Faces,
    cells: Groups, rows: Ints,
) -> list[ScoredClass]:  # fmt: skip
    """Score the images of `rows` with each word in its first template.

    Of neutral words an evenly spaced sample is scored, as many as a verdict needs.
    """
    note = f"a sample of {len(rows):,} images; each word in its first template"
    classes = []
    for pos, found in prompt_classes(prompts, model).items():
        neutral = list(found.neutral)
        most = min(len(neutral), RULE.neutral_words)
        neutral = [neutral[at] for at in np.linspace(0, len(neutral) - 1, most).astype(int)]
        scored = ScoredClass(protocol, pos, list(found.words), neutral, note=note)
        if neutral:
            shown = [found.words[word][0] for word in found.words]
            shown += [found.neutral[word][0] for word in neutral]
            scores = score(images_of(faces, rows), [prompt.text for prompt in shown])
            scored = scored_images(scored, scores, rows, cells)
        classes.append(scored)
    return classes
