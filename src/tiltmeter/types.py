"""The few shapes that the parts of the package hand to each other."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from tiltmeter.errors import InputError, UnknownNameError

#: A NumPy array or a torch tensor. Metrics return the kind that they were given.
Array: TypeAlias = Any
#: NumPy arrays; the names say what they hold.
Floats: TypeAlias = NDArray[Any]
Ints: TypeAlias = NDArray[Any]

#: Called with what is being done and the share that is done, from 0 to 1.
Progress: TypeAlias = Callable[[str, float], None]


@dataclass(frozen=True, eq=False)
class Groups:
    """One partition of the items: by an attribute, or by a crossing of several.

    Labels of race, gender and age are perceived labels, given by annotators: they say what
    somebody saw in a picture, not who the person is.

    >>> gender = Groups.from_labels(["woman", "man", "man", "woman"], attribute="gender")
    >>> gender.names, gender.counts.tolist()
    (('man', 'woman'), [2, 2])
    >>> age = Groups.from_labels(["old", "old", "young", "young"], attribute="age")
    >>> gender.cross(age).names
    ('man | old', 'man | young', 'woman | old', 'woman | young')
    """

    codes: Ints  # one a row, from 0 to len(names) - 1
    names: tuple[str, ...]
    attribute: str = "group"

    def __post_init__(self) -> None:
        codes = np.asarray(self.codes)
        if codes.ndim != 1 or codes.dtype.kind not in "iu":
            raise InputError(
                f"group codes must be a flat array of integers; got shape {codes.shape}, "
                f"dtype {codes.dtype}. For labels use Groups.from_labels(labels)"
            )
        if len(set(self.names)) < len(self.names):
            twice = next(name for at, name in enumerate(self.names) if name in self.names[:at])
            raise InputError(
                f"two groups of {self.attribute!r} are both named {twice!r}: rename one"
            )
        if codes.size and (codes.min() < 0 or codes.max() >= len(self.names)):
            raise InputError(
                f"group codes run from {codes.min()} to {codes.max()}, but {len(self.names)} "
                f"groups are named: codes must lie in 0..{len(self.names) - 1}"
            )
        object.__setattr__(self, "codes", codes.astype(np.int32, copy=False))

    @classmethod
    def from_labels(cls, labels: Sequence[Any], *, attribute: str = "group") -> Groups:
        """Groups named by the distinct labels, sorted as people sort them.

        >>> Groups.from_labels(["10-19", "more than 70", "3-9", "0-2"]).names
        ('0-2', '3-9', '10-19', 'more than 70')
        """
        labels = labels.tolist() if hasattr(labels, "tolist") else labels  # arrays and tensors
        missing = sum(label is None or label == "" or label != label for label in labels)
        if missing:
            raise InputError(
                f"{missing} of {len(labels)} rows have no label for {attribute!r}; "
                "fill them or leave those rows out"
            )
        found, codes = np.unique(np.asarray([str(label) for label in labels]), return_inverse=True)
        names = [str(name) for name in found]
        order = sorted(range(len(names)), key=lambda at: _natural(names[at]))
        place = np.argsort(order)  # of each name that was found, its place in the order
        return cls(place[codes.reshape(-1)], tuple(names[at] for at in order), attribute)

    def cross(self, other: Groups) -> Groups:
        """The crossing of two partitions; combinations that nobody belongs to are left out."""
        if len(self) != len(other):
            raise InputError(
                f"cannot cross {self.attribute!r} ({len(self)} rows) with "
                f"{other.attribute!r} ({len(other)} rows): they must label the same rows"
            )
        cells = self.codes.astype(np.int64) * len(other.names) + other.codes
        present, codes = np.unique(cells, return_inverse=True)
        names = tuple(
            f"{self.names[cell // len(other.names)]} | {other.names[cell % len(other.names)]}"
            for cell in present
        )
        return Groups(codes.reshape(-1), names, f"{self.attribute}*{other.attribute}")

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, rows: Any) -> Groups:
        """The same groups for some of the rows."""
        return Groups(self.codes[rows], self.names, self.attribute)

    @cached_property
    def counts(self) -> Ints:
        return np.bincount(self.codes, minlength=len(self.names))

    @cached_property
    def shares(self) -> Floats:
        return self.counts / max(len(self), 1)


def crossed(groups: Mapping[str, Groups], name: str, of: str = "the images") -> Groups:
    """Groups by one attribute, or by a crossing written `race*gender`, `of` some data."""
    parts = name.split("*")
    for part in parts:
        if part not in groups:
            raise UnknownNameError(f"attribute (label column of {of})", part, groups)
    return reduce(Groups.cross, (groups[part] for part in parts))


def _natural(name: str) -> tuple[list[str | float], str]:
    """Sorts by the numbers in a name, where it has any; numbers come before words."""
    parts = re.split(r"((?:^-)?[0-9]+(?:\.[0-9]+)?)", name)  # text, a number, text, and so on
    # "1" and "01" are the same number: the name itself decides
    return [float(part) if at % 2 else part for at, part in enumerate(parts)], name


@dataclass(frozen=True, slots=True)
class Prompt:
    """A text shown to a model, and what it stands for."""

    text: str  # "a photo of a nurse"
    concept: str  # "nurse"
    template: str  # "a photo of a {}"
    category: str = ""  # "Occupation"
    role: str = "word"  # "word", or "placebo" for neutral words that show the noise floor
    pos: str = ""  # "noun", "adjective" or "activity"; placebos are compared within it


class PlantedWorld(Protocol):
    """A world whose bias is known because it was planted: see `tiltmeter.testbed.world.World`."""

    @property
    def strength(self) -> float: ...

    @property
    def seed(self) -> int: ...


def planted_world(source: object) -> PlantedWorld | None:
    """The planted world that data were drawn from or a model was trained on; None for real ones.

    >>> planted_world(Faces(("1",), {})) is None
    True
    """
    return getattr(source, "world", None)


@dataclass(frozen=True, eq=False)
class Faces:
    """Images with groups: what the role `faces` means.

    `images` is what a model's encode_images takes; `vectors` is there instead when the images were
    embedded elsewhere. Where a tilt was planted, `truth` gives what a metric should find for some
    prompts and groups (prompts x groups, NaN where that is not known), or None.
    """

    ids: tuple[str, ...]
    groups: dict[str, Groups]
    vectors: Floats | None = None
    images: Any = None
    truth: Callable[[str, Sequence[Prompt], Groups], Floats | None] | None = None
    name: str = "faces"
    provenance: dict[str, Any] = field(default_factory=dict)
    world: PlantedWorld | None = None  # None for real images

    def __len__(self) -> int:
        return len(self.ids)

    def only(self, rows: Sequence[int]) -> Faces:
        """The same data, some of the rows."""
        at = np.asarray(rows, dtype=np.int64)
        return replace(
            self,
            ids=tuple(self.ids[row] for row in at),
            groups={name: groups[at] for name, groups in self.groups.items()},
            vectors=None if self.vectors is None else self.vectors[at],
            images=None if self.images is None else self.images[at],
        )

    def attribute(self, name: str) -> Groups:
        """Groups by one attribute, or by a crossing written `race*gender`."""
        return crossed(self.groups, name, self.name)


@runtime_checkable
class TextEncoder(Protocol):
    """Gives each text a vector in the space where images live too."""

    def encode_texts(self, texts: Sequence[str]) -> Array: ...


@runtime_checkable
class DualEncoder(TextEncoder, Protocol):
    """Two towers, one space: unit vectors for images and for texts."""

    def encode_images(self, images: Any) -> Array: ...


@runtime_checkable
class Matcher(Protocol):
    """Says how well an image and a text belong together: one logit for each pair."""

    def match(self, images: Any, texts: Sequence[str]) -> Array: ...


@runtime_checkable
class MaskedPredictor(Protocol):
    """Guesses the hidden words of texts, beside an image each or beside none.

    Every text of a call holds as many masks as the others; the answer is texts x masks x pieces,
    log-probabilities. Images may be a tensor of pixels from 0 to 1; then gradients reach them.
    """

    mask_token: str

    def pieces(self, word: str) -> tuple[int, ...]: ...

    def mask_logprobs(self, images: Any | None, texts: Sequence[str]) -> Array: ...


@runtime_checkable
class Trainable(Protocol):
    """Can be trained further: its parameters, and its own losses on images with their texts."""

    def parameters(self) -> Iterable[Any]: ...

    def losses(self, images: Any, texts: Sequence[str], generator: Any) -> dict[str, Array]: ...
