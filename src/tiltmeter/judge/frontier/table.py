"""Results of a sweep: a table of candidates, which also saves as a run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tiltmeter.judge.frontier.evaluation import CandidateEstimate
from tiltmeter.judge.frontier.gated import worse_answers
from tiltmeter.judge.frontier.leakage import PROBES, LeakageResult
from tiltmeter.judge.frontier.strengths import Candidate, typed
from tiltmeter.judge.gate.association import METRIC as LIFT
from tiltmeter.results import COMPARISON, PLACEBO, Run, combined, rows
from tiltmeter.results.views import VIEWS

Estimates = Mapping[tuple[str, str], CandidateEstimate]


@dataclass(frozen=True, eq=False)
class CandidateResult:
    """Results of one candidate on the validation and test splits."""

    candidate: Candidate
    kind: str  # vectors, model or ranking; none for the original model
    sees_labels: bool  # whether it uses the labels of the images that it ranks
    seconds: float
    validation: Mapping[tuple[str, str], float]
    validation_cost: float  # the largest loss of any utility, as a share; NaN: unknown
    test: Estimates
    utility: Mapping[str, CandidateEstimate] = field(default_factory=dict)
    leakage: Mapping[str, Mapping[str, LeakageResult]] = field(
        default_factory=dict
    )  # attribute -> probe
    others: Mapping[str, Estimates] = field(default_factory=dict)  # other datasets
    #: The questions of `compare`, against the original model: on validation, and on test.
    gates: tuple[pa.Table, pa.Table] = (COMPARISON.empty_table(), COMPARISON.empty_table())

    @property
    def name(self) -> str:
        return self.candidate.name

    @property
    def test_attributes(self) -> list[str]:
        return list(dict.fromkeys(attribute for _, attribute in self.test))

    def bias(self, attribute: str) -> CandidateEstimate:
        """Mean MaxSkew over words by an attribute, on the test split."""
        return self.test["max_skew", attribute]

    @property
    def worse(self) -> list[str]:
        """What `compare` calls worse on the test split, such as `retrieval by hue`."""
        return worse_answers(self.gates[1])

    def lift(self, attribute: str, part: int = 1) -> float | None:
        """Mean |lift| over words by an attribute, in nats; `part` 0 is validation, 1 is test.

        None without a scale, and for re-rankers, which change no score.
        """
        return next((row["after"] for row in self.gates[part].to_pylist()
                     if (row["metric"], row["attribute"], row["category"])
                     == (LIFT, attribute, None)), None)  # fmt: skip

    def verdict(self, metric: str, attribute: str | None) -> str | None:
        """Verdict of `compare` on the test split, of a measure over all words."""
        same = {"metric": metric, "attribute": attribute, "category": None}
        rows = (row for row in self.gates[1].to_pylist()
                if all(row[name] == value for name, value in same.items()))  # fmt: skip
        return next((row["verdict"] for row in rows), None)

    @property
    def utility_cost(self) -> float:
        """Utility cost on the test split: the largest loss of any utility that counts, a share."""
        return max(
            (-estimate.change for estimate in self.utility.values() if estimate.note is None),
            default=np.nan,
        )


@dataclass(frozen=True, eq=False)
class Frontier:
    """All candidates, the Pareto front, and the chosen strengths.

    Attributes
    ----------
    attribute : str
        The attribute that the methods were fitted on.
    before : CandidateResult
        The original model.
    candidates : sequence of CandidateResult
        All candidates.
    max_cost : float
        Largest acceptable loss of utility, as a share.
    meta : dict
        The record of the run.
    """

    attribute: str
    before: CandidateResult
    candidates: Sequence[CandidateResult]
    max_cost: float
    meta: dict[str, Any]

    def _repr_html_(self) -> str:
        return str(VIEWS["frontier_html"](self))

    @property
    def k(self) -> int:
        return int(self.meta["convention"]["k"][0])

    def validation_bias(self, result: CandidateResult) -> float:
        """The criterion of choice: mean |lift| by the fitted attribute, on validation.

        Mean MaxSkew where the model states no scale, so that there is no lift.
        """
        return self._bias(result)[0]

    def _bias(self, result: CandidateResult) -> tuple[float, float]:
        """The criterion, and MaxSkew for those that are equal in it."""
        skew = result.validation["max_skew", self.attribute]
        before, own = (one.lift(self.attribute, 0) for one in (self.before, result))
        if before is None:
            return skew, skew
        return before if own is None else own, skew  # re-rankers leave lift as it was

    @property
    def front(self) -> list[CandidateResult]:
        """Pareto front of bias and utility cost on validation, lowest cost first.

        Re-rankers are not included: they change no embedding, so their cost is unknown.
        """
        points = [result for result in (self.before, *self.candidates) if result.kind != "ranking"]
        cost = {id(result): _cost_or_zero(result.validation_cost) for result in points}
        ordered = sorted(points, key=lambda result: (cost[id(result)], *self._bias(result)))
        best: list[CandidateResult] = []
        for result in ordered:
            if not best or self.validation_bias(result) < self.validation_bias(best[-1]):
                best.append(result)
        return best

    @property
    def chosen(self) -> dict[str, CandidateResult]:
        """The chosen strength of each method, by validation.

        It is the least biased one with a cost under `max_cost`, otherwise the cheapest.
        """
        by_method: dict[str, CandidateResult] = {}
        for result in self.candidates:
            method = result.candidate.method
            if method not in by_method or self._key(result) < self._key(by_method[method]):
                by_method[method] = result
        return by_method

    @property
    def best(self) -> CandidateResult | None:
        """The least biased candidate that `compare` does not call worse; None if there is none.

        By validation, among those that need no labels at ranking and cost less than `max_cost`.
        What `compare` calls worse on either split is never recommended.
        """
        passing = [
            result for result in self.affordable if not any(map(worse_answers, result.gates))
        ]
        return min(passing, key=self._bias, default=None)

    @property
    def affordable(self) -> list[CandidateResult]:
        """Candidates without labels at ranking that cost less than `max_cost`, on validation."""
        return [
            result
            for result in self.candidates
            if not result.sees_labels and _cost_or_zero(result.validation_cost) < self.max_cost
        ]

    def _key(self, result: CandidateResult) -> tuple[bool, float, float, float]:
        too_much = _cost_or_zero(result.validation_cost) >= self.max_cost
        return (too_much, result.validation_cost if too_much else 0.0, *self._bias(result))

    def command(self, result: CandidateResult) -> str | None:
        """Command that makes this model, fitted on the same rows; None without specs."""
        record, candidate = self.meta["frontier"], result.candidate
        if self.meta["model"]["spec"] is None or record["images"] is None:
            return None
        options = "".join(f" --option {n}={typed(v)}" for n, v in candidate.settings.items())
        return (
            f"tiltmeter debias {candidate.method} {self.meta['model']['spec']} --images "
            f"'{record['images']}' --attribute '{self.attribute}' --share {record['shares'][0]:g} "
            f"--seed {self.meta['seed']}{options} --out DIR"
        )

    @property
    def table(self) -> pa.Table:
        """One row per candidate: test estimates, and whether it is chosen or on the front."""
        front, chosen = (
            {id(result) for result in self.front},
            {id(result) for result in self.chosen.values()},
        )
        table_rows = []
        for result in (self.before, *self.candidates):
            row: dict[str, Any] = {
                "method": result.candidate.method, "strength": result.candidate.strength,
                "kind": result.kind, "sees_labels": result.sees_labels,
                "front": id(result) in front, "chosen": id(result) in chosen,
                "best": result is self.best, "validation_bias": self.validation_bias(result),
                "validation_cost": _null(result.validation_cost),
            }  # fmt: skip
            for (metric, attribute), estimate in result.test.items():
                name = f"{metric}[{attribute}]"
                row[name] = _null(estimate.value)
                row |= {
                    f"{name} {part}": _null(getattr(estimate, part))
                    for part in ("low", "high", "change", "change_low", "change_high")
                }
                if estimate.null is not None:
                    row |= dict(
                        zip(
                            (f"{name} null_low", f"{name} null_high"),
                            estimate.null[1:],
                            strict=True,
                        )
                    )
                row[f"{name} verdict"] = result.verdict(metric, attribute)
            for test in result.gates[1].filter(pc.field("probe") == "lift").to_pylist():
                name = f"{test['metric']}[{_of_lift(test)}]"
                row |= {name: test["after"], f"{name} verdict": test["verdict"]}
            row["worse"] = result.worse
            for name, estimate in result.utility.items():
                row |= {name: estimate.value, f"{name} change": estimate.change}
            for attribute, probes in result.leakage.items():
                for probe, leak in probes.items():
                    row[f"leakage_{probe}[{attribute}]"] = leak.accuracy
            table_rows.append(row)
        names = list(dict.fromkeys(name for row in table_rows for name in row))
        return pa.Table.from_pylist([{name: row.get(name) for name in names} for row in table_rows])

    @property
    def run(self) -> Run:
        """All estimates with their statistics, as a run."""
        result_rows: list[dict[str, Any]] = []
        for result in (self.before, *self.candidates):
            result_rows += self._rows(result)
        names = list(dict.fromkeys(name for row in result_rows for name in row))
        columns = {name: [row.get(name) for row in result_rows] for name in names}
        constants = {
            "probe": "frontier", "model": self.meta["model"]["name"],
            "convention": self.meta["convention"]["name"], "seed": self.meta["seed"],
        }  # fmt: skip
        table = combined([rows(len(result_rows), **constants, **columns)])
        # seconds are not hashed
        seconds = {result.name: round(result.seconds, 3) for result in self.candidates}
        meta = {**self.meta, "environment": {**self.meta["environment"], "seconds": seconds}}
        return Run(table, meta, {"frontier": self.table})

    def save(self, place: str | os.PathLike[str], *, replace: bool = False) -> Path:
        """Write a run's directory; `instances/frontier.parquet` has one row per candidate."""
        return self.run.save(place, replace=replace)

    def _rows(self, result: CandidateResult) -> list[dict[str, Any]]:
        data = self.meta["data"]["faces"]["name"]
        result_rows: list[dict[str, Any]] = [
            {"split": "validation", "dataset": data, "metric": metric, "attribute": attribute,
             "value": value, "ideal": 0.0}
            for (metric, attribute), value in result.validation.items()
        ]  # fmt: skip
        for name, estimates in {data: result.test, **result.others}.items():
            result_rows += [
                {"split": "test", "dataset": name, "metric": metric, "attribute": attribute,
                 "ideal": 0.0,
                 **_columns(estimate, result.verdict(metric, attribute) if name == data else None)}
                for (metric, attribute), estimate in estimates.items()
            ]  # fmt: skip
        asked = pc.field("probe").isin(["lift", "harms"])
        for test in result.gates[1].filter(asked).to_pylist():
            columns = ("metric", "attribute", "category", "target", "verdict")
            same = {name: test[name] for name in columns}
            result_rows.append({"split": "test", "dataset": data, "value": test["after"],
                                "ideal": 0.0, "n": test["n"], **same})  # fmt: skip
        judged = {test["experiment"]: test["verdict"] for test in result.gates[1].to_pylist()}
        for name, estimate in result.utility.items():
            statistics = _columns(estimate, judged.get(name))
            result_rows.append({"split": "test", "metric": name, "ideal": 1.0, **statistics})
        for attribute, probes in result.leakage.items():
            for probe in PROBES:
                labels = {"split": "test", "dataset": data, "attribute": attribute}
                result_rows.append(
                    {**labels, "metric": f"leakage_{probe}", **_leak_columns(probes[probe])}
                )
        return [{**row, "experiment": result.name} for row in result_rows]


