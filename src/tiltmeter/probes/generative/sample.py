"""Some of the images of an audit, and what a generative model is asked about them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tiltmeter.io.image_files import GeneratedImages, ImageFiles
from tiltmeter.metrics.digest import intersect_groups
from tiltmeter.probes.lift.scored import images_of, rows_per_cell
from tiltmeter.probes.probe import AuditContext, CannotRunError
from tiltmeter.results import content_hash
from tiltmeter.types import Faces, Floats, Groups, Writer, WrittenText, planted_world


@dataclass(frozen=True, eq=False)
class AskedImages:
    """A sample of images, evenly spread over all combinations of their labels."""

    faces: Faces  # the sample
    groups: Mapping[str, Groups]  # by attribute
    context: AuditContext

    def __len__(self) -> int:
        return len(self.faces)

    @classmethod
    def of(cls, faces: Faces, context: AuditContext) -> AskedImages:
        """As many images as the option `images` says.

        Raises
        ------
        CannotRunError
            There are only embeddings.
        """
        if faces.images is None:
            raise CannotRunError("needs images, and not embeddings alone")
        if isinstance(faces.images, ImageFiles | GeneratedImages):
            faces = faces.select(context.readable("faces", faces))
        attributes = context.attributes_of(faces)
        codes, kinds = intersect_groups([faces.attribute(name) for name in attributes])
        cells = Groups(codes, tuple(map(str, range(len(kinds)))), "cell")
        most = -(-int(context.options["images"]) // len(kinds))
        faces = faces.select(rows_per_cell(cells, most).tolist())
        return cls(faces, {name: faces.attribute(name) for name in attributes}, context)

    @cached_property
    def images(self) -> Any:
        """The images, decoded once."""
        return images_of(self.faces, np.arange(len(self.faces)))

    @cached_property
    def wrong(self) -> Any:
        """Another image for each: half of the sample away, so of no particular group."""
        rng = np.random.default_rng(self.context.seed)
        order = rng.permutation(len(self))
        other = np.empty(len(self), int)
        other[order] = np.roll(order, len(self) // 2)
        return images_of(self.faces, other)

    @property
    def world(self) -> Any:
        return planted_world(self.faces)

    def planted(self, table: Callable[[Any], Floats]) -> Floats | None:
        """What is planted for each image, from a value of each of the world's 14 groups."""
        if self.world is None or not hasattr(self.faces.images, "hue"):
            return None
        from tiltmeter.testbed.answers import PlantedAnswers
        from tiltmeter.testbed.language import HUES

        scenes = self.faces.images
        return table(PlantedAnswers(self.world))[..., scenes.shape * len(HUES) + scenes.hue]

    def written(self, model: Writer, prompt: str) -> list[list[WrittenText]]:
        """Answers in free text, written once for all probes that ask the same.

        The options `samples`, `temperature` and `limit` are those of the probe.
        """
        options = {name: self.context.options[name] for name in ("samples", "temperature", "limit")}
        key = content_hash([prompt, options, self.context.seed, *self.faces.ids])
        if key not in self.context.written:
            self.context.written[key] = model.write(
                self.images, prompt, seed=self.context.seed, **options
            )
        return self.context.written[key]

    def constants(self, probe: str, model: Any) -> dict[str, Any]:
        """Columns that all rows share."""
        return {
            "probe": probe,
            "model": getattr(model, "name", type(model).__name__),
            "dataset": self.faces.name,
            "convention": self.context.convention.name,
            "seed": self.context.seed,
        }

    def labels(self) -> list[list[tuple[str, str]]]:
        """Groups of each image, for the table of instances."""
        by = {name: [g.names[code] for code in g.codes] for name, g in self.groups.items()}
        return [[(name, values[row]) for name, values in by.items()] for row in range(len(self))]


def per_image(values: Sequence[Sequence[float]]) -> Floats:
    """The mean of each image's answers: an image is the unit, whatever the number of its answers.

    >>> per_image([[1.0, 0.0], [1.0, 1.0]])
    array([0.5, 1. ])
    """
    with np.errstate(invalid="ignore"):
        return np.array([np.nanmean(own) if not np.isnan(own).all() else np.nan
                         for own in map(np.asarray, values)])  # fmt: skip


def sample_note(sample: AskedImages) -> str:
    """How many images were asked about."""
    return f"a sample of {len(sample):,} images, evenly spread over their labels"
