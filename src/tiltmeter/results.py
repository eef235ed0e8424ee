"""What an audit leaves: one table of declared columns, its provenance, and files on disk.

A run on disk is a directory: `run.json` (what was measured, on what, how), `results.parquet`
(one row a measurement), `instances/PROBE.parquet` (single images or instances, never pixels), and
`vectors/` (the texts and images that were ranked, for a comparison to score them again; and counts
and moments of their scores, for anybody to check the results by).
It is written beside its place and moved there whole, so there is never half a run.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tiltmeter.errors import InputError, TiltmeterError

if TYPE_CHECKING:
    import pandas
    import polars

FORMAT = 1

RESULTS = pa.schema(
    [
        ("probe", pa.string()),
        ("metric", pa.string()),
        ("model", pa.string()),
        ("dataset", pa.string()),
        ("split", pa.string()),
        ("experiment", pa.string()),  # which variant of the probe: 1*-a, V/L, a softmax reading
        ("attribute", pa.string()),
        ("group", pa.string()),
        ("concept", pa.string()),
        ("target", pa.string()),  # a second concept, or a class
        ("category", pa.string()),
        ("template", pa.string()),
        ("factor", pa.string()),  # of a variance share
        ("k", pa.int64()),
        ("value", pa.float64()),  # null where undefined; `note` says why
        ("ideal", pa.float64()),
        ("truth", pa.float64()),  # planted, in the testbed
        ("published", pa.float64()),
        ("null_mean", pa.float64()),
        ("null_lo", pa.float64()),
        ("null_hi", pa.float64()),
        ("ci_low", pa.float64()),
        ("ci_high", pa.float64()),
        ("ci_method", pa.string()),
        ("p", pa.float64()),
        ("p_side", pa.string()),
        ("p_fwer", pa.float64()),
        ("p_bh", pa.float64()),
        ("p_placebo", pa.float64()),
        ("verdict", pa.string()),
        ("n", pa.int64()),
        ("n_group", pa.int64()),
        ("n_undefined", pa.int64()),
        ("convention", pa.string()),
        ("seed", pa.int64()),
        ("note", pa.string()),
    ]
)

INSTANCES = pa.schema(
    [
        ("model", pa.string()),
        ("dataset", pa.string()),
        ("experiment", pa.string()),
        ("concept", pa.string()),
        ("template", pa.string()),
        ("id", pa.string()),
        ("groups", pa.map_(pa.string(), pa.string())),  # attribute -> group
        ("rank", pa.int64()),
        ("score", pa.float64()),
        ("pick", pa.string()),
    ]
)

#: What two rows must share to be the same measurement of two models.
KEY = (
    "probe", "metric", "dataset", "split", "experiment", "attribute", "group", "concept",
    "target", "category", "template", "factor", "k",
)  # fmt: skip

PLACEBO = "placebo"  # the category of neutral words

COMPARISON = pa.schema(
    [RESULTS.field(name) for name in KEY]
    + [
        ("before", pa.float64()),
        ("after", pa.float64()),
        ("ideal", pa.float64()),
        ("difference", pa.float64()),  # after - before
        ("excess", pa.float64()),  # |after - ideal| - |before - ideal|: above 0 is worse
        ("ci_low", pa.float64()),
        ("ci_high", pa.float64()),
        ("p", pa.float64()),
        ("p_bh", pa.float64()),
        ("p_fwer", pa.float64()),  # holds for all that the gate tests, together
        ("direction", pa.string()),  # better, worse, same: the sign of the change alone
        ("verdict", pa.string()),  # of the gate: better, worse, equivalent, no evidence
        ("method", pa.string()),  # of the gate: paired, unpaired
        ("n", pa.int64()),
        ("convention", pa.string()),
        ("note", pa.string()),
    ]
)


def rows(count: int, schema: pa.Schema = RESULTS, /, **columns: Any) -> pa.Table:
    """A table of `count` rows of a schema; each column is a scalar or `count` values.

    NaN is undefined: it becomes null, and a value without a note is refused.

    >>> rows(2, metric="c_asc", value=[0.5, float("nan")], note=[None, "one group"])["value"]
    <pyarrow.lib.ChunkedArray object at ...>
    [
      [
        0.5,
        null
      ]
    ]
    """
    if unknown := set(columns) - set(schema.names):
        raise InputError(f"no such columns in results: {', '.join(sorted(unknown))}")
    arrays = []
    for column in schema:
        given = columns.get(column.name)
        if given is None or isinstance(given, str | int | float):
            given = [given] * count
        arrays.append(pa.array(given, type=column.type, from_pandas=True))
    table = pa.Table.from_arrays(arrays, schema=schema)
    if count and "value" in columns:
        value, note = table["value"].combine_chunks(), table["note"].combine_chunks()
        if (value.is_null().to_numpy(False) & note.is_null().to_numpy(False)).any():
            raise InputError("a result without a value needs a note that says why")
    return table


def combined(tables: Iterable[pa.Table], schema: pa.Schema = RESULTS) -> pa.Table:
    """Tables of one schema, one after the other."""
    return pa.concat_tables([schema.empty_table(), *tables]).combine_chunks()


def over_templates(
    listed: Iterable[dict[str, Any]],
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows over all templates of a word; and, of words that have such, those of single templates.

    Rows that are of no word are among the first. Neutral words are left out.
    """
    names = [name for name in ("model", *KEY) if name != "template"]
    keyed = [(tuple(row.get(name) for name in names), row) for row in listed
             if row["category"] != PLACEBO]  # fmt: skip
    several = {key for key, row in keyed if row["concept"] and row["template"] is None}
    whole: list[dict[str, Any]] = []
    single: list[dict[str, Any]] = []
    for key, row in keyed:
        alone = row["template"] is not None and key in several
        (single if alone else whole).append(row)
    return whole, single


