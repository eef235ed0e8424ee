"""The three kinds of debiaser and what they share.

A `VectorMap` changes embeddings, a `ModelEdit` changes the model, a `Reranker` changes an order.
All follow the conventions of scikit-learn: a debiaser is a dataclass of its hyperparameters, `fit`
returns the debiaser, and what was learned is kept in attributes whose names end in `_`. These are
written as safetensors (arrays) and JSON (the rest).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from tiltmeter.debiasers.fitted_rows import FittedRows
from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.metrics.arrays import as_groups, like, matrix, to_numpy
from tiltmeter.types import Array, Floats, Groups, Ints, Progress

ARRAYS = "debiaser.safetensors"
#: Whose embeddings a map changes.
TOWERS = ("images", "texts", "both")
#: What `fit` may need, and the options that supply it.
GIVEN_BY = {
    "labels": "--images SPEC --attribute A",
    "prompts": "--prompts FILE (texts that name each group), or --images SPEC --attribute A for "
    "sentences with the groups' names",
    "captions": "--data captions=SPEC",
}


@dataclass(frozen=True, eq=False)
class GroupTexts:
    """Texts that a method learns from: group prompts, and pairs of texts.

    Parameters
    ----------
    encode
        Text encoder of the uncorrected model.
    group_prompts
        Texts that name each group.
    equivalent
        Pairs of texts that should have the same embedding.
    words
        The word for each group inside another text; defaults to the group's name.
    harmful
        Pairs of texts whose difference is removed. None: pairs of group prompts.
    helpful
        Pairs of texts whose difference is strengthened.
    forms
        For each query, the query with each group named in it.
    """

    encode: Callable[[Sequence[str]], Floats]
    group_prompts: Mapping[str, Sequence[str]]
    equivalent: Sequence[tuple[str, str]] = ()
    words: Mapping[str, str] = field(default_factory=dict)
    harmful: Sequence[tuple[str, str]] | None = None
    helpful: Sequence[tuple[str, str]] = ()
    forms: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


class Debiaser:
    """Base class: fitted on one part of the data, then corrects a model.

    A subclass is a dataclass (`@dataclass(eq=False)`) whose fields are its hyperparameters. `fit`
    checks them, the constructor does not.

    Attributes
    ----------
    kind : str
        `vectors`, `model` or `ranking`.
    needs : tuple of str
        Keys of GIVEN_BY that `fit` requires.
    from_names : bool
        Whether it learns no more of labelled images than the names of their groups.
    rows_ : FittedRows or None
        The rows it was fitted on; None if unknown.
    """

    kind: ClassVar[str]
    needs: ClassVar[tuple[str, ...]] = ()
    from_names: ClassVar[bool] = False
    rows_: FittedRows | None = None

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the hyperparameters by name, as scikit-learn's estimators do.

        Parameters
        ----------
        deep
            Ignored: no debiaser contains another one.

        Examples
        --------
        >>> from tiltmeter.debiasers.leace import Leace
        >>> Leace(shrink=0.1).get_params()
        {'towers': 'images', 'shrink': 0.1, 'tolerance': 1e-10}
        """
        del deep
        return {name: getattr(self, name) for name in self.param_names()}

    def set_params(self, **params: Any) -> Self:
        """Set hyperparameters by name and return the debiaser.

        Raises
        ------
        UnknownNameError
            For a name that is not a hyperparameter.
        """
        for name, value in params.items():
            check_choice(f"hyperparameter of {type(self).__name__}", name, self.param_names())
            setattr(self, name, value)
        return self

    @classmethod
    def param_names(cls) -> tuple[str, ...]:
        """Return the names of the hyperparameters."""
        kind: Any = cls  # a dataclass, as every registered debiaser
        return tuple(parameter.name for parameter in fields(kind))

    @property
    def learned(self) -> dict[str, Any]:
        """What `fit` learned, by name."""
        return {
            name: value
            for name, value in vars(self).items()
            if name.endswith("_") and not name.startswith("_") and name != "rows_"
        }

    def check_fitted(self) -> None:
        """Raise InputError unless `fit` was called."""
        if not self.learned:
            raise InputError(f"{type(self).__name__} is not fitted: call fit first")

    def __sklearn_is_fitted__(self) -> bool:
        return bool(self.learned)

    def write(self, directory: Path, model: Any) -> dict[str, Any]:
        """Write the learned arrays and return the rest, which is saved as JSON.

        Parameters
        ----------
        directory
            An existing directory.
        model
            The corrected model, for methods that save a whole model.
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
            save_file(arrays, directory / ARRAYS)
        return plain

    def read(self, directory: Path, plain: Mapping[str, Any]) -> Self:
        """Restore what `write` wrote and returned."""
        from safetensors.numpy import load_file

        arrays = load_file(directory / ARRAYS) if (directory / ARRAYS).is_file() else {}
        for name, value in {**plain, **arrays}.items():
            setattr(self, name, value)
        return self


class VectorMap(Debiaser):
    """Maps embeddings of images, of texts, or of both to unit vectors.

    A transformer of scikit-learn: `clone`, `Pipeline` and `check_is_fitted` work. Subclasses
    implement `fit` and `_transform`, or override `map_images` and `map_texts` where the two towers
    are treated differently.

    Attributes
    ----------
    towers : str
        The embeddings to change: `images`, `texts` or `both`.
    n_features_in_ : int
        Number of dimensions seen by `fit`, where it learns from image embeddings.
    """

    kind = "vectors"
    needs: ClassVar[tuple[str, ...]] = ("labels",)
    towers = "both"
    n_features_in_: int

    def fit(
        self,
        X: Array | None = None,
        groups: Groups | Array | None = None,
        *,
        texts: GroupTexts | None = None,
    ) -> Self:
        """Learn the map.

        Parameters
        ----------
        X : array of shape (n_images, n_dimensions)
            Image embeddings of length 1; None for methods that learn from texts alone.
        groups : Groups or array of shape (n_images,)
            The group of each image.
        texts
            Group prompts, for methods that need them.

        Returns
        -------
        self

        Raises
        ------
        InputError
            If something that the method needs is missing, or a hyperparameter is out of range.
        """
        raise NotImplementedError

    def transform(self, X: Array) -> Array:
        """Map embeddings, of whichever tower, with what was learned.

        `map_images` and `map_texts` do the same for one tower, and leave embeddings unchanged where
        `towers` says so. Methods with a different map for each tower apply that of images here.

        Parameters
        ----------
        X : array of shape (n, n_dimensions)
            NumPy array or torch tensor; its type, device and precision are kept.

        Returns
        -------
        array of shape (n, n_components)
            Unit vectors.

        Raises
        ------
        InputError
            Before `fit`, or if `X` has other dimensions than the data it was fitted on.
        """
        self.check_fitted()
        expected = vars(self).get("n_features_in_", X.shape[-1])
        if X.shape[-1] != expected:
            raise InputError(f"fitted on {expected} dimensions; X has {X.shape[-1]}")
        return self._transform(X)

    def _transform(self, X: Array) -> Array:
        raise NotImplementedError

    def fit_transform(
        self, X: Array, groups: Groups | Array | None = None, *, texts: GroupTexts | None = None
    ) -> Array:
        """Fit, then transform the same embeddings."""
        return self.fit(X, groups, texts=texts).transform(X)

    def map_images(self, X: Array) -> Array:
        """Map image embeddings."""
        self.check_fitted()
        return X if self.towers == "texts" else self.transform(X)

    def map_texts(
        self, X: Array, texts: Sequence[str], encode: Callable[[Sequence[str]], Array]
    ) -> Array:
        """Map text embeddings.

        Parameters
        ----------
        X : array of shape (n_texts, n_dimensions)
            Text embeddings.
        texts
            The texts themselves, for methods that treat each query in its own way.
        encode
            The uncorrected text encoder, for the same.
        """
        del texts, encode
        self.check_fitted()
        return X if self.towers == "images" else self.transform(X)

    def __sklearn_tags__(self) -> Any:
        utils = import_module("sklearn.utils")  # which is there: only scikit-learn calls this
        target = utils.TargetTags(required="labels" in self.needs)
        return utils.Tags("transformer", target, utils.TransformerTags())


class LabelMap(VectorMap):
    """A map that is learned from labelled images; subclasses implement `_fit` and `_transform`."""

    def fit(
        self,
        X: Array | None = None,
        groups: Groups | Array | None = None,
        *,
        texts: GroupTexts | None = None,
    ) -> Self:
        check_choice("towers", self.towers, TOWERS)
        x, labels = check_labelled(X, groups)
        self.n_features_in_ = x.shape[1]
        self._fit(x, labels, texts)
        return self

    def _fit(self, x: Floats, labels: Groups, texts: GroupTexts | None) -> None:
        """Learn from checked embeddings, in double precision, of two groups or more."""
        raise NotImplementedError


class ModelEdit(Debiaser):
    """Changes the model: learned tokens, tuned weights."""

    kind = "model"
    needs: ClassVar[tuple[str, ...]] = ("captions",)

    @property
    def needs_captions(self) -> bool:
        """Whether it cannot learn without captions, as it is set."""
        return "captions" in self.needs

    def fit(
        self,
        model: Any,
        captions: Any = None,
        *,
        vectors: Array | None = None,
        groups: Groups | None = None,
        images: Any = None,
        edited: Any = None,
        utility: Any = None,
        checkpoints: Path | None = None,
        progress: Progress | None = None,
    ) -> Self:
        """Learn a change of the model, which itself stays as it is.

        Parameters
        ----------
        model
            The model to correct.
        captions
            Images with captions.
        vectors : array of shape (n_images, n_dimensions)
            The model's embeddings of labelled images.
        groups
            The groups of the labelled images.
        images
            The labelled images themselves, where the image tower is trained.
        edited
            The images of `captions` as an image editor changed them, in the same order.
        utility
            Images with classes, on which accuracy must not fall too far.
        checkpoints
            Directory for checkpoints; an interrupted training resumes from the last one.
        progress
            Called with a line of text and the share that is done.

        Returns
        -------
        self

        Raises
        ------
        InputError
            If something that the method needs is missing, or a hyperparameter is out of range.
        """
        raise NotImplementedError

    def apply(self, model: Any) -> Any:
        """Return a changed copy of the model, with the same protocols."""
        raise NotImplementedError


class Reranker(Debiaser):
    """Changes the order in which items are shown; only ranking metrics are defined for it."""

    kind = "ranking"
    needs = ("labels",)

    @property
    def from_best(self) -> bool:
        """Whether `order` uses no more than the best k + 1 items of each group."""
        return False

    def fit(
        self,
        X: Array | None = None,
        groups: Groups | Array | None = None,
        *,
        texts: GroupTexts | None = None,
    ) -> Self:
        """Learn from a reference set, where the method has one.

        Parameters
        ----------
        X : array of shape (n_images, n_dimensions)
            Image embeddings of the reference set.
        groups : Groups or array of shape (n_images,)
            The group of each image.
        texts
            Unused by the built-in re-rankers.

        Returns
        -------
        self
        """
        raise NotImplementedError

    def order(
        self, scores: Array, groups: Groups | None, k: int, *, vectors: Array | None = None
    ) -> Ints:
        """Choose the k items to show for each query.

        Parameters
        ----------
        scores : array of shape (n_queries, n_items)
            Similarity of queries and items.
        groups
            The group of each item, where the method needs them.
        k
            Number of items to show.
        vectors : array of shape (n_items, n_dimensions)
            Embeddings of the items, where the method needs them.

        Returns
        -------
        array of shape (n_queries, k)
            Row numbers of the items, best first.
        """
        raise NotImplementedError


def check_labelled(X: Array | None, groups: Groups | Array | None) -> tuple[Floats, Groups]:
    """Return embeddings as NumPy in double precision, and their groups: two or more."""
    if X is None or groups is None:
        raise InputError(f"this method learns from labelled images: {GIVEN_BY['labels']}")
    x = np.asarray(to_numpy(matrix(X, "X", "images", "dimensions")), np.float64)
    labels = as_groups(groups, len(x))
    if int((labels.counts > 0).sum()) < 2:
        raise InputError(
            f"all {len(x)} images are of one group of {labels.attribute!r}; fit on images of two "
            "groups or more"
        )
    return x, labels


def required_attribute(faces: Any, attribute: str | None) -> str:
    """Return the attribute to fit by; InputError names what is missing, it or the images."""
    if faces is not None and attribute is not None:
        return attribute
    missing = ["--images SPEC"] * (faces is None) + ["--attribute A"] * (attribute is None)
    columns = ", ".join(getattr(faces, "groups", ()))
    there_are = f" (label columns of {faces.name}: {columns})" if columns else ""
    raise InputError(f"this method learns from labelled images: add {' '.join(missing)}{there_are}")


def check_choice(what: str, value: str, choices: Sequence[str]) -> None:
    """Raise UnknownNameError unless `value` is one of `choices`."""
    if value not in choices:
        raise UnknownNameError(what, value, choices)


def check_at_least(least: int, **values: float) -> None:
    """Raise InputError for a hyperparameter below `least`."""
    for name, value in values.items():
        if not value >= least:
            raise InputError(f"{name} must be {least} or more; got {value:g}")


def like_input(X: Array, *learned: Floats) -> list[Array]:
    """Return learned arrays with the array type, device and precision of `X`."""
    dtype = str(X.dtype).rpartition(".")[2]
    return [like(X, array, dtype) for array in learned]
