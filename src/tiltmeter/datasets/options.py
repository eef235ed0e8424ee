"""Options of datasets in a spec: `?strict=yes&split=val&race=B,W`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.io.specs import Spec


def flag(spec: Spec, name: str) -> bool:
    """An option that is yes or no; by default no."""
    return choice(spec, name, ("no", "yes")) == "yes"


def choice(spec: Spec, name: str, known: Iterable[str]) -> str:
    """One of the known values; by default the first.

    Parameters
    ----------
    spec
        The spec.
    name
        The option.
    known
        Its values.
    """
    known = tuple(known)
    value = spec.options.get(name, known[0])
    if value not in known:
        raise UnknownNameError(f"{name} of {spec.scheme}:", value, known)
    return value


def choices(spec: Spec, name: str, known: Iterable[str]) -> tuple[str, ...]:
    """Some of the known values, separated by commas; by default all.

    Parameters
    ----------
    spec
        The spec.
    name
        The option.
    known
        Its values.
    """
    known = tuple(known)
    if name not in spec.options:
        return known
    values = tuple(spec.options[name].split(","))
    for value in values:
        if value not in known:
            raise UnknownNameError(f"{name} of {spec.scheme}:", value, known)
    return values


def folder(spec: Spec, name: str) -> Path | None:
    """The directory that an option names; None without the option."""
    if name not in spec.options:
        return None
    path = Path(spec.options[name])
    if not spec.options[name] or not path.is_dir():
        raise InputError(
            f"{spec.scheme}: {name}={spec.options[name]} is not a directory",
            code="not-found",
            value=spec.options[name],
        )
    return path


def file(spec: Spec) -> Path:
    """The place of a spec, which must be a file."""
    path = Path(spec.rest)
    if not path.is_file():
        raise InputError(
            f"{spec.scheme}:{spec.rest} is not a file: expected {spec.scheme}:FILE",
            code="not-found",
            value=spec.rest,
        )
    return path
