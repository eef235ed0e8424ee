"""`Run`: the results of an audit, in memory and on disk.

A run on disk is a directory: `run.json` (what was measured, on what, how), `results.parquet` (one
row per measurement), `instances/PROBE.parquet` (single images or instances, never pixels), and
`vectors/` (the embeddings of texts and images that were ranked, from which a comparison scores them
again, and counts and moments of their scores, from which anyone can check the results).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tiltmeter.errors import InputError, MissingError, TiltmeterError, UnknownNameError
from tiltmeter.results.atomic import atomic_directory, recover
from tiltmeter.results.files import (
    content_hash,
    file_hash,
    parse_json,
    parse_parquet,
    write_parquet,
)
from tiltmeter.results.schema import RESULTS
from tiltmeter.results.schema import over_templates as split_templates
from tiltmeter.results.views import VIEWS

if TYPE_CHECKING:
    import pandas
    import polars

#: Version of the layout on disk and of the meaning of its columns: 2 since release 0.2.
FORMAT = 2
TABLE, PARTS = "results.parquet", ("instances", "vectors")
#: Key of the hash of a whole record, time and place included.
SEAL = "sha256 of this record"
AGAIN = "Run the audit again, or restore the directory from a copy"
_FILE = re.compile(rf"results\.parquet|({'|'.join(PARTS)})/[^/\\\0]+\.parquet")


@dataclass(frozen=True, eq=False)
class Run:
    """The results of an audit, with their provenance.

    Parameters
    ----------
    table : pyarrow.Table
        One row per measurement, with the columns of `RESULTS`.
    meta : dict
        Provenance: model, data, convention, seed, versions (see `run_record`).
    instances : dict of str to pyarrow.Table
        Probe to its single images or instances, with the columns of `INSTANCES`.
    vectors : dict of str to pyarrow.Table
        `texts` and `faces` that were ranked, with their embeddings or their keys in a store: see
        `tiltmeter.judge.gate.run_embeddings`.

    Raises
    ------
    InputError
        The table has other columns.

    Examples
    --------
    >>> from tiltmeter.results import Run, rows
    >>> run = Run(rows(1, metric="ndkl", attribute="gender", value=0.2))
    >>> run
    <run, 1 rows>
    >>> [row["value"] for row in run.where(metric="ndkl")]
    [0.2]
    """

    table: pa.Table
    meta: dict[str, Any] = field(default_factory=dict)
    instances: dict[str, pa.Table] = field(default_factory=dict)
    vectors: dict[str, pa.Table] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.table.schema != RESULTS:
            raise InputError(
                "a run's table must have the columns of tiltmeter.results.RESULTS: make it with "
                "tiltmeter.results.rows"
            )

    def __repr__(self) -> str:
        model = self.meta.get("model", {}).get("name")
        return f"<run{f' of {model}' if model else ''}, {self.table.num_rows:,} rows>"

    @property
    def conventions(self) -> list[str]:
        """Names of the conventions that its results were computed under."""
        return sorted(set(self.table["convention"].drop_null().to_pylist()))

    def __getitem__(self, metric: str) -> pa.Table:
        """The rows of one metric, such as `run["max_skew"]`; `.to_pandas()` makes a DataFrame.

        Parameters
        ----------
        metric : str
            A metric of the run.

        Returns
        -------
        pyarrow.Table
            Rows of words over all their templates, and of no word; not of neutral words.

        Raises
        ------
        UnknownNameError
            The run has no such metric.

        Examples
        --------
        >>> from tiltmeter.results import Run, rows
        >>> Run(rows(2, metric=["ndkl", "c_asc"], value=0.2))["ndkl"].num_rows
        1
        """
        known = self.table["metric"].drop_null().unique().to_pylist()
        if metric not in known:
            raise UnknownNameError("metric of the run", metric, known)
        return pa.Table.from_pylist(self.where(metric=metric, over_templates=True), RESULTS)

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """All rows as dictionaries, made once for all who read them: do not change them."""
        return list(self.table.to_pylist())

    def where(self, *, over_templates: bool = False, **equal: Any) -> list[dict[str, Any]]:
        """Select rows.

        Parameters
        ----------
        over_templates : bool
            Leave out rows of neutral words, and of a word in single templates where it has a row
            over all of them: what is left has one row per finding.
        **equal
            Column name to the value that a row must have there; None selects nulls.

        Returns
        -------
        list of dict
            The rows whose columns have all of these values.

        Raises
        ------
        UnknownNameError
            There is no such column.

        Examples
        --------
        >>> from tiltmeter.results import Run, rows
        >>> run = Run(rows(2, metric="ndkl", concept=["nurse", None], value=[0.2, 0.1]))
        >>> [row["value"] for row in run.where(metric="ndkl", concept=None)]
        [0.1]
        """
        import pyarrow.compute as pc

        table = self.table
        for name, value in equal.items():
            if name not in table.column_names:
                raise UnknownNameError("column of results", name, table.column_names)
            column = table[name]
            table = table.filter(pc.is_null(column) if value is None else pc.equal(column, value))
        found: list[dict[str, Any]] = table.to_pylist()
        return split_templates(found)[0] if over_templates else found

    def summary(self) -> str:
        """The main result and the findings, as text.

        Returns
        -------
        str
            What the report says first, without plots.
        """
        return str(VIEWS["summary"](self))

    def findings(self) -> list[dict[str, Any]]:
        """What each probe found, in words.

        Returns
        -------
        list of dict
            `section`, `verdict`, `text` and `numbers` of each finding.
        """
        found: list[dict[str, Any]] = VIEWS["findings"](self)
        return found

    def report(self, path: str | os.PathLike[str] = "report.html", **options: Any) -> Path:
        """Write the run as one HTML page.

        Parameters
        ----------
        path : path
            The page.
        **options
            `before`, a run to show changes against; `figures` and `tables`, directories.

        Returns
        -------
        Path
            The page.
        """
        return Path(VIEWS["report"](self, path, **options))

    def plot(self, name: str | None = None) -> Any:
        """One figure of the report.

        Parameters
        ----------
        name : str, optional
            Its name; by default the first figure. An unknown name lists those there are.

        Returns
        -------
        altair.Chart
            Shown by a notebook; `.save("plot.svg")` writes it.
        """
        return VIEWS["plot"](self, name)

    def _repr_html_(self) -> str:
        return str(VIEWS["run_html"](self))

    def renamed(self, model: str | None = None, data: str | None = None) -> Run:
        """The same results under other names.

        Parameters
        ----------
        model : str, optional
            Name of the model; None keeps the one that it has.
        data : str, optional
            Name of the images with groups.

        Returns
        -------
        Run
            With these names in all tables and in `meta`; where model and data came from stays.

        Examples
        --------
        >>> from tiltmeter.results import Run, rows
        >>> run = Run(rows(1, metric="ndkl", model="a", value=0.2), {"model": {"name": "a"}})
        >>> run.renamed("mine").where(model="mine")[0]["value"]
        0.2
        """
        known = self.meta.get("model", {}), self.meta.get("data", {}).get("faces", {})
        new = {
            (column, record["name"]): name
            for column, record, name in zip(("model", "dataset"), known, (model, data), strict=True)
            if name is not None and "name" in record
        }
        meta = dict(self.meta)
        if "model" in meta:
            meta["model"] = {**known[0], **({"name": model} if model is not None else {})}
        if known[1] and data is not None:
            meta["data"] = {**meta["data"], "faces": {**known[1], "name": data}}
        instances, vectors = (
            {part: _renamed(table, new) for part, table in tables.items()}
            for tables in (self.instances, self.vectors)
        )
        return Run(_renamed(self.table, new), meta, instances, vectors)

    def gate(self, before: Run | str | os.PathLike[str] | None = None, **options: Any) -> Any:
        """Check that this run is not worse than another, and within limits.

        Parameters
        ----------
        before : Run or path, optional
            The run to compare with.
        **options
            Such as `max=["max_skew@1000[gender] < 0.15"]`: see `tiltmeter.judge.gate.gate`.

        Returns
        -------
        GateResult
            True in a condition if the run passes, so that `assert run.gate("before/")` works;
            false if nothing could be tested. `.reasons` and `.comparison` have the details.
        """
        return VIEWS["gate"](self, before, **options)

    def to_pandas(self) -> pandas.DataFrame:
        """Convert the table to pandas.

        Returns
        -------
        pandas.DataFrame
            One row per measurement.

        Raises
        ------
        MissingError
            pandas is not installed.
        """
        if find_spec("pandas") is None:
            raise MissingError("to_pandas", "pandas")
        return self.table.to_pandas()

    def to_polars(self) -> polars.DataFrame:
        """Convert the table to polars.

        Returns
        -------
        polars.DataFrame
            One row per measurement.

        Raises
        ------
        MissingError
            polars is not installed.
        """
        if find_spec("polars") is None:
            raise MissingError("to_polars", "polars")
        import polars

        frame = polars.from_arrow(self.table)
        assert isinstance(frame, polars.DataFrame)
        return frame

    def save(self, path: str | os.PathLike[str], *, replace: bool = False) -> Path:
        """Write the run to a directory, whole or not at all.

        Parameters
        ----------
        path : path
            The directory.
        replace : bool
            Replace a run that is already there.

        Returns
        -------
        Path
            The directory.

        Raises
        ------
        InputError
            The directory exists and `replace` is false, or it contains something else than a run.
        TiltmeterError
            It cannot be written.

        Examples
        --------
        >>> import tempfile
        >>> from tiltmeter.results import Run, rows
        >>> path = Run(rows(1, metric="ndkl", value=0.2)).save(tempfile.mkdtemp() + "/run")
        >>> sorted(file.name for file in path.iterdir())
        ['results.parquet', 'run.json']
        >>> Run.load(path).where(metric="ndkl")[0]["value"]
        0.2
        """
        path = Path(path)
        if path.exists() and not replace:
            raise InputError(
                f"{path} exists already: choose another directory, or pass --force to replace it"
            )
        if path.exists() and any(path.iterdir()) and not (path / "run.json").exists():
            raise InputError(
                f"{path} is not a run of tiltmeter and will not be replaced: choose another "
                "directory"
            )
        with atomic_directory(path) as folder:
            files = {folder / "results.parquet": self.table}
            for part, tables in (("instances", self.instances), ("vectors", self.vectors)):
                if tables:
                    (folder / part).mkdir()
                files |= {folder / part / f"{name}.parquet": tables[name] for name in tables}
            with ThreadPoolExecutor() as pool:  # several files at a time: each is one thread's work
                list(pool.map(write_parquet, files.values(), files))
            meta = {
                "format": FORMAT,
                **self.meta,
                "files": {
                    file.relative_to(folder).as_posix(): file_hash(file)
                    for file in sorted(folder.rglob("*.parquet"))
                },
            }
            meta = json.loads(json.dumps(meta))  # as it will be read
            meta["hash"] = record_hash(meta)
            meta[SEAL] = content_hash(meta)
            (folder / "run.json").write_text(json.dumps(meta, indent=2, sort_keys=True) + "\n")
        return path

    @classmethod
    def of(cls, source: Run | str | os.PathLike[str]) -> Run:
        """A run, or the one that was saved in a directory."""
        return source if isinstance(source, Run) else cls.load(source)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Run:
        """Read a run from a directory.

        Parameters
        ----------
        path : path
            A directory that `save` or `tiltmeter audit --out` wrote.

        Returns
        -------
        Run
            The same tables and provenance.

        Raises
        ------
        InputError
            The directory is not a run, or one of its files was changed since it was saved.

        Examples
        --------
        >>> Run.load("no-such-directory")
        Traceback (most recent call last):
        ...
        tiltmeter.errors.InputError: no-such-directory is not a run: it has no run.json...
        """
        path = Path(path)
        if not path.exists():
            with contextlib.suppress(OSError):
                recover(path)
        meta = read_record(path)
        tables = {name: _read(path, name, digest) for name, digest in meta["files"].items()}
        results = tables.pop(TABLE)
        try:
            results = results.cast(RESULTS)
        except (pa.ArrowException, ValueError) as error:
            raise InputError(
                f"{path / TABLE} has other columns than this version reads: {error}",
                code="bad-file",
                value=path / TABLE,
            ) from error
        parts: dict[str, dict[str, pa.Table]] = {"instances": {}, "vectors": {}}
        for name, table in tables.items():
            part, _, file = name.partition("/")
            parts[part][file.removesuffix(".parquet")] = table
        meta = {k: v for k, v in meta.items() if k not in ("format", "files", "hash", SEAL)}
        return cls(results, meta, **parts)


def record_hash(meta: dict[str, Any]) -> str:
    """Hash what a run measured, on what and how: its record without time and place."""
    return content_hash({k: v for k, v in meta.items() if k not in ("environment", "hash", SEAL)})


def read_record(path: Path) -> dict[str, Any]:
    """Read the record of a run, and check it against its own hashes.

    Parameters
    ----------
    path : Path
        The directory of the run.

    Returns
    -------
    dict
        `run.json`, with `format`, `files` and `hash`.

    Raises
    ------
    InputError
        The directory is not a run, was made by a later version, or its record was changed.
    """
    file = path / "run.json"
    if not file.is_file():
        raise InputError(
            f"{path} is not a run: it has no run.json. Make one with "
            f"`tiltmeter audit MODEL --out {path}`",
            code="not-found",
            value=path,
        )
    meta = parse_json(file.read_bytes(), file)
    problem = None
    if not isinstance(meta, dict) or not isinstance(meta.get("format"), int):
        problem = "is not the record of a run"
    elif meta["format"] != FORMAT:
        raise other_format(meta["format"], path)
    elif not _names_files(meta.get("files")):
        problem = "names no files, or others than a run has"
    elif "hash" not in meta or meta["hash"] != record_hash(meta):
        problem = "was changed since it was saved: its hash differs"
    elif SEAL in meta and meta[SEAL] != content_hash({k: v for k, v in meta.items() if k != SEAL}):
        problem = "was changed since it was saved: time or place (environment) differ"
    if problem:
        raise InputError(f"{file} {problem}. {AGAIN}", code="damaged-file", value=file)
    present = {f"{p.parent.name}/{p.name}" for part in PARTS for p in path.glob(f"{part}/*")}
    for name in sorted(present - set(meta["files"])):
        raise InputError(
            f"{path / name} is not part of the run: it was added since it was saved. Remove it",
            code="damaged-file",
            value=path / name,
        )
    return dict(meta)


def other_format(found: Any, where: Any) -> InputError:
    """The error for a run of another release: what its columns mean has changed since."""
    later = isinstance(found, int) and found > FORMAT
    return InputError(
        f"{where} was made by {'a later' if later else 'an earlier'} version of tiltmeter (format "
        f"{found}, this one reads {FORMAT}): "
        + ("install that version" if later else "audit the model again"),
        code="bad-file",
        value=where,
    )


def _names_files(files: Any) -> bool:
    if not isinstance(files, dict) or TABLE not in files:
        return False
    return all(_FILE.fullmatch(name) and isinstance(files[name], str) for name in files)


def _read(path: Path, name: str, digest: str) -> pa.Table:
    """A table of a run, whose bytes have the hash of its record."""
    file = path / name
    data = file.read_bytes() if file.is_file() else None
    if data is None or hashlib.sha256(data).hexdigest() != digest:
        problem = "is missing" if data is None else "was changed since it was saved"
        raise InputError(f"{file} {problem}. {AGAIN}", code="damaged-file", value=file)
    return parse_parquet(data, file)


def _renamed(table: pa.Table, new: Mapping[tuple[str, str], str]) -> pa.Table:
    """A table with other values in its columns of names: by column and old name."""
    import pyarrow.compute as pc

    for (column, old), name in new.items():
        if column in table.column_names:
            at, values = table.column_names.index(column), table[column]
            changed = pc.if_else(pc.fill_null(pc.equal(values, old), False), name, values)
            table = table.set_column(at, table.schema.field(at), changed)
    return table


class ProbeFailedError(TiltmeterError):
    """Some probes of an audit failed.

    Parameters
    ----------
    run : Run
        The results of the probes that finished; `run.meta["failed"]` has the reason for each of
        the others.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        failed = [f"the probe {name} failed: {why}" for name, why in run.meta["failed"].items()]
        super().__init__(f"{'; '.join(failed)} (results kept: {', '.join(run.instances)})")
