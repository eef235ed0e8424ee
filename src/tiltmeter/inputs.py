"""Files that a user brings: tables of labels or texts, and vectors; read, and checked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.types import Floats, Groups

TABLES = (".csv", ".tsv", ".parquet")
#: Columns that name an item, the first one present wins.
ID_COLUMNS = ("id", "file", "path", "image_path", "filepath", "key", "url")
#: A text column of more distinct values than this is not taken for an attribute unasked.
MOST_GROUPS = 50


def read_table(path: Path) -> pa.Table:
    """A CSV, TSV or Parquet file as a table."""
    if not path.is_file():
        raise InputError(f"no such table: {path}")
    try:
        if path.suffix == ".parquet":
            table = pq.read_table(path)
        elif path.suffix in (".csv", ".tsv"):
            delimiter = "\t" if path.suffix == ".tsv" else ","
            table = pa.csv.read_csv(
                path,
                parse_options=pa.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
                convert_options=pa.csv.ConvertOptions(strings_can_be_null=True),
            )
        else:
            raise InputError(f"{path} is no table that can be read; expected {', '.join(TABLES)}")
    except pa.ArrowInvalid as error:
        first = str(error).partition("\n")[0]
        if "UTF8" in first or "UTF-8" in first:
            raise InputError(
                f"{path} is not UTF-8 text ({first}); save it again as UTF-8"
            ) from None
        raise InputError(f"{path} cannot be read as a table: {first}") from None
    if any(pa.types.is_binary(column.type) for column in table.schema):
        # what is no UTF-8 is read as bytes
        raise InputError(f"{path} is not UTF-8 text; save it again as UTF-8")
    names = [name.lstrip("\ufeff").strip() for name in table.column_names]
    if len(set(names)) < len(names):
        raise InputError(f"{path} has two columns of the same name: {', '.join(names)}")
    if table.num_rows == 0:
        raise InputError(f"{path} is empty: it has columns {', '.join(names)} but no rows")
    return table.rename_columns(names)


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


def label_groups(
    table: pa.Table,
    source: object,
    asked: Sequence[str] | None = None,
    also: Sequence[str] = (),
) -> dict[str, Groups]:
    """Groups by each label column: those asked for, else every text column of few values.

    `also` adds columns that do not look like labels by themselves, such as numbers.
    """
    found = asked or [name for name in table.column_names if _looks_like_labels(table, name)]
    names = list(dict.fromkeys([*found, *also]))
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


def _looks_like_labels(table: pa.Table, name: str) -> bool:
    column = table[name]
    if name in ID_COLUMNS or not (
        pa.types.is_string(column.type)
        or pa.types.is_large_string(column.type)
        or pa.types.is_dictionary(column.type)
    ):
        return False
    distinct = len(column.unique())
    return 2 <= distinct <= MOST_GROUPS and distinct < table.num_rows
