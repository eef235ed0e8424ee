"""Scores of masked heads: ln P(word | image, a caption with a mask that names no group)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tiltmeter import stimuli
from tiltmeter.errors import InputError, TiltmeterError
from tiltmeter.metrics.arrays import to_numpy
from tiltmeter.probes.counterfactual.sources.words import MASK, one_mask
from tiltmeter.probes.lift.scored import MASKED, ScoredClass, images_of, scored_images
from tiltmeter.probes.lift.words import CONCEPT, NEUTRAL, Word
from tiltmeter.stats.lift_verdict import neutral_weights
from tiltmeter.types import (
    Faces,
    Floats,
    Groups,
    Ints,
    MaskedPredictor,
    Progress,
    Prompt,
    planted_world,
)

ACTIVITY = "activity"
BLOCK = 64  # images that go through the model together
PERSON = "person"


def masked_captions(
    prompts: Sequence[Prompt], captions: Sequence[str], faces: Faces
) -> dict[str, list[str]]:
    """Captions with a mask by part of speech: the user's, or the templates of most words.

    Activities get the captions of CounterBias, with a noun that names no group.

    Raises
    ------
    InputError
        A caption names a group: the model would repeat what it is told instead of what it sees.
    """
    noun = PERSON
    if planted_world(faces):
        from tiltmeter.testbed.language import NEUTRAL_NOUN as noun
    used: dict[str, Counter[str]] = {}
    words: dict[str, set[str]] = {}
    for prompt in prompts:
        if prompt.role == "word" and prompt.pos not in ("", ACTIVITY) and "{}" in prompt.template:
            used.setdefault(prompt.pos, Counter())[prompt.template] += 1
            words.setdefault(prompt.pos, set()).add(prompt.concept)
    by_pos = {
        pos: [text.replace("{}", MASK) for text, n in counts.items() if n >= len(words[pos]) / 2]
        for pos, counts in used.items()
    }
    by_pos[ACTIVITY] = [
        text.replace("{g}", noun) for text in stimuli.load("counterbias").templates["target"]
    ]
    if captions:
        by_pos = {pos: list(captions) for pos in by_pos}
    for caption in dict.fromkeys(text for listed in by_pos.values() for text in listed):
        check_caption(caption, faces)
    return by_pos


def check_caption(caption: str, faces: Faces) -> None:
    """InputError unless a caption has one mask and names no group.

    >>> check_caption("The person is [MASK]", Faces((), {}))
    >>> check_caption("The woman is [MASK]", Faces((), {}))
    Traceback (most recent call last):
    ...
    tiltmeter.errors.InputError: the caption 'The woman is [MASK]' names a group ('woman'): ...
    """
    one_mask(caption)
    for word in group_words(faces):
        if re.search(rf"(?<!\w){re.escape(word)}(?!\w)", caption, re.IGNORECASE):
            raise InputError(
                f"the caption {caption!r} names a group ({word!r}): the model would score what "
                "the text says instead of what the image shows. Use a caption such as "
                f"'The person is {MASK}'",
                code="bad-option",
                value=caption,
            )


def group_words(faces: Faces) -> list[str]:
    """Words that name a perceived gender, age or race, and those of the data's own groups."""
    table, pronouns = (stimuli.load(name).table for name in ("group-nouns", "pronouns"))
    forms = [forms for labels in table.values() for label, forms in labels.items()
             if label != "neutral"]  # fmt: skip
    words = [word for by_form in forms for listed in by_form.values() for word in listed]
    words += [*pronouns["male"], *pronouns["female"]]
    words += [name.replace("_", " ") for g in faces.groups.values() for name in g.names]
    if planted_world(faces):
        from tiltmeter.testbed.language import HUES, SHAPE_NOUNS, SHAPES

        words += [*SHAPES, *SHAPE_NOUNS, *HUES]
    return list(dict.fromkeys(words))


@dataclass(frozen=True, eq=False)
class CaptionGroup:
    """Words of one part of speech that are read in the same captions, with their tokens."""

    pos: str
    captions: tuple[str, ...]
    words: dict[Word, int] = field(default_factory=dict)
    neutral: dict[Word, int] = field(default_factory=dict)

    @property
    def tokens(self) -> list[int]:
        return [*self.words.values(), *self.neutral.values()]


