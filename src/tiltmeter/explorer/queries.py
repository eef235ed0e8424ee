"""A prompt into scores, with the last ones remembered: moving a slider encodes nothing again."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock

import numpy as np

from tiltmeter.errors import InputError
from tiltmeter.explorer.data import ExplorerData
from tiltmeter.explorer.ranking import QueryResult, answer
from tiltmeter.metrics.arrays import to_numpy, unit
from tiltmeter.types import Floats

LONGEST = 2000  # characters of a prompt
REMEMBERED = 2**26  # bytes of scores


class QueryRunner:
    """Answers prompts on a scene, from several threads."""

    def __init__(self, scene: ExplorerData, *, remembered: int = REMEMBERED) -> None:
        self.scene = scene
        each = max(4 * len(scene), 1)
        self._most = max(remembered // each, 2)
        self._scores: OrderedDict[tuple[int, str], Floats] = OrderedDict()
        self._lock = Lock()
        self._encoding = Lock()  # models are not made for two threads, and have all cores anyway

    def ask(self, text: str, *, model: int = 0, by: str | None = None, k: int = 100) -> QueryResult:
        """Who comes up for a text, by the groups of an attribute."""
        scene = self.scene
        if not 0 <= model < len(scene.towers):
            raise InputError(f"there is no model number {model}: 0 to {len(scene.towers) - 1}")
        by = by if by is not None else next(iter(scene.groups))
        if by not in scene.groups:
            raise InputError("there is no such attribute; known: " + ", ".join(scene.groups))
        if not 1 <= k <= len(scene):
            raise InputError(f"k must lie between 1 and {len(scene):,}, the images; got {k}")
        scores = self.scores(checked(text), model)
        order = scene.towers[model].order
        groups = scene.groups[by]
        return answer(scores, groups, k=k, convention=scene.convention, order=order)

    def scores(self, text: str, model: int) -> Floats:
        """How well each image fits a text; the same text is not encoded twice."""
        key = (model, text)
        if (known := self._known(key)) is not None:
            return known
        with self._encoding:
            if (known := self._known(key)) is not None:  # another thread had the same question
                return known
            tower = self.scene.towers[model]
            vector = unit(to_numpy(tower.encode_texts([text])), "texts")
            if vector.shape != (1, tower.vectors.shape[1]):
                raise InputError(
                    f"{tower.name} gives texts {vector.shape[1]} dimensions and images "
                    f"{tower.vectors.shape[1]}: they must come from one model"
                )
            scores = tower.vectors @ vector[0].astype(tower.vectors.dtype)
        scores = np.asarray(scores)
        with self._lock:
            self._scores[key] = scores
            while len(self._scores) > self._most:
                self._scores.popitem(last=False)
        return scores

    def _known(self, key: tuple[int, str]) -> Floats | None:
        with self._lock:
            if key in self._scores:
                self._scores.move_to_end(key)
            return self._scores.get(key)


def checked(text: str) -> str:
    """A prompt that a model can be asked: some text, not too much, and really text.

    >>> checked("  a nurse ")
    'a nurse'
    """
    if len(text) > LONGEST:
        raise InputError(f"a prompt has at most {LONGEST:,} characters; this one has {len(text):,}")
    if not text.strip():
        raise InputError("type a prompt: this one is empty")
    try:
        text.encode()
    except UnicodeEncodeError:  # half a pair of surrogates
        raise InputError("this prompt is not valid Unicode text") from None
    return text.strip()
