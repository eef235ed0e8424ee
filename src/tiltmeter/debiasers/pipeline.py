"""Several vector maps, one after the other: `leace+clip-clip` is a debiaser too."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from tiltmeter.debiasers import DEBIASERS
from tiltmeter.debiasers.debiaser import GroupTexts, VectorMap
from tiltmeter.errors import InputError
from tiltmeter.types import Array, Groups


class Pipeline(VectorMap):
    """Several vector maps in a row, each fitted on what those before it leave: METHOD+METHOD."""

    def __init__(
        self, methods: Sequence[str] = (), settings: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        self.methods = methods
        self.settings_of = settings

    @property
    def settings(self) -> dict[str, Any]:
        return {"methods": list(self.methods), "settings": [dict(one) for one in self.settings_of]}

    @property
    def learned(self) -> dict[str, Any]:
        """What the parts have learned, each under its place in the row."""
        return {
            f"{at}.{name}": value
            for at, part in enumerate(vars(self).get("parts_", ()))
            for name, value in part.learned.items()
        }

    def fit(
        self,
        vectors: Array | None,
        groups: Groups | Array | None,
        *,
        texts: GroupTexts | None = None,
    ) -> Self:
        self.parts_ = self._parts()
        for part in self.parts_:
            part.fit(vectors, groups, texts=texts)
            vectors = None if vectors is None else part.map_images(vectors)
            if texts is not None:
                texts = replace(texts, encode=_behind(part, texts.encode))
        return self

    def map_images(self, vectors: Array) -> Array:
        self.check_fitted()
        for part in self.parts_:
            vectors = part.map_images(vectors)
        return vectors

    def map_texts(
        self, vectors: Array, texts: Sequence[str], encode: Callable[[Sequence[str]], Array]
    ) -> Array:
        self.check_fitted()
        for part in self.parts_:
            vectors = part.map_texts(vectors, texts, encode)
            encode = _behind(part, encode)
        return vectors

    def write(self, place: Path, model: Any) -> dict[str, Any]:
        told = {}
        for at, part in enumerate(self.parts_):
            (place / str(at)).mkdir()
            told[str(at)] = part.write(place / str(at), model)
        return told

    def read(self, place: Path, plain: Mapping[str, Any]) -> Self:
        self.parts_ = self._parts()
        for at, part in enumerate(self.parts_):
            part.read(place / str(at), plain[str(at)])
        return self

    def _parts(self) -> list[VectorMap]:
        if len(self.methods) < 2 or len(self.settings_of) not in (0, len(self.methods)):
            raise InputError(
                f"a pipeline takes two methods or more, each with its settings; got "
                f"{list(self.methods)} and {len(self.settings_of)} settings"
            )
        settings = self.settings_of or [{}] * len(self.methods)
        parts = [DEBIASERS[name](**one) for name, one in zip(self.methods, settings, strict=True)]
        for name, part in zip(self.methods, parts, strict=True):
            if not isinstance(part, VectorMap):
                raise InputError(f"{name} maps no vectors, and only maps stand in a pipeline")
        return parts


def _behind(
    part: VectorMap, encode: Callable[[Sequence[str]], Array]
) -> Callable[[Sequence[str]], Array]:
    """The encoder of texts as the next part finds it."""

    def encoded(texts: Sequence[str]) -> Array:
        return part.map_texts(encode(texts), texts, encode)

    return encoded
