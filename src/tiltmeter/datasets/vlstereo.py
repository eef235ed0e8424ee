"""`vlstereo:CSV`: VLStereoSet, three captions per image of a person.

The table is read as released, with its byte-order mark, its misspelt `Imaeg URL` and its empty
last column. The images must be downloaded from their URLs and named by their row, counted from 1,
or by the SHA-256, SHA-1 or MD5 of their URL.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

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
from tiltmeter.io.specs import Spec
from tiltmeter.io.tables import Columns, read_table
from tiltmeter.results import file_hash
from tiltmeter.types import Groups

COLUMNS = ("bias_type", "target", "context", "stereotype", "anti-stereotype", "unrelated", "label")
URLS = ("Imaeg URL", "Image URL")


def load(spec: Spec, columns: Columns) -> Triplets:
    """Triplets: VLStereoSet's captions and URLs (github.com/K-Square-00/VLStereo; no terms stated).

    `?images=DIR` is the directory of downloaded images; with `?first=0` their rows are counted
    from 0. Without it all rows are used, without images. Label 1 means an anti-stereotypical image:
    the release does not say so, but its counts allow no other reading. `?balanced=yes` keeps, in
    each category, equally many stereotypical and anti-stereotypical images, drawn at random with
    `seed` (0); this is how the paper selected 1,028 of 1,958.
    """
    del columns  # the groups are those of the table
    spec.check_options("images", "first", "balanced", "seed", *OPTIONS)
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
    images, rows = None, list(range(table.num_rows))
    place = folder(spec, "images")
    if place is None:
        found = count_rows(spec, table.num_rows)
    else:
        present = find_images(spec, place, _files(place, table[url].to_pylist(), first))
        found, images, rows = present.found, present.images, present.rows

    if balance:
        kept = balanced(
            [read["bias_type"][row] for row in rows], [read["label"][row] for row in rows], seed
        )
        rows = [rows[at] for at in kept]
        images = None if images is None else images[np.array(kept)]  # type: ignore[call-overload]
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


def _files(place: Path, urls: list[str | None], first: int) -> list[str]:
    """The file of each row: by the hash of its URL, else by its number."""
    files = {Path(name).stem.lower(): name for name in list_images(place)}
    numbers = [int(stem) for stem in files if stem.isdecimal() and len(stem) < 8]
    if numbers and (min(numbers) < first or max(numbers) >= first + len(urls)):
        raise InputError(
            f"vlstereo: {place} has images {min(numbers)} to {max(numbers)}, but the rows are "
            f"{first} to {first + len(urls) - 1}: pass ?first={1 - first} or rename the images",
            code="bad-option",
            value=str(first),
        )
    by_number = {int(s): name for s, name in files.items() if s.isdecimal() and len(s) < 8}
    named = []
    for row, url in enumerate(urls, start=first):
        hashes = [
            hashlib.new(kind, (url or "").strip().encode(), usedforsecurity=False).hexdigest()
            for kind in ("sha256", "sha1", "md5")
        ]
        hashed = next((files[digest] for digest in hashes if digest in files), None)
        named.append(hashed or by_number.get(row) or f"{row}.jpg")
    return named
