"""Runs a model on factual and counterfactual images and texts, and keeps what it says.

`MaskedScores` holds log-probabilities of every instance, from which the rows of the probe
`counterfactual` are made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tiltmeter.errors import InputError, TiltmeterError, UnknownNameError
from tiltmeter.metrics.counterfactual import counterfactual_bias
from tiltmeter.probes.counterfactual.sources import ImagePairBlock, Source, Swap, pixels_of
from tiltmeter.probes.counterfactual.sources.words import one_mask, read, spelled, with_masked_head
from tiltmeter.types import Faces, Floats, Ints, MaskedPredictor, Progress

READINGS = ("vocabulary", "candidates")


@dataclass(frozen=True)
class MaskedQuery:
    """The bias concept, the target words with their categories, and the templates."""

    swap: Swap
    targets: tuple[str, ...]
    categories: tuple[str, ...]  # one per target
    templates: tuple[str, ...]  # {g} is the bias word, [MASK] the target
    labels: Mapping[str, int] = field(default_factory=dict)  # 1: human label of the first group

    def __post_init__(self) -> None:
        if not self.targets or not self.templates:
            raise InputError("a counterfactual takes at least one target word and one template")
        if len(self.categories) != len(self.targets):
            raise InputError(
                f"{len(self.categories)} categories for {len(self.targets)} target words: one each"
            )
        for template in self.templates:
            one_mask(template, named=True)
        one_mask(self.swap.prompt)

    def texts(self, template: str, first: Ints) -> list[str]:
        """The template with the word of each instance."""
        return [template.replace("{g}", self.swap.words[0 if one else 1]) for one in first]


@dataclass(frozen=True, eq=False)
class MaskedScores:
    """Log-probabilities of one source of counterfactuals, an instance for each image with one.

    `targets` has four parts, by what image and text show: both factual, the image changed, the
    text changed, both changed; each is instances x templates x targets. `bias` has two, factual
    and changed: instances x (own word, other word).
    """

    source: str
    told: str  # the settings of the source
    rows: Ints
    first: Ints  # whether an instance shows the first group
    clusters: Ints  # instances of one scene are drawn together; numbered alike for all sources
    there: Floats  # instances x targets: which count; an activity is asked where it is shown
    targets: Floats
    bias: Floats
    noise_targets: Floats | None = None  # of noise as large as an attack
    noise_bias: Floats | None = None

    def odds(self, changed: int = 1, *, noise: bool = False) -> Floats:
        """ln P(own word) / P(other word), of the factual image (0) or the changed one (1)."""
        found = self.noise_bias if noise else self.bias[changed]
        assert found is not None
        return np.asarray(found[:, 0] - found[:, 1])

    def shifts(self, *, noise: bool = False) -> Floats:
        """Change of log P(target) by the image, towards the first group; mean over templates."""
        changed = self.noise_targets if noise else self.targets[1]
        assert changed is not None
        towards = np.where(self.first, -1.0, 1.0)[:, None]
        moved = towards * (changed - self.targets[0]).mean(axis=1)
        return np.where(self.there > 0, moved, np.nan)

    def biases(self, asked: MaskedQuery, reading: str, least_change: float) -> dict[str, Floats]:
        """bias_VL, bias_V and bias_L: instances x templates x targets, NaN where undefined."""
        p, own = self._probabilities(asked, reading)
        none, whole = np.zeros_like(own[0]), np.ones_like(own[0])
        # a text names the bias word or does not: 1 and 0; both modalities: their mean
        changes = {
            "VL": (3, (own[0] + whole) / 2, (own[1] + none) / 2),
            "V": (1, own[0], own[1]),
            "L": (2, whole, none),
        }
        found = {}
        for kind, (at, before, after) in changes.items():
            wide = [np.broadcast_to(x[:, None, None], p[0].shape).ravel() for x in (before, after)]
            flat = counterfactual_bias(
                p[0].ravel(), p[at].ravel(), *wide, least_change=least_change
            )
            found[kind] = np.where(self.there[:, None] > 0, flat.reshape(p[0].shape), np.nan)
        return found

    def _probabilities(self, asked: MaskedQuery, reading: str) -> tuple[Floats, Floats]:
        """P(target), 4 x instances x templates x targets, and P(own bias word), 2 x instances."""
        if reading not in READINGS:
            raise UnknownNameError("softmax reading", reading, READINGS)
        p, own = np.exp(self.targets), np.exp(self.bias)
        if reading == "vocabulary":
            return p, own[..., 0]
        for kind in set(asked.categories):  # among the words of the same list
            mine = np.array([one == kind for one in asked.categories])
            p[..., mine] /= p[..., mine].sum(axis=-1, keepdims=True)
        return p, own[..., 0] / own.sum(axis=-1)


def measure(
    model: MaskedPredictor,
    data: Faces,
    asked: MaskedQuery,
    source: Source,
    *,
    noise: float = 0.0,
    seed: int = 0,
    progress: Progress | None = None,
) -> MaskedScores:
    """Runs the model on factual and counterfactual images and texts.

    `noise` is the size of a random change that is measured beside it; 0 leaves it out.
    """
    with_masked_head(model)
    spelled(model, asked.targets)
    spelled(model, asked.swap.words, "bias word")
    parts = []
    total, done = max(len(asked.swap.rows(data)), 1), 0
    for block in source.blocks(model, data, asked.swap):
        parts.append((block.rows, *_read_block(model, data, asked, block, noise, seed)))
        done += len(block.rows)
        if progress:
            progress(f"{source.name} counterfactuals", min(done / total, 1.0))
    if not parts:
        raise InputError(f"{data.name} has no picture of {' or '.join(asked.swap.groups)}")
    rows = np.concatenate([part[0] for part in parts])
    targets, bias = (np.concatenate([part[at] for part in parts], axis=1) for at in (1, 2))
    there, clusters = _instances(data, asked, rows)
    return MaskedScores(
        source.name,
        str(getattr(source, "settings", "")),
        rows,
        asked.swap.has_first(data, rows),
        clusters,
        there,
        targets[:4],
        bias[:2],
        targets[4] if noise else None,
        bias[2] if noise else None,
    )


def _read_block(
    model: MaskedPredictor,
    data: Faces,
    asked: MaskedQuery,
    block: ImagePairBlock,
    noise: float,
    seed: int,
) -> tuple[Floats, Floats]:
    """Log-probabilities of targets (5 or 4 x n x templates x targets) and of own and other word."""
    first = asked.swap.has_first(data, block.rows)
    pictures = [block.factual, block.counterfactual]
    if noise:
        from tiltmeter.probes.counterfactual.sources.adversarial import noise as noisy

        pictures.append(noisy(block.factual, noise, rows=block.rows, seed=seed))
    prompts = [asked.swap.prompt] * len(first)
    both = [read(model, shown, prompts, asked.swap.words) for shown in pictures]
    swapped = [np.where(first[:, None], found, found[:, ::-1]) for found in both]
    by_template = []
    for template in asked.templates:
        own, other = asked.texts(template, first), asked.texts(template, ~first)
        plan = [(pictures[0], own), (pictures[1], own), (pictures[0], other), (pictures[1], other)]
        plan += [(shown, own) for shown in pictures[2:]]
        by_template.append([read(model, shown, texts, asked.targets) for shown, texts in plan])
    return np.stack(by_template, axis=2).astype(np.float64), np.stack(swapped)


def _instances(data: Faces, asked: MaskedQuery, rows: Ints) -> tuple[Floats, Ints]:
    """Which targets each instance is asked for, and which instances belong together."""
    shown = targets_shown(data, asked.targets)
    there = np.ones((len(rows), len(asked.targets)))
    if shown is not None:
        there = (shown[rows, None] == np.arange(len(asked.targets))).astype(float)
    if not getattr(data, "parallel", False):
        return there, rows
    keys = [f"{kind}/{scene}" for kind, scene in zip(data.kinds, data.scenes, strict=True)]  # type: ignore[attr-defined]
    return there, np.unique(keys, return_inverse=True)[1].reshape(-1)[rows]


def targets_shown(data: Faces, targets: Sequence[str]) -> Ints | None:
    """Number of the target that each image shows, -1 for none; None if data name no concepts."""
    if getattr(data, "parallel", True):
        return None
    at = {target.casefold(): number for number, target in enumerate(targets)}
    return np.array([at.get(scene.casefold(), -1) for scene in data.scenes])  # type: ignore[attr-defined]


def text_bias(
    model: MaskedPredictor, asked: MaskedQuery, images: Any | None = None
) -> tuple[Floats, str]:
    """log P(T | first word) - log P(T | second word) without an image, templates x targets.

    Equations 12 and 13: also for models that only read. The second value says what stood for no
    image: `text_only`, or `blank` (a white one, made like `images`) where a model must see.
    """
    with_masked_head(model)
    spelled(model, asked.targets)

    def difference(shown: Any | None) -> Floats:
        found = []
        for template in asked.templates:
            texts = asked.texts(template, np.array([1, 0]))
            first, second = read(model, shown, texts, asked.targets)
            found.append(first - second)
        return np.stack(found)

    try:
        return difference(None), "text_only"
    except TiltmeterError:
        if images is None:
            raise
    white = pixels_of(model, images)[:1] * 0 + 1
    return difference(white.expand(2, -1, -1, -1)), "blank"


def bias_only(
    model: MaskedPredictor, data: Faces, asked: MaskedQuery, source: Source
) -> tuple[Floats, Floats]:
    """Log-odds of the own bias word before and after, one an instance."""
    before: list[Floats] = []
    after: list[Floats] = []
    for block in source.blocks(model, data, asked.swap):
        first = asked.swap.has_first(data, block.rows)
        for kept, shown in ((before, block.factual), (after, block.counterfactual)):
            found = read(model, shown, [asked.swap.prompt] * len(first), asked.swap.words)
            kept.append(np.where(first, 1, -1) * (found[:, 0] - found[:, 1]))
    return np.concatenate(before), np.concatenate(after)
