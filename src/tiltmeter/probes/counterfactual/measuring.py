"""Log-probabilities of a model on factual and counterfactual images and texts.

The rows of the probe `counterfactual` are computed from `MaskedScores`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tiltmeter.errors import InputError, TiltmeterError, UnknownNameError
from tiltmeter.metrics.counterfactual import counterfactual_bias
from tiltmeter.probes.counterfactual.sources import ImagePairBlock, Source, Swap, pixels_of
from tiltmeter.probes.counterfactual.sources.words import (
    check_words,
    one_mask,
    read,
    with_masked_head,
)
from tiltmeter.types import Faces, Floats, Ints, MaskedPredictor, Progress

#: How probabilities are read. P(T) and P(B) over the vocabulary, or over candidate words; then the
#: readings of the public scripts, all over candidates: P(B) as 0 or 1, the bias word as the model
#: reads it instead of the label, and the relative change of P(T).
READINGS = ("vocabulary", "candidates", "hard", "own-reading", "relative")


@dataclass(frozen=True)
class CounterfactualQuery:
    """Texts of the probe: the pair of words to swap, the target words, and the templates."""

    swap: Swap
    targets: tuple[str, ...]
    categories: tuple[str, ...]  # one per target
    templates: tuple[str, ...]  # {g} is the bias word, [MASK] the target
    labels: Mapping[str, int] = field(
        default_factory=dict
    )  # human labels: 1 for the first group, -1 for the second
    classes: tuple[str, ...] = ()  # of each target: the neutral words that it is judged by
    neutral: tuple[tuple[str, str], ...] = ()  # neutral words with their class

    def __post_init__(self) -> None:
        if not self.targets or not self.templates:
            raise InputError("a counterfactual needs at least one target word and one template")
        if len(self.categories) != len(self.targets):
            raise InputError(
                f"{len(self.categories)} categories for {len(self.targets)} target words; "
                "expected one each"
            )
        for template in self.templates:
            one_mask(template, named=True)
        one_mask(self.swap.prompt)

    def texts(self, template: str, first: Ints) -> list[str]:
        """The template with the bias word of each instance."""
        return [
            template.replace("{g}", self.swap.words[0 if is_first else 1]) for is_first in first
        ]


@dataclass(frozen=True, eq=False)
class MaskedScores:
    """Log-probabilities for one source of counterfactuals; an instance is an image that has one.

    `targets` has four parts: image and text factual, image changed, text changed, both changed;
    each is instances x templates x targets. `bias` has two parts, factual and changed: instances x
    (own word, other word).
    """

    source: str
    settings: str  # of the source, as text
    rows: Ints
    first: Ints  # whether the instance shows the first group
    clusters: Ints  # scene of each instance; the same numbers for all sources
    asked: Floats  # instances x targets: 1 if measured (an activity only where it is shown)
    targets: Floats
    bias: Floats
    noise_targets: Floats | None = None  # with noise of the attack's size
    noise_bias: Floats | None = None
    #: The four parts of neutral words, means over templates: 4 x instances x words.
    neutral: Floats | None = None

    def odds(self, changed: int = 1, *, noise: bool = False) -> Floats:
        """ln P(own word) / P(other word), of the factual image (0) or the changed one (1)."""
        logprobs = self.noise_bias if noise else self.bias[changed]
        assert logprobs is not None
        return np.asarray(logprobs[:, 0] - logprobs[:, 1])

    def shifts(self, *, noise: bool = False) -> Floats:
        """Mean over templates of the image's change of log P(target), towards the first group."""
        changed = self.noise_targets if noise else self.targets[1]
        assert changed is not None
        towards = np.where(self.first, -1.0, 1.0)[:, None]
        moved = towards * (changed - self.targets[0]).mean(axis=1)
        return np.where(self.asked > 0, moved, np.nan)

    def biases(
        self, query: CounterfactualQuery, reading: str, least_change: float
    ) -> dict[str, Floats]:
        """bias_VL, bias_V and bias_L: instances x templates x targets, NaN where undefined."""
        p, own_word = self._probabilities(query, reading)
        if reading == "hard":
            own_word = (own_word > 0.5).astype(float)
        if reading == "relative":
            p = p / p[:1]
        zeros, ones = np.zeros_like(own_word[0]), np.ones_like(own_word[0])
        # a text contains the bias word (1) or not (0); for both modalities, the mean
        changes = {
            "VL": (3, (own_word[0] + ones) / 2, (own_word[1] + zeros) / 2),
            "V": (1, own_word[0], own_word[1]),
            "L": (2, ones, zeros),
        }
        biases = {}
        for kind, (index, before, after) in changes.items():
            wide = [np.broadcast_to(x[:, None, None], p[0].shape).ravel() for x in (before, after)]
            flat = counterfactual_bias(
                p[0].ravel(), p[index].ravel(), *wide, least_change=least_change
            )
            biases[kind] = np.where(self.asked[:, None] > 0, flat.reshape(p[0].shape), np.nan)
        return biases

    def as_read(self) -> MaskedScores:
        """The same with the group that the model reads in each factual image, not the label's.

        Where they differ, the factual text names the other group.
        """
        misread = self.odds(0) < 0
        swap = [2, 3, 0, 1]  # factual text -> swapped text, and back
        return replace(
            self,
            first=self.first ^ misread,
            targets=np.where(misread[:, None, None], self.targets[swap], self.targets),
            bias=np.where(misread[:, None], self.bias[..., ::-1], self.bias),
        )

    def _probabilities(self, query: CounterfactualQuery, reading: str) -> tuple[Floats, Floats]:
        """P(target), 4 x instances x templates x targets, and P(own bias word), 2 x instances."""
        if reading not in READINGS:
            raise UnknownNameError("softmax reading", reading, READINGS)
        p, bias_words = np.exp(self.targets), np.exp(self.bias)
        if reading == "vocabulary":
            return p, bias_words[..., 0]
        for kind in set(query.categories):  # among the words of the same list
            in_list = np.array([category == kind for category in query.categories])
            p[..., in_list] /= p[..., in_list].sum(axis=-1, keepdims=True)
        return p, bias_words[..., 0] / bias_words.sum(axis=-1)


