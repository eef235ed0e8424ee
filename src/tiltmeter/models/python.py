"""`python:module:factory`: any callable that returns a model.

The module may be a file: `python:path/to/model.py:factory`. Options become keyword arguments.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from tiltmeter.errors import InputError, TiltmeterError, UnknownNameError
from tiltmeter.io.filesystems import no_file
from tiltmeter.io.specs import Spec
from tiltmeter.results import content_hash, file_hash
from tiltmeter.types import MaskedPredictor, Matcher, TextEncoder

#: Methods of the protocols in `tiltmeter.types`.
METHODS = (
    "encode_texts", "encode_images", "word_embeddings", "encode_embeddings", "match",
    "match_grid", "mask_logprobs", "pieces", "losses",
)  # fmt: skip
#: Those that return one embedding per text or image.
EMBEDS = ("encode_texts", "encode_images")
DEEPEST = 8  # nested lists and dictionaries that are searched for arrays


class FromPython:
    """A user's model, with a name and its provenance."""

    def __init__(self, model: Any, name: str, provenance: dict[str, Any]) -> None:
        self.model = model
        self.name = name
        self.provenance = provenance
        for method in METHODS:  # on the object: that is where protocols are checked
            if hasattr(model, method):
                setattr(self, method, self._guarded(method))
        if hasattr(model, "mask_token"):
            self.mask_token = model.mask_token

    @property
    def identity(self) -> dict[str, Any]:
        """How it was made, and its weights: its `fingerprint`, or a hash of all its arrays.

        Where its file is does not matter: the file's contents do.
        """
        made = {key: value for key, value in self.provenance.items() if key != "spec"}
        return {"name": self.name, **made, "weights": weights_fingerprint(self.model)}

    def _guarded(self, method: str) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            with _user_code(self.name, f"{method} failed"):
                returned = getattr(self.model, method)(*args, **options)
            if method in EMBEDS and args and hasattr(args[0], "__len__"):
                _check_rows(f"python:{self.name}: {method}", returned, len(args[0]))
            return returned

        return call

    def __getattr__(self, name: str) -> Any:
        if name == "model":  # not set yet: a copy is being made
            raise AttributeError(name)
        return getattr(self.model, name)


def _check_rows(what: str, returned: Any, count: int) -> None:
    """Refuse anything but an array, or what becomes one, of `count` embeddings."""
    expected = f"expected an array with {count} rows, one embedding for each of its inputs"
    kind = type(returned).__name__
    if hasattr(returned, "pooler_output"):  # transformers before version 5 returned the tensor
        raise InputError(
            f"{what} returned a {kind}; {expected}: in transformers 5, return its .pooler_output",
            value=kind,
        )
    shape = getattr(returned, "shape", None)
    if shape is None:
        try:
            shape = np.asarray(returned, np.float32).shape
        except Exception as error:
            raise InputError(f"{what} returned a {kind}; {expected}", value=kind) from error
    if len(shape) < 2 or shape[0] != count:
        rows = f"{shape[0]} embeddings" if len(shape) > 1 else f"an array of shape {tuple(shape)}"
        raise InputError(f"{what} returned {rows}; {expected}", value=tuple(shape))


def weights_fingerprint(model: Any) -> str | None:
    """Hash of a model's weights: its own `fingerprint`, or a hash of every array in it.

    Returns None where there is no array.
    """
    if getattr(model, "fingerprint", None):
        return str(model.fingerprint)
    parts = [[name, content_hash(array)] for name, array in _arrays("", model, 0)]
    return content_hash(parts) if parts else None


