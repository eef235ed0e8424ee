"""Several models and datasets combined in one run.

In addition to the rows of every audit there are rows of the panel (probe `panel`): the spread of a
metric over models, datasets and wordings (Berg et al. 2022, Figure 4); the rank of each model with
an interval over words; and for each association whether all models have the same sign.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tiltmeter.errors import InputError
from tiltmeter.judge.across_models import rows_across_models
from tiltmeter.metrics.convention import same_convention
from tiltmeter.results import Run, combined, over_templates, rows
from tiltmeter.stats.placebo import BEYOND, NOT_BEYOND
from tiltmeter.types import Floats

DRAWS = 500  # bootstrap resamples of words, for the intervals of ranks
SIGN_AGREEMENT = "share of models that lean up"  # the experiment
#: Columns that identify a measure, apart from model and data.
MEASURE = ("metric", "attribute", "group", "k")

Row = dict[str, Any]


def panel(runs: Sequence[Run], *, seed: int = 0) -> Run:
    """Combine several runs into one, with rows across models and datasets.

    Parameters
    ----------
    runs : sequence of Run
        At least two, under the same convention.
    seed : int
        Seed of the bootstrap over words.

    Returns
    -------
    Run
        The rows of all runs and those of the panel; `meta["panel"]` has their records.

    Raises
    ------
    InputError
        If there are fewer than two runs.
    ConventionError
        If the runs have different conventions.
    """
    if len(runs) < 2:
        raise InputError(f"a panel needs at least two runs; got {len(runs)}")
    names = [name for run in runs for name in run.conventions]
    constants = {
        "probe": "panel",
        "convention": same_convention(names) if names else None,
        "seed": seed,
    }
    all_rows = combined([run.table for run in runs])
    words, wordings = over_templates(
        row
        for row in all_rows.to_pylist()
        if row["probe"] == "ranking" and row["concept"] and row["value"] is not None
    )
    tables = [
        all_rows,
        *_spreads("models", _values(words, "model"), constants),
        *_spreads("data sets", _values(words, "dataset"), constants),
        *_spreads("wordings", _values(wordings, "template"), constants),
        *_ranks(words, np.random.default_rng(seed), constants),
        *_signs(words, constants),
        *rows_across_models(runs, constants, seed),
    ]
    instances = {
        name: pa.concat_tables([run.instances[name] for run in runs if name in run.instances])
        for name in dict.fromkeys(name for run in runs for name in run.instances)
    }
    meta = {**runs[0].meta, "panel": [run.meta for run in runs]}
    failed = {
        f"{probe} of {run.meta['model']['name']}": reason
        for run in runs
        for probe, reason in run.meta.get("failed", {}).items()
    }
    if failed:
        meta["failed"] = failed
    counts = [run.vectors["counts"] for run in runs if "counts" in run.vectors]
    counts_table = {"counts": pa.concat_tables(counts)} if len(counts) == len(runs) else {}
    return Run(combined(tables), meta, instances, counts_table)


def _measure(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in MEASURE)


def _values(rows_listed: list[Row], part: str) -> dict[tuple[Any, ...], dict[str, list[float]]]:
    """Values by measure, and within it by the column `part` (model, dataset or template)."""
    values: dict[tuple[Any, ...], dict[str, list[float]]] = {}
    for row in rows_listed:
        values.setdefault(_measure(row), {}).setdefault(row[part], []).append(row["value"])
    return values


def _spreads(
    source: str, values: dict[tuple[Any, ...], dict[str, list[float]]], constants: dict[str, Any]
) -> list[pa.Table]:
    """Standard deviation over models, datasets or wordings of the mean over words."""
    tables = []
    for measure, by_source in values.items():
        if len(by_source) > 1:
            means = [float(np.mean(word_values)) for word_values in by_source.values()]
            tables.append(
                rows(
                    1,
                    **constants,
                    **dict(zip(MEASURE, measure, strict=True)),
                    experiment=f"spread over {source}",
                    value=float(np.std(means, ddof=1)),
                    ci_low=min(means),
                    ci_high=max(means),
                    ci_method="smallest and largest mean over words",
                    n=len(means),
                )
            )
    return tables


def _ranks(
    word_rows: list[Row], rng: np.random.Generator, constants: dict[str, Any]
) -> list[pa.Table]:
    """The rank of each model, 1 closest to the ideal; intervals by bootstrap over words."""
    distances: dict[tuple[Any, ...], dict[str, dict[tuple[str, str], float]]] = {}
    for row in word_rows:
        if row["group"] is None:
            words = distances.setdefault(_measure(row), {}).setdefault(row["model"], {})
            key = (row["dataset"], f"{row['category']}/{row['concept']}")
            words[key] = abs(row["value"] - (row["ideal"] or 0.0))
    tables = []
    for measure, by_model in distances.items():
        shared = sorted(set.intersection(*(set(words) for words in by_model.values())))
        if len(by_model) < 2 or len(shared) < 2:
            continue
        matrix = np.array([[words[key] for key in shared] for words in by_model.values()])
        resamples = rng.integers(0, len(shared), (DRAWS, len(shared)))
        resampled = np.stack(
            [_order(matrix[:, words_drawn].mean(axis=1)) for words_drawn in resamples]
        )
        low, high = np.percentile(resampled, [2.5, 97.5], axis=0, method="inverted_cdf")
        tables.append(
            rows(
                len(by_model),
                **{**constants, **dict(zip(MEASURE, measure, strict=True))},
                model=list(by_model),
                experiment="rank among models",
                value=_order(matrix.mean(axis=1)),
                ideal=1.0,
                ci_low=low,
                ci_high=high,
                ci_method="bootstrap over words",
                n=len(shared),
            )
        )
    return tables


def _order(means: Floats) -> Floats:
    """Ranks from 1; ties get their mean rank."""
    below = (means[:, None] > means).sum(axis=1)
    same = (means[:, None] == means).sum(axis=1)
    return np.asarray(below + (same + 1) / 2)


def _signs(word_rows: list[Row], constants: dict[str, Any]) -> list[pa.Table]:
    """Associations of several models: the share with a positive sign, and a joint verdict."""
    by_association: dict[tuple[Any, ...], list[Row]] = {}
    for row in word_rows:
        if row["metric"] == "c_asc":
            key = (row["dataset"], row["attribute"], row["group"], row["concept"],
                   row["category"], row["template"])  # fmt: skip
            by_association.setdefault(key, []).append(row)
    shared = {
        key: association_rows
        for key, association_rows in by_association.items()
        if len({row["model"] for row in association_rows}) > 1
    }
    if not shared:
        return []
    names = ("dataset", "attribute", "group", "concept", "category", "template")
    up = [
        float(np.mean([row["value"] > 0 for row in association_rows]))
        for association_rows in shared.values()
    ]
    verdicts = [
        BEYOND
        if share in (0.0, 1.0) and all(row["verdict"] == BEYOND for row in association_rows)
        else NOT_BEYOND
        for share, association_rows in zip(up, shared.values(), strict=True)
    ]
    columns = {name: [key[column] for key in shared] for column, name in enumerate(names)}
    table = rows(
        len(shared),
        **constants,
        **columns,
        metric="c_asc",
        experiment=SIGN_AGREEMENT,
        value=up,
        verdict=verdicts,
        n=[len(association_rows) for association_rows in shared.values()],
    )
    return [table]
