"""Data without the rows that a debiaser was fitted on: a correction looks best on those."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tiltmeter.datasets.shards import ShardedFaces
from tiltmeter.debiasers.debiased import Debiased, read_record
from tiltmeter.debiasers.fitted_rows import FittedRows, FittedTask, row_keys
from tiltmeter.engine.engines import Engine, FailedPart
from tiltmeter.engine.parts import run_parts
from tiltmeter.errors import InputError
from tiltmeter.types import Progress

SHOWN = 5  # duplicates that are named


def fitted_rows(models: Iterable[Any]) -> FittedRows:
    """All rows that some debiased models were fitted on.

    Parameters
    ----------
    models : iterable
        Debiased models, or directories made by `tiltmeter debias`.

    Raises
    ------
    InputError
        If a directory has no debiased model.
    """
    listed = [rows for model in models if (rows := _rows_of(model)) is not None]
    return FittedRows(
        tuple(row_id for rows in listed for row_id in rows.ids),
        tuple(key for rows in listed for key in rows.keys),
        ", ".join(dict.fromkeys(rows.name for rows in listed)),
    )


def without_fitted_rows(
    data: Any, fitted: FittedRows, *, role: str = "faces", requested: bool = False
) -> Any:
    """The data without fitted rows; what was left out is recorded in its provenance.

    The same image under another id is a duplicate: it is always left out, and named. Rows with
    the same id and the same image are left out only if that was requested.

    Parameters
    ----------
    data : object
        Data of any role; those without ids are returned as they are.
    fitted : FittedRows
        Rows to leave out.
    role : str
        Role of the data, for a message.
    requested : bool
        Whether to leave out the fitted rows themselves (`--unseen`).

    Raises
    ------
    InputError
        If data has fitted rows and `requested` is false, or if no row is left.
    """
    if isinstance(data, ShardedFaces) or not hasattr(data, "ids") or not len(fitted):
        return data  # rows of shards are compared by workers
    keys = row_keys(data)
    id_of = dict(zip(fitted.keys, fitted.ids, strict=True))
    rows = set(zip(fitted.ids, fitted.keys, strict=True))
    seen = [row for row, key in enumerate(keys) if key in id_of]
    duplicates = [row for row in seen if (data.ids[row], keys[row]) not in rows]
    if len(seen) == len(data.ids):
        raise InputError(
            f"the debiaser was fitted on all {len(seen):,} rows of {data.name}, so none is left: "
            "audit on other images, or fit on a part of these (tiltmeter debias --share 0.5) and "
            "leave that part out with --unseen DIR (the debiased model)",
            value=len(seen),
        )
    if len(seen) > len(duplicates) and not requested:
        raise InputError(
            f"{len(seen):,} of the {len(data.ids):,} rows of {data.name} are among those that the "
            "debiaser was fitted on: audit on other rows, or leave these out with --unseen DIR "
            "(the debiased model)",
            value=len(seen),
        )
    if not seen and not requested:
        return data
    record = {
        "left_out": len(seen),
        "duplicates": len(duplicates),
        "first_duplicates": [f"{data.ids[row]} (the same as {id_of[keys[row]]})"
                             for row in duplicates[:SHOWN]],
    }  # fmt: skip
    provenance = {**data.provenance, "unseen": record}
    return replace(_without(data, seen, role), provenance=provenance)


def check_shards_unseen(
    faces: ShardedFaces, fitted: FittedRows, engine: Engine, progress: Progress
) -> None:
    """Raise if a debiaser was fitted on rows of a collection, or on copies of them.

    Parameters
    ----------
    faces : ShardedFaces
        The collection.
    fitted : FittedRows
        Rows, or whole shards, that a debiaser was fitted on.
    engine : Engine
        Where shards are read.
    progress : callable
        Told what is done, and the share of it.
    """
    if not len(fitted) or faces.table is None:
        return
    task = FittedTask(faces.reader, faces.columns, frozenset(fitted.keys))
    found = run_parts(engine, task, faces.table.shards, progress, "comparing rows", "shards")
    seen = sum(count for count in found if not isinstance(count, FailedPart))
    if seen:
        raise InputError(
            f"{seen:,} of the {len(faces):,} rows of {faces.name} are among those that the "
            "debiaser was fitted on, or copies of them: audit other shards",
            value=seen,
        )


def _without(data: Any, left_out: Sequence[int], role: str) -> Any:
    if not left_out:
        return data
    if not hasattr(data, "select"):
        raise InputError(
            f"{len(left_out):,} rows of {data.name} are among those that the debiaser was fitted "
            f"on, and rows of {role} cannot be left out: use other data",
            value=role,
        )
    drop = frozenset(left_out)
    return data.select([row for row in range(len(data.ids)) if row not in drop])


def _rows_of(model: Any) -> FittedRows | None:
    if isinstance(model, Debiased):
        return model.debiaser.rows_
    place = Path(str(model).removeprefix("debias:"))
    fitted = read_record(place)["fitted"]
    return None if fitted is None else FittedRows.read(place, fitted)
