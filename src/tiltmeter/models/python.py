"""`python:module:factory`: anything that can be called and returns a model.

The module may be a file: `python:path/to/model.py:factory`. Options become keyword arguments.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from tiltmeter.errors import InputError, TiltmeterError, UnknownNameError
from tiltmeter.results import file_hash
from tiltmeter.specs import Spec
from tiltmeter.types import Array, TextEncoder


class FromPython:
    """A model somebody else wrote, with a name and a record of where it came from."""

    def __init__(self, model: TextEncoder, name: str, provenance: dict[str, Any]) -> None:
        self.model = model
        self.name = name
        self.provenance = provenance

    def encode_texts(self, texts: Sequence[str]) -> Array:
        with _theirs(self.name, "encode_texts failed"):
            return self.model.encode_texts(texts)

    def __getattr__(self, name: str) -> Any:
        if name == "model":  # not there yet: a copy is being made
            raise AttributeError(name)
        return getattr(self.model, name)


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
    if not isinstance(model, TextEncoder):
        raise InputError(
            f"python:{spec.rest} gave a {type(model).__name__}, which has no encode_texts(list): "
            "expected a model with encode_texts, and encode_images for images of its own"
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
