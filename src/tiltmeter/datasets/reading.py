"""JSON files and pickles of users, read without running their code."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np

from tiltmeter.errors import InputError
from tiltmeter.io.filesystems import no_file, read_bytes


def read_json(path: Path | str) -> Any:
    """Reads a JSON file, local or at a URL.

    Parameters
    ----------
    path
        A path or a URL.
    """
    try:
        return json.loads(path.read_bytes() if isinstance(path, Path) else read_bytes(path))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON: {error}", code="bad-file", value=str(path)) from None


def read_pickle(path: Path) -> Any:
    """Reads a pickle of plain data and arrays, also of Python 2; any other is refused.

    Parameters
    ----------
    path
        The file. Arrays may be values of a dictionary, not deeper.
    """
    if not path.is_file():
        raise no_file(path)
    with path.open("rb") as file:
        try:
            content = _Plain(file, encoding="latin1").load()
            if isinstance(content, dict):
                content = {
                    key: value.array() if isinstance(value, _Array) else value
                    for key, value in content.items()
                }
        except Exception as error:  # a damaged pickle raises anything
            raise InputError(
                f"{path} is not a pickle of plain data: {error}", code="bad-file", value=str(path)
            ) from None
    return content


class _Dtype:
    """In place of a NumPy dtype of plain numbers: a real one could be given pointers."""

    def __init__(self, code: str = "", *_: object) -> None:
        if not re.fullmatch(r"[biuf][1248]", code):
            raise pickle.UnpicklingError(f"it has an array of {code!r}, which is refused")
        self.code, self.order = code, "="

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = state[1] if state[1] in ("<", ">") else "="


class _Array:
    """In place of an array until everything is read."""

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


#: What a pickle of arrays refers to, by the names of old and new NumPy, and what it gets.
ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("numpy.core.multiarray", "_reconstruct"): _new_array,
    ("numpy._core.multiarray", "_reconstruct"): _new_array,
}


class _Plain(pickle.Unpickler):
    """Creates arrays, bytes, text, numbers, lists and dictionaries, and calls nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}, which is refused")
        return ALLOWED[module, name]
