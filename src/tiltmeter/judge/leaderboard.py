"""Many models, one table: only runs of the same images, words, convention and checked scale.

Models are ranked by each measure, never by a mean of different measures. A rank has an interval:
a model is placed before another only if their 95% intervals do not overlap.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tiltmeter.errors import ConventionError, InputError
from tiltmeter.judge.gate.utility import METRICS as UTILITY_METRICS
from tiltmeter.metrics.convention import same_convention
from tiltmeter.results import Run, label_hash
from tiltmeter.results.views import VIEWS

BIAS, HARMS, UTILITY = "bias", "harms", "utility"
#: The recall that is shown, of those that the runs have: the nearest k.
RECALL = 10
CONTRASTIVE = "contrastive"  # lift by cosines: it is in nats only if the scale is right

Row = dict[str, Any]


@dataclass(frozen=True)
class Standing:
    """One model by one measure. Ranks are from 1; `first` to `last` are those that it may have."""

    model: str
    value: float | None
    low: float | None
    high: float | None
    verdict: str | None
    n: int | None
    rank: float | None = None
    first: int | None = None
    last: int | None = None


@dataclass(frozen=True)
class Measure:
    """What models are ranked by.

    Attributes
    ----------
    question : str
        `bias`, `harms` or `utility`.
    name : str
        What is measured: an attribute and its class of words, a harmful category, or a task.
    standings : list of Standing
        One per model, in the order of the board.
    """

    question: str
    name: str
    standings: list[Standing]

    @property
    def tied(self) -> bool:
        """Whether no model can be placed before another."""
        return len({(one.first, one.last) for one in self.standings}) == 1


@dataclass(frozen=True)
class Leaderboard:
    """Comparable runs, ranked by each measure.

    Attributes
    ----------
    measures : list of Measure
        Bias first, then harms and utility.
    models : list of str
        From the smallest mean rank by bias up; the order within a tie means nothing.
    basis : mapping
        What the runs share: data, images, words, convention, scale.
    refused : mapping
        Runs that were left out, with the reason.
    """

    measures: list[Measure]
    models: list[str]
    basis: Mapping[str, Any]
    refused: Mapping[str, str] = field(default_factory=dict)

    def of(self, question: str) -> list[Measure]:
        """The measures of one question."""
        return [one for one in self.measures if one.question == question]

    @property
    def table(self) -> pa.Table:
        """One row per measure and model."""
        return pa.Table.from_pylist(
            [
                {"question": measure.question, "measure": measure.name, "model": one.model,
                 "value": one.value, "ci_low": one.low, "ci_high": one.high,
                 "verdict": one.verdict, "n": one.n, "rank": one.rank, "rank_first": one.first,
                 "rank_last": one.last}
                for measure in self.measures
                for one in measure.standings
            ]
        )  # fmt: skip

    def _repr_html_(self) -> str:
        return str(VIEWS["leaderboard_html"](self))


def leaderboard(
    runs: Sequence[Run | str | os.PathLike[str]], *, skip_incomparable: bool = False
) -> Leaderboard:
    """Rank models by bias, harms and utility, with intervals of values and ranks.

    Bias is the size of the lift of words by attribute; harms are gaps between the groups' rates of
    harmful classes; utility is accuracy and recall. Lift by cosines depends on the model's scale:
    runs must have fitted it on the same captions (`--data captions=SPEC`), or be of models of the
    testbed, whose scale was trained in the same world.

    Parameters
    ----------
    runs : sequence of Run or path
        Audits of different models on the same images and words, under one convention.
    skip_incomparable : bool
        Leave out runs that cannot be compared with the first, instead of an error; they are in
        `refused`.

    Returns
    -------
    Leaderboard

    Raises
    ------
    InputError
        There are fewer than two runs, two have one name, or one cannot be compared with the first.

    Examples
    --------
    >>> from tiltmeter.results import Run, rows
    >>> same = {"probe": "lift", "metric": "lift_size", "experiment": "masked: noun", "n": 500,
    ...         "attribute": "gender", "convention": "tiltmeter"}
    >>> runs = [Run(rows(1, **same, value=size, ci_low=size - 0.1, ci_high=size + 0.1),
    ...             {"model": {"name": name}, "data": {"faces": {"labels": "1f3a"}}})
    ...         for name, size in (("one", 0.5), ("two", 0.1))]
    >>> board = leaderboard(runs)
    >>> board.models, [one.first for one in board.measures[0].standings]
    (['two', 'one'], [1, 2])
    """
    loaded = _named(runs)
    if len(loaded) < 2:
        raise InputError(
            f"a leaderboard needs at least two runs; got {len(loaded)}", value=len(runs)
        )
    first, *others = loaded
    refused = {name: why for name in others if (why := _reason(loaded[first], loaded[name]))}
    if refused and not skip_incomparable:
        reasons = "; ".join(f"{name}: {why}" for name, why in refused.items())
        raise InputError(
            f"not comparable with {first}: {reasons} (--skip leaves them out)",
            value=list(refused),
        )
    kept = {name: run for name, run in loaded.items() if name not in refused}
    if len(kept) < 2:
        reasons = "; ".join(f"{name}: {why}" for name, why in refused.items())
        raise InputError(f"no run can be compared with {first}: {reasons}", value=list(refused))
    measures = [_ranked(question, name, standings)
                for question in (BIAS, HARMS, UTILITY)
                for name, standings in _measured(question, kept)]  # fmt: skip
    unharmed = [one.name for one in measures if one.question == HARMS and not _any_value(one)]
    measures = [one for one in measures if one.name not in unharmed]
    if not any(measure.question == BIAS for measure in measures):
        raise InputError("the runs share no size of lift: audit them with --probe lift")
    order = sorted(kept, key=lambda name: _mean_rank(measures, name))  # stable: ties as given
    placed = [Measure(one.question, one.name, sorted(one.standings, key=lambda standing:
                      order.index(standing.model))) for one in measures]  # fmt: skip
    basis = _basis(loaded[first])
    if unharmed:
        basis["no gap in any model"] = ", ".join(unharmed)
    return Leaderboard(placed, order, basis, refused)


def _named(runs: Sequence[Run | str | os.PathLike[str]]) -> dict[str, Run]:
    """Runs by the name of their model; runs of one name by their directories as well."""
    pairs = [(one, Run.of(one)) for one in runs]
    names = [str(run.meta.get("model", {}).get("name") or f"run {at}")
             for at, (_, run) in enumerate(pairs, start=1)]  # fmt: skip
    counts = Counter(names)
    found: dict[str, Run] = {}
    for name, (given, run) in zip(names, pairs, strict=True):
        if counts[name] > 1 and not isinstance(given, Run):
            name = f"{name} ({Path(given).name})"
        if name in found:
            raise InputError(
                f"two runs are named {name!r}: audit with --name, or run.renamed(...)", value=name
            )
        found[name] = run
    return found


def _reason(first: Run, other: Run) -> str | None:
    """Why a run cannot be compared with the first one, and what to do."""
    if not _same_data(first, other):
        return "other images or labels: audit both on the same --images (and --limit)"
    if first.meta.get("prompts", {}).get("hash") != other.meta.get("prompts", {}).get("hash"):
        return "other words or templates: audit both with the same --words"
    try:
        same_convention([*first.conventions, *other.conventions])
    except ConventionError as error:
        return str(error)
    if _scale(first)[0] != _scale(other)[0] or _scale(other)[0] is None:
        return (
            "its scale was not checked on the same captions, so sizes of lift mean different "
            "things: audit both with the same --data captions=SPEC"
        )
    return None


def _same_data(first: Run, other: Run) -> bool:
    """Whether images and labels are the same, by everything that both runs know of them."""
    one, two = _data(first), _data(other)
    shared = [name for name in one if one[name] is not None and two.get(name) is not None]
    known = {"ids and labels", "labels", "seed"} & {*shared}  # a number of images says too little
    return bool(known) and all(one[name] == two[name] for name in shared)


def _data(run: Run) -> dict[str, Any]:
    record, kept = run.meta.get("data", {}).get("faces", {}), run.vectors.get("faces")
    found = {name: record.get(name) for name in ("images", "labels", "images_hash", "seed")}
    if kept is not None:
        names = [name for name in kept.column_names if name.startswith("label ")]
        labels = {name: kept[name].to_pylist() for name in names}
        found["ids and labels"] = label_hash(kept["id"].to_pylist(), labels)
    return found


def _scale(run: Run) -> tuple[Any, float]:
    """What the scale of lift was checked on (None: nothing), and by what lift is multiplied."""
    sizes = run.where(probe="lift", metric="lift_size")
    if sizes and not any(str(row["experiment"]).startswith(CONTRASTIVE) for row in sizes):
        return "log-probabilities", 1.0
    scale = run.meta.get("model", {}).get("logit_scale") or {}
    for row in run.where(probe="lift", metric="logit_scale", experiment="fitted"):
        if row["value"] is not None and scale.get("value"):
            return f"fitted on {row['n']} pairs of {row['dataset']}", row["value"] / scale["value"]
    if str(run.meta.get("model", {}).get("spec")).startswith("testbed:"):
        return "trained in the testbed", 1.0
    return None, 1.0


def _measured(question: str, runs: Mapping[str, Run]) -> list[tuple[str, list[Standing]]]:
    """Measures that all runs have, each with a standing per model."""
    by_run = {name: _rows(question, run) for name, run in runs.items()}
    shared = [key for key in next(iter(by_run.values()))
              if all(key in mine for mine in by_run.values())]  # fmt: skip
    return [
        (key, [_standing(name, rows[key], _factor(question, rows[key], runs[name]))
               for name, rows in by_run.items()])
        for key in shared
    ]  # fmt: skip


def _rows(question: str, run: Run) -> dict[str, Row]:
    if question == BIAS:
        rows = run.where(probe="lift", metric="lift_size")
        return {_bias_name(row): row for row in rows}
    if question == HARMS:
        rows = [row for row in run.where(probe="harms", metric="gaps")
                if row["target"] == row["category"] and row["experiment"] is None]  # fmt: skip
        return {f"{row['category']} by {row['attribute']}": row for row in rows}
    found: dict[str, Row] = {}
    for probe, metric in UTILITY_METRICS.items():
        rows = run.where(probe=probe, metric=metric, target=None)
        sizes = {row["k"] for row in rows if row["k"] is not None}
        nearest = min(sizes, key=lambda k: abs(k - RECALL)) if sizes else None
        for row in rows:
            if row["k"] == nearest:
                at = f"@{row['k']}" if metric == "recall" else ""
                of = f", {row['experiment']}" if row["experiment"] else ""
                found[f"{metric}{at} on {row['dataset']}{of}"] = row
    return found


def _bias_name(row: Row) -> str:
    """gender; gender (nouns): classes of words of a part of speech are named."""
    protocol, _, kind = str(row["experiment"] or "").rpartition(": ")
    kinds = [protocol] * (protocol not in ("", CONTRASTIVE)) + [kind] * (
        kind not in ("", "concept")
    )
    return str(row["attribute"]) + (f" ({' '.join(kinds)})" if kinds else "")


def _factor(question: str, row: Row, run: Run) -> float:
    contrastive = question == BIAS and str(row["experiment"]).startswith(CONTRASTIVE)
    return _scale(run)[1] if contrastive else 1.0


def _standing(model: str, row: Row, factor: float) -> Standing:
    value, low, high = (None if row[name] is None else factor * row[name]
                        for name in ("value", "ci_low", "ci_high"))  # fmt: skip
    return Standing(model, value, low, high, row["verdict"], row["n"])


def _ranked(question: str, name: str, standings: list[Standing]) -> Measure:
    """Ranks by value; from one more than those surely before, to those not surely behind."""
    sign = -1.0 if question == UTILITY else 1.0  # more utility, less bias
    bounds = [sorted((sign * one.low, sign * one.high))
              if one.low is not None and one.high is not None else None
              for one in standings]  # fmt: skip
    values = np.array([np.nan if one.value is None else sign * one.value for one in standings])
    ranked = []
    for at, one in enumerate(standings):
        if one.value is None:
            ranked.append(one)
            continue
        mine = bounds[at]
        before = sum(mine is not None and other is not None and other[1] < mine[0]
                     for other in bounds)  # fmt: skip
        behind = sum(mine is not None and other is not None and other[0] > mine[1]
                     for other in bounds)  # fmt: skip
        rank = 1 + float((values < values[at]).sum()) + ((values == values[at]).sum() - 1) / 2
        known = int(np.isfinite(values).sum())
        ranked.append(Standing(one.model, one.value, one.low, one.high, one.verdict, one.n, rank,
                               1 + before, known - behind))  # fmt: skip
    return Measure(question, name, ranked)


def _any_value(measure: Measure) -> bool:
    return any(one.value for one in measure.standings)


def _mean_rank(measures: Sequence[Measure], model: str) -> float:
    """Mean of the middle of the ranks that a model may have, over measures of bias."""
    middles = [
        (one.first + one.last) / 2
        for measure in measures
        for one in measure.standings
        if measure.question == BIAS and one.model == model and one.first and one.last
    ]
    return float(np.mean(middles)) if middles else np.inf


def _basis(run: Run) -> dict[str, Any]:
    record, prompts = run.meta.get("data", {}).get("faces", {}), run.meta.get("prompts", {})
    lists = [f"{one['name']} {one['version']}".strip() for one in prompts.get("lists", [])]
    return {
        "data": record.get("name"),
        "images": record.get("images"),
        "words": f"{prompts.get('concepts', 0)} ({', '.join(lists) or 'of the model'})",
        "convention": ", ".join(run.conventions),
        "scale": _scale(run)[0],
    }