@dataclass(frozen=True, eq=False)
class Run:
    """The results of an audit, what they were measured on, and how."""

    table: pa.Table
    meta: dict[str, Any] = field(default_factory=dict)
    instances: dict[str, pa.Table] = field(default_factory=dict)
    #: `texts` and `faces` that were ranked, with their vectors or the names that a store has for
    #: them: see `tiltmeter.judge.gate.run_scores`.
    vectors: dict[str, pa.Table] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.table.schema != RESULTS:
            raise InputError("a run's table must have the columns of tiltmeter.results.RESULTS")

    def __repr__(self) -> str:
        model = self.meta.get("model", {}).get("name")
        return f"<run{f' of {model}' if model else ''}, {self.table.num_rows:,} rows>"

    @property
    def conventions(self) -> list[str]:
        return sorted(set(self.table["convention"].drop_null().to_pylist()))

    def where(self, **equal: Any) -> list[dict[str, Any]]:
        """The rows whose columns equal the given values, as dictionaries."""
        import pyarrow.compute as pc

        table = self.table
        for name, value in equal.items():
            column = table[name]
            table = table.filter(pc.is_null(column) if value is None else pc.equal(column, value))
        found: list[dict[str, Any]] = table.to_pylist()
        return found

    def gate(self, before: Run | str | os.PathLike[str] | None = None, **asked: Any) -> Any:
        """Whether this run may pass: not worse than `before`, and within limits; true or false.

        `assert run.gate("before/", max=["max_skew@1000[gender] < 0.15"])`. What it finds is in the
        answer: `.reasons`, `.comparison`. Where nothing could be tested, it is false. See
        `tiltmeter.judge.gate.gate` for what may be asked.
        """
        # looked up here: the gate stands above the results
        return importlib.import_module("tiltmeter.judge.gate").gate(self, before, **asked)

    def to_pandas(self) -> pandas.DataFrame:
        return self.table.to_pandas()

    def to_polars(self) -> polars.DataFrame:
        import polars

        frame = polars.from_arrow(self.table)
        assert isinstance(frame, polars.DataFrame)
        return frame

    def save(self, path: str | os.PathLike[str], *, replace: bool = False) -> Path:
        """Writes the run to the directory `path`, whole or not at all."""
        path = Path(path)
        if path.exists() and not replace:
            raise InputError(
                f"{path} exists already and is left as it is: name another place, "
                "or pass --force to replace it"
            )
        if path.exists() and any(path.iterdir()) and not (path / "run.json").exists():
            raise InputError(f"{path} is not a run of tiltmeter and will not be replaced")
        with written_beside(path) as place:
            _write_parquet(self.table, place / "results.parquet")
            for folder, tables in (("instances", self.instances), ("vectors", self.vectors)):
                for name, table in tables.items():
                    (place / folder).mkdir(exist_ok=True)
                    _write_parquet(table, place / folder / f"{name}.parquet")
            meta = {
                "format": FORMAT,
                **self.meta,
                "files": {
                    str(file.relative_to(place)): file_hash(file)
                    for file in sorted(place.rglob("*.parquet"))
                },
            }
            meta["hash"] = content_hash({k: v for k, v in meta.items() if k != "environment"})
            (place / "run.json").write_text(json.dumps(meta, indent=2, sort_keys=True) + "\n")
        return path

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Run:
        """Reads a run back; refuses one whose files are not those that were saved."""
        path = Path(path)
        if not (path / "run.json").is_file():
            raise InputError(f"{path} is not a run: it has no run.json. Make one with --out {path}")
        try:
            meta = json.loads((path / "run.json").read_text())
        except ValueError as error:
            raise InputError(f"{path / 'run.json'} is damaged: {error}") from None
        for name, digest in meta.get("files", {}).items():
            if not (path / name).is_file() or file_hash(path / name) != digest:
                raise InputError(f"{path / name} is missing or was changed since it was saved")
        instances, vectors = (
            {file.stem: pq.read_table(file) for file in sorted(path.glob(f"{folder}/*.parquet"))}
            for folder in ("instances", "vectors")
        )
        meta = {k: v for k, v in meta.items() if k not in ("format", "files", "hash")}
        return cls(pq.read_table(path / "results.parquet").cast(RESULTS), meta, instances, vectors)


