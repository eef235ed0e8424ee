"""Scores of the three captions of an image, and reference models with a known choice.

A matcher scores a pair of image and caption by a logit, a dual encoder by a cosine. The image may
be the true one, a white one, another one of the data (wrong), or none. For a model that takes
regions, an image is what a detector found in it.
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
from tiltmeter.io.regions import Regions
from tiltmeter.metrics.arrays import to_numpy, unit
from tiltmeter.types import Array, Continuer, DualEncoder, Floats, Groups, Ints, Matcher

#: The captions, in the order of the columns of all scores.
KINDS = ("stereotypical", "anti-stereotypical", "irrelevant")
#: The image that is scored with a caption.
IMAGE_KINDS = ("true", "white", "none", "wrong")
BLOCK = 64  # images decoded together
WHITE_SIDE = 224  # pixels

Captions = Sequence[Sequence[str]]  # one row per case


@dataclass(frozen=True, eq=False)
class CaptionCases:
    """Images with three captions each, and their labels.

    `neutral` are the first two captions without their target term, None if no neutral form is
    known or nothing changes. `best` are the scores of a perfect model, if known.
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
        for row, three in enumerate(self.captions):
            if len(three) != len(KINDS) or len(set(three)) < len(three):
                raise InputError(
                    f"{self.name}, {self.ids[row]}: expected three different captions "
                    f"({', '.join(KINDS)}); got {' / '.join(three)}"
                )

    def __len__(self) -> int:
        return len(self.ids)

    def select(self, rows: Sequence[int] | Ints) -> CaptionCases:
        """The cases of the given rows."""
        indices = np.asarray(rows, dtype=np.int64)
        selected = {
            name: tuple(getattr(self, name)[row] for row in indices)
            for name in ("ids", "captions", "neutral", "targets")
        }
        return replace(
            self,
            **selected,  # type: ignore[arg-type]
            categories=self.categories[indices],
            against=None if self.against is None else self.against[indices],
            images=None if self.images is None else some_of(self.images, indices),
            best=None if self.best is None else self.best[indices],
        )

    @property
    def white_note(self) -> str | None:
        """What stands for the white image, where it is not an image."""
        if not isinstance(self.images, Regions):
            return None
        return "white image: " + (
            "what the detector found in one" if self.images.white is not None else
            "features of 0, for the file of regions has no image `white`"
        )  # fmt: skip

    @cached_property
    def sets(self) -> Ints:
        """Number of each case's caption set: cases with the same captions are not independent."""
        number: dict[tuple[str, ...], int] = {}
        return np.array([number.setdefault(three, len(number)) for three in self.captions])


def some_of(images: Any, rows: Ints) -> Any:
    """The images of the given rows."""
    return [images[row] for row in rows] if isinstance(images, list | tuple) else images[rows]


def white_image() -> Any:
    """An all-white image."""
    from PIL import Image

    return Image.new("RGB", (WHITE_SIDE, WHITE_SIDE), "white")


