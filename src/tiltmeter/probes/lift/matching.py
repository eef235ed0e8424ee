"""Scores of matchers: the matching logit of an image and a text, one forward pass per pair."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tiltmeter.metrics.arrays import to_numpy
from tiltmeter.probes.lift.scored import MATCHING, ScoredClass, images_of, scored_images
from tiltmeter.probes.lift.words import prompt_classes
from tiltmeter.stats.lift_verdict import RULE
from tiltmeter.types import Faces, Groups, Ints, Matcher, Progress, Prompt


def score_matches(
    model: Matcher, prompts: Sequence[Prompt], faces: Faces, cells: Groups, rows: Ints,
    progress: Progress,
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
        scored = ScoredClass(MATCHING, pos, list(found.words), neutral, note=note)
        if neutral:
            shown = [found.words[word][0] for word in found.words]
            shown += [found.neutral[word][0] for word in neutral]
            images = images_of(faces, rows)
            logits = np.empty((len(rows), len(shown)))
            for column, prompt in enumerate(shown):
                logits[:, column] = to_numpy(model.match(images, [prompt.text] * len(rows)))
                progress(f"matching {pos}", (column + 1) / len(shown))
            scored = scored_images(scored, logits, rows, cells)
        classes.append(scored)
    return classes
