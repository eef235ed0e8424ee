"""The columns of result tables, as Arrow schemas, and how rows of them are made."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from tiltmeter.errors import InputError

RESULTS = pa.schema(
    [
        ("probe", pa.string()),
        ("metric", pa.string()),
        ("model", pa.string()),
        ("dataset", pa.string()),
        ("split", pa.string()),
        ("experiment", pa.string()),  # variant of the probe: 1*-a, V/L, a softmax reading
        ("attribute", pa.string()),
        ("group", pa.string()),
        ("concept", pa.string()),
        ("target", pa.string()),  # a second concept, or a class
        ("category", pa.string()),
        ("template", pa.string()),
        ("factor", pa.string()),  # of a variance share
        ("k", pa.int64()),
        ("value", pa.float64()),  # null where undefined: `note` has the reason
        ("ideal", pa.float64()),
        ("truth", pa.float64()),  # the planted value, in the testbed
        ("published", pa.float64()),
        ("null_mean", pa.float64()),
        ("null_low", pa.float64()),
        ("null_high", pa.float64()),
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

#: Columns that identify a measurement: rows of two models with the same values are compared.
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
        ("p_fwer", pa.float64()),  # over all tests of the gate
        ("direction", pa.string()),  # better, worse, same: only the sign of the change
        ("verdict", pa.string()),  # of the gate: better, worse, no worse, cannot tell
        ("method", pa.string()),  # of the gate: paired, unpaired
        ("n", pa.int64()),
        ("convention", pa.string()),
        ("note", pa.string()),
    ]
)


def rows(count: int, schema: pa.Schema = RESULTS, /, **columns: Any) -> pa.Table:
    """Make a table of results.

    Parameters
    ----------
    count : int
        Number of rows.
    schema : pyarrow.Schema
        The columns of the table: `RESULTS` by default.
    **columns
        Values by column name: a scalar, or `count` values. NaN becomes null, and a column that
        is left out is null.

    Returns
    -------
    pyarrow.Table
        `count` rows with every column of the schema.

    Raises
    ------
    InputError
        A column is not in the schema, or a null `value` has no `note` with the reason.

    Examples
    --------
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
        raise InputError(
            f"no such columns in results: {', '.join(sorted(unknown))}; the columns are "
            f"{', '.join(schema.names)}"
        )
    arrays = []
    for column in schema:
        arrays.append(_column(columns.get(column.name), count, column.type))
    table = pa.Table.from_arrays(arrays, schema=schema)
    if count and "value" in columns:
        value, note = table["value"].combine_chunks(), table["note"].combine_chunks()
        if (value.is_null().to_numpy(False) & note.is_null().to_numpy(False)).any():
            raise InputError("a result without a value needs a note with the reason")
    return table


def _column(values: Any, count: int, kind: pa.DataType) -> pa.Array:
    if values is None or (isinstance(values, float) and math.isnan(values)):
        return pa.nulls(count, kind)
    if isinstance(values, str | int | float):
        return pa.repeat(pa.scalar(values, kind), count)
    if isinstance(values, pa.Array):
        return values
    return pa.array(values, type=kind, from_pandas=True)


def chosen(names: Sequence[str | None], positions: Any) -> pa.Array:
    """Names at some positions, without a Python string for each of millions.

    Examples
    --------
    >>> chosen(["a", None], [1, 0, 0]).to_pylist()
    [None, 'a', 'a']
    """
    return pa.array(names, pa.string()).take(pa.array(positions))


def combined(tables: Iterable[pa.Table], schema: pa.Schema = RESULTS) -> pa.Table:
    """Concatenate tables of one schema.

    Parameters
    ----------
    tables : iterable of pyarrow.Table
        Any number of them, even none.
    schema : pyarrow.Schema
        The columns of every table.

    Returns
    -------
    pyarrow.Table
        All rows, in order.

    Examples
    --------
    >>> combined([rows(2, metric="ndkl"), rows(1, metric="c_asc")])["metric"].to_pylist()
    ['ndkl', 'ndkl', 'c_asc']
    """
    return pa.concat_tables([schema.empty_table(), *tables]).combine_chunks()


def over_templates(
    results: Iterable[dict[str, Any]],
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Separate the rows of words over all templates from those of single templates.

    Parameters
    ----------
    results : iterable of dict
        Rows of a run, as `Run.where` returns them.

    Returns
    -------
    whole : list of dict
        Rows over all templates, and rows of words that have no such row or of no word at all.
    single : list of dict
        Rows of single templates, of words that have a row over all templates.

    Notes
    -----
    Rows of neutral words are left out.

    Examples
    --------
    >>> table = rows(2, concept="nurse", template=[None, "a photo of a {}"])
    >>> whole, single = over_templates(table.to_pylist())
    >>> len(whole), single[0]["template"]
    (1, 'a photo of a {}')
    """
    names = [name for name in ("model", *KEY) if name != "template"]
    keyed = [(tuple(row.get(name) for name in names), row) for row in results
             if row["category"] != PLACEBO]  # fmt: skip
    pooled = {key for key, row in keyed if row["concept"] and row["template"] is None}
    whole: list[dict[str, Any]] = []
    single: list[dict[str, Any]] = []
    for key, row in keyed:
        is_single = row["template"] is not None and key in pooled
        (single if is_single else whole).append(row)
    return whole, single
