"""`tiltmeter bundle`: a run in one file that others can check without images, model or torch.

    manifest.json      every other part with its SHA-256 and size, and what was left out
    manifest.sha256    the digest of the manifest: quote it, and the bundle is fixed
    run.json           provenance, as the audit wrote it (without the place of the store)
    results.parquet    every number
    counts.parquet     what the numbers of the ranking can be recomputed from

Vectors and single images stay at home: both are of people. Their hashes are in the manifest.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tiltmeter import __version__
from tiltmeter.errors import InputError, TiltmeterError
from tiltmeter.judge.bundle.zip_file import packed
from tiltmeter.results import FORMAT, RESULTS, content_hash, file_hash

BUNDLE = 1  # of the format of bundles
ENDING = ".tiltmeter.zip"
MANIFEST, DIGEST, RUN, TABLE, TALLY = (
    "manifest.json", "manifest.sha256", "run.json", "results.parquet", "counts.parquet",
)  # fmt: skip
_KEPT = "vectors/counts.parquet"


@dataclass(frozen=True)
class BundleFile:
    """A bundle that was written."""

    path: Path
    size: int
    digest: str  # of the manifest
    manifest: dict[str, Any]
    gone: list[str] = field(default_factory=list)  # files of the run that are not there any more


def bundle(
    run: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    with_vectors: bool = False,
    with_instances: bool = False,
    replace: bool = False,
) -> BundleFile:
    """Packs the run in the directory `run` into the file `out`; the same run, the same bytes."""
    place, out = Path(run), Path(out)
    if not out.name.endswith(ENDING):
        raise InputError(
            f"a bundle's name ends with {ENDING}; got {out}: pass "
            f"--out {str(out).removesuffix('.zip')}{ENDING}"
        )
    if out.exists() and not replace:
        raise InputError(f"{out} exists already: name another --out, or pass --force")
    meta = _record(place)
    files, gone = _files(place, meta)
    table = as_results(pq.read_table(BytesIO(files[TABLE])))
    if with_vectors and not any(name.startswith("vectors/") and name != _KEPT for name in files):
        given = meta.get("arguments", {}).get("given", {})
        told = " (it was made with --no-vectors)" if given.get("keep_vectors") is False else ""
        raise InputError(f"{place} keeps no vectors{told}: leave out --with-vectors")
    counts, why = _counts(files, table, meta)
    parts = {TABLE: files[TABLE], RUN: canonical(_handed_on(meta))}
    if counts is not None:
        parts[TALLY] = counts
    left_out = {}
    for name, digest in meta.get("files", {}).items():
        wanted = {"vectors": with_vectors, "instances": with_instances}.get(name.partition("/")[0])
        if name in (TABLE, _KEPT):
            continue
        if wanted and name in files:
            parts[name] = files[name]
        else:
            left_out[name] = digest
    manifest = {
        "bundle": BUNDLE,
        "made_with": f"tiltmeter {__version__}",
        "run": meta.get("hash"),
        "parts": {name: described(data) for name, data in sorted(parts.items())},
        "left_out": left_out,
        "embeddings": _embeddings(files, meta),
        "counts": {"why_not": why},
        "headline": headline(table),
    }
    whole, digest = sealed(manifest, parts)
    _write(whole, out)
    return BundleFile(out, len(whole), digest, manifest, gone)


def sealed(manifest: dict[str, Any], parts: dict[str, bytes]) -> tuple[bytes, str]:
    """The file of a bundle, and the digest of its manifest."""
    text = canonical(manifest)
    digest = hashlib.sha256(text).hexdigest()
    line = f"{digest}  {MANIFEST}\n".encode()  # as sha256sum writes it, and checks it
    return packed({MANIFEST: text, DIGEST: line, **dict(sorted(parts.items()))}), digest


def canonical(value: Any) -> bytes:
    """JSON with one way to write everything: sorted keys, ASCII, no NaN, shortest exact floats.

    >>> canonical({"b": 0.1, "a": "é"})
    b'{\\n  "a": "\\\\u00e9",\\n  "b": 0.1\\n}\\n'
    """
    return (json.dumps(value, sort_keys=True, indent=2, allow_nan=False) + "\n").encode("ascii")


def described(data: bytes) -> dict[str, Any]:
    """What the manifest says of a part."""
    return {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}


def headline(table: pa.Table) -> list[dict[str, Any]]:
    """Each ranking metric over all words, by attribute; numbers as text of 12 digits."""
    keep = pc.equal(table["probe"], "ranking")
    for name in ("concept", "category", "template", "group", "experiment", "factor", "target"):
        keep = pc.and_(keep, pc.is_null(table[name]))
    names = ("model", "dataset", "attribute", "metric", "k", "n", "convention", "value", "ci_low",
             "ci_high", "null_lo", "null_hi", "p")  # fmt: skip
    return [
        {name: format(one, ".12g") if isinstance(one, float) else one for name, one in row.items()}
        for row in table.filter(pc.fill_null(keep, False)).select(names).to_pylist()
    ]


def as_results(table: pa.Table) -> pa.Table:
    """A table of results of any version: columns that it did not have yet are empty."""
    have = set(table.column_names)
    columns = [
        table[one.name].cast(one.type) if one.name in have else pa.nulls(len(table), one.type)
        for one in RESULTS
    ]
    return pa.table(columns, schema=RESULTS)


def run_hash(meta: dict[str, Any]) -> str:
    """The hash of a run's record, as `Run.save` takes it."""
    return content_hash({k: v for k, v in meta.items() if k not in ("environment", "hash")})