def measure(
    model: MaskedPredictor,
    data: Faces,
    query: CounterfactualQuery,
    source: Source,
    *,
    noise: float = 0.0,
    seed: int = 0,
    progress: Progress | None = None,
) -> MaskedScores:
    """Run the model on factual and counterfactual images and texts.

    `noise` is the size of a random change that is measured as a control; 0 leaves it out.
    """
    with_masked_head(model)
    check_words(model, query.targets)
    check_words(model, query.swap.words, "bias word")
    parts = []
    total, done = max(len(query.swap.rows(data)), 1), 0
    for block in source.blocks(model, data, query.swap):
        parts.append((block.rows, *_read_block(model, data, query, block, noise, seed)))
        done += len(block.rows)
        if progress:
            progress(f"{source.name} counterfactuals", min(done / total, 1.0))
    if not parts:
        raise InputError(f"{data.name} has no image of {' or '.join(query.swap.groups)}")
    rows = np.concatenate([part[0] for part in parts])
    targets, bias, neutral = (
        np.concatenate([part[index] for part in parts], axis=1) for index in (1, 2, 3)
    )
    asked, clusters = _instances(data, query, rows)
    return MaskedScores(
        source.name,
        str(getattr(source, "settings", "")),
        rows,
        query.swap.has_first(data, rows),
        clusters,
        asked,
        targets[:4],
        bias[:2],
        targets[4] if noise else None,
        bias[2] if noise else None,
        neutral,
    )