def _leak_columns(leak: LeakageResult) -> dict[str, Any]:
    return {
        "value": leak.accuracy,
        "ideal": leak.majority,
        "null_mean": leak.majority,
        "ci_low": leak.low,
        "ci_high": leak.high,
        "ci_method": "Wilson",
        "n": leak.n,
        "verdict": "leaks" if leak.leaks else "cannot tell",
    }


def _columns(estimate: CandidateEstimate, verdict: str | None) -> dict[str, Any]:
    columns: dict[str, Any] = {
        "value": estimate.value, "k": estimate.k, "ci_low": estimate.low, "ci_high": estimate.high,
        "ci_method": estimate.ci_method, "n": estimate.n, "verdict": verdict, "note": estimate.note,
    }  # fmt: skip
    if estimate.null is not None:
        columns |= dict(zip(("null_mean", "null_low", "null_high"), estimate.null, strict=True))
        columns |= {"p": estimate.p, "p_side": "greater"}
    return columns


def _cost_or_zero(cost: float) -> float:
    """The cost, 0 if unknown: an unmeasured cost does not exclude a candidate."""
    return 0.0 if np.isnan(cost) else cost


def _null(value: float) -> float | None:
    return None if value is None or np.isnan(value) else float(value)


def _of_lift(test: Mapping[str, Any]) -> str:
    neutral = ", neutral words" if test["category"] == PLACEBO else ""
    return f"{test['attribute']}{neutral}"
