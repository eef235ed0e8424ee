"""JSON and pickles that a user brings: read without running anything that they hold."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np

from tiltmeter.errors import InputError
from tiltmeter.io.places import content


def read_json(path: Path | str) -> Any:
    """What a JSON file holds, here or at a URL."""
    try:
        return json.loads(path.read_bytes() if isinstance(path, Path) else content(path))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON: {error}") from None


def read_pickle(path: Path) -> Any:
    """What a pickle of plain data and arrays holds, Python 2's too; any other is refused.

    Arrays may be values of a dictionary, not deeper.
    """
    if not path.is_file():
        raise InputError(f"no such file: {path}")
    with path.open("rb") as file:
        try:
            held = _Plain(file, encoding="latin1").load()
            if isinstance(held, dict):
                held = {
                    key: value.array() if isinstance(value, _Array) else value
                    for key, value in held.items()
                }
        except Exception as error:  # a spoilt pickle raises whatever it likes
            raise InputError(f"{path} is no pickle of plain data: {error}") from None
    return held


class _Dtype:
    """Stands for a NumPy dtype of plain numbers; a real one can be told to lie about pointers."""

    def __init__(self, code: str = "", *_: object) -> None:
        if not re.fullmatch(r"[biuf][1248]", code):
            raise pickle.UnpicklingError(f"it holds an array of {code!r}, which is refused")
        self.code, self.order = code, "="

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = state[1] if state[1] in ("<", ">") else "="


class _Array:
    """Stands for an array until all is read."""

    state: tuple[Any, ...] = ()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.state = state

    def array(self) -> np.ndarray:
        _, shape, kind, by_column, data = self.state
        raw = data.encode("latin1") if isinstance(data, str) else data  # Python 2's bytes
        flat = np.frombuffer(raw, np.dtype(kind.order + kind.code))
        return flat.reshape(shape, order="F" if by_column else "C")


def _new_array(*_: object) -> _Array:
    return _Array()


#: All that a pickle of arrays asks for, under the names of old and new NumPy, and what it gets.
ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("numpy.core.multiarray", "_reconstruct"): _new_array,
    ("numpy._core.multiarray", "_reconstruct"): _new_array,
}


class _Plain(pickle.Unpickler):
    """Makes arrays, bytes, text, numbers, lists and dictionaries, and calls nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is refused")
        return ALLOWED[module, name]