def caption_groups(
    model: MaskedPredictor, prompts: Sequence[Prompt], targets: Sequence[stimuli.Word],
    captions: Mapping[str, Sequence[str]],
) -> list[CaptionGroup]:  # fmt: skip
    """Words of one token by their captions, which end in `a` or `an` as the word needs it."""
    listed = [(p.pos, p.role, (p.concept, p.category or "")) for p in prompts]
    listed += [(word.pos, "word", (word.text, word.category or "")) for word in targets]
    if NEUTRAL[ACTIVITY] in stimuli.STIMULI:
        neutral = stimuli.load(NEUTRAL[ACTIVITY]).words
        listed += [(ACTIVITY, "placebo", (word.text, word.category or "")) for word in neutral]
    groups: dict[tuple[str, tuple[str, ...]], CaptionGroup] = {}
    for pos, role, word in dict.fromkeys(listed):
        try:
            pieces = model.pieces(word[0])
        except TiltmeterError:  # not in the model's vocabulary
            continue
        if pos in captions and len(pieces) == 1:
            own = tuple(_with_article(caption, word[0]) for caption in captions[pos])
            group = groups.setdefault((pos, own), CaptionGroup(pos, own))
            (group.words if role == "word" else group.neutral)[word] = pieces[0]
    return [group for group in groups.values() if group.words or group.neutral]


def score_masked(
    model: MaskedPredictor, faces: Faces, cells: Groups, rows: Ints,
    groups: Sequence[CaptionGroup], progress: Progress,
) -> list[ScoredClass]:  # fmt: skip
    """Score the images of `rows` with the words of each class.

    Words are centred on the neutral words of their own captions, and neutral words are weighted to
    the words' mix of captions; words whose captions have no neutral words are left out. In a
    planted world nouns and adjectives are one class.
    """
    classes: dict[str, list[CaptionGroup]] = {}
    for group in groups:
        one_class = planted_world(model) and group.pos != ACTIVITY
        classes.setdefault(CONCEPT if one_class else group.pos, []).append(group)
    judged = [group for group in groups if group.neutral]
    found = dict(zip(judged, _read(model, faces, rows, judged, progress), strict=True))
    scored = []
    for name, of_class in classes.items():
        known = [group for group in of_class if group in found]
        words = [word for group in known or of_class for word in group.words]
        neutral = [word for group in known for word in group.neutral]
        if not words:
            continue
        one = ScoredClass(MASKED, name, words, neutral, note=f"a sample of {len(rows):,} images")
        if known:
            parts = [np.split(found[group], [len(group.words)], axis=1) for group in known]
            centred = [[x - part[1].mean(axis=1, keepdims=True) for x in part] for part in parts]
            together = [x for side in zip(*centred, strict=True) for x in side]
            one = scored_images(one, np.concatenate(together, axis=1), rows, cells)
            captions = [[group.captions for group in known for _ in getattr(group, side)]
                        for side in ("words", "neutral")]  # fmt: skip
            one = replace(one, weights=neutral_weights(*captions))
        scored.append(one)
    return scored


def _read(
    model: MaskedPredictor, faces: Faces, rows: Ints, groups: Sequence[CaptionGroup],
    progress: Progress,
) -> list[Floats]:  # fmt: skip
    """Mean log-probability of the words of each group over its captions: images x words."""
    texts = list(dict.fromkeys(text for group in groups for text in group.captions))
    blocks: list[list[Floats]] = [[] for _ in groups]
    for start in range(0, len(rows), BLOCK):
        images = images_of(faces, rows[start : start + BLOCK])
        logprobs = {}
        for text in texts:
            masked = [text.replace(MASK, model.mask_token)] * len(images)
            logprobs[text] = to_numpy(model.mask_logprobs(images, masked))[:, 0]
        for block, group in zip(blocks, groups, strict=True):
            own = [np.asarray(logprobs[text][:, group.tokens], float) for text in group.captions]
            block.append(np.mean(own, axis=0))
        progress(MASKED, (start + len(images)) / len(rows))
    return [np.concatenate(parts) for parts in blocks]


def _with_article(caption: str, word: str) -> str:
    """The caption with the article that the masked word needs.

    >>> _with_article("a photo of a [MASK]", "artist")
    'a photo of an [MASK]'
    """
    before, after = caption.split(MASK)
    return stimuli.fill(f"{before}{{}}", word).removesuffix(word) + MASK + after