def other_rows(targets: Sequence[str], rng: np.random.Generator) -> Ints:
    """For each case the row of another one, of another target if possible; no row twice.

    Cases are sorted by target, and each is given the case that is as many places on as the largest
    target has cases.

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
    """One way to score captions: `score` takes a kind of image, and the captions of each case.

    `together` scores all captions of a case in one call, where their order might matter.
    """

    name: str
    score: Callable[[str, Captions], Floats | None]
    scale: float | None = None  # the model's logit scale, for cosines
    together: Callable[[str, Captions], Floats] | None = None

    def __call__(self, image_kind: str, captions: Captions) -> Floats | None:
        """Scores, cases x captions; None if the model cannot score with this kind of image."""
        return self.score(image_kind, captions)


def readings(
    model: Any, cases: CaptionCases, other: Ints, vectors: Floats | None = None, question: str = ""
) -> dict[str, CaptionScorer]:
    """The ways in which this model can score captions: `matching`, `cosine`, `answers`.

    `question` is what a generative model is asked: captions are answers to it.
    """
    scorers = {}
    if isinstance(model, Matcher):
        pairs = _Matching(model, cases, other)
        scorers["matching"] = CaptionScorer("matching", pairs, together=pairs.together)
    if isinstance(model, DualEncoder):
        scale = getattr(model, "logit_scale", None)
        scale = None if scale is None else float(to_numpy(scale))
        scorers["cosine"] = CaptionScorer("cosine", _Cosines(model, cases, other, vectors), scale)
    if isinstance(model, Continuer):
        scorers["answers"] = CaptionScorer("answers", _Answers(model, cases, other, question))
    if not scorers:
        raise InputError(
            f"{type(model).__name__} cannot score captions: expected match(images, texts), "
            "encode_images and encode_texts, or continuations(images, prompt, texts)"
        )
    return scorers


@dataclass(frozen=True, eq=False)
class _Matching:
    model: Matcher
    cases: CaptionCases
    other: Ints

    def __call__(self, image_kind: str, captions: Captions) -> Floats | None:
        if image_kind in ("white", "none"):
            return self._blind(image_kind, captions)
        logits = np.empty((len(captions), len(captions[0])))
        for start in range(0, len(captions), BLOCK):
            rows = np.arange(start, min(start + BLOCK, len(captions)))
            images = self._load_images(self.other[rows] if image_kind == "wrong" else rows)
            for column in range(logits.shape[1]):
                logits[rows, column] = self._match(
                    images, [captions[row][column] for row in rows.tolist()]
                )
        return logits

    def together(self, image_kind: str, captions: Captions) -> Floats:
        """Score all captions of a case in one call."""
        logits = []
        for row, texts in enumerate(captions):
            images = self._load_images(np.full(len(texts), row)) if image_kind == "true" else None
            white_images = [self._white] * len(texts)
            logits.append(self._match(white_images if images is None else images, list(texts)))
        return np.stack(logits)

    @property
    def _white(self) -> Any:
        images = self.cases.images
        return images.white_image() if isinstance(images, Regions) else white_image()

    def _load_images(self, rows: Ints) -> Any:
        """The images of the given rows; files are decoded once for all captions."""
        images = some_of(self.cases.images, rows)
        return list(images) if isinstance(images, ImageFiles | GeneratedImages) else images

    def _blind(self, image_kind: str, captions: Captions) -> Floats | None:
        """Score each distinct caption once, with a white image or none."""
        texts, index = _distinct(captions)
        if image_kind == "none" and not self._works_without_image(texts[0]):
            return None
        blocks = [texts[start : start + BLOCK] for start in range(0, len(texts), BLOCK)]
        logits = [self._match([self._white] * len(block) if image_kind == "white" else None, block)
                 for block in blocks]  # fmt: skip
        return np.asarray(np.concatenate(logits)[index])

    def _match(self, images: Any, texts: list[str]) -> Floats:
        logits = np.asarray(to_numpy(self.model.match(images, texts)), dtype=np.float64)
        if logits.size != len(texts):
            raise InputError(
                f"match must return one logit per pair; got shape {logits.shape} "
                f"for {len(texts)} pairs"
            )
        return logits.reshape(-1)

    def _works_without_image(self, text: str) -> bool:
        """Whether matching works without an image; most heads raise one of these errors."""
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
    vectors: Floats | None  # image embeddings, if already made

    def __call__(self, image_kind: str, captions: Captions) -> Floats | None:
        if image_kind == "none":
            return None
        if image_kind == "white":
            images = np.repeat(self._white(), len(captions), axis=0)
        else:
            images = self._image_vectors[self.other if image_kind == "wrong" else slice(None)]
        scores = np.einsum("nd,ncd->nc", images[: len(captions)], self._texts(captions))
        return np.asarray(scores)

    def _white(self) -> Floats:
        return _unit(to_numpy(self.model.encode_images([white_image()])), "white image")

    def _texts(self, captions: Captions) -> Floats:
        texts, index = _distinct(captions)
        if new := [text for text in texts if text not in self._text_vectors]:
            vectors = _unit(to_numpy(self.model.encode_texts(new)), "captions")
            self._text_vectors.update(zip(new, vectors, strict=True))
        return np.stack([self._text_vectors[text] for text in texts])[index]

    @cached_property
    def _image_vectors(self) -> Floats:
        vectors = self.vectors
        if vectors is None:
            vectors = to_numpy(self.model.encode_images(self.cases.images))
        return _unit(vectors, "images")

    @cached_property
    def _text_vectors(self) -> dict[str, Floats]:
        """Text embeddings: each text is encoded once for all kinds of image."""
        return {}


@dataclass(frozen=True, eq=False)
class _Answers:
    """ln P(caption) as the answer of a generative model to a question about the image."""

    model: Continuer
    cases: CaptionCases
    other: Ints
    question: str

    def __call__(self, image_kind: str, captions: Captions) -> Floats | None:
        if image_kind in ("white", "none"):
            texts, index = _distinct(captions)
            blind = [white_image()] if image_kind == "white" else None
            return np.asarray(self._logprobs(blind, texts)[0][index])
        rows = self.other if image_kind == "wrong" else np.arange(len(captions))
        return np.stack(
            [
                self._logprobs(some_of(self.cases.images, rows[[case]]), texts)[0]
                for case, texts in enumerate(captions)
            ]
        )

    def _logprobs(self, images: Any | None, texts: Sequence[str]) -> Floats:
        found = self.model.continuations(images, self.question, list(texts))
        if not found.exact.all():
            raise InputError(
                "the server gives only bounds of likelihoods: caption choice needs a server with "
                "prompt_logprobs, or the model by hf:"
            )
        return found.logprobs


def _distinct(captions: Captions) -> tuple[list[str], Ints]:
    """Distinct texts, and each caption's index among them."""
    number: dict[str, int] = {}
    index = [[number.setdefault(text, len(number)) for text in row] for row in captions]
    return list(number), np.array(index)


