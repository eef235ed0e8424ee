"""What a model must still be good for: classes it names, captions that find their images.

Vectors are made once; a candidate is handed them to correct. Each task has a half to choose by and
a half to report.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tiltmeter.metrics.arrays import to_numpy, unit
from tiltmeter.metrics.utility import recall_hits, zero_shot_hits
from tiltmeter.probes.zero_shot import TEMPLATES
from tiltmeter.types import Floats, Groups, Ints

#: Images, drawn for the testbed, a half; and the k of recall.
DRAWN, K = 1000, 10


@dataclass(frozen=True, eq=False)
class UtilityTask:
    """Texts and images that belong together, and how often they find each other."""

    name: str
    texts: tuple[str, ...]
    of: Ints  # the class, or the image, that each text is of
    images: Any  # what encode_images takes
    encoded: Floats  # texts
    vectors: Floats  # images
    classes: Ints | None  # of each image; None: a text belongs to one image
    half: Ints  # of each image: 0 to choose by, 1 to report
    #: Whether its loss counts: where an image can be found by its group alone, that is the tilt.
    counts: bool = True

    def hits(self, texts: Floats, images: Floats, half: int) -> Floats:
        """One figure an image of that half (classes), or a caption of one of its images."""
        rows = np.flatnonzero(self.half == half)
        if self.classes is not None:
            count = int(self.of.max()) + 1
            means = np.stack([texts[self.of == one].mean(axis=0) for one in range(count)])
            return zero_shot_hits(np.asarray(unit(means)) @ images[rows].T, self.classes[rows])
        asked = np.flatnonzero(np.isin(self.of, rows))
        scores = texts[asked] @ images[rows].T
        k = min(K, len(rows))
        best = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        return recall_hits(best, self.of[asked], rows, [k])[:, 0]


def of_classes(
    name: str, model: Any, classes: Groups, images: Any, vectors: Floats,
    said: Sequence[str] | None, seed: int,
) -> UtilityTask:  # fmt: skip
    """Zero-shot accuracy; `said` is one text a class, else its name in a template."""
    texts = list(said or [TEMPLATES[0].replace("{}", one.replace("_", " "))
                          for one in classes.names])  # fmt: skip
    return UtilityTask(
        name, tuple(texts), np.arange(len(texts)), images, encoded(model.encode_texts, texts),
        vectors, classes.codes.astype(np.int64), _halves(len(vectors), seed),
    )  # fmt: skip


def of_captions(
    model: Any, captions: Any, vectors: Floats, seed: int, name: str = f"recall@{K}",
    counts: bool = True,
) -> UtilityTask:  # fmt: skip
    """Recall@10: does a caption find its image among those of its half?"""
    return UtilityTask(
        name, tuple(captions.texts), np.asarray(captions.of), captions.images,
        encoded(model.encode_texts, captions.texts), vectors, None, _halves(len(vectors), seed),
        counts,
    )  # fmt: skip


def of_testbed(model: Any, seed: int) -> list[UtilityTask]:
    """Icons named among all concepts, and captions that find their scene, of the model's world.

    Recall is that of scenes with whole icons. Beside it, and not counted as a loss, stands that of
    scenes as the world draws them: some have no icon, and of these the group is all that a caption
    can be told by, which is the planted tilt itself.
    """
    from tiltmeter.testbed.captioned import captioned
    from tiltmeter.testbed.evaluate import captions as concepts
    from tiltmeter.testbed.world import World

    world, rng = World.plant(model.provenance["strength"]), np.random.default_rng([seed, 7])
    concept = rng.integers(0, len(world.concepts), 2 * DRAWN)
    icons = world.scenes(2 * DRAWN, rng, concept=concept, cells=16)
    whole, drawn = captioned(world, 2 * DRAWN, rng, cells=16), captioned(world, 2 * DRAWN, rng)
    names = tuple(one.name for one in world.concepts)
    pictures = (icons, whole.images, drawn.images)
    seen = [np.asarray(to_numpy(model.encode_images(one))) for one in pictures]
    return [
        of_classes(
            "icon accuracy", model, Groups(concept, names, "concept"), icons, seen[0],
            concepts(world), seed,
        ),
        of_captions(model, whole, seen[1], seed),
        of_captions(model, drawn, seen[2], seed, f"recall@{K}, as drawn", counts=False),
    ]  # fmt: skip


def encoded(encode: Callable[[Sequence[str]], Any], texts: Sequence[str]) -> Floats:
    """Unit vectors of texts."""
    return np.asarray(unit(np.asarray(to_numpy(encode(list(texts)))), "texts"))


def _halves(n: int, seed: int) -> Ints:
    return np.random.default_rng([seed, 8]).permutation(np.arange(n) % 2)
