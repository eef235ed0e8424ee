"""Bundle: a run in one file that others can verify without images, model or torch.

    manifest.json      every other part with its SHA-256 and size, and what was left out
    manifest.sha256    digest of the manifest; quoting it fixes the content of the bundle
    run.json           provenance, as the audit wrote it (without the path of the store)
    results.parquet    all results
    counts.parquet     counts from which the ranking metrics can be recomputed

Embeddings and results of single images are personal data and left out by default; the manifest has
their hashes.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tiltmeter import __version__
from tiltmeter.errors import InputError, TiltmeterError
from tiltmeter.judge.bundle.zip_file import packed
from tiltmeter.results import RESULTS, file_hash, parse_parquet, recover, write_atomically
from tiltmeter.results.run import SEAL, read_record

BUNDLE = 1  # format version
ENDING = ".tiltmeter.zip"
MANIFEST, DIGEST, RUN, TABLE, COUNTS_FILE = (
    "manifest.json", "manifest.sha256", "run.json", "results.parquet", "counts.parquet",
)  # fmt: skip
_SAVED_COUNTS = "vectors/counts.parquet"


@dataclass(frozen=True)
class BundleFile:
    """A bundle that was written."""

    path: Path
    size: int
    digest: str  # of the manifest
    manifest: dict[str, Any]
    missing: list[str] = field(default_factory=list)  # files of the run that no longer exist


def bundle(
    run: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    with_vectors: bool = False,
    with_instances: bool = False,
    replace: bool = False,
) -> BundleFile:
    """Pack a saved run into one file; the same run gives the same bytes.

    Parameters
    ----------
    run : path
        Directory of the run.
    out : path
        File to write, ending with `.tiltmeter.zip`.
    with_vectors, with_instances : bool
        Include embeddings, and results of single images.
    replace : bool
        Overwrite an existing file.

    Returns
    -------
    BundleFile

    Raises
    ------
    InputError
        If `run` is not a run or was changed, if `out` exists or has another suffix, or if
        embeddings are requested and the run has none.
    """
    directory, out = Path(run), Path(out)
    if not out.name.endswith(ENDING):
        raise InputError(
            f"the name of a bundle must end with {ENDING}; got {out}: pass "
            f"--out {str(out).removesuffix('.zip')}{ENDING}"
        )
    if out.exists() and not replace:
        raise InputError(f"{out} already exists: pass another --out, or --force")
    meta = read_record(directory)
    files, missing = _files(directory, meta)
    table = as_results(parse_parquet(files[TABLE], TABLE))
    if with_vectors and not any(
        name.startswith("vectors/") and name != _SAVED_COUNTS for name in files
    ):
        options = meta.get("arguments", {}).get("given", {})
        reason = " (it was made with --no-vectors)" if options.get("keep_vectors") is False else ""
        raise InputError(f"{directory} has no embeddings{reason}: leave out --with-vectors")
    counts, no_counts_reason = _counts(files, table, meta)
    parts = {TABLE: files[TABLE], RUN: canonical(_without_store_path(meta))}
    if counts is not None:
        parts[COUNTS_FILE] = counts
    left_out = {}
    for name, digest in meta.get("files", {}).items():
        included = {"vectors": with_vectors, "instances": with_instances}.get(
            name.partition("/")[0]
        )
        if name in (TABLE, _SAVED_COUNTS):
            continue
        if included and name in files:
            parts[name] = files[name]
        else:
            left_out[name] = digest
    manifest = {
        "bundle": BUNDLE,
        "made_with": f"tiltmeter {__version__}",
        "run": meta.get("hash"),
        "parts": {name: part_entry(data) for name, data in sorted(parts.items())},
        "left_out": left_out,
        "embeddings": _embeddings(files, meta),
        "counts": {"why_not": no_counts_reason},
        "headline": headline(table),
    }
    data, digest = seal(manifest, parts)
    _write(data, out)
    return BundleFile(out, len(data), digest, manifest, missing)


def seal(manifest: dict[str, Any], parts: dict[str, bytes]) -> tuple[bytes, str]:
    """The bytes of a bundle, and the digest of its manifest."""
    text = canonical(manifest)
    digest = hashlib.sha256(text).hexdigest()
    line = f"{digest}  {MANIFEST}\n".encode()  # the format of sha256sum
    return packed({MANIFEST: text, DIGEST: line, **dict(sorted(parts.items()))}), digest


def canonical(value: Any) -> bytes:
    """Canonical JSON: sorted keys, ASCII, no NaN, shortest exact floats.

    >>> canonical({"b": 0.1, "a": "é"})
    b'{\\n  "a": "\\\\u00e9",\\n  "b": 0.1\\n}\\n'
    """
    return (json.dumps(value, sort_keys=True, indent=2, allow_nan=False) + "\n").encode("ascii")


def part_entry(data: bytes) -> dict[str, Any]:
    """Entry of a part in the manifest."""
    return {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}


def headline(table: pa.Table) -> list[dict[str, Any]]:
    """Each ranking metric over all words, by attribute; values as text with 12 digits."""
    keep = pc.equal(table["probe"], "ranking")
    for name in ("concept", "category", "template", "group", "experiment", "factor", "target"):
        keep = pc.and_(keep, pc.is_null(table[name]))
    names = ("model", "dataset", "attribute", "metric", "k", "n", "convention", "value", "ci_low",
             "ci_high", "null_low", "null_high", "p")  # fmt: skip
    return [
        {
            name: format(value, ".12g") if isinstance(value, float) else value
            for name, value in row.items()
        }
        for row in table.filter(pc.fill_null(keep, False)).select(names).to_pylist()
    ]


def as_results(table: pa.Table) -> pa.Table:
    """Results of any version in the current schema; missing columns are null."""
    present = set(table.column_names)
    columns = [
        table[column.name].cast(column.type)
        if column.name in present
        else pa.nulls(len(table), column.type)
        for column in RESULTS
    ]
    return pa.table(columns, schema=RESULTS)


def _files(directory: Path, meta: dict[str, Any]) -> tuple[dict[str, bytes], list[str]]:
    """The run's files, and names of missing ones; raises if one was changed."""
    contents, missing = {}, []
    for name, digest in sorted({TABLE: None, **meta.get("files", {})}.items()):
        if not (directory / name).is_file():
            if name == TABLE:
                raise InputError(f"{directory / name} is missing: a bundle needs results")
            missing.append(name)
            continue
        if digest is not None and file_hash(directory / name) != digest:
            raise InputError(f"{directory / name} was changed after the run was saved: audit again")
        contents[name] = (directory / name).read_bytes()
    return contents, missing


