"""Files of users: tables of labels or texts, and embeddings; read and checked."""

from __future__ import annotations

import csv
import io
import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.io.filesystems import is_url, no_file, open_bytes, path_of
from tiltmeter.io.image_files import SUFFIXES
from tiltmeter.types import Floats, Groups

#: Files that a table can be read from.
TABLES = (".csv", ".tsv", ".parquet", ".jsonl")
#: Columns that identify an item; the first one present is used.
ID_COLUMNS = ("id", "file", "path", "image_path", "filepath", "key", "url")
#: A text column with more distinct values is not a label column by default.
MAX_GROUPS = 50
#: What damaged bytes make pyarrow, csv and json raise, besides errors of the disk.
DAMAGE = (pa.ArrowException, csv.Error, OSError, OverflowError, RecursionError, ValueError)
BOOLEANS = ("true", "false", "yes", "no")


def read_table(path: Path | str) -> pa.Table:
    """Reads a CSV, TSV, Parquet or JSONL file, local or at a URL.

    Every cell of a CSV file is text, and only an empty one is missing.

    Parameters
    ----------
    path
        A path or a URL.

    Raises
    ------
    InputError
        `not-found`, or `bad-file` if it is no table, has no rows, or two columns of one name.
    """
    if not is_url(path) and not Path(path).is_file():
        raise no_file(path, "table")
    suffix = path_of(path).suffix
    try:
        if suffix == ".parquet":
            table = pq.read_table(open_bytes(path) if is_url(path) else path)
        elif suffix in (".csv", ".tsv"):
            delimiter = "\t" if suffix == ".tsv" else _delimiter(path)
            table = pa.csv.read_csv(
                open_bytes(path) if is_url(path) else path,
                parse_options=pa.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
                convert_options=_as_text(path, delimiter),
            )
        elif suffix == ".jsonl":
            table = _read_json_lines(path)
        else:
            raise _bad_file(path, f"is not a table; expected {', '.join(TABLES)}")
    except DAMAGE as error:
        if isinstance(error, InputError) or getattr(error, "errno", None):
            raise  # known, or of the disk
        first = str(error).partition("\n")[0]
        if "UTF8" in first or "UTF-8" in first:
            raise not_utf8(path, first) from None
        raise _bad_file(path, f"cannot be read as a table: {first}") from None
    pixels = [column.name for column in table.schema if _is_bytes(column.type)]
    if ids := [name for name in pixels if name in ID_COLUMNS]:
        raise _bad_file(path, f"has ids of bytes in column {ids[0]!r}; expected text")
    table = table.drop_columns(pixels)  # some tables contain the images; labels are not bytes
    names = [name.lstrip("\ufeff").strip() for name in table.column_names]
    if len(set(names)) < len(names):
        raise _bad_file(path, f"has two columns of the same name: {', '.join(names)}")
    if table.num_rows == 0:
        raise _bad_file(path, f"is empty: it has columns {', '.join(names)} but no rows")
    return table.rename_columns(names)


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def not_utf8(path: Path | str, why: object) -> InputError:
    """The error for a text file in another encoding."""
    return _bad_file(path, f"is not UTF-8 text ({why}); save it again as UTF-8")


def _bad_file(path: Path | str, problem: str) -> InputError:
    return InputError(f"{path} {problem}", code="bad-file", value=str(path))


def _read_json_lines(path: Path | str) -> pa.Table:
    """One object per line; keys that a line does not have are missing there."""
    rows = []
    with open_bytes(path) as file:
        for number, line in enumerate(file, start=1):
            try:
                row = json.loads(line) if line.strip() else {}
            except RecursionError:
                raise _bad_file(path, f"is nested too deeply in line {number}") from None
            except ValueError as error:
                raise _bad_file(path, f"is not JSON in line {number}: {error}") from None
            if not isinstance(row, dict):
                raise _bad_file(path, f"has no JSON object in line {number}")
            rows += [row] if row else []
    names = dict.fromkeys(name for row in rows for name in row)
    return pa.table({name: [row.get(name) for row in rows] for name in names})


