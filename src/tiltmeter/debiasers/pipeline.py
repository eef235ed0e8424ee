"""Several vector maps in sequence: `leace+clip-clip` is a debiaser too."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from tiltmeter.debiasers import DEBIASERS
from tiltmeter.debiasers.debiaser import GroupTexts, VectorMap
from tiltmeter.errors import InputError
from tiltmeter.types import Array, Groups

Encoder = Callable[[Sequence[str]], Array]


@dataclass(eq=False)
class Pipeline(VectorMap):
    """Several vector maps in sequence, each fitted on the output of those before: METHOD+METHOD.

    Parameters
    ----------
    methods
        Names of registered vector maps, in order: two or more.
    settings
        Hyperparameters of each; empty: all defaults.

    Attributes
    ----------
    steps_ : list of VectorMap
        The fitted maps.
    """

    methods: Sequence[str] = ()
    settings: Sequence[Mapping[str, Any]] = ()

    @property
    def learned(self) -> dict[str, Any]:
        """What the steps learned, each name prefixed with the step's number."""
        return {
            f"{number}.{name}": value
            for number, step in enumerate(vars(self).get("steps_", ()))
            for name, value in step.learned.items()
        }

    def fit(
        self,
        X: Array | None = None,
        groups: Groups | Array | None = None,
        *,
        texts: GroupTexts | None = None,
    ) -> Self:
        self.steps_ = self._new_steps()
        for step in self.steps_:
            step.fit(X, groups, texts=texts)
            X = None if X is None else step.map_images(X)
            if texts is not None:
                texts = replace(texts, encode=_encoder_after(step, texts.encode))
        return self

    def _transform(self, X: Array) -> Array:
        for step in self.steps_:
            X = step.transform(X)
        return X

    def map_images(self, X: Array) -> Array:
        self.check_fitted()
        for step in self.steps_:
            X = step.map_images(X)
        return X

    def map_texts(self, X: Array, texts: Sequence[str], encode: Encoder) -> Array:
        self.check_fitted()
        for step in self.steps_:
            X = step.map_texts(X, texts, encode)
            encode = _encoder_after(step, encode)
        return X

    def write(self, directory: Path, model: Any) -> dict[str, Any]:
        plain = {}
        for number, step in enumerate(self.steps_):
            (directory / str(number)).mkdir()
            plain[str(number)] = step.write(directory / str(number), model)
        return plain

    def read(self, directory: Path, plain: Mapping[str, Any]) -> Self:
        self.steps_ = self._new_steps()
        for number, step in enumerate(self.steps_):
            step.read(directory / str(number), plain[str(number)])
        return self

    def _new_steps(self) -> list[VectorMap]:
        if len(self.methods) < 2 or len(self.settings) not in (0, len(self.methods)):
            raise InputError(
                f"a pipeline takes two methods or more, each with its settings; got "
                f"{list(self.methods)} and {len(self.settings)} settings"
            )
        settings = self.settings or [{}] * len(self.methods)
        steps = []
        for name, params in zip(self.methods, settings, strict=True):
            step = DEBIASERS[name](**params)
            if not isinstance(step, VectorMap):
                raise InputError(f"{name} is not a vector map; a pipeline takes only vector maps")
            steps.append(step)
        return steps


def _encoder_after(step: VectorMap, encode: Encoder) -> Encoder:
    """The text encoder as the next step sees it."""

    def encode_after(texts: Sequence[str]) -> Array:
        return step.map_texts(encode(texts), texts, encode)

    return encode_after
