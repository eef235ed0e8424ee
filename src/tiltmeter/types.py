"""The types that the parts of the package exchange: groups, prompts, images and model protocols."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from tiltmeter.errors import InputError, UnknownNameError

#: A NumPy array or a torch tensor. Metrics return the kind that they are given.
Array: TypeAlias = Any
#: NumPy arrays of floats and of integers.
Floats: TypeAlias = NDArray[Any]
Ints: TypeAlias = NDArray[Any]

#: Called with a description of the current step and the share that is done, from 0 to 1.
Progress: TypeAlias = Callable[[str, float], None]


@dataclass(frozen=True, eq=False)
class Groups:
    """A partition of items into groups: by an attribute, or by the intersection of several.

    Labels of race, gender and age are perceived labels, given by annotators: they say what somebody
    saw in an image, not who the person is.

    Parameters
    ----------
    codes : array of int of shape (items,)
        The group of each item, from 0 to len(names) - 1.
    names : tuple of str
        The names of the groups.
    attribute : str
        What they are groups of: "gender", "race*gender".

    Raises
    ------
    InputError
        Codes are not flat integers within range, or two groups have the same name.

    Examples
    --------
    >>> gender = Groups.from_labels(["woman", "man", "man", "woman"], attribute="gender")
    >>> gender.names, gender.counts.tolist()
    (('man', 'woman'), [2, 2])
    >>> age = Groups.from_labels(["old", "old", "young", "young"], attribute="age")
    >>> gender.cross(age).names
    ('man | old', 'man | young', 'woman | old', 'woman | young')
    """

    codes: Ints
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
            repeated = next(name for at, name in enumerate(self.names) if name in self.names[:at])
            raise InputError(
                f"two groups of {self.attribute!r} are both named {repeated!r}: rename one"
            )
        if codes.size and (codes.min() < 0 or codes.max() >= len(self.names)):
            raise InputError(
                f"group codes run from {codes.min()} to {codes.max()}, but {len(self.names)} "
                f"groups are named: codes must be in 0..{len(self.names) - 1}"
            )
        object.__setattr__(self, "codes", codes.astype(np.int32, copy=False))

    @classmethod
    def from_labels(cls, labels: Sequence[Any], *, attribute: str = "group") -> Groups:
        """Groups named by the distinct labels, in natural order (numbers by value).

        Parameters
        ----------
        labels : sequence
            One label per item.
        attribute : str
            What they are labels of.

        Returns
        -------
        Groups
            One group per distinct label.

        Raises
        ------
        InputError
            A label is missing (None, "" or NaN).

        Examples
        --------
        >>> Groups.from_labels(["10-19", "more than 70", "3-9", "0-2"]).names
        ('0-2', '3-9', '10-19', 'more than 70')
        """
        labels = labels.tolist() if hasattr(labels, "tolist") else labels  # arrays and tensors
        missing = [row for row, label in enumerate(labels, start=1)
                   if label is None or label == "" or label != label]  # fmt: skip
        if missing:
            raise InputError(
                f"{len(missing)} of {len(labels)} rows have no label for {attribute!r}, the first "
                f"is row {missing[0]}: fill them, or remove those rows"
            )
        distinct, codes = np.unique(
            np.asarray([str(label) for label in labels]), return_inverse=True
        )
        names = [str(name) for name in distinct]
        order = sorted(range(len(names)), key=lambda at: _natural(names[at]))
        place = np.argsort(order)  # position of each distinct label in that order
        return cls(place[codes.reshape(-1)], tuple(names[at] for at in order), attribute)

    def cross(self, other: Groups) -> Groups:
        """The intersection of two partitions.

        Parameters
        ----------
        other : Groups
            Groups of the same items by another attribute.

        Returns
        -------
        Groups
            Named "a | b"; combinations without items are left out.

        Raises
        ------
        InputError
            The two label different numbers of items.

        Examples
        --------
        >>> Groups.from_labels("ab").cross(Groups.from_labels("xy")).names
        ('a | x', 'b | y')
        """
        if len(self) != len(other):
            raise InputError(
                f"cannot intersect {self.attribute!r} ({len(self)} rows) with "
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
        """The same groups for some of the items."""
        return Groups(self.codes[rows], self.names, self.attribute)

    @cached_property
    def counts(self) -> Ints:
        """Number of items in each group."""
        return np.bincount(self.codes, minlength=len(self.names))

    @cached_property
    def shares(self) -> Floats:
        """Share of the items in each group."""
        return self.counts / max(len(self), 1)


class GroupSizes(Groups):
    """Groups by name and size, of images whose labels stay in the shards of a collection.

    A cell is a combination of labels that occurs; its images are in one group of every attribute.

    Parameters
    ----------
    of_cell : array of int of shape (cells,)
        The group of each cell.
    cell_sizes : array of int of shape (cells,)
        Number of images of each cell.
    names : tuple of str
        The names of the groups.
    attribute : str
        What they are groups of.

    Examples
    --------
    >>> gender = GroupSizes(np.array([0, 0, 1]), np.array([5, 2, 9]), ("f", "m"), "gender")
    >>> len(gender), gender.counts.tolist()
    (16, [7, 9])
    """

    of_cell: Ints
    cell_sizes: Ints

    def __init__(
        self, of_cell: Ints, cell_sizes: Ints, names: tuple[str, ...], attribute: str = "group"
    ) -> None:
        for name, value in (
            ("of_cell", of_cell), ("cell_sizes", cell_sizes), ("names", names),
            ("attribute", attribute),
        ):  # fmt: skip
            object.__setattr__(self, name, value)

    @property
    def codes(self) -> Ints:
        """Raises: no process has the labels of all images."""
        raise rows_stay_in_shards(f"labels of {self.attribute}")

    def cross(self, other: Groups) -> GroupSizes:
        """The intersection with other groups of the same collection."""
        assert isinstance(other, GroupSizes)
        one, two = (Groups(by.of_cell, by.names, by.attribute) for by in (self, other))
        both = one.cross(two)
        return GroupSizes(both.codes, self.cell_sizes, both.names, both.attribute)

    def __len__(self) -> int:
        return int(self.cell_sizes.sum())

    @cached_property
    def counts(self) -> Ints:
        """Number of images in each group."""
        return np.bincount(self.of_cell, self.cell_sizes, len(self.names)).astype(np.int64)


def rows_stay_in_shards(what: str) -> InputError:
    """The error for a method that needs the rows of a collection in one process."""
    return InputError(
        f"the {what} stay in the shards of the collection, and this needs all of them at once: "
        "use --engine local",
        code="bad-option",
        value=what,
    )


def intersect(groups: Mapping[str, Groups], name: str, of: str = "the images") -> Groups:
    """Groups by one attribute, or by an intersection of several.

    Parameters
    ----------
    groups : mapping of str to Groups
        Groups by attribute.
    name : str
        An attribute, or an intersection such as `race*gender`.
    of : str
        What the groups are of, for error messages.

    Returns
    -------
    Groups
        The groups.

    Raises
    ------
    UnknownNameError
        An attribute is not there.

    Examples
    --------
    >>> groups = {"race": Groups.from_labels("rs"), "gender": Groups.from_labels("fm")}
    >>> intersect(groups, "race*gender").names
    ('r | f', 's | m')
    """
    parts = name.split("*")
    for part in parts:
        if part not in groups:
            raise UnknownNameError(f"attribute (label column of {of})", part, groups)
    return reduce(lambda one, other: one.cross(other), (groups[part] for part in parts))


def _natural(name: str) -> tuple[list[str | float], str]:
    """Sort key by the numbers in a name, where it has any; numbers come before words."""
    parts = re.split(r"((?:^-)?[0-9]+(?:\.[0-9]+)?)", name)  # text, a number, text, and so on
    # "1" and "01" are the same number: the name itself decides
    return [float(part) if at % 2 else part for at, part in enumerate(parts)], name


@dataclass(frozen=True, slots=True)
class Prompt:
    """A text shown to a model, and what it stands for.

    Parameters
    ----------
    text : str
        "a photo of a nurse".
    concept : str
        "nurse".
    template : str
        "a photo of a {}".
    category : str
        "Occupation".
    role : {"word", "placebo"}
        "placebo" for neutral words, the reference that words are compared with.
    pos : str
        Part of speech: "noun", "adjective" or "activity"; neutral words are compared within it.

    Examples
    --------
    >>> Prompt("a photo of a nurse", "nurse", "a photo of a {}").role
    'word'
    """

    text: str
    concept: str
    template: str
    category: str = ""
    role: str = "word"
    pos: str = ""


class PlantedWorld(Protocol):
    """A world whose bias is known because it was planted: see `tiltmeter.testbed.world.World`."""

    @property
    def strength(self) -> float: ...

    @property
    def seed(self) -> int: ...


def planted_world(source: object) -> PlantedWorld | None:
    """The planted world that data were drawn from, or that a model was trained on.

    Parameters
    ----------
    source : object
        Data of any role, or a model.

    Returns
    -------
    PlantedWorld or None
        None for real data and models.

    Examples
    --------
    >>> planted_world(Faces(("1",), {})) is None
    True
    """
    return getattr(source, "world", None)


@dataclass(frozen=True, eq=False)
class Faces:
    """Images with groups: the data of the role `faces`.

    Parameters
    ----------
    ids : tuple of str
        One identifier per image.
    groups : dict of str to Groups
        Groups by attribute.
    vectors : array of shape (images, dimensions), optional
        Embeddings, where the images were embedded elsewhere.
    images : object, optional
        What a model's `encode_images` takes.
    truth : callable, optional
        For planted bias: takes a metric, prompts and groups, and returns the true values (prompts x
        groups, NaN where unknown) or None.
    name : str
        Name of the dataset.
    provenance : dict
        Where the data came from; recorded with the results.
    world : PlantedWorld, optional
        The planted world that the images were drawn from; None for real images.

    Examples
    --------
    >>> faces = Faces(("1", "2"), {"gender": Groups.from_labels(["woman", "man"])})
    >>> len(faces), faces.attribute("gender").names
    (2, ('man', 'woman'))
    """

    ids: tuple[str, ...]
    groups: dict[str, Groups]
    vectors: Floats | None = None
    images: Any = None
    truth: Callable[[str, Sequence[Prompt], Groups], Floats | None] | None = None
    name: str = "faces"
    provenance: dict[str, Any] = field(default_factory=dict)
    world: PlantedWorld | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def select(self, rows: Sequence[int]) -> Faces:
        """The same data, for some of the images.

        Parameters
        ----------
        rows : sequence of int
            Numbers of the images to keep, in order.

        Returns
        -------
        Faces
            Of the same type.
        """
        at = np.asarray(rows, dtype=np.int64)
        return replace(
            self,
            ids=tuple(self.ids[row] for row in at),
            groups={name: groups[at] for name, groups in self.groups.items()},
            vectors=None if self.vectors is None else self.vectors[at],
            images=None if self.images is None else self.images[at],
        )

    def attribute(self, name: str) -> Groups:
        """Groups by one attribute, or by an intersection of several.

        Parameters
        ----------
        name : str
            An attribute, or an intersection such as `race*gender`.

        Returns
        -------
        Groups
            One group per image.

        Raises
        ------
        UnknownNameError
            The images have no labels of this attribute.
        """
        return intersect(self.groups, name, self.name)


@runtime_checkable
class TextEncoder(Protocol):
    """A model that embeds texts, in the same space as images: texts x dimensions."""

    def encode_texts(self, texts: Sequence[str]) -> Array:
        """Embed texts.

        Parameters
        ----------
        texts : sequence of str
            The texts.

        Returns
        -------
        array of shape (texts, dimensions)
            NumPy or torch.
        """
        ...


@runtime_checkable
class DualEncoder(TextEncoder, Protocol):
    """A model with an image encoder and a text encoder: unit vectors in one space."""

    def encode_images(self, images: Any) -> Array:
        """Embed images.

        Parameters
        ----------
        images : sequence
            PIL images, or whatever else the model takes, such as a tensor of pixels.

        Returns
        -------
        array of shape (images, dimensions)
            In the space of `encode_texts`.
        """
        ...


@runtime_checkable
class MultiVectorEncoder(Protocol):
    """A model with several unit vectors per image: a text is compared with the closest one.

    So is the contrastive head of BLIP-2, and what is called late interaction.
    """

    def image_vectors(self, images: Any) -> Array:
        """Embed images.

        Parameters
        ----------
        images : sequence
            PIL images, or whatever else the model takes.

        Returns
        -------
        array of shape (images, vectors, dimensions)
            Unit vectors.
        """
        ...

    def text_vectors(self, texts: Sequence[str]) -> Array:
        """Embed texts.

        Parameters
        ----------
        texts : sequence of str
            The texts.

        Returns
        -------
        array of shape (texts, dimensions)
            Unit vectors in the space of `image_vectors`.
        """
        ...


def stated_scale(model: object) -> float | None:
    """The scale that makes a model's cosines logits, as the model states it (`logit_scale`).

    Parameters
    ----------
    model : object
        A model.

    Returns
    -------
    float or None
        None if it states none.

    Examples
    --------
    >>> stated_scale(object()) is None
    True
    """
    scale = getattr(model, "logit_scale", None)
    return None if scale is None else float(scale)


@runtime_checkable
class TakesInputEmbeddings(TextEncoder, Protocol):
    """A text encoder that also takes input embeddings, so that learned tokens can join its words.

    Attributes
    ----------
    logit_scale : float
        Cosines times this are logits.
    max_length : int
        Most tokens of a text, start and end tokens included.
    tokenizer : tokenizer of transformers
        Called with texts, it gives `input_ids` and `attention_mask`, and knows its special tokens.
    """

    logit_scale: float
    max_length: int
    tokenizer: Any

    def word_embeddings(self) -> Any:
        """The table of word embeddings.

        Returns
        -------
        torch.nn.Embedding
            As `get_input_embeddings()` of transformers returns it.
        """
        ...

    def encode_embeddings(self, embeddings: Any, mask: Any) -> Any:
        """Embed texts whose words are embedded already; gradients must reach `embeddings`.

        Parameters
        ----------
        embeddings : torch.Tensor of shape (texts, tokens, width)
            Word embeddings, without positions: `inputs_embeds` of transformers.
        mask : torch.Tensor of shape (texts, tokens)
            1 for a token, 0 for padding.

        Returns
        -------
        torch.Tensor of shape (texts, dimensions)
            In the space of `encode_texts`.
        """
        ...


@runtime_checkable
class Matcher(Protocol):
    """A model that scores how well an image and a text match: one logit per pair."""

    def match(self, images: Any, texts: Sequence[str]) -> Array:
        """Score pairs of an image and a text.

        Parameters
        ----------
        images : sequence
            One image per pair.
        texts : sequence of str
            One text per pair.

        Returns
        -------
        array of shape (pairs,)
            Logits: the higher, the better they match.
        """
        ...


@runtime_checkable
class GridMatcher(Matcher, Protocol):
    """A matcher that reads each image once for all texts."""

    def match_grid(self, images: Any, texts: Sequence[str]) -> Array:
        """Score every image with every text.

        Parameters
        ----------
        images : sequence
            Images.
        texts : sequence of str
            Texts.

        Returns
        -------
        array of shape (images, texts)
            Logits, as of `match`.
        """
        ...


@runtime_checkable
class MaskedPredictor(Protocol):
    """A model that predicts masked words of texts.

    Attributes
    ----------
    mask_token : str
        What stands for a masked word in a text: "[MASK]".
    """

    mask_token: str

    def pieces(self, word: str) -> tuple[int, ...]:
        """Split a word into the tokenizer's pieces.

        Parameters
        ----------
        word : str
            A word.

        Returns
        -------
        tuple of int
            Their numbers, which index the last axis of `mask_logprobs`.
        """
        ...

    def mask_logprobs(self, images: Any | None, texts: Sequence[str]) -> Array:
        """Log-probabilities of every piece at every mask.

        Parameters
        ----------
        images : sequence or None
            One image per text, or None. May be a tensor of pixels from 0 to 1; then gradients
            reach it.
        texts : sequence of str
            Texts with the same number of masks each.

        Returns
        -------
        array of shape (texts, masks, pieces)
            Log-probabilities.
        """
        ...


@dataclass(frozen=True, eq=False)
class Continuations:
    """Log-likelihoods of texts as continuations of one prompt.

    Parameters
    ----------
    logprobs : array of shape (images, texts)
        Natural logarithms, summed over the tokens of each text.
    tokens : array of int of shape (texts,)
        How many tokens each text has.
    exact : array of bool of shape (images, texts)
        False where a server gave only a bound.
    """

    logprobs: Floats
    tokens: Ints
    exact: NDArray[np.bool_]


@runtime_checkable
class Continuer(Protocol):
    """A generative model: how likely are texts as continuations of a prompt about an image."""

    def continuations(
        self, images: Any | None, prompt: str, texts: Sequence[str], *, stem: str = ""
    ) -> Continuations:
        """Score texts as answers to a prompt.

        Parameters
        ----------
        images : sequence or None
            None asks without an image: the prompt then has no image tokens at all.
        prompt : str
            The question.
        texts : sequence of str
            Answers, or ends of an answer that begins with `stem`.
        stem : str
            The beginning of the answer.

        Returns
        -------
        Continuations
            One row per image; a single row without images.
        """
        ...


@dataclass(frozen=True)
class WrittenText:
    """A text that a model wrote, and how it ended.

    Parameters
    ----------
    text : str
        The answer, without special tokens. It is untrusted: escape it where it is shown.
    ended : {"stop", "length", "filtered"}
        At its own end, at the limit of tokens, or cut by a content filter.
    tokens : int
        How many tokens it has.
    """

    text: str
    ended: str
    tokens: int


@runtime_checkable
class Writer(Protocol):
    """A generative model that answers in free text."""

    def write(
        self,
        images: Any | None,
        prompt: str,
        *,
        samples: int = 1,
        temperature: float = 0.0,
        limit: int = 128,
        seed: int = 0,
    ) -> list[list[WrittenText]]:
        """Answer a prompt about each image.

        Parameters
        ----------
        images : sequence or None
            None asks once, without an image.
        prompt : str
            The question.
        samples : int
            Answers per image.
        temperature : float
            0 takes the most likely token each time.
        limit : int
            Largest number of tokens.
        seed : int
            Seed of the sampling.

        Returns
        -------
        list of list of WrittenText
            One list per image, with one text per sample.
        """
        ...


@runtime_checkable
class Trainable(Protocol):
    """A model that can be trained further: its parameters, and its losses on images with texts."""

    def parameters(self) -> Iterable[Any]:
        """The trainable parameters, as torch tensors."""
        ...

    def losses(self, images: Any, texts: Sequence[str], generator: Any) -> dict[str, Array]:
        """The model's own losses.

        Parameters
        ----------
        images : sequence
            A batch of images.
        texts : sequence of str
            One caption per image.
        generator : torch.Generator or None
            Source of randomness.

        Returns
        -------
        dict of str to torch.Tensor
            Loss by name, such as `match` or `mask`.
        """
        ...
