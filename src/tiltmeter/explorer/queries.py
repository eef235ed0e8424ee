"""Scores of prompts, with a cache: moving a slider does not encode the text again."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock

import numpy as np

from tiltmeter.errors import InputError
from tiltmeter.explorer.gather import ExplorerData
from tiltmeter.explorer.ranking import QueryResult, answer
from tiltmeter.metrics.arrays import to_numpy, unit
from tiltmeter.types import Floats

LONGEST = 2000  # characters of a prompt
REMEMBERED = 2**26  # bytes of cached scores


class QueryRunner:
    """Ranks images by prompts, from several threads."""

    def __init__(self, data: ExplorerData, *, remembered: int = REMEMBERED) -> None:
        self.data = data
        bytes_per_query = max(4 * len(data), 1)
        self._limit = max(remembered // bytes_per_query, 2)
        self._scores: OrderedDict[tuple[int, str], Floats] = OrderedDict()
        self._lock = Lock()
        self._encoding = Lock()  # models are not thread-safe, and use all cores anyway

    def ask(self, text: str, *, model: int = 0, by: str | None = None, k: int = 100) -> QueryResult:
        """Rank the images by a text, and compare the groups of an attribute."""
        data = self.data
        if not 0 <= model < len(data.models):
            raise InputError(f"unknown model {model}; expected 0 to {len(data.models) - 1}")
        by = by if by is not None else next(iter(data.groups))
        if by not in data.groups:
            raise InputError("unknown attribute; expected one of " + ", ".join(data.groups))
        if not 1 <= k <= len(data):
            raise InputError(
                f"k must be between 1 and {len(data):,}, the number of images; got {k}"
            )
        scores = self.scores(checked(text), model)
        order = data.models[model].order
        groups = data.groups[by]
        return answer(scores, groups, k=k, convention=data.convention, order=order)

    def scores(self, text: str, model: int) -> Floats:
        """Scores of all images for a text; cached."""
        key = (model, text)
        if (cached := self._cached(key)) is not None:
            return cached
        with self._encoding:
            if (cached := self._cached(key)) is not None:  # another thread has encoded it
                return cached
            shown_model = self.data.models[model]
            vector = unit(to_numpy(shown_model.encode_texts([text])), "texts")
            if vector.shape != (1, shown_model.vectors.shape[1]):
                raise InputError(
                    f"{shown_model.name} has {vector.shape[1]} dimensions for texts and "
                    f"{shown_model.vectors.shape[1]} for images: they must come from one model"
                )
            scores = shown_model.vectors @ vector[0].astype(shown_model.vectors.dtype)
        scores = np.asarray(scores)
        with self._lock:
            self._scores[key] = scores
            while len(self._scores) > self._limit:
                self._scores.popitem(last=False)
        return scores

    def _cached(self, key: tuple[int, str]) -> Floats | None:
        with self._lock:
            if key in self._scores:
                self._scores.move_to_end(key)
            return self._scores.get(key)


def checked(text: str) -> str:
    """The prompt without outer spaces; raises if it is empty, too long or invalid.

    >>> checked("  a nurse ")
    'a nurse'
    """
    if len(text) > LONGEST:
        raise InputError(f"a prompt has at most {LONGEST:,} characters; this one has {len(text):,}")
    if not text.strip():
        raise InputError("type a prompt: this one is empty")
    try:
        text.encode()
    except UnicodeEncodeError:  # lone surrogates
        raise InputError("this prompt is not valid Unicode text") from None
    return text.strip()
