"""Registries: names of components, imported only when they are used.

Adding a component is one line in one table.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator, Mapping
from importlib.abc import InspectLoader
from importlib.util import find_spec
from typing import Any

from tiltmeter.errors import MissingError, UnknownNameError


class Registry(Mapping[str, Any]):
    """A table of `name: "module:attribute"` whose values are imported on access.

    Iterating, `len` and `in` import nothing.

    Parameters
    ----------
    kind
        What the names are names of, such as `model`; error messages say it.
    paths
        Where each component is defined.

    Raises
    ------
    UnknownNameError
        On access to a name that is not in the table.
    MissingError
        On access to a component whose package is not installed.

    Examples
    --------
    >>> functions = Registry("function", {"root": "math:sqrt"})
    >>> functions["root"](9.0)
    3.0
    >>> functions["rot"]
    Traceback (most recent call last):
    ...
    tiltmeter.errors.UnknownNameError: unknown function 'rot'; did you mean 'root'?
    """

    def __init__(self, kind: str, paths: Mapping[str, str]) -> None:
        self.kind = kind
        self.paths = dict(paths)

    def __getitem__(self, name: str) -> Any:
        if name not in self.paths:
            raise UnknownNameError(self.kind, name, self.paths)
        module, _, attribute = self.paths[name].partition(":")
        try:
            return getattr(importlib.import_module(module), attribute)
        except ModuleNotFoundError as error:
            if (error.name or "tiltmeter").partition(".")[0] == "tiltmeter":
                raise  # a wrong line in the table
            raise MissingError(f"{self.kind} {name!r}", str(error.name)) from error

    def __contains__(self, name: object) -> bool:
        return name in self.paths

    def __iter__(self) -> Iterator[str]:
        return iter(self.paths)

    def __len__(self) -> int:
        return len(self.paths)

    def summary(self, name: str) -> str:
        """The first line of a component's docstring, and which package it needs that is not there.

        Parameters
        ----------
        name
            A name of the table.
        """
        try:
            component = self[name]
        except MissingError as error:
            text = _first_line(_written_docstring(self.paths[name]))
            if text:
                return f"{text} (needs {error.value})"
            return f"needs {error.value}: {error.install}"
        return _first_line(component.__doc__)


def _first_line(docstring: str | None) -> str:
    return (docstring or "").strip().partition("\n")[0]


def _written_docstring(path: str) -> str | None:
    """The docstring in the source of a module that cannot be imported; None if it is elsewhere."""
    module, _, attribute = path.partition(":")
    try:
        found = find_spec(module)
    except ModuleNotFoundError:  # of a package that cannot be imported either
        return None
    if found is None or not isinstance(found.loader, InspectLoader):
        return None
    for node in ast.parse(found.loader.get_source(module) or "").body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == attribute:
            return ast.get_docstring(node)
    return None
