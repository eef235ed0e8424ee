"""Files of image regions, in the layouts of the detectors that region models were trained with.

| layout | from | contents |
|---|---|---|
| `.tsv`, 10 columns | LXMERT's releases (`*_obj36.tsv`) | `LXMERT`: arrays in base64 |
| `.tsv`, 6 columns | bottom-up-attention | `BOTTOM_UP`: arrays in base64 |
| directory of `.npy` | VisualBERT's releases (`detectron_fix_100`) | regions x d for each image |
| `.npz`, `.npy`, `.parquet` | your own | features, and optionally boxes and ids |
"""

from __future__ import annotations

import base64
import csv
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tiltmeter.errors import InputError
from tiltmeter.io.filesystems import no_file
from tiltmeter.io.regions import WHITE, Regions
from tiltmeter.io.tables import item_ids, read_table
from tiltmeter.types import Floats

#: Columns of a TSV file, which has no header: pixels, then base64 of float32 (ids are int64).
LXMERT = ("img_id", "img_h", "img_w", "objects_id", "objects_conf", "attrs_id", "attrs_conf",
          "num_boxes", "boxes", "features")  # fmt: skip
BOTTOM_UP = ("image_id", "image_w", "image_h", "num_boxes", "boxes", "features")
#: Boxes may leave the image by this share of its size: rounding of the detector.
ROUNDING = 1e-3


def read_regions(path: str | Path) -> Regions:
    """Read regions from a file or directory; an image called `white` is the all-white one.

    Parameters
    ----------
    path : path
        A file or directory in one of the layouts above.

    Returns
    -------
    Regions
        Features, boxes as shares of the image, and ids.

    Raises
    ------
    InputError
        `not-found`; or `bad-file` if it has another layout, different numbers of regions per
        image, or no features.
    """
    path = Path(path)
    if path.is_dir():
        found = _from_directory(path)
    elif not path.is_file():
        raise no_file(path, "file of regions")
    elif path.suffix == ".tsv":
        found = _from_tsv(path)
    else:
        found = _from_arrays(path)
    if WHITE not in found.ids:
        return found
    rest = found.of([name for name in found.ids if name != WHITE])
    return replace(rest, white=found.of([WHITE]))


def _from_arrays(path: Path) -> Regions:
    ids: Any = ()
    try:
        if path.suffix == ".npy":
            content = {"features": np.load(path, mmap_mode="r", allow_pickle=False)}
        elif path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as file:
                content = {name: file[name] for name in file.files}
            ids = content.get("ids", np.empty(0)).tolist()
        elif path.suffix == ".parquet":
            table = read_table(path)
            names = [name for name in ("features", "boxes") if name in table.column_names]
            content = {n: np.asarray(table[n].to_pylist(), dtype=np.float32) for n in names}
            ids = item_ids(table, path)
        else:
            raise _bad_file(path, "cannot be read; expected .tsv, .npz, .npy, .parquet or a "
                            "directory of .npy files")  # fmt: skip
    except (OSError, EOFError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise _bad_file(
            path,
            "does not have the same number of regions for each image, or is not such a file: "
            f"{error}",
        ) from None
    if "features" not in content:
        raise _bad_file(
            path,
            f"contains {', '.join(content) or 'nothing'}; expected features, n x regions x d, and "
            "optionally boxes and ids",
        )
    return Regions(content["features"], content.get("boxes"), tuple(str(name) for name in ids))


def _from_directory(path: Path) -> Regions:
    """Features of each image in `NAME.npy`; boxes are not part of this layout."""
    found: dict[str, tuple[Floats, Floats | None]] = {}
    for file in sorted(path.glob("*.npy")):
        try:
            features = np.load(file, allow_pickle=False)
        except (OSError, EOFError, ValueError) as error:
            raise _bad_file(file, f"is not an array of features: {error}") from None
        if features.ndim != 2:
            sizes = " x ".join(map(str, features.shape))
            raise _bad_file(file, f"is {sizes}; expected regions x d")
        found[file.stem] = (features, None)
    return _stacked(path, found)


def _from_tsv(path: Path) -> Regions:
    found: dict[str, tuple[Floats, Floats | None]] = {}
    for number, cells in _lines(path):
        row = dict(zip(LXMERT if len(cells) == len(LXMERT) else BOTTOM_UP, cells, strict=True))
        name, kind = cells[0], "img" if "img_w" in row else "image"
        try:
            count = int(row["num_boxes"])
            boxes, features = (_array(row[field], count) for field in ("boxes", "features"))
            size = np.array([float(row[f"{kind}_w"]), float(row[f"{kind}_h"])] * 2, np.float32)
        except (ValueError, OverflowError) as error:
            raise _bad_file(path, f"line {number} ({name}): {error}") from None
        if not boxes.size or not size.all():
            raise _bad_file(path, f"line {number} ({name}): no boxes, or an image without a size")
        shares = boxes / size
        if not (shares.min() >= -ROUNDING and shares.max() <= 1 + ROUNDING):
            raise _bad_file(
                path,
                f"line {number} ({name}): boxes reach {boxes.max():g} in an image of "
                f"{size[0]:g} x {size[1]:g} pixels; expected pixels: left, top, right, bottom",
            )
        found[name] = (features, shares.clip(0, 1))
    return _stacked(path, found)


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Numbered lines of a TSV file, each with the columns of one of the two layouts."""
    csv.field_size_limit(sys.maxsize)  # 36 regions of 2,048 numbers are 400,000 characters
    with path.open(encoding="utf-8", newline="") as file:
        rows = enumerate(csv.reader(file, delimiter="\t"), start=1)
        while True:
            try:
                number, cells = next(rows)
            except StopIteration:
                return
            except (UnicodeDecodeError, csv.Error) as error:
                raise _bad_file(path, f"is not a table of regions: {error}") from None
            if len(cells) not in (len(LXMERT), len(BOTTOM_UP)):
                raise _bad_file(
                    path,
                    f"line {number} has {len(cells)} columns; expected {len(LXMERT)} "
                    f"({', '.join(LXMERT)}) or {len(BOTTOM_UP)} ({', '.join(BOTTOM_UP)})",
                )
            yield number, cells


def _array(text: str, count: int) -> Floats:
    return np.frombuffer(base64.b64decode(text, validate=True), np.float32).reshape(count, -1)


def _stacked(path: Path, found: dict[str, tuple[Floats, Floats | None]]) -> Regions:
    if not found:
        raise _bad_file(path, "has no regions: expected a .npy file per image, or a line per image")
    counts = sorted({features.shape for features, _ in found.values()})
    if len(counts) > 1:
        sizes = ", ".join(f"{count} x {width}" for count, width in counts[:5])
        raise _bad_file(
            path,
            f"has different numbers of regions per image ({sizes}); detect equally many in each: "
            "36 for LXMERT (MIN_BOXES = MAX_BOXES = 36), 100 for VisualBERT",
        )
    features = np.stack([features for features, _ in found.values()])
    boxes = [boxes for _, boxes in found.values() if boxes is not None]
    return Regions(features, np.stack(boxes) if boxes else None, tuple(found))


def _bad_file(path: Path, problem: str) -> InputError:
    return InputError(f"{path} {problem}", code="bad-file", value=str(path))
