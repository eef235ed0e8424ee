"""`vlstereo:CSV`: VLStereoSet, three captions for each picture of somebody.

The table is read as it was released, with its byte-order mark, its misspelt `Imaeg URL` and its
empty last column. The pictures must be downloaded by their URLs and named by their row, counted
from 1, or by the SHA-256, SHA-1 or MD5 of their URL.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tiltmeter.datasets.found_images import OPTIONS, counts, listed, look, record
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

    `?images=DIR` is the folder of downloaded pictures, `?first=0` says that their rows are counted
    from 0. Without it all rows are there, without pictures. Label 1 is read as a picture that goes
    against the stereotype: the release does not say so, but its counts fit no other reading.
    `?balanced=yes` keeps, in each category, as many pictures with the stereotype as against it,
    drawn with `seed` (0) from those that are there: so the paper's 1,028 of 1,958 came about.
    """
    del columns  # the groups are those of the table
    spec.only("images", "first", "balanced", "seed", *OPTIONS)
    balance, seed = flag(spec, "balanced"), _seed(spec)
    first = int(choice(spec, "first", ("1", "0")))
    path = file(spec)
    table = read_table(path)
    url = next((name for name in URLS if name in table.column_names), None)
    lacking = [name for name in COLUMNS if name not in table.column_names]
    if lacking or url is None:
        raise InputError(f"{path} lacks the columns {', '.join(lacking or [URLS[0]])}")
    read = {name: [str(cell or "") for cell in table[name].to_pylist()] for name in COLUMNS}
    if odd := set(read["label"]) - {"0", "1"}:
        raise InputError(f"{path}: labels must be 0 or 1; got {', '.join(sorted(odd))}")
    pictures, rows = None, list(range(table.num_rows))
    place = folder(spec, "images")
    if place is None:
        found = record(spec, table.num_rows)
    else:
        looked = look(spec, place, _files(place, table[url].to_pylist(), first))
        found, pictures, rows = looked.found, looked.pictures, looked.rows

    if balance:
        kept = balanced(
            [read["bias_type"][row] for row in rows], [read["label"][row] for row in rows], seed
        )
        rows = [rows[at] for at in kept]
        pictures = None if pictures is None else pictures[np.array(kept)]  # type: ignore[call-overload]
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
        images=pictures,
        name="vlstereo",
        provenance={
            "captions": file_hash(path),
            "found": {**found, "groups": counts([categories])},
        },
    )


def balanced(categories: Sequence[str], labels: Sequence[str], seed: int) -> list[int]:
    """Rows, in order, so that each category has each label equally often.

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
            "vlstereo: nothing can be balanced: no category has pictures both with the stereotype "
            "and against it; leave ?balanced=yes out, or add pictures"
        )
    return sorted(kept)


def _seed(spec: Spec) -> int:
    given = spec.options.get("seed", "0")
    if "seed" in spec.options and not flag(spec, "balanced"):
        raise InputError("vlstereo: a seed is for ?balanced=yes, which is not given")
    if not given.isdecimal():
        raise InputError(f"vlstereo: seed must be a whole number from 0; got {given!r}")
    return int(given)


def _files(place: Path, urls: list[str | None], first: int) -> list[str]:
    """The file of each row: by the hash of its URL, else by its number."""
    files = {Path(name).stem.lower(): name for name in listed(place)}
    numbers = [int(stem) for stem in files if stem.isdecimal() and len(stem) < 8]
    if numbers and (min(numbers) < first or max(numbers) >= first + len(urls)):
        raise InputError(
            f"vlstereo: {place} has pictures numbered {min(numbers)} to {max(numbers)}, but the "
            f"rows are {first} to {first + len(urls) - 1}: pass ?first={1 - first} or name them so"
        )
    by_number = {int(s): name for s, name in files.items() if s.isdecimal() and len(s) < 8}
    named = []
    for row, url in enumerate(urls, start=first):
        hashes = [
            hashlib.new(kind, (url or "").strip().encode(), usedforsecurity=False).hexdigest()
            for kind in ("sha256", "sha1", "md5")
        ]
        hashed = next((files[one] for one in hashes if one in files), None)
        named.append(hashed or by_number.get(row) or f"{row}.jpg")
    return named
