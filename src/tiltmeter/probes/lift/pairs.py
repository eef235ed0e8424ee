"""Scores of models that see image and text together: matching logits, and likely answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tiltmeter.probes.lift.scored import ScoredClass, images_of, scored_images
from tiltmeter.probes.lift.words import Word, prompt_classes
from tiltmeter.probes.probe import CannotRunError
from tiltmeter.probes.texts import unknown_texts
from tiltmeter.stats.lift_verdict import RULE
from tiltmeter.types import Continuer, Faces, Floats, Groups, Ints, Progress, Prompt

BLOCK = 64  # images between two reports of progress
NO_TOKENS = "left out, the model has no tokens for"
#: Scores of images and texts, images x texts.
PairScores = Callable[[Any, Sequence[str]], Floats]


def answer_logprobs(model: Continuer, question: str) -> PairScores:
    """ln P(text) as the answer to a question about every image."""

    def score(images: Any, texts: Sequence[str]) -> Floats:
        found = model.continuations(images, question, texts)
        if not found.exact.all():
            raise CannotRunError(
                "the server gives only bounds of likelihoods: lift needs a server with "
                "prompt_logprobs, or the model by hf:"
            )
        return found.logprobs

    return score


def in_blocks(
    score: PairScores, images: Any, texts: Sequence[str], tell: Callable[[float], None]
) -> Floats:
    """Scores of all images, some at a time; `tell` is called with the share that is done."""
    found = np.empty((len(images), len(texts)))
    for start in range(0, len(images), BLOCK):
        some = images[start : start + BLOCK]
        found[start : start + len(some)] = score(some, texts)
        tell((start + len(some)) / len(images))
    return found


def score_pairs(
    protocol: str, score: PairScores, progress: Progress, model: object,
    prompts: Sequence[Prompt], faces: Faces, cells: Groups, rows: Ints,
    most_neutral: int = RULE.neutral_words,
) -> list[ScoredClass]:  # fmt: skip
    """Score the images of `rows` with each word in its first template.

    Of neutral words an evenly spaced sample is scored, `most_neutral` at the most. Words that the
    model has no tokens for are left out, and named.
    """
    sample = f"a sample of {len(rows):,} images; each word in its first template"
    classes: list[tuple[ScoredClass, list[str]]] = []
    for pos, found in prompt_classes(prompts, model).items():
        (words, unknown), (neutral, _) = (
            _known(own, model) for own in (found.words, found.neutral)
        )
        most = min(len(neutral), most_neutral)
        neutral = [neutral[at] for at in np.linspace(0, len(neutral) - 1, most).astype(int)]
        note = f"{NO_TOKENS}: {', '.join(unknown)}" if unknown else None
        scored = ScoredClass(protocol, pos, words, neutral,
                             note="; ".join(filter(None, (sample, note))))  # fmt: skip
        texts = []
        if words and len(neutral) > 1:  # they have a spread
            shown = [*(found.words[word] for word in words),
                     *(found.neutral[word] for word in neutral)]  # fmt: skip
            texts = [first.text for first, *_ in shown]
        classes.append((scored, texts))
    images, judged = images_of(faces, rows), []
    total, done = sum(len(texts) for _, texts in classes), 0

    def tell(before: int, here: int) -> Callable[[float], None]:
        return lambda share: progress(protocol, (before + share * here) / total)

    for scored, texts in classes:
        if texts:
            scores = in_blocks(score, images, texts, tell(done, len(texts)))
            scored, done = scored_images(scored, scores, rows, cells), done + len(texts)
        judged.append(scored)
    return judged


def _known(prompts: Mapping[Word, Sequence[Prompt]], model: object) -> tuple[list[Word], list[str]]:
    """Words whose first prompt the model has tokens for, and the names of the others."""
    unknown = {*unknown_texts(model, (first.text for first, *_ in prompts.values()))}
    known = [word for word, (first, *_) in prompts.items() if first.text not in unknown]
    return known, [word[0] for word in prompts if word not in known]
