"""Verify a bundle: its parts are unchanged, and its results follow from its counts.

Needs no images, no model and no torch. Bundles are untrusted: nothing is unpacked to disk, sizes
are limited, and names are never used as paths.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tiltmeter.errors import InputError, TiltmeterError
from tiltmeter.judge.bundle.pack import (
    BUNDLE,
    COUNTS_FILE,
    DIGEST,
    MANIFEST,
    RUN,
    TABLE,
    as_results,
    canonical,
    headline,
)
from tiltmeter.judge.bundle.recompute import METRICS, RecomputationResult, recompute
from tiltmeter.judge.bundle.zip_file import MOST_BYTES, changed_record, unpacked
from tiltmeter.metrics.convention import Convention
from tiltmeter.probes.ranking.stored import COUNTS
from tiltmeter.results import FORMAT, other_format
from tiltmeter.results.run import record_hash

#: Limits of a table: a small file can claim any number of rows.
MOST_ROWS, MOST_CELLS, MOST_UNPACKED = 5 * 10**6, 2 * 10**8, 2**32


@dataclass
class VerificationResult:
    """Result of a verification: changed parts, values that differ, and what was not checked."""

    path: Path
    digest: str  # of the manifest in the file
    manifest: dict[str, Any] = field(default_factory=dict)
    title: str = ""  # model and data
    parts: int = 0
    problems: list[tuple[str, str]] = field(default_factory=list)  # (part, problem)
    recomputed: RecomputationResult | None = None
    not_recomputed: str | None = None  # reason

    @property
    def ok(self) -> bool:
        return not self.problems and not (self.recomputed and self.recomputed.differences)

    @property
    def fully_recomputed(self) -> bool:
        """Whether values were recomputed, and none of the probe ranking was left out."""
        if self.recomputed is None or not self.recomputed.compared:
            return False
        return not any(
            metric in METRICS
            for probe, metric in self.recomputed.not_recomputed
            if probe == "ranking"
        )


def verify(path: str | os.PathLike[str], *, digest: str | None = None) -> VerificationResult:
    """Verify a bundle.

    Parameters
    ----------
    path : path
        The bundle, FILE.tiltmeter.zip.
    digest : str, optional
        Expected SHA-256 of the manifest, as quoted by the author.

    Returns
    -------
    VerificationResult
        Its `ok` is true if every part is unchanged and every recomputed value agrees.

    Raises
    ------
    InputError
        If the file is not a bundle, or was made by a later version.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path} is not a file: expected a bundle, FILE.tiltmeter.zip")
    if path.stat().st_size > MOST_BYTES:
        raise InputError(f"{path} is larger than 2 GB, the limit for bundles")
    data = path.read_bytes()
    try:
        parts, problems = unpacked(data, MANIFEST)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    text = parts.get(MANIFEST, b"")
    result = VerificationResult(path, hashlib.sha256(text).hexdigest(), problems=problems)
    if not text:
        result.problems = problems or [(MANIFEST, "is missing")]
        result.not_recomputed = "the manifest cannot be read"
        return result
    result.manifest = _manifest(text, parts, result)
    _check_parts(result, parts)
    if not result.problems and (record := changed_record(data, parts)):
        result.problems.append(record)
    if digest is not None and digest.lower() != result.digest:
        result.problems.append((MANIFEST, f"does not have the expected digest: its digest is "
                                      f"{result.digest}"))  # fmt: skip
    if changed := {name for name, _ in result.problems} & {
        MANIFEST,
        DIGEST,
        RUN,
        TABLE,
        COUNTS_FILE,
    }:
        result.not_recomputed = f"{', '.join(sorted(changed))}: changed since it was packed"
        return result
    _recompute(result, parts)
    return result


def _manifest(
    text: bytes, parts: Mapping[str, bytes], result: VerificationResult
) -> dict[str, Any]:
    line = f"{result.digest}  {MANIFEST}\n".encode()
    if DIGEST not in parts:
        result.problems.append((DIGEST, "is missing"))
    elif parts[DIGEST] != line:
        result.problems.append((MANIFEST, f"was changed: {DIGEST} has a different digest"))
    try:
        manifest = json.loads(text)
        listed = manifest["parts"]
        entries = all(set(entry) == {"sha256", "size"} for entry in listed.values())
        if not entries or canonical(manifest) != text:
            raise ValueError("it is not in the form that tiltmeter writes")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        result.problems.append((MANIFEST, f"cannot be read: {error}"))
        return {}
    version = manifest.get("bundle")
    if not isinstance(version, int) or version > BUNDLE:
        raise InputError(
            f"{result.path} is a bundle of format {version!r}; this version reads up to {BUNDLE}: "
            "install a later version of tiltmeter"
        )
    return dict(manifest)


