"""`tiltmeter verify`: is a bundle as it was packed, and are its numbers what its counts give?

Needs no images, no model and no torch. Other people's files are read with care: nothing is
unpacked to disk, nothing grows while it is read, and no name leads anywhere.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tiltmeter.errors import InputError, TiltmeterError
from tiltmeter.judge.bundle.pack import (
    BUNDLE,
    DIGEST,
    MANIFEST,
    RUN,
    TABLE,
    TALLY,
    as_results,
    canonical,
    headline,
    run_hash,
)
from tiltmeter.judge.bundle.recompute import RecomputationResult, recompute
from tiltmeter.judge.bundle.zip_file import MOST_BYTES, changed_record, unpacked
from tiltmeter.metrics.convention import Convention
from tiltmeter.probes.ranking.stored import COUNTS
from tiltmeter.results import FORMAT

#: Of a table; a small file can claim any number of them.
MOST_ROWS, MOST_CELLS, MOST_UNPACKED = 5 * 10**6, 2 * 10**8, 2**32


@dataclass
class VerificationResult:
    """What was found: parts that are not as packed, numbers that differ, what was not looked at."""

    path: Path
    digest: str  # of the manifest, as it is now
    manifest: dict[str, Any] = field(default_factory=dict)
    title: str = ""  # whom, on what
    parts: int = 0
    wrong: list[tuple[str, str]] = field(default_factory=list)  # (part, what)
    recomputed: RecomputationResult | None = None
    not_recomputed: str | None = None  # why nothing was

    @property
    def ok(self) -> bool:
        return not self.wrong and not (self.recomputed and self.recomputed.differences)


def verify(path: str | os.PathLike[str], *, digest: str | None = None) -> VerificationResult:
    """Checks a bundle; InputError where the file is none. `digest` is one that was quoted."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path} is not a file: verify takes a bundle, FILE.tiltmeter.zip")
    if path.stat().st_size > MOST_BYTES:
        raise InputError(f"{path} has more than 2 GB: no bundle is as large")
    data = path.read_bytes()
    try:
        parts, wrong = unpacked(data, MANIFEST)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    text = parts.get(MANIFEST, b"")
    found = VerificationResult(path, hashlib.sha256(text).hexdigest(), wrong=wrong)
    if not text:
        found.wrong = wrong or [(MANIFEST, "is missing")]
        found.not_recomputed = "the manifest cannot be read"
        return found
    found.manifest = _manifest(text, parts, found)
    _check_parts(found, parts)
    if not found.wrong and (record := changed_record(data, parts)):
        found.wrong.append(record)
    if digest is not None and digest.lower() != found.digest:
        found.wrong.append((MANIFEST, f"is not the one that was quoted: its digest is "
                                      f"{found.digest}"))  # fmt: skip
    if broken := {name for name, _ in found.wrong} & {MANIFEST, DIGEST, RUN, TABLE, TALLY}:
        found.not_recomputed = f"{', '.join(sorted(broken))}: not as it was packed"
        return found
    _recompute(found, parts)
    return found


def _manifest(text: bytes, parts: Mapping[str, bytes], found: VerificationResult) -> dict[str, Any]:
    line = f"{found.digest}  {MANIFEST}\n".encode()
    if DIGEST not in parts:
        found.wrong.append((DIGEST, "is missing"))
    elif parts[DIGEST] != line:
        found.wrong.append((MANIFEST, f"was changed: {DIGEST} has another digest"))
    try:
        manifest = json.loads(text)
        listed = manifest["parts"]
        entries = all(set(one) == {"sha256", "size"} for one in listed.values())
        if not entries or canonical(manifest) != text:
            raise ValueError("it is not as tiltmeter writes it")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        found.wrong.append((MANIFEST, f"cannot be read: {error}"))
        return {}
    version = manifest.get("bundle")
    if not isinstance(version, int) or version > BUNDLE:
        raise InputError(
            f"{found.path} is a bundle of format {version!r}; this tiltmeter reads up to {BUNDLE}: "
            "install a later one"
        )
    return dict(manifest)


