"""Options of data sets, read from a spec: `?strict=yes&split=val&race=B,W`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.io.specs import Spec


def flag(spec: Spec, name: str) -> bool:
    """An option of yes or no; no when it is not given."""
    return choice(spec, name, ("no", "yes")) == "yes"


def choice(spec: Spec, name: str, known: Iterable[str]) -> str:
    """One of the known values; the first when it is not given."""
    known = tuple(known)
    value = spec.options.get(name, known[0])
    if value not in known:
        raise UnknownNameError(f"{name} of {spec.scheme}:", value, known)
    return value


def several(spec: Spec, name: str, known: Iterable[str]) -> tuple[str, ...]:
    """Some of the known values, with commas between; all when it is not given."""
    known = tuple(known)
    if name not in spec.options:
        return known
    values = tuple(spec.options[name].split(","))
    for value in values:
        if value not in known:
            raise UnknownNameError(f"{name} of {spec.scheme}:", value, known)
    return values


def folder(spec: Spec, name: str) -> Path | None:
    """A directory, if one is given."""
    if name not in spec.options:
        return None
    path = Path(spec.options[name])
    if not spec.options[name] or not path.is_dir():
        raise InputError(f"{spec.scheme}: {name}={spec.options[name]} is not a directory")
    return path


def file(spec: Spec) -> Path:
    """The place named, which must be a file."""
    path = Path(spec.rest)
    if not path.is_file():
        raise InputError(f"{spec.scheme}: {spec.rest or 'nothing'} is not a file")
    return path