def _delimiter(path: Path | str) -> str:
    """A comma, unless the first line has none: some spreadsheets write semicolons or tabs."""
    with open_bytes(path) as file:
        header = file.readline().decode(errors="replace")
    return next((mark for mark in ",;\t" if mark in header), ",")


def _as_text(path: Path | str, delimiter: str) -> pa.csv.ConvertOptions:
    """Every cell as text: 007 stays 007, NA is a label, and only an empty cell is missing."""
    try:
        with io.TextIOWrapper(open_bytes(path), encoding="utf-8", newline="") as file:
            header = next(csv.reader(file, delimiter=delimiter), [])
    except UnicodeDecodeError as error:
        raise not_utf8(path, error) from None
    # as the CSV reader sees the names: a byte-order mark is not part of the first one
    types = {name.removeprefix("\ufeff"): pa.string() for name in header}
    return pa.csv.ConvertOptions(column_types=types, null_values=[""], strings_can_be_null=True)


def find_table(directory: Path, stem: str) -> Path | None:
    """The table `stem` in a directory, whatever its format; None if there is none.

    Parameters
    ----------
    directory
        Where to look.
    stem
        The name without its suffix.
    """
    paths = [directory / f"{stem}{suffix}" for suffix in TABLES]
    paths = [path for path in paths if path.is_file()]
    if len(paths) > 1:
        names = ", ".join(path.name for path in paths)
        raise _bad_file(directory, f"has several tables {stem}: keep one of {names}")
    return paths[0] if paths else None


def read_vectors(paths: Sequence[Path]) -> Floats:
    """Reads embeddings from .npy files into one matrix; half precision becomes float32.

    Parameters
    ----------
    paths
        The files, in the order of the rows.
    """
    parts: list[Floats] = []
    for path in paths:
        try:
            part = np.load(path, mmap_mode="r", allow_pickle=False)
        except Exception as error:  # NumPy raises anything on a damaged header
            raise _bad_file(path, f"cannot be read as a .npy array: {error}") from None
        if part.ndim != 2 or part.dtype.kind != "f":
            raise _bad_file(
                path,
                "must contain a matrix of floats, items x dimensions; "
                f"got shape {part.shape}, dtype {part.dtype}",
            )
        if parts and part.shape[1] != parts[0].shape[1]:
            raise _bad_file(
                path, f"has {part.shape[1]} dimensions, {paths[0]} has {parts[0].shape[1]}"
            )
        parts.append(part.astype(np.float32) if part.dtype.itemsize == 2 else part)
    return np.ascontiguousarray(parts[0] if len(parts) == 1 else np.concatenate(parts))