def _check_parts(found: VerificationResult, parts: Mapping[str, bytes]) -> None:
    """Hashes and sizes; parts that are missing, and parts that nobody listed."""
    listed = found.manifest.get("parts", {})
    known = {name for name, _ in found.wrong}
    for name, told in listed.items():
        if name not in parts:
            if name not in known:
                found.wrong.append((name, "is missing"))
            continue
        found.parts += 1
        if len(parts[name]) != told["size"]:
            what = f"has {len(parts[name]):,} bytes, packed were {told['size']:,}"
            found.wrong.append((name, what))
        elif hashlib.sha256(parts[name]).hexdigest() != told["sha256"]:
            found.wrong.append((name, "was changed: its SHA-256 is not the manifest's"))
    if found.manifest:
        for name in sorted(set(parts) - set(listed) - {MANIFEST, DIGEST}):
            found.wrong.append((name, "was added: the manifest does not list it"))


def _recompute(found: VerificationResult, parts: Mapping[str, bytes]) -> None:
    if TABLE not in parts or RUN not in parts:
        found.wrong.append((TABLE if TABLE not in parts else RUN, "is missing"))
        return
    try:
        results, record = as_results(_table(parts[TABLE], TABLE)), json.loads(parts[RUN])
        _check_record(found, record, results)
        if TALLY not in parts:
            why = (found.manifest.get("counts") or {}).get("why_not") or "it was not said why"
            found.not_recomputed = f"the bundle holds no counts ({why})"
            return
        counts = _table(parts[TALLY], TALLY).cast(COUNTS)
        found.recomputed = recompute(results, counts, convention_of(record))
    except (TiltmeterError, ValueError, LookupError, TypeError, AttributeError, OverflowError,
            RecursionError, pa.ArrowException) as error:  # fmt: skip
        # the parts are those that were packed, but they are not what they should be
        found.not_recomputed = f"the parts do not fit together: {error}"
        found.wrong.append((TALLY if TALLY in parts else TABLE, f"cannot be used: {error}"))


def _check_record(found: VerificationResult, record: Any, results: pa.Table) -> None:
    """The run's own record: its hash, the hash it has of the results, and the headline."""
    if not isinstance(record, dict):
        raise InputError(f"{RUN} is no record of a run")
    found.title = _title(record)
    if not isinstance(record.get("format", FORMAT), int) or record.get("format", FORMAT) > FORMAT:
        raise InputError("the run was made by a later version of tiltmeter: install that one")
    if "hash" in record and run_hash(record) != record["hash"]:
        found.wrong.append((RUN, "is not the record that the audit wrote: its hash is another"))
    told = record.get("files", {}).get(TABLE)
    if told and told != found.manifest["parts"][TABLE]["sha256"]:
        found.wrong.append((TABLE, "is not what the audit wrote: run.json has another SHA-256"))
    if found.manifest.get("headline") != headline(results):
        found.wrong.append((MANIFEST, f"its headline is not what {TABLE} has"))


def _title(record: dict[str, Any]) -> str:
    model, data = record.get("model"), record.get("data")
    whom = str(model.get("name") or "a model") if isinstance(model, dict) else "a model"
    names = data.values() if isinstance(data, dict) else ()
    on = ", ".join(str(one.get("name")) for one in names if isinstance(one, dict))
    return f"{whom} on {on}" if on else whom


def _table(data: bytes, name: str) -> pa.Table:
    """A table of somebody else's, unless it claims to be larger than any honest one."""
    file = pq.ParquetFile(BytesIO(data))
    groups = [file.metadata.row_group(at) for at in range(file.metadata.num_row_groups)]
    size = sum(one.total_byte_size for one in groups)
    cells = sum(one.column(at).num_values for one in groups for at in range(one.num_columns))
    if file.metadata.num_rows > MOST_ROWS or cells > MOST_CELLS or size > MOST_UNPACKED:
        raise InputError(f"{name} claims {file.metadata.num_rows:,} rows and {size:,} bytes")
    return file.read()


def convention_of(meta: dict[str, Any]) -> Convention:
    """The choices that a run was made under, as its record has them."""
    told = meta.get("convention")
    if not isinstance(told, dict):
        raise InputError("the run's record does not say under which convention it was made")
    try:
        return Convention(**{**told, "k": tuple(told["k"])})
    except (TypeError, KeyError) as error:
        raise InputError(f"the run's convention cannot be read: {error}") from None
