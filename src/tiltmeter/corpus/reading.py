"""Read caption files in blocks: memory does not grow with their size.

Only COCO JSON files are read completely, since JSON cannot be read in rows.
"""

from __future__ import annotations

import glob
import io
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

from tiltmeter.datasets.reading import read_json
from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.io.filesystems import is_url, list_files, open_file, open_stream, path_of
from tiltmeter.io.tables import DAMAGE

BLOCK = 1 << 16  # rows
CHUNK = 8 << 20  # bytes of text
DEEPEST = 1000  # levels of JSON
#: Common names of caption columns, in order of preference; case does not matter.
COLUMNS = ("caption", "text", "captions", "alt_text", "alt", "description", "title", "sentence",
           "raw")  # fmt: skip
#: Common names of columns with a URL or path of the image.
IMAGES = ("url", "image_url", "image_path", "file_name", "filename", "filepath", "path", "image")
ENDINGS = (".parquet", ".csv", ".tsv", ".jsonl", ".json")
PACKED = (".gz", ".bz2", ".zst")

STATISTICS = "_stats.json"  # written by img2dataset next to its captions

Place = str | os.PathLike[str]
File = Path | str  # a string is a URL


class BrokenFileError(InputError):
    """A file that cannot be read completely."""


class Block(NamedTuple):
    """Some captions of a file, and the URL or path of each one's image where the file has it."""

    captions: pa.Array
    images: pa.Array | None = None


def find_files(places: Sequence[Place]) -> list[File]:
    """All caption files of the given files, folders and patterns, sorted, without duplicates.

    Raises
    ------
    InputError
        If a place has no caption files.
    """
    local: list[Path] = []
    remote: list[str] = []
    for place in places:
        path = Path(place)
        if is_url(place):
            suffixes = tuple(file + packed for file in ENDINGS for packed in ("", *PACKED))
            remote += [
                file
                for file in list_files(str(place), suffixes, deep=True)
                if _is_caption_file(file)
            ]
        elif path.is_dir():
            inside = [file for file in path.rglob("*") if file.is_file() and _is_caption_file(file)]
            if not inside:
                raise InputError(f"{path} has no caption files: expected {', '.join(ENDINGS)}")
            local += inside
        elif path.is_file():
            if _ending(path) not in ENDINGS:
                raise InputError(f"{path} is not a caption file; expected {', '.join(ENDINGS)}")
            local.append(path)
        else:
            matching = [Path(file) for file in glob.glob(str(place), recursive=True)]  # noqa: PTH207
            matching = [file for file in matching if file.is_file() and _is_caption_file(file)]
            if not matching:
                raise InputError(f"no caption file, folder or pattern {place}")
            local += matching
    if not local and not remote:
        raise InputError("no corpus given: pass at least one file, folder or pattern")
    by_place = {file.resolve(): file for file in reversed(local)}
    return [*(by_place[place] for place in sorted(by_place)), *sorted(set(remote))]


def blocks(path: File, column: str | None = None) -> Iterator[Block]:
    """Blocks of captions of one file; raises `BrokenFileError` if it cannot be read."""
    reader = {".parquet": _parquet, ".jsonl": _json_lines, ".json": _coco}
    try:
        for block in reader.get(_ending(path), _separated)(path, column):
            yield _texts(*block, path)
    except UnknownNameError:
        raise  # a wrong --column is not the file's fault
    except BrokenFileError:
        raise
    except InputError as error:
        raise BrokenFileError(str(error)) from None
    except (*DAMAGE, KeyError, TypeError) as error:
        first = str(error).partition("\n")[0]
        raise BrokenFileError(f"{path} cannot be read: {first}") from None


def _is_caption_file(path: File) -> bool:
    return _ending(path) in ENDINGS and not path_of(path).name.endswith(STATISTICS)


def _ending(path: File) -> str:
    suffixes = [suffix.lower() for suffix in path_of(path).suffixes]
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
        f"{path} has no known caption column among {', '.join(names)}: pass --column"
    )


def _image_column(schema: pa.Schema, caption: str) -> str | None:
    """The column with the URL or path of an image, if it is text."""
    lower = {name.lower().strip(): name for name in reversed(schema.names) if name != caption}
    names = [lower[name] for name in IMAGES if name in lower]
    texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    return next((n for n in names if any(is_text(schema.field(n).type) for is_text in texts)), None)


def _parquet(path: File, column: str | None) -> Iterator[Block]:
    # both options are needed, or a whole row group would be in memory
    with (
        open_file(path) as source,
        pq.ParquetFile(source, buffer_size=CHUNK, pre_buffer=False) as file,
    ):
        name = _column(file.schema_arrow.names, column, path)
        image = _image_column(file.schema_arrow, name)
        columns = [name, image] if image else [name]
        for batch in file.iter_batches(BLOCK, columns=columns, use_threads=False):
            yield Block(batch.column(name), batch.column(image) if image else None)


