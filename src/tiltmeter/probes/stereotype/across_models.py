"""Caption choice across models, and single example cases, computed from runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tiltmeter.errors import InputError
from tiltmeter.probes.stereotype.caption_choice import KINDS
from tiltmeter.results import Run
from tiltmeter.stats.intervals import Z
from tiltmeter.stats.multiplicity import benjamini_hochberg
from tiltmeter.stats.paired import McNemarResult, mcnemar

AGAINST, STEREOTYPE = KINDS[1], KINDS[0]


@dataclass(frozen=True)
class ExampleCase:
    """One image, its captions, and a model's probabilities and pick (the paper's Figure 3)."""

    model: str
    id: str
    groups: dict[str, str]  # category, target, and which caption the image shows
    captions: dict[str, str]  # by kind
    probabilities: dict[str, float]
    pick: str

    @property
    def stereotyped(self) -> bool:
        """Whether the stereotype was picked although the image goes against it."""
        return self.groups.get("image") == AGAINST and self.pick == STEREOTYPE

    def __str__(self) -> str:
        image_kind = self.groups.get("image", "unlabelled")
        lines = [f"{self.id} ({', '.join(self.groups.values())}): {self.model} picks {self.pick}"]
        lines += [
            f"  {self.probabilities[kind]:.3f}  {text}{'  <- the image' * (kind == image_kind)}"
            for kind, text in self.captions.items()
        ]
        return "\n".join(lines)


def cases(run: Run, reading: str, *, stereotyped: bool = True) -> list[ExampleCase]:
    """Single cases of a run, sorted by the probability of the stereotype, highest first.

    Parameters
    ----------
    run : Run
        A run of the probe `stereotype`.
    reading : str
        An experiment of the run, such as `matching` or `cosine, white image`.
    stereotyped : bool
        Only images that go against the stereotype and for which it was picked.

    Returns
    -------
    list of ExampleCase

    Raises
    ------
    InputError
        If the run has no such cases.
    """
    by_id: dict[str, list[dict[str, Any]]] = {}
    for row in _instances(run):
        if row["experiment"] == reading and row["concept"] in KINDS:
            by_id.setdefault(row["id"], []).append(row)
    if not by_id:
        available = sorted(
            {row["experiment"] for row in _instances(run) if row["concept"] in KINDS}
        )
        raise InputError(
            f"the run has no cases of {reading!r}; it has {', '.join(available) or 'none'}"
        )
    examples = [
        ExampleCase(
            rows[0]["model"],
            name,
            dict(rows[0]["groups"]),
            {row["concept"]: row["template"] for row in rows},
            {row["concept"]: row["score"] for row in rows},
            rows[0]["pick"],
        )
        for name, rows in by_id.items()
    ]
    if stereotyped:
        examples = [case for case in examples if case.stereotyped]
    return sorted(examples, key=lambda case: (-case.probabilities[STEREOTYPE], case.id))


class ModelComparison(NamedTuple):
    """Two models on the same images against the stereotype."""

    category: str | None  # None: all
    n: int
    tied: int  # left out: one of the two models tied
    test: McNemarResult  # of picking the stereotype; difference: second - first
    p_bh: float


def compare_choices(
    first: Run, second: Run, reading: str, other: str | None = None
) -> list[ModelComparison]:
    """McNemar's test of whether two models pick the stereotype equally often, by category.

    Parameters
    ----------
    first, second : Run
        Runs of the probe `stereotype`; only images in both are compared.
    reading : str
        An experiment of the runs, such as `matching`.
    other : str, optional
        The experiment of the second run, if different.

    Returns
    -------
    list of ModelComparison
        Over all categories, then for each.

    Raises
    ------
    InputError
        If the runs share no suitable image, or have different captions.
    """
    first_cases, second_cases = (
        {case.id: case for case in cases(run, run_reading, stereotyped=False)}
        for run, run_reading in ((first, reading), (second, other or reading))
    )
    both = [
        (first_cases[name], second_cases[name])
        for name in first_cases
        if name in second_cases and first_cases[name].groups.get("image") == AGAINST
    ]
    if not both:
        raise InputError(
            "the two runs share no image that goes against the stereotype: use the same data"
        )
    if any(a.captions != b.captions for a, b in both):
        raise InputError("the two runs have different captions: audit both on the same data")
    names = sorted({a.groups["category"] for a, _ in both})
    tested = []
    for category in (None, *names):
        pairs = [pair for pair in both if category in (None, pair[0].groups["category"])]
        clear = [pair for pair in pairs if all(case.pick in KINDS for case in pair)]
        if clear:
            picked = np.array([[case.stereotyped for case in pair] for pair in clear])
            tested.append((category, len(pairs), len(pairs) - len(clear), mcnemar(*picked.T)))
    q = benjamini_hochberg(np.array([row[3].p for row in tested]))
    return [ModelComparison(*row, p_bh=float(x)) for row, x in zip(tested, q, strict=True)]


class ModelCorrelation(NamedTuple):
    """vlrs against vlbs over models."""

    models: tuple[str, ...]
    vlrs: tuple[float, ...]
    vlbs: tuple[float, ...]
    pearson: float
    ci_low: float  # Fisher's z; NaN below 4 models
    ci_high: float
    p: float  # two-sided, exact over all orders up to 8 models
    spearman: float


def relevance_and_bias(runs: Sequence[Run], reading: str | None = None) -> ModelCorrelation:
    """Correlation of relevance (vlrs) with bias (vlbs) over models.

    `reading` selects one reading. Without it, each model counts once, by its contrastive reading
    if it has one, else by its matching head: so the paper reads its six models.
    """
    points = [point for run in runs for point in _points(run, reading)[: None if reading else 1]]
    return correlated(
        tuple(name for name, _, _ in points),
        np.array([x for _, x, _ in points]),
        np.array([y for _, _, y in points]),
    )


def correlated(models: Sequence[str], x: Any, y: Any) -> ModelCorrelation:
    """Pearson's and Spearman's correlation of two metrics over models.

    >>> correlated("abc", [1, 2, 3], [2, 4, 7]).pearson.__round__(3)
    0.993
    """
    from itertools import permutations
    from math import factorial

    from scipy.stats import pearsonr, spearmanr

    x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    if len(x) < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        raise InputError(
            f"a correlation over models needs at least 3 models with different values; got {len(x)}"
        )
    r = float(pearsonr(x, y).statistic)
    if factorial(len(x)) <= 50_000:
        orders = np.array(list(permutations(range(len(x)))))
        permuted = (y[orders] - y.mean()) @ (x - x.mean()) / (len(x) * x.std() * y.std())
        p = float((np.abs(permuted) >= abs(r) - 1e-9).mean())
    else:
        p = float(pearsonr(x, y).pvalue)
    half = Z / np.sqrt(len(x) - 3) if len(x) > 3 else np.nan
    with np.errstate(divide="ignore"):
        low, high = np.tanh(np.arctanh(r) - half), np.tanh(np.arctanh(r) + half)
    return ModelCorrelation(
        tuple(models), tuple(x.tolist()), tuple(y.tolist()), r, float(low), float(high), p,
        float(spearmanr(x, y).statistic),
    )  # fmt: skip


def _points(run: Run, reading: str | None) -> list[tuple[str, float, float]]:
    """Model with its reading, vlrs and vlbs; cosines come first."""
    found = []
    rows = run.where(probe="stereotype", metric="vlrs", category=None)
    for row in sorted(rows, key=lambda row: str(row["experiment"])):
        experiment = row["experiment"]
        if "image" in experiment or row["value"] is None or reading not in (None, experiment):
            continue
        [bias] = run.where(probe="stereotype", metric="vlbs", category=None, experiment=experiment,
                           model=row["model"])  # fmt: skip
        if bias["value"] is not None:
            found.append((f"{row['model']} ({experiment})", row["value"], bias["value"]))
    return found


def _instances(run: Run) -> list[dict[str, Any]]:
    if "stereotype" not in run.instances:
        raise InputError("the run has no results of caption choice: audit with --probe stereotype")
    instances: list[dict[str, Any]] = run.instances["stereotype"].to_pylist()
    return instances
