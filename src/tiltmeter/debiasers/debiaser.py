"""What debiasers have in common, and their three kinds.

A `VectorMap` changes vectors, a `ModelEdit` changes the model, a `Reranker` changes an order. All
have the manners of scikit-learn: the constructor stores its arguments and does nothing else, `fit`
returns the debiaser, and what was learned stands in attributes whose names end in `_`. Such a
result is small and is written as safetensors (arrays) and JSON (the rest).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from tiltmeter.debiasers.fitted_rows import FittedRows
from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.metrics.arrays import as_groups, matrix, to_numpy
from tiltmeter.types import Array, Floats, Groups, Ints, Progress

ARRAYS = "debiaser.safetensors"
#: Whose vectors a map that is learned from labelled images may change.
TOWERS = ("images", "both")
#: What a method may ask for, and how it is given on the command line.
GIVEN_BY = {
    "labels": "--images SPEC --attribute A",
    "prompts": "--prompts FILE (texts that name each group), or --images SPEC --attribute A for "
    "sentences with the groups' names",
    "captions": "--data captions=SPEC",
}


@dataclass(frozen=True, eq=False)
class GroupTexts:
    """Texts that a method may learn from: those that name a group, and pairs of texts."""

    encode: Callable[[Sequence[str]], Floats]  # the model's own, before any correction
    naming: Mapping[str, Sequence[str]]  # group -> texts that name it
    alike: Sequence[tuple[str, str]] = ()  # two texts that should have the same vector
    #: group -> the word for it inside another text; the group's name where none is given
    words: Mapping[str, str] = field(default_factory=dict)
    #: two texts whose difference should go (None: those that name the groups), or be strengthened
    harmful: Sequence[tuple[str, str]] | None = None
    helpful: Sequence[tuple[str, str]] = ()
    #: query -> group -> the query with the group named in it
    forms: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


class Debiaser:
    """Something that is fitted on one part of the data and then corrects a model."""

    kind: ClassVar[str]
    #: Of GIVEN_BY: what `fit` cannot do without.
    needs: ClassVar[tuple[str, ...]] = ()
    #: The rows that it was fitted on; None where nobody told.
    rows_: FittedRows | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """What the constructor was given or left at its default."""
        names = inspect.signature(type(self)).parameters
        return {name: getattr(self, name) for name in names}

    @property
    def learned(self) -> dict[str, Any]:
        """What `fit` found, by name."""
        return {
            name: value
            for name, value in vars(self).items()
            if name.endswith("_") and not name.startswith("_") and name != "rows_"
        }

    def check_fitted(self) -> None:
        if not self.learned:
            raise InputError(f"{type(self).__name__} has learned nothing yet: call fit first")

    def write(self, place: Path, model: Any) -> dict[str, Any]:
        """Writes the arrays that were learned; the rest comes back, to be written as JSON.

        `model` is the one that is corrected, for methods whose result is a whole model.
        """
        del model
        from safetensors.numpy import save_file

        arrays, plain = {}, {}
        for name, value in self.learned.items():
            if isinstance(value, np.ndarray):
                arrays[name] = np.ascontiguousarray(value)
            else:
                plain[name] = value
        if arrays:
            save_file(arrays, place / ARRAYS)
        return plain

    def read(self, place: Path, plain: Mapping[str, Any]) -> Self:
        """Takes back what `write` wrote."""
        from safetensors.numpy import load_file

        arrays = load_file(place / ARRAYS) if (place / ARRAYS).is_file() else {}
        for name, value in {**plain, **arrays}.items():
            setattr(self, name, value)
        return self


class VectorMap(Debiaser):
    """Changes vectors: those of images, of texts, or of both. It gives unit vectors back.

    A map may see the text itself (`map_texts`), for methods that treat each query in its own way.
    """

    kind = "vectors"
    needs: ClassVar[tuple[str, ...]] = ("labels",)

    def fit(
        self,
        vectors: Array | None,
        groups: Groups | Array | None,
        *,
        texts: GroupTexts | None = None,
    ) -> Self:
        """Learns from unit vectors of images and their groups, or from texts, or from both."""
        raise NotImplementedError

    def map(self, vectors: Array) -> Array:
        """One map for both towers; a method that treats them differently has the next two."""
        raise NotImplementedError

    def map_images(self, vectors: Array) -> Array:
        return self.map(vectors)

    def map_texts(
        self, vectors: Array, texts: Sequence[str], encode: Callable[[Sequence[str]], Array]
    ) -> Array:
        del texts, encode
        return self.map(vectors)


class LabelMap(VectorMap):
    """A map that is learned from labelled images, for the vectors of images or of both towers."""

    towers: str = "both"

    def fit(
        self,
        vectors: Array | None,
        groups: Groups | Array | None,
        *,
        texts: GroupTexts | None = None,
    ) -> Self:
        one_of("towers", self.towers, TOWERS)
        self.learn(*checked(vectors, groups), texts)
        return self

    def learn(self, x: Floats, labels: Groups, texts: GroupTexts | None) -> None:
        """Learns from checked vectors, in double precision, and two groups or more."""
        raise NotImplementedError

    def map_texts(
        self, vectors: Array, texts: Sequence[str], encode: Callable[[Sequence[str]], Array]
    ) -> Array:
        return super().map_texts(vectors, texts, encode) if self.towers == "both" else vectors


class ModelEdit(Debiaser):
    """Changes the model: learned tokens, tuned weights. What is given to `fit` stays as it is."""

    kind = "model"
    needs: ClassVar[tuple[str, ...]] = ("captions",)

    def fit(
        self,
        model: Any,
        captions: Any = None,
        *,
        vectors: Array | None = None,
        groups: Groups | None = None,
        texts: GroupTexts | None = None,
        progress: Progress | None = None,
    ) -> Self:
        """Learns from image-text pairs, or from labelled vectors, or from both."""
        raise NotImplementedError

    def edited(self, model: Any) -> Any:
        """The model with the change made: a new one, of the same protocols."""
        raise NotImplementedError


class Reranker(Debiaser):
    """Changes the order in which items are shown; only ranking metrics are defined for it."""

    kind = "ranking"
    needs = ("labels",)

    @property
    def from_best(self) -> bool:
        """Whether `order` looks at no more than the best k + 1 items of each group."""
        return False

    def fit(
        self,
        vectors: Array | None,
        groups: Groups | Array | None,
        *,
        texts: GroupTexts | None = None,
    ) -> Self:
        """Learns from a reference set, where the method has one."""
        raise NotImplementedError

    def order(
        self, scores: Array, groups: Groups | None, k: int, *, vectors: Array | None = None
    ) -> Ints:
        """The k items to show for each query, best first: queries x k rows of items."""
        raise NotImplementedError


def checked(vectors: Array | None, groups: Groups | Array | None) -> tuple[Floats, Groups]:
    """Vectors as NumPy in double precision, and their groups: two or more."""
    if vectors is None or groups is None:
        raise InputError(f"this method learns from labelled images: {GIVEN_BY['labels']}")
    found = np.asarray(to_numpy(matrix(vectors, "vectors", "images", "dimensions")), np.float64)
    labels = as_groups(groups, len(found))
    there = int((labels.counts > 0).sum())
    if there < 2:
        raise InputError(
            f"all {len(found)} images are of one group of {labels.attribute!r}: there is nothing "
            "to tell apart. Fit on images of two groups or more"
        )
    return found, labels


def one_of(what: str, given: str, known: Sequence[str]) -> str:
    """`given`, if it is known."""
    if given not in known:
        raise UnknownNameError(what, given, known)
    return given