def item_ids(table: pa.Table, source: object) -> tuple[str, ...]:
    """The ids of the rows: the first of `ID_COLUMNS` in the table, or row numbers.

    Parameters
    ----------
    table
        The table.
    source
        Where it comes from, for error messages.

    Raises
    ------
    InputError
        With the code `bad-labels`, if an id occurs twice.
    """
    column = next((name for name in ID_COLUMNS if name in table.column_names), None)
    if column is None:
        return tuple(str(row) for row in range(table.num_rows))
    ids = tuple(str(value) for value in table[column].to_pylist())
    if len(set(ids)) < len(ids):
        seen: set[str] = set()
        twice = next(name for name in ids if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise InputError(
            f"{source}: {len(ids) - len(set(ids))} ids in column {column!r} occur more than "
            f"once, first {twice!r}; list each image once",
            code="bad-labels",
            value=twice,
        )
    return ids


@dataclass(frozen=True)
class Columns:
    """The label columns to read.

    Parameters
    ----------
    names
        The columns; None: all that look like labels.
    also
        Columns to read in addition.
    optional
        Columns to read in addition if the table has them.
    skip
        Columns that are no labels unless they are named.
    """

    names: Sequence[str] | None = None
    also: Sequence[str] = ()
    optional: Sequence[str] = ()
    skip: Sequence[str] = ()


def label_groups(table: pa.Table, source: object, columns: Columns) -> dict[str, Groups]:
    """The groups of each label column.

    Parameters
    ----------
    table
        The table.
    source
        Where it comes from, for error messages.
    columns
        The columns to read.

    Raises
    ------
    UnknownNameError
        If the table has no such column.
    InputError
        With the code `bad-labels`, if it has no label column, or labels are missing.
    """
    wanted = columns.names
    if wanted is None:
        candidates = [name for name in table.column_names if name not in columns.skip]
        wanted = [name for name in candidates if not _why_not_labels(table, name)]
    optional = [name for name in columns.optional if name in table.column_names]
    names = list(dict.fromkeys([*wanted, *columns.also, *optional]))
    for name in names:
        if name not in table.column_names:
            paths = {*ID_COLUMNS, *columns.skip}
            known = [other for other in table.column_names if other not in paths]
            raise UnknownNameError(f"label column in {source}:", name, known)
    if not names:
        reasons = [f"{name} ({_why_not_labels(table, name) or 'is the path or id of an image'})"
                   for name in table.column_names]  # fmt: skip
        raise InputError(
            f"{source} has no label column, only {', '.join(reasons)}: add one with the "
            f"group of each image as text (gender: woman, man; at most {MAX_GROUPS} groups), or "
            "name a column with --attribute",
            code="bad-labels",
            value=table.column_names,
        )
    return {name: _column_groups(table[name], name, source) for name in names}


def _column_groups(column: pa.ChunkedArray, name: str, source: object) -> Groups:
    """The groups of a column, without a Python object for each of millions of rows."""
    if pa.types.is_nested(column.type) or column.null_count:
        return Groups.from_labels(_stripped(column.to_pylist(), name, source), attribute=name)
    encoded = column.unify_dictionaries().combine_chunks()
    if not pa.types.is_dictionary(encoded.type):
        encoded = encoded.dictionary_encode()
    labels = _stripped(encoded.dictionary.to_pylist(), name, source)
    if any(label is None or label == "" or label != label for label in labels):
        return Groups.from_labels(_stripped(column.to_pylist(), name, source), attribute=name)
    codes = np.asarray(encoded.indices)
    present, codes = np.unique(codes, return_inverse=True)  # some labels may have no row
    by_label = Groups.from_labels([labels[at] for at in present], attribute=name)
    return Groups(by_label.codes[codes], by_label.names, name)


def _stripped(labels: list[object], name: str, source: object) -> list[object]:
    """Labels without white space around them, with a warning where that joins groups."""
    plain = [label.strip() if isinstance(label, str) else label for label in labels]
    if len(set(map(str, plain))) < len(set(map(str, labels))):
        warnings.warn(
            f"{source}: some labels of {name!r} differ only by white space around them; they are "
            "one group",
            stacklevel=2,
        )
    return plain


def image_column(path: Path | str) -> str | None:
    """The column of a table that names image files: by its values, otherwise by its name.

    Parameters
    ----------
    path
        A table.

    Returns
    -------
    str or None
        None if no column does, or the file is no table.
    """
    try:
        table = read_table(path)
    except InputError:
        return None
    for name in table.column_names:
        first = next((value for value in table[name].to_pylist() if value), None)
        if isinstance(first, str) and Path(first).suffix.lower() in SUFFIXES:
            return str(name)
    return next((name for name in ID_COLUMNS[1:] if name in table.column_names), None)


def groups_if_any(table: pa.Table, source: object, columns: Columns) -> dict[str, Groups]:
    """`label_groups`, or {} if no columns were requested: embedding needs no labels."""
    try:
        return label_groups(table, source, columns)
    except InputError:
        if columns.names is not None or columns.also:
            raise
        return {}


def _why_not_labels(table: pa.Table, name: str) -> str:
    """Labels are text with few distinct values, numbers only on request; empty: it is labels."""
    column = table[name]
    if pa.types.is_dictionary(column.type):
        column = column.cast(pa.string())
    if name in ID_COLUMNS:
        return "is the path or id of an image"
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return "is no text"
    values = {str(value).strip().lower() for value in column.unique().drop_null().to_pylist()}
    if all(_is_number(value) or value in BOOLEANS for value in values):
        return "has numbers, or yes and no, only"
    if len(values) < 2:
        return "has one group only"
    if len(values) > MAX_GROUPS:
        return f"has more than {MAX_GROUPS} different values"
    return "differs in every row" if len(values) == table.num_rows else ""


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
