"""Several models, several datasets, one run: what they share, and how far they spread.

Beside the rows of every single audit there are rows of the whole panel (probe `panel`): how much a
measure spreads over models, datasets and wordings (Berg et al. 2022, Figure 4); the rank of each
model with an interval over words; and for each association whether all models lean the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tiltmeter.errors import InputError
from tiltmeter.judge.across_models import over_models
from tiltmeter.metrics.convention import same_convention
from tiltmeter.results import Run, combined, over_templates, rows
from tiltmeter.stats.placebo import ESTABLISHED, NOT_ESTABLISHED
from tiltmeter.types import Floats

DRAWS = 500  # of words, for the intervals of ranks
LEANING = "share of models that lean up"  # the experiment
#: What tells one measure from another, whoever was measured on whatever.
MEASURE = ("metric", "attribute", "group", "k")

Row = dict[str, Any]


def panel(runs: Sequence[Run], *, seed: int = 0) -> Run:
    """One run of several, with the rows that only several can give."""
    if len(runs) < 2:
        raise InputError(f"a panel takes at least two runs; got {len(runs)}")
    names = [name for run in runs for name in run.conventions]
    constants = {
        "probe": "panel",
        "convention": same_convention(names) if names else None,
        "seed": seed,
    }
    single = combined([run.table for run in runs])
    words, wordings = over_templates(
        row
        for row in single.to_pylist()
        if row["probe"] == "ranking" and row["concept"] and row["value"] is not None
    )
    tables = [
        single,
        *_spreads("models", _values(words, "model"), constants),
        *_spreads("data sets", _values(words, "dataset"), constants),
        *_spreads("wordings", _values(wordings, "template"), constants),
        *_ranks(words, np.random.default_rng(seed), constants),
        *_signs(words, constants),
        *over_models(runs, constants, seed),
    ]
    instances = {
        name: pa.concat_tables([run.instances[name] for run in runs if name in run.instances])
        for name in dict.fromkeys(name for run in runs for name in run.instances)
    }
    meta = {**runs[0].meta, "panel": [run.meta for run in runs]}
    failed = {
        f"{probe} of {run.meta['model']['name']}": why
        for run in runs
        for probe, why in run.meta.get("failed", {}).items()
    }
    if failed:
        meta["failed"] = failed
    counts = [run.vectors["counts"] for run in runs if "counts" in run.vectors]
    kept = {"counts": pa.concat_tables(counts)} if len(counts) == len(runs) else {}
    return Run(combined(tables), meta, instances, kept)


def _measure(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in MEASURE)


def _values(listed: list[Row], part: str) -> dict[tuple[Any, ...], dict[str, list[float]]]:
    """Values by measure, and within it by model, dataset or template."""
    found: dict[tuple[Any, ...], dict[str, list[float]]] = {}
    for row in listed:
        found.setdefault(_measure(row), {}).setdefault(row[part], []).append(row["value"])
    return found


def _spreads(
    what: str, values: dict[tuple[Any, ...], dict[str, list[float]]], constants: dict[str, Any]
) -> list[pa.Table]:
    """Standard deviation of the mean over words, from model to model, and so on."""
    tables = []
    for measure, by in values.items():
        if len(by) > 1:
            means = [float(np.mean(some)) for some in by.values()]
            tables.append(
                rows(
                    1,
                    **constants,
                    **dict(zip(MEASURE, measure, strict=True)),
                    experiment=f"spread over {what}",
                    value=float(np.std(means, ddof=1)),
                    ci_low=min(means),
                    ci_high=max(means),
                    ci_method="smallest and largest mean over words",
                    n=len(means),
                )
            )
    return tables


def _ranks(
    listed: list[Row], rng: np.random.Generator, constants: dict[str, Any]
) -> list[pa.Table]:
    """The rank of each model, 1 the nearest to the ideal; words drawn again give the interval."""
    distances: dict[tuple[Any, ...], dict[str, dict[tuple[str, str], float]]] = {}
    for row in listed:
        if row["group"] is None:
            words = distances.setdefault(_measure(row), {}).setdefault(row["model"], {})
            key = (row["dataset"], f"{row['category']}/{row['concept']}")
            words[key] = abs(row["value"] - (row["ideal"] or 0.0))
    tables = []
    for measure, by in distances.items():
        shared = sorted(set.intersection(*(set(words) for words in by.values())))
        if len(by) < 2 or len(shared) < 2:
            continue
        matrix = np.array([[words[key] for key in shared] for words in by.values()])
        drawn = rng.integers(0, len(shared), (DRAWS, len(shared)))
        again = np.stack([_order(matrix[:, some].mean(axis=1)) for some in drawn])
        low, high = np.percentile(again, [2.5, 97.5], axis=0, method="inverted_cdf")
        tables.append(
            rows(
                len(by),
                **{**constants, **dict(zip(MEASURE, measure, strict=True))},
                model=list(by),
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
    """Ranks from 1; equal ones share the mean of theirs."""
    below = (means[:, None] > means).sum(axis=1)
    same = (means[:, None] == means).sum(axis=1)
    return np.asarray(below + (same + 1) / 2)


def _signs(listed: list[Row], constants: dict[str, Any]) -> list[pa.Table]:
    """Associations that every model has: the share that leans up, and a verdict over all."""
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in listed:
        if row["metric"] == "c_asc":
            key = (row["dataset"], row["attribute"], row["group"], row["concept"],
                   row["category"], row["template"])  # fmt: skip
            found.setdefault(key, []).append(row)
    whole = {key: of for key, of in found.items() if len({row["model"] for row in of}) > 1}
    if not whole:
        return []
    names = ("dataset", "attribute", "group", "concept", "category", "template")
    up = [float(np.mean([row["value"] > 0 for row in of])) for of in whole.values()]
    agreed = [
        ESTABLISHED
        if share in (0.0, 1.0) and all(row["verdict"] == ESTABLISHED for row in of)
        else NOT_ESTABLISHED
        for share, of in zip(up, whole.values(), strict=True)
    ]
    columns = {name: [key[at] for key in whole] for at, name in enumerate(names)}
    table = rows(
        len(whole),
        **constants,
        **columns,
        metric="c_asc",
        experiment=LEANING,
        value=up,
        verdict=agreed,
        n=[len(of) for of in whole.values()],
    )
    return [table]
