"""Utility tasks of the frontier: zero-shot classification and caption retrieval.

Embeddings are made once; candidates correct them. Each task has one half of the images to choose
strengths by and one half to report.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tiltmeter.metrics.arrays import to_numpy, unit
from tiltmeter.metrics.utility import found_in_top_k, zero_shot_correct
from tiltmeter.probes.zero_shot import TEMPLATES
from tiltmeter.types import Floats, Groups, Ints

#: Testbed images per half; and the k of recall.
TESTBED_IMAGES, K = 1000, 10


@dataclass(frozen=True, eq=False)
class UtilityTask:
    """Texts with their images, scored by accuracy or recall."""

    name: str
    texts: tuple[str, ...]
    of: Ints  # class or image of each text
    images: Any  # input of encode_images
    encoded: Floats  # text embeddings
    vectors: Floats  # image embeddings
    classes: Ints | None  # of each image; None: texts are captions of single images
    half: Ints  # of each image: 0 for validation, 1 for the report
    #: Whether its loss counts: not if images can be found by their group alone, which is the bias.
    counts: bool = True

    def hits(self, texts: Floats, images: Floats, half: int) -> Floats:
        """Hit of each image of that half (classes), or of each caption of its images."""
        rows = np.flatnonzero(self.half == half)
        if self.classes is not None:
            count = int(self.of.max()) + 1
            means = np.stack([texts[self.of == code].mean(axis=0) for code in range(count)])
            return zero_shot_correct(np.asarray(unit(means)) @ images[rows].T, self.classes[rows])
        captions = np.flatnonzero(np.isin(self.of, rows))
        scores = texts[captions] @ images[rows].T
        k = min(K, len(rows))
        best = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        return found_in_top_k(best, self.of[captions], rows, [k])[:, 0]


def class_task(
    name: str, model: Any, classes: Groups, images: Any, vectors: Floats,
    class_texts: Sequence[str] | None, seed: int,
) -> UtilityTask:  # fmt: skip
    """Zero-shot accuracy; `class_texts` has one text per class, by default from its name."""
    labels = [label.replace("_", " ") for label in classes.names]
    texts = list(class_texts or [TEMPLATES[0].replace("{}", label) for label in labels])
    return UtilityTask(
        name, tuple(texts), np.arange(len(texts)), images, encoded(model.encode_texts, texts),
        vectors, classes.codes.astype(np.int64), _halves(len(vectors), seed),
    )  # fmt: skip


def caption_task(
    model: Any, captions: Any, vectors: Floats, seed: int, name: str = f"recall@{K}",
    counts: bool = True,
) -> UtilityTask:  # fmt: skip
    """Recall@10 of captions among the images of their half."""
    return UtilityTask(
        name, tuple(captions.texts), np.asarray(captions.of), captions.images,
        encoded(model.encode_texts, captions.texts), vectors, None, _halves(len(vectors), seed),
        counts,
    )  # fmt: skip


def testbed_tasks(model: Any, seed: int) -> list[UtilityTask]:
    """Icon accuracy over all concepts, and recall of captions, in the world of a testbed model.

    Recall is measured on scenes with full icons. It is also measured, and not counted as a loss, on
    scenes as the world draws them: some have no icon, so that a caption can find them only by
    group, which is the planted bias itself.
    """
    from tiltmeter.testbed.captioned import draw_captioned_scenes
    from tiltmeter.testbed.captions import concept_captions
    from tiltmeter.testbed.world import World

    world, rng = World.plant(model.provenance["strength"]), np.random.default_rng([seed, 7])
    concept = rng.integers(0, len(world.concepts), 2 * TESTBED_IMAGES)
    icons = world.scenes(2 * TESTBED_IMAGES, rng, concept=concept, cells=16)
    full_icons, as_drawn = (
        draw_captioned_scenes(world, 2 * TESTBED_IMAGES, rng, cells=16),
        draw_captioned_scenes(world, 2 * TESTBED_IMAGES, rng),
    )
    names = tuple(planted.name for planted in world.concepts)
    image_sets = (icons, full_icons.images, as_drawn.images)
    vectors = [np.asarray(to_numpy(model.encode_images(images))) for images in image_sets]
    return [
        class_task(
            "icon accuracy", model, Groups(concept, names, "concept"), icons, vectors[0],
            list(concept_captions().values()), seed,
        ),
        caption_task(model, full_icons, vectors[1], seed),
        caption_task(model, as_drawn, vectors[2], seed, f"recall@{K}, as drawn", counts=False),
    ]  # fmt: skip


def encoded(encode: Callable[[Sequence[str]], Any], texts: Sequence[str]) -> Floats:
    """Text embeddings of unit length."""
    return np.asarray(unit(np.asarray(to_numpy(encode(list(texts)))), "texts"))


def _halves(n: int, seed: int) -> Ints:
    return np.random.default_rng([seed, 8]).permutation(np.arange(n) % 2)