def _record(place: Path) -> dict[str, Any]:
    path = place / RUN
    if not path.is_file():
        raise InputError(f"{place} is not a run: it has no run.json. Make one with `audit --out`")
    try:
        meta = json.loads(path.read_text())
    except ValueError as error:
        raise InputError(f"{path} is damaged: {error}") from None
    if not isinstance(meta, dict) or not isinstance(meta.get("files", {}), dict):
        raise InputError(f"{path} is damaged: it is no record of a run")
    told = meta.get("format", FORMAT)
    if not isinstance(told, int) or told > FORMAT:
        raise InputError(f"{place} was made by a later version of tiltmeter: install that one")
    return meta


def _files(place: Path, meta: dict[str, Any]) -> tuple[dict[str, bytes], list[str]]:
    """The run's files as they were saved, and those that are gone; one that was changed stops."""
    found, gone = {}, []
    for name, digest in sorted({TABLE: None, **meta.get("files", {})}.items()):
        if not (place / name).is_file():
            if name == TABLE:
                raise InputError(f"{place / name} is missing: without results there is no bundle")
            gone.append(name)
            continue
        if digest is not None and file_hash(place / name) != digest:
            raise InputError(f"{place / name} was changed since the run was saved: audit again")
        found[name] = (place / name).read_bytes()
    return found, gone


def _counts(
    files: dict[str, bytes], table: pa.Table, meta: dict[str, Any]
) -> tuple[bytes | None, str | None]:
    """The part `counts.parquet`, or why there is none."""
    if _KEPT in files:
        return files[_KEPT], None
    if "panel" in meta:
        return None, "it holds several audits, which were saved without counts"
    if "ranking" not in table["probe"].to_pylist():
        return None, "it ranked nothing: it was made without the probe ranking"
    return None, "its counts are gone: the run has no vectors/counts.parquet"


def _embeddings(files: dict[str, bytes], meta: dict[str, Any]) -> dict[str, Any]:
    """Which vectors the numbers are of: their hashes, never the vectors."""
    found: dict[str, Any] = {}
    for name in ("texts", "faces"):
        file = f"vectors/{name}.parquet"
        told: dict[str, Any] = {}
        if file in meta.get("files", {}):
            told["file_sha256"] = meta["files"][file]
        if file in files:
            kept = pq.read_table(BytesIO(files[file]))
            told["rows"] = len(kept)
            if "vector" in kept.column_names:
                vectors = kept["vector"].combine_chunks()
                flat = vectors.flatten().to_numpy(zero_copy_only=False).astype("<f4")
                told["dimensions"] = len(flat) // max(len(kept), 1)
                told["sha256"] = hashlib.sha256(np.ascontiguousarray(flat).data).hexdigest()
        if told:
            found[name] = told
    stored = meta.get("data", {}).get("faces", {}).get("vectors")
    return {**found, **({"store": stored} if stored else {})}


def _handed_on(meta: dict[str, Any]) -> dict[str, Any]:
    """The record without the place of the store, which is nobody else's business."""
    kept = {name: one for name, one in meta.items() if name != "environment"}
    if "environment" in meta:
        here = meta["environment"]
        kept["environment"] = {name: one for name, one in here.items() if name != "store"}
    return kept


def _write(data: bytes, out: Path) -> None:
    """Whole or not at all."""
    beside = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        beside.write_bytes(data)
        beside.replace(out)
    except OSError as error:
        raise TiltmeterError(f"cannot write to {out}: {error.strerror or error}") from error
    finally:
        beside.unlink(missing_ok=True)
