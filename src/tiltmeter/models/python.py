"""`python:module:factory`: anything that can be called and returns a model.

The module may be a file: `python:path/to/model.py:factory`. Options become keyword arguments.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from tiltmeter.errors import InputError, TiltmeterError, UnknownNameError
from tiltmeter.io.specs import Spec
from tiltmeter.results import content_hash, file_hash
from tiltmeter.types import MaskedPredictor, Matcher, TextEncoder

#: What the protocols of `tiltmeter.types` ask for.
METHODS = ("encode_texts", "encode_images", "match", "mask_logprobs", "pieces", "losses")
DEEPEST = 8  # lists and dictionaries within each other that are looked through for arrays


class FromPython:
    """A model somebody else wrote, with a name and a record of where it came from."""

    def __init__(self, model: Any, name: str, provenance: dict[str, Any]) -> None:
        self.model = model
        self.name = name
        self.provenance = provenance
        for method in METHODS:  # on the object: protocols are asked for by looking there
            if hasattr(model, method):
                setattr(self, method, self._guarded(method))
        if hasattr(model, "mask_token"):
            self.mask_token = model.mask_token

    @property
    def identity(self) -> dict[str, Any]:
        """How it was made, and what it has learned: its `fingerprint`, or all arrays it holds."""
        return {**self.provenance, "weights": learned(self.model)}

    def _guarded(self, method: str) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            with _theirs(self.name, f"{method} failed"):
                return getattr(self.model, method)(*given, **named)

        return call

    def __getattr__(self, name: str) -> Any:
        if name == "model":  # not there yet: a copy is being made
            raise AttributeError(name)
        return getattr(self.model, name)


def learned(model: Any) -> str | None:
    """A hash of what a model has learned: its own `fingerprint`, or every array that it holds.

    None where it holds none.
    """
    if getattr(model, "fingerprint", None):
        return str(model.fingerprint)
    parts = [[name, content_hash(array)] for name, array in _arrays("", model, 0)]
    return content_hash(parts) if parts else None


def _arrays(name: str, held: Any, depth: int) -> Iterator[tuple[str, Any]]:
    """Arrays and tensors in a module, in an object's attributes, in lists and dictionaries."""
    if depth > DEEPEST:
        return
    if isinstance(held, np.ndarray):
        yield name, held
    elif hasattr(held, "detach") and hasattr(held, "numpy"):
        yield name, held.detach().cpu().float().numpy()
    elif hasattr(held, "state_dict"):
        yield from _arrays(name, dict(held.state_dict()), depth + 1)
    elif isinstance(held, list | tuple):
        for at, part in enumerate(held):
            yield from _arrays(f"{name}.{at}", part, depth + 1)
    elif isinstance(held, dict):
        for key, part in sorted(held.items(), key=lambda pair: str(pair[0])):
            yield from _arrays(f"{name}.{key}", part, depth + 1)
    elif depth == 0 and hasattr(held, "__dict__"):
        yield from _arrays(name, vars(held), depth + 1)


@contextmanager
def _theirs(name: str, what: str) -> Iterator[None]:
    """Whatever goes wrong in code of the user's is said in one line, with its cause kept."""
    try:
        yield
    except TiltmeterError:
        raise
    except Exception as error:
        raise InputError(f"python:{name}: {what}: {type(error).__name__}: {error}") from error


def load(spec: Spec) -> FromPython:
    """A model of your own: python:module:factory, or python:FILE.py:factory."""
    place, colon, factory_name = spec.rest.rpartition(":")
    if not colon or not place or not factory_name:
        raise InputError(
            f"python:{spec.rest} names no factory: write python:module:factory or "
            "python:FILE.py:factory"
        )
    with _theirs(place, "cannot be imported"):
        module = _import(place)
    factory = getattr(module, factory_name, None)
    if factory is None:
        names = [name for name in vars(module) if not name.startswith("_")]
        raise UnknownNameError(f"factory in {place}:", factory_name, names)
    with _theirs(spec.rest, "the factory failed"):
        model = factory(**spec.options)
    if not isinstance(model, TextEncoder | Matcher | MaskedPredictor):
        raise InputError(
            f"python:{spec.rest} gave a {type(model).__name__}, which has no encode_texts(list): "
            "expected a model with encode_texts (and encode_images for images of its own), or with "
            "match, or with mask_logprobs"
        )
    source = getattr(module, "__file__", None)
    provenance = {"spec": f"python:{spec.rest}", "options": spec.options}
    if source:
        provenance["source"] = file_hash(Path(source))
    return FromPython(model, f"{Path(place).stem}:{factory_name}", provenance)


def _import(place: str) -> ModuleType:
    if not place.endswith(".py"):
        # a module beside the user, as `python -m` finds it
        sys.path.insert(0, "")
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            raise InputError(f"python: cannot import {place!r}: {error}") from error
        finally:
            sys.path.remove("")
    path = Path(place)
    if not path.is_file():
        raise InputError(f"python: no such file: {path}")
    name = f"tiltmeter_user_{path.stem}"  # no file of the user's may hide a library
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickles look their module up there
    spec.loader.exec_module(module)
    return module
