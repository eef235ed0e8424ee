"""Caption files, one or thousands, read in blocks: memory does not grow with the rows.

Only a COCO JSON file is read whole, since JSON has no rows.
"""

from __future__ import annotations

import glob
import io
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

from tiltmeter.datasets.reading import read_json
from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.io.places import elsewhere, find, name_of, opened, stream

BLOCK = 1 << 16  # rows
CHUNK = 8 << 20  # bytes of text
#: Columns that hold captions in corpora at large; the first one present wins, in any case.
COLUMNS = ("caption", "text", "captions", "alt_text", "alt", "description", "title", "sentence",
           "raw")  # fmt: skip
ENDINGS = (".parquet", ".csv", ".tsv", ".jsonl", ".json")
PACKED = (".gz", ".bz2", ".zst")

STATISTICS = "_stats.json"  # img2dataset's, beside its captions

Place = str | os.PathLike[str]
File = Path | str  # a string is a URL


class BrokenFileError(InputError):
    """A file that cannot be read to its end."""


def find_files(places: Sequence[Place]) -> list[File]:
    """Every file that is named, lies in a named folder, or fits a pattern; in order, none twice."""
    found: list[Path] = []
    far: list[str] = []
    for place in places:
        path = Path(place)
        if elsewhere(place):
            kinds = tuple(one + packed for one in ENDINGS for packed in ("", *PACKED))
            far += [one for one in find(str(place), kinds, deep=True) if _is_one(one)]
        elif path.is_dir():
            inside = [one for one in path.rglob("*") if one.is_file() and _is_one(one)]
            if not inside:
                raise InputError(f"{path} holds no caption file: expected {', '.join(ENDINGS)}")
            found += inside
        elif path.is_file():
            if _ending(path) not in ENDINGS:
                raise InputError(
                    f"{path} is no caption file that can be read; expected {', '.join(ENDINGS)}"
                )
            found.append(path)
        else:
            fitting = [Path(one) for one in glob.glob(str(place), recursive=True)]  # noqa: PTH207
            fitting = [one for one in fitting if one.is_file() and _is_one(one)]
            if not fitting:
                raise InputError(f"no such file, folder or pattern of caption files: {place}")
            found += fitting
    if not found and not far:
        raise InputError("no corpus is named; give at least one file, folder or pattern")
    by_place = {one.resolve(): one for one in reversed(found)}
    return [*(by_place[place] for place in sorted(by_place)), *sorted(set(far))]


def blocks(path: File, column: str | None = None) -> Iterator[pa.Array]:
    """Arrays of captions of one file; BrokenFileError where it cannot be read further."""
    reader = {".parquet": _parquet, ".jsonl": _json_lines, ".json": _coco}
    try:
        for one in reader.get(_ending(path), _separated)(path, column):
            yield _texts(one, path)
    except UnknownNameError:
        raise  # the user named a column: that is not the file's fault
    except BrokenFileError:
        raise
    except InputError as error:
        raise BrokenFileError(str(error)) from None
    except (pa.ArrowException, OSError, UnicodeError) as error:
        first = str(error).partition("\n")[0]
        raise BrokenFileError(f"{path} cannot be read: {first}") from None


def _is_one(path: File) -> bool:
    return _ending(path) in ENDINGS and not name_of(path).name.endswith(STATISTICS)


def _ending(path: File) -> str:
    suffixes = [one.lower() for one in name_of(path).suffixes]
    if suffixes and suffixes[-1] in PACKED and suffixes[-2:-1] != [".parquet"]:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def _column(names: Sequence[str], column: str | None, path: File) -> str:
    if column is not None:
        if column not in names:
            raise UnknownNameError(f"column of {path}:", column, names)
        return column
    lower = {name.lower().strip(): name for name in reversed(names)}
    for name in COLUMNS:
        if name in lower:
            return lower[name]
    raise BrokenFileError(
        f"{path} has no column of captions among {', '.join(names)}: name it with --column"
    )


def _parquet(path: File, column: str | None) -> Iterator[Any]:
    # both are needed, or a row group, which may be the whole file, is held in memory
    with (
        opened(path) as source,
        pq.ParquetFile(source, buffer_size=CHUNK, pre_buffer=False) as file,
    ):
        name = _column(file.schema_arrow.names, column, path)
        for batch in file.iter_batches(BLOCK, columns=[name], use_threads=False):
            yield batch.column(0)


def _separated(path: File, column: str | None) -> Iterator[Any]:
    delimiter = "\t" if _ending(path) == ".tsv" else ","
    parse = pa.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    read = pa.csv.ReadOptions(block_size=CHUNK // 8)  # it reads dozens of blocks ahead
    with stream(path) as source:
        header = source.read(1 << 16).partition(b"\n")[0]
    names = pa.csv.read_csv(io.BytesIO(header + b"\n"), parse_options=parse).column_names
    name = _column(names, column, path)
    convert = pa.csv.ConvertOptions(
        include_columns=[name], column_types={name: pa.string()}, strings_can_be_null=False
    )
    with (
        stream(path) as source,
        pa.csv.open_csv(source, read, parse, convert) as reader,
    ):
        for batch in reader:
            yield batch.column(0)


def _json_lines(path: File, column: str | None) -> Iterator[Any]:
    rest, field = b"", None
    with stream(path) as source:
        while chunk := source.read(CHUNK):
            whole, _, rest = (rest + chunk).rpartition(b"\n")
            if whole.strip():
                field = field or _json_field(whole, column, path)
                yield _of_lines(whole, field)
    if rest.strip():
        yield _of_lines(rest, field or _json_field(rest, column, path))


def _json_field(lines: bytes, column: str | None, path: File) -> pa.Field:
    """The caption's field: text, or a list of texts if the first line says so."""
    first = pa.json.read_json(io.BytesIO(lines.lstrip().partition(b"\n")[0])).schema
    name = _column(first.names, column, path)
    kind = first.field(name).type
    return pa.field(name, kind if pa.types.is_list(kind) else pa.string())


def _of_lines(lines: bytes, field: pa.Field) -> Any:
    parse = pa.json.ParseOptions(
        explicit_schema=pa.schema([field]), unexpected_field_behavior="ignore"
    )
    read = pa.json.ReadOptions(block_size=len(lines) + 1, use_threads=False)
    return pa.json.read_json(io.BytesIO(lines), read, parse)[field.name].combine_chunks()


def _coco(path: File, column: str | None) -> Iterator[Any]:
    del column  # COCO's is called caption
    content = read_json(path)
    try:
        texts = [str(one["caption"]) for one in content["annotations"]]
    except (KeyError, TypeError):
        raise BrokenFileError(
            f"{path} has not COCO's layout: annotations with a caption each"
        ) from None
    for start in range(0, len(texts), BLOCK):
        yield pa.array(texts[start : start + BLOCK], pa.string())


def _texts(found: Any, path: File) -> pa.Array:
    """One caption a row; lists of captions laid flat."""
    if pa.types.is_dictionary(found.type):
        found = found.dictionary_decode()
    while pa.types.is_list(found.type) or pa.types.is_large_list(found.type):
        found = found.flatten()
    if not (pa.types.is_string(found.type) or pa.types.is_large_string(found.type)
            or pa.types.is_string_view(found.type) or pa.types.is_null(found.type)):  # fmt: skip
        raise BrokenFileError(
            f"{path}: the column of captions holds {found.type}, expected text; name another with "
            "--column"
        )
    return found.cast(pa.string())
