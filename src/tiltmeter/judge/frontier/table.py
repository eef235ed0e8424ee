"""What a sweep found: a run like any other, with one row more for each candidate."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tiltmeter.judge.frontier.evaluation import CandidateEstimate
from tiltmeter.judge.frontier.leakage import PROBES, LeakageResult
from tiltmeter.judge.frontier.strengths import Candidate, typed
from tiltmeter.results import Run, combined, rows

Figures = Mapping[tuple[str, str], CandidateEstimate]


@dataclass(frozen=True, eq=False)
class CandidateResult:
    """One candidate: what it did on the part to choose by and on the part to report."""

    candidate: Candidate
    kind: str  # vectors, model, ranking; none for the model before
    sees_labels: bool  # whether it is told the labels of what it ranks
    seconds: float
    validation: Mapping[tuple[str, str], float]
    cost: float  # on validation: the largest loss of any utility, as a share; NaN: not known
    test: Figures
    useful: Mapping[str, CandidateEstimate] = field(default_factory=dict)
    leaks: Mapping[str, Mapping[str, LeakageResult]] = field(
        default_factory=dict
    )  # attribute -> probe
    others: Mapping[str, Figures] = field(default_factory=dict)  # other datasets

    @property
    def name(self) -> str:
        return self.candidate.name

    @property
    def test_attributes(self) -> list[str]:
        return list(dict.fromkeys(attribute for _, attribute in self.test))

    def bias(self, attribute: str) -> CandidateEstimate:
        """Mean MaxSkew over words by an attribute, on the test part."""
        return self.test["max_skew", attribute]

    @property
    def lost(self) -> float:
        """The largest loss of utility that counts, on the test part, as a share."""
        return max(
            (-one.change for one in self.useful.values() if one.note is None), default=np.nan
        )


@dataclass(frozen=True, eq=False)
class Frontier:
    """All that was tried, the front, and what was chosen: `before` is the model as it is."""

    attribute: str
    before: CandidateResult
    tried: Sequence[CandidateResult]
    loss: float  # of utility that may be given up
    meta: dict[str, Any]

    @property
    def k(self) -> int:
        return int(self.meta["convention"]["k"][0])

    def by(self, one: CandidateResult) -> float:
        """What is chosen by: mean MaxSkew of the fitted attribute, on validation."""
        return one.validation["max_skew", self.attribute]

    @property
    def front(self) -> list[CandidateResult]:
        """Candidates that no other beats in bias and in cost, on validation; fewest lost first.

        A re-ranker changes no vector: nothing is known of its cost, and it has no place here.
        """
        points = [one for one in (self.before, *self.tried) if one.kind != "ranking"]
        cost = {id(one): _known(one.cost) for one in points}
        ordered = sorted(points, key=lambda one: (cost[id(one)], self.by(one)))
        best: list[CandidateResult] = []
        for one in ordered:
            if not best or self.by(one) < self.by(best[-1]):
                best.append(one)
        return best

    @property
    def chosen(self) -> dict[str, CandidateResult]:
        """The strength of each method: least bias at under `loss`, else least cost; validation."""
        found: dict[str, CandidateResult] = {}
        for one in self.tried:
            method = one.candidate.method
            if method not in found or self._key(one) < self._key(found[method]):
                found[method] = one
        return found

    @property
    def best(self) -> CandidateResult | None:
        """The best of those that see no label of what they rank; None where all cost too much."""
        fit = [one for one in self.tried if not one.sees_labels and _known(one.cost) < self.loss]
        return min(fit, key=self.by, default=None)

    def _key(self, one: CandidateResult) -> tuple[bool, float, float]:
        too_much = _known(one.cost) >= self.loss
        return too_much, one.cost if too_much else self.by(one), self.by(one)

    def command(self, one: CandidateResult) -> str | None:
        """How to make that model: fitted on the same rows as here; None without specs."""
        told, best = self.meta["frontier"], one.candidate
        if self.meta["model"]["spec"] is None or told["images"] is None:
            return None
        options = "".join(f" --option {n}={typed(v)}" for n, v in best.settings.items())
        return (
            f"tiltmeter debias {best.method} {self.meta['model']['spec']} --images "
            f"'{told['images']}' --attribute '{self.attribute}' --share {told['shares'][0]:g} "
            f"--seed {self.meta['seed']}{options} --out DIR"
        )

    @property
    def table(self) -> pa.Table:
        """One row a candidate: figures of the test part, what was chosen, the front."""
        front, chosen = {id(one) for one in self.front}, {id(one) for one in self.chosen.values()}
        told = []
        for one in (self.before, *self.tried):
            row: dict[str, Any] = {
                "method": one.candidate.method, "strength": one.candidate.strength,
                "kind": one.kind, "sees_labels": one.sees_labels,
                "front": id(one) in front, "chosen": id(one) in chosen,
                "best": one is self.best, "validation_bias": self.by(one),
                "validation_cost": _null(one.cost),
            }  # fmt: skip
            for (metric, attribute), figure in one.test.items():
                name = f"{metric}[{attribute}]"
                row[name] = _null(figure.value)
                row |= {
                    f"{name} {part}": _null(getattr(figure, part))
                    for part in ("low", "high", "change", "change_low", "change_high")
                }
                if figure.null is not None:
                    row |= dict(
                        zip((f"{name} null_lo", f"{name} null_hi"), figure.null[1:], strict=True)
                    )
                row[f"{name} verdict"] = figure.verdict()
            for name, figure in one.useful.items():
                row |= {name: figure.value, f"{name} change": figure.change}
            for attribute, probes in one.leaks.items():
                for probe, heard in probes.items():
                    row[f"leakage_{probe}[{attribute}]"] = heard.accuracy
            told.append(row)
        names = list(dict.fromkeys(name for row in told for name in row))
        return pa.Table.from_pylist([{name: row.get(name) for name in names} for row in told])

    @property
    def run(self) -> Run:
        """All figures with their statistics, in the columns of every run."""
        found: list[dict[str, Any]] = []
        for one in (self.before, *self.tried):
            found += self._rows(one)
        names = list(dict.fromkeys(name for row in found for name in row))
        columns = {name: [row.get(name) for row in found] for name in names}
        same = {
            "probe": "frontier", "model": self.meta["model"]["name"],
            "convention": self.meta["convention"]["name"], "seed": self.meta["seed"],
        }  # fmt: skip
        table = combined([rows(len(found), **same, **columns)])
        seconds = {one.name: round(one.seconds, 3) for one in self.tried}  # no hash covers these
        meta = {**self.meta, "environment": {**self.meta["environment"], "seconds": seconds}}
        return Run(table, meta, {"frontier": self.table})

    def save(self, place: str | os.PathLike[str], *, replace: bool = False) -> Path:
        """Writes a run's directory; `instances/frontier.parquet` has one row a candidate."""
        return self.run.save(place, replace=replace)

    def _rows(self, one: CandidateResult) -> list[dict[str, Any]]:
        data = self.meta["data"]["faces"]["name"]
        found = []
        for (metric, attribute), value in one.validation.items():
            found.append(
                {
                    "split": "validation",
                    "dataset": data,
                    "experiment": one.name,
                    "metric": metric,
                    "attribute": attribute,
                    "value": value,
                    "ideal": 0.0,
                }
            )
        parts = {("test", data): one.test, **{("test", name): x for name, x in one.others.items()}}
        for (split, name), figures in parts.items():
            for (metric, attribute), figure in figures.items():
                found.append(
                    {
                        "split": split,
                        "dataset": name,
                        "experiment": one.name,
                        "metric": metric,
                        "attribute": attribute,
                        "ideal": 0.0,
                        **_columns(figure, figure.verdict()),
                    }
                )
        for name, figure in one.useful.items():
            told = _columns(figure, figure.verdict(less_is_better=False))
            found.append(
                {"split": "test", "experiment": one.name, "metric": name, "ideal": 1.0, **told}
            )
        for attribute, probes in one.leaks.items():
            for probe in PROBES:
                heard = probes[probe]
                found.append(
                    {
                        "split": "test",
                        "dataset": data,
                        "experiment": one.name,
                        "metric": f"leakage_{probe}",
                        "attribute": attribute,
                        "value": heard.accuracy,
                        "ideal": heard.majority,
                        "null_mean": heard.majority,
                        "ci_low": heard.low,
                        "ci_high": heard.high,
                        "ci_method": "Wilson",
                        "n": heard.n,
                        "verdict": "leaks" if heard.leaks else "no evidence",
                    }
                )
        return found


def _columns(figure: CandidateEstimate, verdict: str | None) -> dict[str, Any]:
    told: dict[str, Any] = {
        "value": figure.value, "k": figure.k, "ci_low": figure.low, "ci_high": figure.high,
        "ci_method": figure.ci_method, "n": figure.n, "verdict": verdict, "note": figure.note,
    }  # fmt: skip
    if figure.null is not None:
        told |= dict(zip(("null_mean", "null_lo", "null_hi"), figure.null, strict=True))
        told |= {"p": figure.p, "p_side": "greater"}
    return told


def _known(cost: float) -> float:
    """A cost that nobody measured does not keep anything from being chosen."""
    return 0.0 if np.isnan(cost) else cost


def _null(value: float) -> float | None:
    return None if value is None or np.isnan(value) else float(value)


def worse_for(
    one: CandidateResult, attributes: Iterable[str], metric: str = "max_skew"
) -> list[str]:
    """Attributes that a candidate made worse, beyond chance, on the test part."""
    return [
        name
        for name in attributes
        if (metric, name) in one.test and one.test[metric, name].verdict() == "worse"
    ]
