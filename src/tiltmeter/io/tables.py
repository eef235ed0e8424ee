"""Files that a user brings: tables of labels or texts, and vectors; read, and checked."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.io.places import elsewhere, name_of, reader
from tiltmeter.types import Floats, Groups

TABLES = (".csv", ".tsv", ".parquet", ".jsonl")
#: Columns that name an item, the first one present wins.
ID_COLUMNS = ("id", "file", "path", "image_path", "filepath", "key", "url")
#: A text column of more distinct values than this is not taken for an attribute unasked.
MOST_GROUPS = 50
TRUTH = ("true", "false", "yes", "no")


def read_table(path: Path | str) -> pa.Table:
    """A CSV, TSV, Parquet or JSONL file, here or at a URL, as a table."""
    if not elsewhere(path) and not Path(path).is_file():
        raise InputError(f"no such table: {path}")
    suffix = name_of(path).suffix
    try:
        if suffix == ".parquet":
            table = pq.read_table(reader(path) if elsewhere(path) else path)
        elif suffix in (".csv", ".tsv"):
            delimiter = "\t" if suffix == ".tsv" else ","
            table = pa.csv.read_csv(
                reader(path) if elsewhere(path) else path,
                parse_options=pa.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
                convert_options=_as_text(path, delimiter),
            )
        elif suffix == ".jsonl":
            table = _of_json_lines(path)
        else:
            raise InputError(f"{path} is no table that can be read; expected {', '.join(TABLES)}")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        first = str(error).partition("\n")[0]
        if "UTF8" in first or "UTF-8" in first:
            raise InputError(
                f"{path} is not UTF-8 text ({first}); save it again as UTF-8"
            ) from None
        raise InputError(f"{path} cannot be read as a table: {first}") from None
    pixels = [column.name for column in table.schema if pa.types.is_binary(column.type)]
    table = table.drop_columns(pixels)  # some tables carry their images; no label is made of bytes
    names = [name.lstrip("\ufeff").strip() for name in table.column_names]
    if len(set(names)) < len(names):
        raise InputError(f"{path} has two columns of the same name: {', '.join(names)}")
    if table.num_rows == 0:
        raise InputError(f"{path} is empty: it has columns {', '.join(names)} but no rows")
    return table.rename_columns(names)


def _of_json_lines(path: Path | str) -> pa.Table:
    """One object a line; what a line does not name is missing there."""
    rows = []
    with reader(path) as file:
        for number, line in enumerate(file, start=1):
            try:
                row = json.loads(line) if line.strip() else {}
            except ValueError as error:
                raise InputError(f"{path}, line {number} is not JSON: {error}") from None
            if not isinstance(row, dict):
                raise InputError(f"{path}, line {number} is no object with names and values")
            rows += [row] if row else []
    names = dict.fromkeys(name for row in rows for name in row)
    return pa.table({name: [row.get(name) for row in rows] for name in names})


def _as_text(path: Path | str, delimiter: str) -> pa.csv.ConvertOptions:
    """Every cell as it stands: 007 stays 007, NA is a label, and only an empty cell is missing."""
    try:
        with io.TextIOWrapper(reader(path), encoding="utf-8", newline="") as file:
            header = next(csv.reader(file, delimiter=delimiter), [])
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text ({error}); save it again as UTF-8") from None
    # the names as the reader will see them: a mark of byte order is not one of a name's letters
    types = {name.removeprefix("\ufeff"): pa.string() for name in header}
    return pa.csv.ConvertOptions(column_types=types, null_values=[""], strings_can_be_null=True)


def find_table(directory: Path, stem: str) -> Path | None:
    """`stem` with one of the endings that tables have, if there is one."""
    found = [directory / f"{stem}{ending}" for ending in TABLES]
    found = [path for path in found if path.is_file()]
    if len(found) > 1:
        raise InputError(f"{directory} has several tables {stem}: keep one of "
                         + ", ".join(path.name for path in found))  # fmt: skip
    return found[0] if found else None


def read_vectors(paths: Sequence[Path]) -> Floats:
    """One matrix from .npy files, rows in their order; half precision becomes float32."""
    parts: list[Floats] = []
    for path in paths:
        try:
            part = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise InputError(f"{path} cannot be read as a .npy array: {error}") from None
        if part.ndim != 2 or part.dtype.kind != "f":
            raise InputError(
                f"{path} must hold a matrix of floats, items x dimensions; "
                f"got shape {part.shape}, dtype {part.dtype}"
            )
        if parts and part.shape[1] != parts[0].shape[1]:
            raise InputError(
                f"{path} has {part.shape[1]} dimensions, {paths[0]} has {parts[0].shape[1]}"
            )
        parts.append(part.astype(np.float32) if part.dtype.itemsize == 2 else part)
    return np.ascontiguousarray(parts[0] if len(parts) == 1 else np.concatenate(parts))


def item_ids(table: pa.Table, source: object) -> tuple[str, ...]:
    """Names of the rows: from the first column that names items, else row numbers."""
    column = next((name for name in ID_COLUMNS if name in table.column_names), None)
    if column is None:
        return tuple(str(row) for row in range(table.num_rows))
    ids = tuple(str(value) for value in table[column].to_pylist())
    if len(set(ids)) < len(ids):
        seen: set[str] = set()
        twice = next(name for name in ids if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise InputError(
            f"{source}: {len(ids) - len(set(ids))} ids in column {column!r} occur more than "
            f"once, first {twice!r}; each image must stand there once"
        )
    return ids


@dataclass(frozen=True)
class Columns:
    """Which label columns are wanted: `names`, or what looks like labels; and those `also`.

    Columns in `optional` are read too where the table has them.
    """

    names: Sequence[str] | None = None
    also: Sequence[str] = ()
    optional: Sequence[str] = ()


def label_groups(table: pa.Table, source: object, columns: Columns) -> dict[str, Groups]:
    """Groups by each label column that is wanted."""
    found = columns.names
    if found is None:
        found = [name for name in table.column_names if _looks_like_labels(table, name)]
    optional = [name for name in columns.optional if name in table.column_names]
    names = list(dict.fromkeys([*found, *columns.also, *optional]))
    for name in names:
        if name not in table.column_names:
            raise UnknownNameError(f"label column in {source}:", name, table.column_names)
    if not names:
        raise InputError(
            f"{source} has no label column: expected text columns of at most {MOST_GROUPS} "
            f"distinct values (gender, race, ...); got {', '.join(table.column_names)}. "
            "Name the column with --attribute"
        )
    return {name: Groups.from_labels(table[name].to_pylist(), attribute=name) for name in names}


def groups_if_any(table: pa.Table, source: object, columns: Columns) -> dict[str, Groups]:
    """`label_groups`, or none where none are asked for: to be embedded, pictures need no labels."""
    try:
        return label_groups(table, source, columns)
    except InputError:
        if columns.names is not None or columns.also:
            raise
        return {}


def _looks_like_labels(table: pa.Table, name: str) -> bool:
    """Text of few distinct values; numbers and yes-or-no are labels only when asked for."""
    column = table[name]
    if pa.types.is_dictionary(column.type):
        column = column.cast(pa.string())
    if name in ID_COLUMNS or not (
        pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    ):
        return False
    values = {str(value).strip().lower() for value in column.unique().drop_null().to_pylist()}
    words = [value for value in values if not _is_number(value) and value not in TRUTH]
    return bool(words) and 2 <= len(values) <= MOST_GROUPS and len(values) < table.num_rows


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
