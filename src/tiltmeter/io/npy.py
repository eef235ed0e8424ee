"""Matrices in .npy files: memory-mapped, or read in ranges from a URL."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from tiltmeter.errors import InputError
from tiltmeter.io.filesystems import open_file
from tiltmeter.types import Floats


def open_npy(path: Path, rows: int = 0) -> Floats:
    """Memory-map a .npy file; raises `InputError` if it is unreadable or has fewer rows."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{path} cannot be read: {error}", code="bad-file", value=path) from error
    if len(array) < rows:
        raise InputError(f"{path} has {len(array):,} rows, but {rows:,} were expected")
    _check_matrix(str(path), array.shape, array.dtype)
    return np.asanyarray(array)


@dataclass(frozen=True, eq=False)
class NpyRows:
    """A matrix in a .npy file at a URL: a slice of its rows is one request."""

    place: str

    @cached_property
    def _header(self) -> tuple[int, tuple[int, ...], np.dtype]:
        """Where the rows start, the shape and the type."""
        with open_file(self.place) as file:
            try:
                version = np.lib.format.read_magic(file)
                read = np.lib.format.read_array_header_1_0
                if version != (1, 0):
                    read = np.lib.format.read_array_header_2_0
                shape, by_column, dtype = read(file)
            except ValueError as error:
                raise InputError(
                    f"{self.place} cannot be read: {error}", code="bad-file", value=self.place
                ) from None
            _check_matrix(self.place, shape, dtype)
            if by_column:
                raise InputError(f"{self.place} is stored by column: save it by row (C order)")
            return file.tell(), shape, dtype

    def __len__(self) -> int:
        return int(self._header[1][0])

    def __getitem__(self, rows: slice) -> Floats:
        begins, shape, dtype = self._header
        start, stop, _ = rows.indices(shape[0])
        width = shape[1] * dtype.itemsize
        with open_file(self.place) as file:
            data = file.read_at((stop - start) * width, begins + start * width)
        if len(data) < (stop - start) * width:
            raise InputError(f"{self.place} is truncated", code="bad-file", value=self.place)
        return np.frombuffer(data, dtype).reshape(stop - start, shape[1])


def _check_matrix(place: str, shape: tuple[int, ...], dtype: np.dtype) -> None:
    if len(shape) != 2 or dtype.kind != "f":
        raise InputError(
            f"{place} must contain a matrix of floats, items x dimensions; got shape {shape}, "
            f"dtype {dtype}",
            code="bad-file",
            value=place,
        )
