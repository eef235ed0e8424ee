"""Files of a run: directories that are written whole or not at all, and hashes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tiltmeter.errors import TiltmeterError


@contextlib.contextmanager
def atomic_directory(path: Path) -> Iterator[Path]:
    """Write a directory atomically: whole, or not at all.

    Parameters
    ----------
    path : Path
        The directory to create or replace; its parents are created.

    Yields
    ------
    Path
        A new, empty directory next to `path`. It is renamed to `path` at the end of the `with`
        block, and removed if the block raises.

    Raises
    ------
    TiltmeterError
        The directory cannot be created, written or renamed.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "run"
    >>> with atomic_directory(path) as folder:
    ...     _ = (folder / "note.txt").write_text("done")
    ...     print(path.exists())
    False
    >>> [file.name for file in path.iterdir()]
    ['note.txt']
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    except OSError as error:
        raise TiltmeterError(f"cannot write to {path}: {error.strerror or error}") from error
    try:
        yield folder
        folder.chmod(0o755)  # mkdtemp makes it readable by its owner only; a run is to be shared
        if path.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
            path.rename(old / "old")
            folder.rename(path)
            shutil.rmtree(old)
        else:
            folder.rename(path)
    except OSError as error:
        raise TiltmeterError(
            f"could not save to {path}: {error.strerror or error}. Nothing was written there; "
            "free some space or choose another directory"
        ) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write_parquet(table: pa.Table, path: Path) -> None:
    """Write a table with the compression that every file of a run has."""
    pq.write_table(table, path, compression="zstd")


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
