"""How a model scores the three captions of an image, and models whose choice is known beforehand.

A matcher gives each pair of image and caption a logit; a dual encoder gives it a cosine. The
image may be the right one, an all-white one, another one of the data, or none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from tiltmeter.errors import InputError
from tiltmeter.io.image_files import GeneratedImages, ImageFiles
from tiltmeter.metrics.arrays import to_numpy, unit
from tiltmeter.types import Array, DualEncoder, Floats, Groups, Ints, Matcher

#: The captions, in the order of the columns of all scores.
KINDS = ("stereotypical", "anti-stereotypical", "irrelevant")
#: What a model is shown beside a caption.
PICTURES = ("true", "white", "none", "wrong")
BLOCK = 64  # images that are decoded at a time
WHITE_SIDE = 224  # pixels

Captions = Sequence[Sequence[str]]  # one row a case


@dataclass(frozen=True, eq=False)
class CaptionCases:
    """Images with three captions each, and what is known of them.

    `neutral` are the first two captions without their target term, None where no neutral form is
    known or nothing changes. `best` is what a perfect model would score, where that is known.
    """

    ids: tuple[str, ...]
    captions: tuple[tuple[str, ...], ...]
    neutral: tuple[tuple[str, ...] | None, ...]
    categories: Groups
    targets: tuple[str, ...]
    against: Ints | None = None  # whether the image goes against the stereotype
    images: Any = None
    name: str = "triplets"
    best: Floats | None = None

    @classmethod
    def of(cls, triplets: Any, neutral: Sequence[tuple[str, ...] | None]) -> CaptionCases:
        """The data of the role `triplets`, with their neutral captions."""
        captions = zip(triplets.stereotypical, triplets.anti, triplets.irrelevant, strict=True)
        against = triplets.against
        return cls(
            triplets.ids,
            tuple(captions),
            tuple(neutral),
            triplets.categories,
            triplets.targets,
            None if against is None else np.asarray(against, dtype=bool),
            triplets.images,
            triplets.name,
            getattr(triplets, "best", None),
        )

    def __post_init__(self) -> None:
        if not self.ids:
            raise InputError(f"{self.name} has no captions to choose from")
        for at, three in enumerate(self.captions):
            if len(three) != len(KINDS) or len(set(three)) < len(three):
                raise InputError(
                    f"{self.name}, {self.ids[at]}: a choice takes three different captions "
                    f"({', '.join(KINDS)}); got {' / '.join(three)}"
                )

    def __len__(self) -> int:
        return len(self.ids)

    def only(self, rows: Sequence[int] | Ints) -> CaptionCases:
        """Some of the cases."""
        at = np.asarray(rows, dtype=np.int64)
        kept = {
            name: tuple(getattr(self, name)[row] for row in at)
            for name in ("ids", "captions", "neutral", "targets")
        }
        return replace(
            self,
            **kept,  # type: ignore[arg-type]
            categories=self.categories[at],
            against=None if self.against is None else self.against[at],
            images=None if self.images is None else some_of(self.images, at),
            best=None if self.best is None else self.best[at],
        )

    @cached_property
    def sets(self) -> Ints:
        """Which cases share their captions: these are no independent choices."""
        number: dict[tuple[str, ...], int] = {}
        return np.array([number.setdefault(three, len(number)) for three in self.captions])


def some_of(images: Any, rows: Ints) -> Any:
    """The images of some rows."""
    return [images[row] for row in rows] if isinstance(images, list | tuple) else images[rows]


def white_picture() -> Any:
    """An image that is white all over."""
    from PIL import Image

    return Image.new("RGB", (WHITE_SIDE, WHITE_SIDE), "white")


def other_rows(targets: Sequence[str], rng: np.random.Generator) -> Ints:
    """For each case the row of another, about another target as far as possible: no row twice.

    Cases are put in order of their target, and each is given the case that stands as many places
    on as the largest target has cases.

    >>> other_rows(["a", "a", "b", "c"], np.random.default_rng(0)).tolist()
    [2, 3, 0, 1]
    """
    names, code = np.unique(np.asarray(targets), return_inverse=True)
    order = np.lexsort((rng.permutation(len(code)), rng.permutation(len(names))[code]))
    step = min(int(np.bincount(code).max()), len(code) // 2) or 1
    other = np.empty(len(code), dtype=np.int64)
    other[order] = np.roll(order, -step)
    return other


@dataclass(frozen=True, eq=False)
class CaptionScorer:
    """One way to score captions: `score` takes the image to show, and captions by case.

    `together` does the same with the captions of a case side by side, where a model might care.
    """

    name: str
    score: Callable[[str, Captions], Floats | None]
    scale: float | None = None  # of cosines: what the model itself multiplies them by
    together: Callable[[str, Captions], Floats] | None = None

    def __call__(self, picture: str, captions: Captions) -> Floats | None:
        """Cases x captions; None where the model has no answer with such an image."""
        return self.score(picture, captions)


def readings(
    model: Any, cases: CaptionCases, other: Ints, vectors: Floats | None = None
) -> dict[str, CaptionScorer]:
    """The ways in which this model can choose: `matching`, `cosine`, or both."""
    found = {}
    if isinstance(model, Matcher):
        pairs = _Matching(model, cases, other)
        found["matching"] = CaptionScorer("matching", pairs, together=pairs.together)
    if isinstance(model, DualEncoder):
        scale = getattr(model, "logit_scale", None)
        scale = None if scale is None else float(to_numpy(scale))
        found["cosine"] = CaptionScorer("cosine", _Cosines(model, cases, other, vectors), scale)
    if not found:
        raise InputError(
            f"{type(model).__name__} cannot choose captions: it has neither match(images, texts) "
            "nor encode_images and encode_texts"
        )
    return found


@dataclass(frozen=True, eq=False)
class _Matching:
    model: Matcher
    cases: CaptionCases
    other: Ints

    def __call__(self, picture: str, captions: Captions) -> Floats | None:
        if picture in ("white", "none"):
            return self._blind(picture, captions)
        found = np.empty((len(captions), len(captions[0])))
        for start in range(0, len(captions), BLOCK):
            rows = np.arange(start, min(start + BLOCK, len(captions)))
            shown = self._shown(self.other[rows] if picture == "wrong" else rows)
            for column in range(found.shape[1]):
                found[rows, column] = self._match(
                    shown, [captions[row][column] for row in rows.tolist()]
                )
        return found

    def together(self, picture: str, captions: Captions) -> Floats:
        """All captions of a case in one call, one after the other."""
        found = []
        for row, texts in enumerate(captions):
            shown = self._shown(np.full(len(texts), row)) if picture == "true" else None
            white = [white_picture()] * len(texts)
            found.append(self._match(white if shown is None else shown, list(texts)))
        return np.stack(found)

    def _shown(self, rows: Ints) -> Any:
        """The images of some rows; files are decoded once for all captions."""
        shown = some_of(self.cases.images, rows)
        return list(shown) if isinstance(shown, ImageFiles | GeneratedImages) else shown

    def _blind(self, picture: str, captions: Captions) -> Floats | None:
        """With the same image beside every caption, or none: each caption once."""
        texts, at = _distinct(captions)
        if picture == "none" and not self._takes_no_picture(texts[0]):
            return None
        blocks = [texts[start : start + BLOCK] for start in range(0, len(texts), BLOCK)]
        white = white_picture()
        found = [self._match([white] * len(block) if picture == "white" else None, block)
                 for block in blocks]  # fmt: skip
        return np.asarray(np.concatenate(found)[at])

    def _match(self, images: Any, texts: list[str]) -> Floats:
        logits = np.asarray(to_numpy(self.model.match(images, texts)), dtype=np.float64)
        if logits.size != len(texts):
            raise InputError(
                f"match must give one logit a pair; got shape {logits.shape} for {len(texts)} pairs"
            )
        return logits.reshape(-1)

    def _takes_no_picture(self, text: str) -> bool:
        """Few matching heads can do without one; those that cannot raise one of these."""
        try:
            self.model.match(None, [text])
        except (TypeError, ValueError, AttributeError):
            return False
        return True


@dataclass(frozen=True, eq=False)
class _Cosines:
    model: DualEncoder
    cases: CaptionCases
    other: Ints
    vectors: Floats | None  # of the images, where they are there already

    def __call__(self, picture: str, captions: Captions) -> Floats | None:
        if picture == "none":
            return None
        if picture == "white":
            images = np.repeat(self._white(), len(captions), axis=0)
        else:
            images = self._seen[self.other if picture == "wrong" else slice(None)]
        scores = np.einsum("nd,ncd->nc", images[: len(captions)], self._texts(captions))
        return np.asarray(scores)

    def _white(self) -> Floats:
        return _unit(to_numpy(self.model.encode_images([white_picture()])), "white picture")

    def _texts(self, captions: Captions) -> Floats:
        texts, at = _distinct(captions)
        if new := [text for text in texts if text not in self._known]:
            made = _unit(to_numpy(self.model.encode_texts(new)), "captions")
            self._known.update(zip(new, made, strict=True))
        return np.stack([self._known[text] for text in texts])[at]

    @cached_property
    def _seen(self) -> Floats:
        made = self.vectors
        if made is None:
            made = to_numpy(self.model.encode_images(self.cases.images))
        return _unit(made, "images")

    @cached_property
    def _known(self) -> dict[str, Floats]:
        """Vectors of texts: each is encoded once, whatever image stands beside it."""
        return {}


def _distinct(captions: Captions) -> tuple[list[str], Ints]:
    """Each text once, and the number of each caption's text."""
    number: dict[str, int] = {}
    at = [[number.setdefault(text, len(number)) for text in row] for row in captions]
    return list(number), np.array(at)