def _counts(
    files: dict[str, bytes], table: pa.Table, meta: dict[str, Any]
) -> tuple[bytes | None, str | None]:
    """The part `counts.parquet`, or why there is none."""
    if _SAVED_COUNTS in files:
        return files[_SAVED_COUNTS], None
    if "panel" in meta:
        return None, "it combines several audits that were saved without counts"
    if "ranking" not in table["probe"].to_pylist():
        return None, "it was made without the probe ranking"
    return None, "the run has no vectors/counts.parquet"


def _embeddings(files: dict[str, bytes], meta: dict[str, Any]) -> dict[str, Any]:
    """Hashes of the embeddings behind the results."""
    record: dict[str, Any] = {}
    for name in ("texts", "faces"):
        file = f"vectors/{name}.parquet"
        entry: dict[str, Any] = {}
        if file in meta.get("files", {}):
            entry["file_sha256"] = meta["files"][file]
        if file in files:
            table = parse_parquet(files[file], file)
            entry["rows"] = len(table)
            if "vector" in table.column_names:
                vectors = table["vector"].combine_chunks()
                flat = vectors.flatten().to_numpy(zero_copy_only=False).astype("<f4")
                entry["dimensions"] = len(flat) // max(len(table), 1)
                entry["sha256"] = hashlib.sha256(np.ascontiguousarray(flat).data).hexdigest()
        if entry:
            record[name] = entry
    stored = meta.get("data", {}).get("faces", {}).get("vectors")
    return {**record, **({"store": stored} if stored else {})}


def _without_store_path(meta: dict[str, Any]) -> dict[str, Any]:
    """The record without the path of the store, which is private."""
    shared = {name: value for name, value in meta.items() if name not in ("environment", SEAL)}
    if "environment" in meta:
        environment = meta["environment"]
        shared["environment"] = {
            name: value for name, value in environment.items() if name != "store"
        }
    return shared


def _write(data: bytes, out: Path) -> None:
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        recover(out)
        write_atomically(out, lambda path: path.write_bytes(data))
    except OSError as error:
        raise TiltmeterError(f"cannot write to {out}: {error.strerror or error}") from error