def _check_parts(result: VerificationResult, parts: Mapping[str, bytes]) -> None:
    """Check hashes and sizes; find missing and unlisted parts."""
    listed = result.manifest.get("parts", {})
    known = {name for name, _ in result.problems}
    for name, entry in listed.items():
        if name not in parts:
            if name not in known:
                result.problems.append((name, "is missing"))
            continue
        result.parts += 1
        if len(parts[name]) != entry["size"]:
            problem = f"has {len(parts[name]):,} bytes; expected {entry['size']:,}"
            result.problems.append((name, problem))
        elif hashlib.sha256(parts[name]).hexdigest() != entry["sha256"]:
            result.problems.append((name, "was changed: its SHA-256 differs from the manifest"))
    if result.manifest:
        for name in sorted(set(parts) - set(listed) - {MANIFEST, DIGEST}):
            result.problems.append((name, "was added: the manifest does not list it"))


def _recompute(result: VerificationResult, parts: Mapping[str, bytes]) -> None:
    if TABLE not in parts or RUN not in parts:
        result.problems.append((TABLE if TABLE not in parts else RUN, "is missing"))
        return
    try:
        results, record = as_results(_table(parts[TABLE], TABLE)), json.loads(parts[RUN])
        _check_record(result, record, results)
        if COUNTS_FILE not in parts:
            reason = (result.manifest.get("counts") or {}).get("why_not") or "no reason given"
            result.not_recomputed = f"the bundle has no counts ({reason})"
            return
        counts = _table(parts[COUNTS_FILE], COUNTS_FILE).cast(COUNTS)
        result.recomputed = recompute(results, counts, convention_of(record))
    except (TiltmeterError, ValueError, LookupError, TypeError, AttributeError, OverflowError,
            RecursionError, pa.ArrowException) as error:  # fmt: skip
        # the parts are unchanged, but not valid
        result.not_recomputed = f"the parts do not fit together: {error}"
        result.problems.append(
            (COUNTS_FILE if COUNTS_FILE in parts else TABLE, f"cannot be used: {error}")
        )


def _check_record(result: VerificationResult, record: Any, results: pa.Table) -> None:
    """Check the run's record: its hash, its hash of the results, and the headline."""
    if not isinstance(record, dict):
        raise InputError(f"{RUN} is not the record of a run")
    result.title = _title(record)
    if record.get("format", FORMAT) != FORMAT:
        raise other_format(record["format"], "the run")
    if "hash" in record and record_hash(record) != record["hash"]:
        result.problems.append((RUN, "is not the record that the audit wrote: its hash differs"))
    recorded_hash = record.get("files", {}).get(TABLE)
    if recorded_hash and recorded_hash != result.manifest["parts"][TABLE]["sha256"]:
        result.problems.append(
            (TABLE, "is not what the audit wrote: run.json has a different SHA-256")
        )
    if result.manifest.get("headline") != headline(results):
        result.problems.append((MANIFEST, f"its headline differs from {TABLE}"))


def _title(record: dict[str, Any]) -> str:
    model, data = record.get("model"), record.get("data")
    model_name = str(model.get("name") or "a model") if isinstance(model, dict) else "a model"
    names = data.values() if isinstance(data, dict) else ()
    of_roles = [str(entry.get("name")) for entry in names if isinstance(entry, dict)]
    datasets = ", ".join(dict.fromkeys(of_roles))
    return f"{model_name} on {datasets}" if datasets else model_name


def _table(data: bytes, name: str) -> pa.Table:
    """Read an untrusted table, unless it claims to be too large."""
    file = pq.ParquetFile(pa.BufferReader(data))
    groups = [file.metadata.row_group(index) for index in range(file.metadata.num_row_groups)]
    size = sum(group.total_byte_size for group in groups)
    cells = sum(
        group.column(index).num_values for group in groups for index in range(group.num_columns)
    )
    if file.metadata.num_rows > MOST_ROWS or cells > MOST_CELLS or size > MOST_UNPACKED:
        raise InputError(f"{name} is too large: {file.metadata.num_rows:,} rows and {size:,} bytes")
    return file.read(use_threads=False)


def convention_of(meta: dict[str, Any]) -> Convention:
    """The convention of a run, from its record."""
    recorded = meta.get("convention")
    if not isinstance(recorded, dict):
        raise InputError("the run's record has no convention")
    try:
        return Convention(**{**recorded, "k": tuple(recorded["k"])})
    except (TypeError, KeyError) as error:
        raise InputError(f"the run's convention cannot be read: {error}") from None