def _read_block(
    model: MaskedPredictor,
    data: Faces,
    query: CounterfactualQuery,
    block: ImagePairBlock,
    noise: float,
    seed: int,
) -> tuple[Floats, Floats, Floats]:
    """Log-probabilities of targets (4 or 5 x n x templates x targets), bias and neutral words."""
    first = query.swap.has_first(data, block.rows)
    images = [block.factual, block.counterfactual]
    if noise:
        from tiltmeter.probes.counterfactual.sources.adversarial import noise as noisy

        images.append(noisy(block.factual, noise, rows=block.rows, seed=seed))
    prompts = [query.swap.prompt] * len(first)
    bias_words = [read(model, image, prompts, query.swap.words) for image in images]
    swapped = [np.where(first[:, None], logprobs, logprobs[:, ::-1]) for logprobs in bias_words]
    words = [*query.targets, *(word for word, _ in query.neutral)]
    by_template = []
    for template in query.templates:
        own_texts, other_texts = query.texts(template, first), query.texts(template, ~first)
        plan = [
            (images[0], own_texts),
            (images[1], own_texts),
            (images[0], other_texts),
            (images[1], other_texts),
        ]
        plan += [(image, own_texts) for image in images[2:]]
        by_template.append([read(model, image, texts, words) for image, texts in plan])
    logprobs = np.stack(by_template, axis=2).astype(np.float64)
    targets, neutral = np.split(logprobs, [len(query.targets)], axis=-1)
    return targets, np.stack(swapped), neutral[:4].mean(axis=2).astype(np.float32)


def _instances(data: Faces, query: CounterfactualQuery, rows: Ints) -> tuple[Floats, Ints]:
    """Targets measured on each instance, and the cluster of each instance."""
    target_of = targets_shown(data, query.targets)
    asked = np.ones((len(rows), len(query.targets)))
    if target_of is not None:
        asked = (target_of[rows, None] == np.arange(len(query.targets))).astype(float)
    if not getattr(data, "parallel", False):
        return asked, rows
    keys = [f"{kind}/{scene}" for kind, scene in zip(data.kinds, data.scenes, strict=True)]  # type: ignore[attr-defined]
    return asked, np.unique(keys, return_inverse=True)[1].reshape(-1)[rows]


def targets_shown(data: Faces, targets: Sequence[str]) -> Ints | None:
    """Index of the target that each image shows, -1 for none; None if data have no concepts."""
    if getattr(data, "parallel", True):
        return None
    number_of = {target.casefold(): number for number, target in enumerate(targets)}
    return np.array([number_of.get(scene.casefold(), -1) for scene in data.scenes])  # type: ignore[attr-defined]


def text_bias(
    model: MaskedPredictor, query: CounterfactualQuery, images: Any | None = None
) -> tuple[Floats, str]:
    """log P(T | first word) - log P(T | second word) without an image, templates x targets.

    Equations 12 and 13 of the paper; also for text-only models. The second value says what was used
    for no image: `text_only`, or `blank` (white, in the size of `images`) if a model needs one.
    """
    with_masked_head(model)
    check_words(model, query.targets)

    def difference(image: Any | None) -> Floats:
        differences = []
        for template in query.templates:
            texts = query.texts(template, np.array([1, 0]))
            first, second = read(model, image, texts, query.targets)
            differences.append(first - second)
        return np.stack(differences)

    try:
        return difference(None), "text_only"
    except TiltmeterError:
        if images is None:
            raise
    white = pixels_of(model, images)[:1] * 0 + 1
    return difference(white.expand(2, -1, -1, -1)), "blank"


def bias_only(
    model: MaskedPredictor, data: Faces, query: CounterfactualQuery, source: Source
) -> tuple[Floats, Floats]:
    """Log-odds of the own bias word before and after, one per instance."""
    before: list[Floats] = []
    after: list[Floats] = []
    for block in source.blocks(model, data, query.swap):
        first = query.swap.has_first(data, block.rows)
        for odds, image in ((before, block.factual), (after, block.counterfactual)):
            logprobs = read(model, image, [query.swap.prompt] * len(first), query.swap.words)
            odds.append(np.where(first, 1, -1) * (logprobs[:, 0] - logprobs[:, 1]))
    return np.concatenate(before), np.concatenate(after)
