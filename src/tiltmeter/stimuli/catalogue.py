"""The built-in word lists: one YAML file each, found by its name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import TYPE_CHECKING

from tiltmeter.errors import UnknownNameError

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable


class Catalogue(Mapping[str, "Traversable"]):
    """Names of the built-in lists, and their files. The folder is read on first use, not at import.

    Examples
    --------
    >>> "sobit" in STIMULI, "sobbit" in STIMULI
    (True, False)
    >>> STIMULI["berg"].name
    'berg.yaml'
    """

    def __getitem__(self, name: str) -> Traversable:
        if name not in self:
            raise UnknownNameError("list of stimuli", name, self._names())
        return _folder() / f"{name}.yaml"

    def __contains__(self, name: object) -> bool:
        return name in self._names()

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __len__(self) -> int:
        return len(self._names())

    def __repr__(self) -> str:
        return f"Catalogue({', '.join(self._names())})"

    def _names(self) -> list[str]:
        entries = [entry.name for entry in _folder().iterdir()]
        return sorted(e.removesuffix(".yaml") for e in entries if e.endswith(".yaml"))


def _folder() -> Traversable:
    return files("tiltmeter.stimuli") / "data"


STIMULI = Catalogue()
#: The list of an audit for which none is named.
DEFAULT = "default"
