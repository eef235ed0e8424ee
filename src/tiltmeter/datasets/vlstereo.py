"""`vlstereo:CSV`: VLStereoSet, three captions per image of a person.

The table is read as released, with its byte-order mark, its misspelt `Imaeg URL` and its empty
last column. The images must be downloaded from their URLs and named by their row, counted from 1,
or by the SHA-256, SHA-1 or MD5 of their URL; so must the images of a file of regions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tiltmeter.datasets.found_images import (
    OPTIONS,
    count_rows,
    find_images,
    group_counts,
    list_images,
)
from tiltmeter.datasets.options import choice, file, flag, folder
from tiltmeter.datasets.roles import Triplets
from tiltmeter.errors import InputError
from tiltmeter.io.region_files import read_regions
from tiltmeter.io.specs import Spec
from tiltmeter.io.tables import Columns, read_table
from tiltmeter.results import file_hash
from tiltmeter.types import Groups

COLUMNS = ("bias_type", "target", "context", "stereotype", "anti-stereotype", "unrelated", "label")
URLS = ("Imaeg URL", "Image URL")


def load(spec: Spec, columns: Columns) -> Triplets:
    """Triplets: VLStereoSet's captions and URLs (github.com/K-Square-00/VLStereo; no terms stated).

    `?images=DIR` is the directory of downloaded images, `?regions=FILE` what a detector found in
    them, for models that take regions (io/region_files.py has the layouts); with `?first=0` rows
    are counted from 0. Only rows that have what was given are used; without either, all rows.
    Label 1 means an anti-stereotypical image. The release does not say so, and its counts do not
    tell (both labels are balanced alike); its URLs do: of the 32 with label 1 that have a word of
    only one of the two captions, 29 have one of the anti-stereotype. `?balanced=yes` keeps, in each
    category, equally many stereotypical and anti-stereotypical images, drawn at random with `seed`
    (0); this is how the paper selected 1,028 of 1,958.
    """
    del columns  # the groups are those of the table
    spec.check_options("images", "regions", "first", "balanced", "seed", *OPTIONS)
    balance, seed = flag(spec, "balanced"), _seed(spec)
    first = int(choice(spec, "first", ("1", "0")))
    path = file(spec)
    table = read_table(path)
    url = next((name for name in URLS if name in table.column_names), None)
    lacking = [name for name in COLUMNS if name not in table.column_names]
    if lacking or url is None:
        raise InputError(
            f"{path} lacks the columns {', '.join(lacking or [URLS[0]])}",
            code="bad-file",
            value=str(path),
        )
    read = {name: [str(cell or "") for cell in table[name].to_pylist()] for name in COLUMNS}
    if odd := sorted(set(read["label"]) - {"0", "1"}):
        raise InputError(
            f"{path}: labels must be 0 or 1; got {', '.join(odd)}", code="bad-labels", value=odd[0]
        )
    images, rows, urls = None, list(range(table.num_rows)), table[url].to_pylist()
    place = folder(spec, "images")
    if place is None:
        found = count_rows(spec, table.num_rows)
    else:
        files = {Path(name).stem.lower(): name for name in list_images(place)}
        keys = _keys(files, urls, first, place)
        names = [files.get(key, f"{row}.jpg") for row, key in enumerate(keys, start=first)]
        present = find_images(spec, place, names)
        found, images, rows = present.found, present.images, present.rows
    regions = None
    if "regions" in spec.options:
        regions = read_regions(spec.options["regions"])
        keys = _keys(regions.ids, urls, first, spec.options["regions"])
        kept = [at for at, row in enumerate(rows) if keys[row]]
        without = [str(row + 1) for row in rows if not keys[row]]
        found = {**found, **count_rows(spec, len(kept), without_regions=without)}
        rows, images = [rows[at] for at in kept], _rows_of(images, kept)
        regions = regions.of([keys[row] for row in rows])
    if balance:
        kept = balanced(
            [read["bias_type"][row] for row in rows], [read["label"][row] for row in rows], seed
        )
        rows = [rows[at] for at in kept]
        images, regions = _rows_of(images, kept), _rows_of(regions, kept)
        found = {**found, "balanced": {"rows": len(rows), "seed": seed}}

    def of(name: str) -> tuple[str, ...]:
        return tuple(read[name][row] for row in rows)

    categories = Groups.from_labels(of("bias_type"), attribute="category")
    return Triplets(
        ids=tuple(str(row + 1) for row in rows),
        stereotypical=of("stereotype"),
        anti=of("anti-stereotype"),
        irrelevant=of("unrelated"),
        targets=of("target"),
        categories=categories,
        contexts=of("context"),
        against=np.array([label == "1" for label in of("label")]),
        images=images,
        regions=regions,
        name="vlstereo",
        provenance={
            "captions": file_hash(path),
            "found": {**found, "groups": group_counts([categories])},
        },
    )


def balanced(categories: Sequence[str], labels: Sequence[str], seed: int) -> list[int]:
    """Rows, sorted, so that each category has both labels equally often.

    Parameters
    ----------
    categories, labels
        One per row; labels are "0" or "1".
    seed
        Selects the rows of the more frequent label.

    Examples
    --------
    >>> balanced(["a", "a", "a", "b"], ["0", "1", "1", "1"], seed=0)
    [0, 1]
    """
    rng = np.random.default_rng(seed)
    category, label = np.asarray(categories), np.asarray(labels)
    kept: list[int] = []
    for name in np.unique(category):
        sides = [np.flatnonzero((category == name) & (label == side)) for side in ("0", "1")]
        fewer = min(len(side) for side in sides)
        for side in sides:
            kept += rng.permutation(side)[:fewer].tolist()
    if not kept:
        raise InputError(
            "vlstereo: no category has both stereotypical and anti-stereotypical images to "
            "balance; remove ?balanced=yes, or add images",
            code="no-images",
        )
    return sorted(kept)


def _seed(spec: Spec) -> int:
    given = spec.options.get("seed", "0")
    if "seed" in spec.options and not flag(spec, "balanced"):
        raise InputError("vlstereo: ?seed needs ?balanced=yes", code="bad-option", value=given)
    if not given.isdecimal():
        raise InputError(
            f"vlstereo: seed must be a non-negative integer; got {given!r}",
            code="bad-option",
            value=given,
        )
    return int(given)


def _rows_of(images: Any, rows: list[int]) -> Any:
    return None if images is None else images[np.array(rows, dtype=np.int64)]


def _keys(names: Iterable[str], urls: Sequence[str | None], first: int, place: object) -> list[str]:
    """The name of each row's image: the hash of its URL or its number; empty if it has none."""
    known = set(names)
    by_number = {int(name): name for name in known if name.isdecimal() and len(name) < 8}
    if by_number and (min(by_number) < first or max(by_number) >= first + len(urls)):
        raise InputError(
            f"vlstereo: {place} has images {min(by_number)} to {max(by_number)}, but the rows are "
            f"{first} to {first + len(urls) - 1}: pass ?first={1 - first} or rename the images",
            code="bad-option",
            value=str(first),
        )
    keys = []
    for row, url in enumerate(urls, start=first):
        hashes = [
            hashlib.new(kind, (url or "").strip().encode(), usedforsecurity=False).hexdigest()
            for kind in ("sha256", "sha1", "md5")
        ]
        hashed = next((digest for digest in hashes if digest in known), None)
        keys.append(hashed or by_number.get(row, ""))
    return keys
