"""Files of a run: tables, JSON, and hashes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tiltmeter.errors import InputError


def write_parquet(table: pa.Table, path: Path) -> None:
    """Write a table with the compression that every file of a run has."""
    pq.write_table(table, path, compression="zstd")


def parse_json(data: bytes | str, name: object) -> Any:
    """Parse JSON that somebody else may have written.

    Parameters
    ----------
    data : bytes or str
        The text.
    name : object
        The file it is from, for the error.

    Raises
    ------
    InputError
        It is not JSON, or nested too deeply.

    Examples
    --------
    >>> parse_json("[" * 100_000, "run.json")
    Traceback (most recent call last):
    ...
    tiltmeter.errors.InputError: run.json is damaged, no valid JSON: nested too deeply
    """
    try:
        return json.loads(data)
    except RecursionError:
        problem = "nested too deeply"
    except ValueError as error:
        problem = str(error)
    raise InputError(f"{name} is damaged, no valid JSON: {problem}", code="bad-file", value=name)


def parse_parquet(data: bytes, name: object) -> pa.Table:
    """Parse a Parquet file; InputError if it is none.

    It is read in one thread, like every Parquet file in memory of Python: a thread of Arrow that
    frees such memory while the interpreter ends aborts the process (apache/arrow#34314).

    Examples
    --------
    >>> parse_parquet(b"PAR1", "results.parquet")
    Traceback (most recent call last):
    ...
    tiltmeter.errors.InputError: results.parquet is damaged, no valid Parquet file: ...
    """
    try:
        return pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise InputError(
            f"{name} is damaged, no valid Parquet file: {reason}", code="bad-file", value=name
        ) from error


def content_hash(value: Any) -> str:
    """Hash a value.

    Parameters
    ----------
    value : object
        A NumPy array, or anything that can be written as JSON.

    Returns
    -------
    str
        sha256 of the array's type, shape and bytes, or of the value as canonical JSON.

    Examples
    --------
    >>> content_hash({"a": 1, "b": 2}) == content_hash({"b": 2, "a": 1})
    True
    >>> content_hash(np.zeros(4)) == content_hash(np.zeros((2, 2)))
    False
    """
    digest = hashlib.sha256()
    if isinstance(value, np.ndarray):
        digest.update(f"{value.dtype.str}{value.shape}".encode())
        digest.update(np.ascontiguousarray(value).data)
    else:
        digest.update(json.dumps(value, sort_keys=True, default=str).encode())
    return digest.hexdigest()


def file_hash(path: Path) -> str:
    """Hash a file.

    Parameters
    ----------
    path : Path
        The file.

    Returns
    -------
    str
        sha256, as hexadecimal digits.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "empty"
    >>> path.touch()
    >>> file_hash(path)[:8]
    'e3b0c442'
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def label_hash(ids: Iterable[str], labels: Mapping[str, Iterable[str]]) -> str:
    """Hash the labels of a dataset.

    Parameters
    ----------
    ids : iterable of str
        One identifier per row.
    labels : mapping of str to iterable of str
        Attribute to one label per row.

    Returns
    -------
    str
        sha256 of ids and labels: another order of the rows is another hash.

    Examples
    --------
    >>> label_hash(["1"], {"gender": ["F"]}) == label_hash(["1"], {"gender": ["M"]})
    False
    """
    return content_hash({"ids": list(ids), **{name: list(x) for name, x in labels.items()}})