def _unit(vectors: Floats, name: str) -> Floats:
    return np.asarray(unit(np.asarray(vectors, dtype=np.float64), name))


# --- Reference models ---------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class LookupMatcher:
    """A matcher with a fixed answer for each image (by its content) and text.

    `IDM` gives 1 to the caption that is correct for the image and 0 to others, `BIM` gives 1 to the
    stereotypical one, `RAM` a random number from 0 to 1 that depends on image, text and seed.
    """

    name: str
    answer: Callable[[str, str], float]  # fingerprint of an image, text -> logit

    def match(self, images: Any, texts: Sequence[str]) -> Array:
        fingerprints = (
            [""] * len(texts) if images is None else [fingerprint(image) for image in images]
        )
        return np.array([self.answer(*pair) for pair in zip(fingerprints, texts, strict=True)])


def ideal(cases: CaptionCases) -> LookupMatcher:
    """IDM: always picks the caption that is correct for the image."""
    if cases.images is None or cases.against is None:
        raise InputError("the ideal model needs images, with labels of what they show")
    correct = {
        (fingerprint(image), three[int(against)])
        for image, three, against in zip(cases.images, cases.captions, cases.against, strict=True)
    }
    return LookupMatcher("IDM", lambda image, text: float((image, text) in correct))


def biased(cases: CaptionCases) -> LookupMatcher:
    """BIM: always picks the stereotypical caption."""
    stereotypes = {three[0] for three in cases.captions}
    return LookupMatcher("BIM", lambda image, text: float(text in stereotypes))


def at_random(seed: int = 0) -> LookupMatcher:
    """RAM: picks one of the three at random."""

    def answer(image: str, text: str) -> float:
        digest = hashlib.sha256(f"{seed}/{image}/{text}".encode()).digest()
        return int.from_bytes(digest[:6], "little") / 2**48

    return LookupMatcher("RAM", answer)


def fingerprint(image: Any) -> str:
    """A hash of an image's content: its pixels, or the scene that it is drawn from."""
    parts = [image] if hasattr(image, "tobytes") else list(vars(image).values())
    digest = hashlib.sha256(str(getattr(image, "size", "")).encode())
    for part in parts:
        digest.update(part.tobytes() if hasattr(part, "tobytes") else str(part).encode())
    return digest.hexdigest()