class ProbeFailedError(TiltmeterError):
    """Some probes of an audit failed; `run` has the results of those that finished.

    `run.meta["failed"]` has a reason for each probe that failed; the cause is the error of one.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        failed = [f"the probe {name} failed: {why}" for name, why in run.meta["failed"].items()]
        super().__init__(f"{'; '.join(failed)} (results kept: {', '.join(run.instances)})")


def run_record(
    *,
    data: Mapping[str, Any],
    seed: int,
    model: Any = None,
    spec: str | None = None,
    environment: Mapping[str, Any] | None = None,
    **own: Any,
) -> dict[str, Any]:
    """The record of a run: what was measured, on what, how, with which versions, and where.

    `own` are the entries of one kind of run, such as `convention` or `not_run`; `environment` is
    added to what no hash covers.
    """
    named = {}
    if model is not None:
        name = getattr(model, "name", type(model).__name__)
        named["model"] = {"name": name, "spec": spec, **getattr(model, "provenance", {})}
    return {
        **named,
        "data": dict(data),
        **own,
        "seed": int(seed),
        "versions": versions(),
        "environment": {**machine(), **(environment or {})},
    }


def prompt_record(prompts: Sequence[Any]) -> dict[str, Any]:
    """How many words and neutral words a model was shown, and a hash of the texts."""
    return {
        "words": sum(prompt.role == "word" for prompt in prompts),
        "placebos": sum(prompt.role == "placebo" for prompt in prompts),
        "concepts": len({prompt.concept for prompt in prompts if prompt.role == "word"}),
        "hash": content_hash([prompt.text for prompt in prompts]),
    }


def machine() -> dict[str, Any]:
    """When and where a run was made: kept apart, since no hash covers it."""
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
    }


def versions() -> dict[str, str]:
    """Versions of the packages that numbers may depend on."""
    found = {}
    for name in ("tiltmeter", "numpy", "scipy", "numba", "pyarrow", "torch", "transformers"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def content_hash(value: Any) -> str:
    """sha256 of a value's canonical JSON, or of an array's bytes, shape and type."""
    digest = hashlib.sha256()
    if isinstance(value, np.ndarray):
        digest.update(f"{value.dtype.str}{value.shape}".encode())
        digest.update(np.ascontiguousarray(value).data)
    else:
        digest.update(json.dumps(value, sort_keys=True, default=str).encode())
    return digest.hexdigest()


def file_hash(path: Path) -> str:
    """sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write_parquet(table: pa.Table, path: Path) -> None:
    pq.write_table(table, path, compression="zstd")


@contextlib.contextmanager
def written_beside(path: Path) -> Iterator[Path]:
    """A new directory that becomes `path` when all went well, and vanishes when not."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        place = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    except OSError as error:
        raise TiltmeterError(f"cannot write to {path}: {error.strerror or error}") from error
    try:
        yield place
        place.chmod(0o755)  # mkdtemp keeps it to its owner; a run is for others to read too
        if path.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
            path.rename(old / "old")
            place.rename(path)
            shutil.rmtree(old)
        else:
            place.rename(path)
    except OSError as error:
        raise TiltmeterError(
            f"could not save to {path}: {error.strerror or error}. Nothing was written there; "
            "free some space or name another place"
        ) from error
    finally:
        shutil.rmtree(place, ignore_errors=True)


def label_hash(ids: Iterable[str], labels: Mapping[str, Iterable[str]]) -> str:
    """sha256 of ids and labels, by attribute."""
    return content_hash({"ids": list(ids), **{name: list(x) for name, x in labels.items()}})