def _arrays(name: str, value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    """Arrays and tensors in a module, in the attributes of an object, in lists and dictionaries."""
    if depth > DEEPEST:
        return
    if isinstance(value, np.ndarray):
        yield name, value
    elif hasattr(value, "detach") and hasattr(value, "numpy"):
        yield name, value.detach().cpu().float().numpy()
    elif hasattr(value, "state_dict"):
        yield from _arrays(name, dict(value.state_dict()), depth + 1)
    elif isinstance(value, list | tuple):
        for at, part in enumerate(value):
            yield from _arrays(f"{name}.{at}", part, depth + 1)
    elif isinstance(value, dict):
        for key, part in sorted(value.items(), key=lambda pair: str(pair[0])):
            yield from _arrays(f"{name}.{key}", part, depth + 1)
    elif depth == 0 and hasattr(value, "__dict__"):
        yield from _arrays(name, vars(value), depth + 1)


@contextmanager
def _user_code(name: str, what: str) -> Iterator[None]:
    """Report any error in the user's code in one line, with its cause."""
    try:
        yield
    except TiltmeterError:
        raise
    except Exception as error:
        raise InputError(f"python:{name}: {what}: {type(error).__name__}: {error}") from error


def load(spec: Spec) -> FromPython:
    """A model of your own: python:module:factory, or python:FILE.py:factory.

    Parameters
    ----------
    spec : Spec
        Its options are passed to the factory as keyword arguments.

    Returns
    -------
    FromPython
        The model that the factory returned.

    Raises
    ------
    InputError
        No factory is named, the module cannot be imported, the factory fails, or its result is not
        a model.
    UnknownNameError
        The module has no such factory, or the factory no such argument.
    """
    place, colon, factory_name = spec.rest.rpartition(":")
    if not colon or not place or not factory_name:
        raise InputError(
            f"python:{spec.rest} names no factory: write python:module:factory or "
            "python:FILE.py:factory"
        )
    with _user_code(place, "cannot be imported"):
        module = _import(place)
    factory = getattr(module, factory_name, None)
    if factory is None:
        names = [name for name in vars(module) if not name.startswith("_")]
        raise UnknownNameError(f"factory in {place}:", factory_name, names)
    _check_arguments(spec, factory, factory_name)
    with _user_code(spec.rest, "the factory failed"):
        model = factory(**spec.options)
    if not isinstance(model, TextEncoder | Matcher | MaskedPredictor):
        raise InputError(
            f"python:{spec.rest} returned a {type(model).__name__}, not a model: "
            "expected a model with encode_texts (and encode_images for images of its own), or with "
            "match, or with mask_logprobs"
        )
    source = getattr(module, "__file__", None)
    provenance = {"spec": f"python:{spec.rest}", "options": spec.options}
    if source:
        provenance["source"] = file_hash(Path(source))
    return FromPython(model, f"{Path(place).stem}:{factory_name}", provenance)


def _check_arguments(spec: Spec, factory: Any, name: str) -> None:
    """Refuse options that the factory does not take or lacks; say which it takes."""
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):  # it is no function, or does not say what it takes
        return
    try:
        signature.bind(**spec.options)
    except TypeError as error:
        known = {
            parameter.name: parameter.default is parameter.empty
            for parameter in signature.parameters.values()
            if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        }
        takes = ", ".join(f"{one} (required)" if need else one for one, need in known.items())
        takes = f"{name} takes {takes or 'no arguments'}"
        instead = _spec_with(spec, known)
        for option in spec.options:
            if option not in known:
                raise UnknownNameError(
                    f"argument of python:{spec.rest}", option, known, suggestions=[instead],
                    note=takes,
                ) from None  # fmt: skip
        raise InputError(
            f"python:{spec.rest}: {error}; {takes}: write {shlex.quote(instead)}", code="bad-option"
        ) from None


def _spec_with(spec: Spec, known: Mapping[str, bool]) -> str:
    """The spec with the most similar arguments that are known, and with those required."""
    options = {}
    for option, value in spec.options.items():
        for similar in [option] if option in known else get_close_matches(option, known, 1):
            options[similar] = value
    options |= {name: "VALUE" for name, need in known.items() if need and name not in options}
    return str(replace(spec, options=options))


def _import(place: str) -> ModuleType:
    if not place.endswith(".py"):
        # a module in the current directory, as `python -m` finds it
        sys.path.insert(0, "")
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            raise InputError(f"python: cannot import {place!r}: {error}") from error
        finally:
            sys.path.remove("")
    path = Path(place)
    if not path.is_file():
        raise no_file(path)
    name = f"tiltmeter_user_{path.stem}"  # a user's file must not hide a library
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickles look their module up there
    folder = str(path.resolve().parent)
    if folder not in sys.path:  # for modules next to the file; last, for the same reason
        sys.path.append(folder)
    spec.loader.exec_module(module)
    return module