def _unit(vectors: Floats, name: str) -> Floats:
    return np.asarray(unit(np.asarray(vectors, dtype=np.float64), name))


# --- Models whose choice is known ---------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class LookupMatcher:
    """A matcher that looks its answers up; an image is known by what it holds.

    `IDM` gives the caption that is right for the image 1 and others 0, `BIM` the stereotypical
    one, `RAM` everything a number between 0 and 1 that depends on the image, the text and the seed.
    """

    name: str
    answer: Callable[[str, str], float]  # fingerprint of an image, text -> logit

    def match(self, images: Any, texts: Sequence[str]) -> Array:
        seen = [""] * len(texts) if images is None else [fingerprint(image) for image in images]
        return np.array([self.answer(*pair) for pair in zip(seen, texts, strict=True)])


def ideal(cases: CaptionCases) -> LookupMatcher:
    """IDM: always picks the caption that is right for the image."""
    if cases.images is None or cases.against is None:
        raise InputError("the ideal model needs pictures, and what they show")
    right = {
        (fingerprint(image), three[int(against)])
        for image, three, against in zip(cases.images, cases.captions, cases.against, strict=True)
    }
    return LookupMatcher("IDM", lambda picture, text: float((picture, text) in right))


def biased(cases: CaptionCases) -> LookupMatcher:
    """BIM: always picks the stereotypical caption."""
    stereotypes = {three[0] for three in cases.captions}
    return LookupMatcher("BIM", lambda picture, text: float(text in stereotypes))


def at_random(seed: int = 0) -> LookupMatcher:
    """RAM: picks any of the three, each as likely."""

    def answer(picture: str, text: str) -> float:
        digest = hashlib.sha256(f"{seed}/{picture}/{text}".encode()).digest()
        return int.from_bytes(digest[:6], "little") / 2**48

    return LookupMatcher("RAM", answer)


def fingerprint(image: Any) -> str:
    """A hash of all that an image holds: pixels, or what a scene is drawn from."""
    parts = [image] if hasattr(image, "tobytes") else list(vars(image).values())
    digest = hashlib.sha256(str(getattr(image, "size", "")).encode())
    for part in parts:
        digest.update(part.tobytes() if hasattr(part, "tobytes") else str(part).encode())
    return digest.hexdigest()