def _separated(path: File, column: str | None) -> Iterator[Block]:
    delimiter = "\t" if _ending(path) == ".tsv" else ","
    parse = pa.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    read = pa.csv.ReadOptions(block_size=CHUNK // 8)  # pyarrow reads dozens of blocks ahead
    with open_stream(path) as source:
        header = source.read(1 << 16).partition(b"\n")[0]
    names = pa.csv.read_csv(io.BytesIO(header + b"\n"), parse_options=parse).column_names
    name = _column(names, column, path)
    image = _image_column(pa.schema([(one, pa.string()) for one in names]), name)
    columns = [name, image] if image else [name]
    convert = pa.csv.ConvertOptions(
        include_columns=columns,
        column_types=dict.fromkeys(columns, pa.string()),
        strings_can_be_null=False,
    )
    with (
        open_stream(path) as source,
        pa.csv.open_csv(source, read, parse, convert) as reader,
    ):
        for batch in reader:
            yield Block(batch.column(name), batch.column(image) if image else None)


def _json_lines(path: File, column: str | None) -> Iterator[Block]:
    rest, fields = b"", None
    with open_stream(path) as source:
        while chunk := source.read(CHUNK):
            lines, _, rest = (rest + chunk).rpartition(b"\n")
            if lines.strip():
                _check_depth(lines, path)
                fields = fields or _json_fields(lines, column, path)
                yield _of_lines(lines, fields)
    if rest.strip():
        _check_depth(rest, path)
        yield _of_lines(rest, fields or _json_fields(rest, column, path))


def _check_depth(lines: bytes, path: File) -> None:
    """Refuse JSON that is nested deeply: pyarrow's parser would crash the process."""
    letters = np.frombuffer(lines, np.uint8)
    ends = np.flatnonzero(letters == ord("\n"))
    bounds = np.concatenate([[-1], ends, [len(letters)]])
    for at in np.flatnonzero(np.diff(bounds) > DEEPEST):  # others are too short for it
        line = letters[bounds[at] + 1 : bounds[at + 1]]
        opened = np.isin(line, [ord("{"), ord("[")]).astype(np.int64)
        if (opened - np.isin(line, [ord("}"), ord("]")])).cumsum().max(initial=0) > DEEPEST:
            raise BrokenFileError(f"{path} is nested deeper than {DEEPEST:,} levels")


def _json_fields(lines: bytes, column: str | None, path: File) -> list[pa.Field]:
    """The caption (a text, or a list of texts if the first line has one), and the image."""
    first = pa.json.read_json(io.BytesIO(lines.lstrip().partition(b"\n")[0])).schema
    name = _column(first.names, column, path)
    kind = first.field(name).type
    image = _image_column(first, name)
    images = [pa.field(image, pa.string())] if image else []
    return [pa.field(name, kind if pa.types.is_list(kind) else pa.string()), *images]


def _of_lines(lines: bytes, fields: list[pa.Field]) -> Block:
    parse = pa.json.ParseOptions(
        explicit_schema=pa.schema(fields), unexpected_field_behavior="ignore"
    )
    read = pa.json.ReadOptions(block_size=len(lines) + 1, use_threads=False)
    table = pa.json.read_json(io.BytesIO(lines), read, parse)
    return Block(*(table[field.name].combine_chunks() for field in fields))


def _coco(path: File, column: str | None) -> Iterator[Block]:
    del column  # always `caption`
    content = read_json(path)
    try:
        texts = [str(annotation["caption"]) for annotation in content["annotations"]]
        names = {one.get("id"): one.get("file_name") for one in content.get("images", ())}
        images = [names.get(annotation.get("image_id")) for annotation in content["annotations"]]
    except (KeyError, TypeError):
        raise BrokenFileError(
            f"{path} is not a COCO file: expected annotations with a caption each"
        ) from None
    for start in range(0, len(texts), BLOCK):
        part = slice(start, start + BLOCK)
        yield Block(pa.array(texts[part], pa.string()), pa.array(images[part], pa.string()))


def _texts(captions: Any, images: Any, path: File) -> Block:
    """One caption per row, none missing; lists of captions are flattened."""
    if pa.types.is_dictionary(captions.type):
        captions = captions.dictionary_decode()
    while pa.types.is_list(captions.type) or pa.types.is_large_list(captions.type):
        images = None if images is None else images.take(pc.list_parent_indices(captions))
        captions = captions.flatten()
    types = pa.types
    kinds = (types.is_string, types.is_large_string, types.is_string_view, types.is_null)
    if not any(is_kind(captions.type) for is_kind in kinds):
        raise BrokenFileError(
            f"{path}: the caption column is {captions.type}; expected text. Pass another --column"
        )
    texts, known = captions.cast(pa.string()), captions.is_valid()
    texts.validate(full=True)  # its bytes are text: a damaged file may say so of any
    if texts.null_count:
        texts = texts.filter(known)
        images = None if images is None else images.filter(known)
    return Block(texts, images)
