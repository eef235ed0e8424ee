"""Caption choice over several models, and single cases to look at: all of it from runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tiltmeter.errors import InputError
from tiltmeter.probes.stereotype.caption_choice import KINDS
from tiltmeter.results import Run
from tiltmeter.stats.intervals import Z
from tiltmeter.stats.multiplicity import benjamini_hochberg
from tiltmeter.stats.paired import DiscordantPairs, mcnemar

AGAINST, STEREOTYPE = KINDS[1], KINDS[0]


@dataclass(frozen=True)
class ExampleCase:
    """An image, its captions and what a model makes of them (the paper's Figure 3)."""

    model: str
    id: str
    groups: dict[str, str]  # category, target, and which caption the image shows
    captions: dict[str, str]  # by kind
    probabilities: dict[str, float]
    pick: str

    @property
    def stereotyped(self) -> bool:
        """Whether the stereotype was picked although the image goes against it."""
        return self.groups.get("picture") == AGAINST and self.pick == STEREOTYPE

    def __str__(self) -> str:
        shown = self.groups.get("picture", "unlabelled")
        lines = [f"{self.id} ({', '.join(self.groups.values())}): {self.model} picks {self.pick}"]
        lines += [
            f"  {self.probabilities[kind]:.3f}  {text}{'  <- the picture' * (kind == shown)}"
            for kind, text in self.captions.items()
        ]
        return "\n".join(lines)


def cases(run: Run, reading: str, *, stereotyped: bool = True) -> list[ExampleCase]:
    """Single cases of a run, the surest stereotypes first.

    `reading` is an experiment of the run, such as `matching` or `cosine, white picture`. By default
    only images that go against the stereotype and for which it was picked.
    """
    by_id: dict[str, list[dict[str, Any]]] = {}
    for row in _instances(run):
        if row["experiment"] == reading and row["concept"] in KINDS:
            by_id.setdefault(row["id"], []).append(row)
    if not by_id:
        known = sorted({row["experiment"] for row in _instances(run) if row["concept"] in KINDS})
        raise InputError(
            f"the run has no cases of {reading!r}; it has {', '.join(known) or 'none'}"
        )
    found = [
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
        found = [case for case in found if case.stereotyped]
    return sorted(found, key=lambda case: (-case.probabilities[STEREOTYPE], case.id))


class ModelComparison(NamedTuple):
    """Two models on the same images against the stereotype."""

    category: str | None  # None: all
    n: int
    tied: int  # left out: one of the two picked several captions alike
    test: DiscordantPairs  # yes: the stereotype was picked; difference: second - first
    p_bh: float


def compare_choices(
    first: Run, second: Run, reading: str, other: str | None = None
) -> list[ModelComparison]:
    """McNemar's test whether two models pick the stereotype equally often, by category.

    Only images that both runs have. `other` is the reading of the second run, if it is another.
    """
    one, two = (
        {case.id: case for case in cases(run, way, stereotyped=False)}
        for run, way in ((first, reading), (second, other or reading))
    )
    both = [
        (one[name], two[name])
        for name in one
        if name in two and one[name].groups.get("picture") == AGAINST
    ]
    if not both:
        raise InputError("the two runs share no picture that goes against the stereotype")
    if any(a.captions != b.captions for a, b in both):
        raise InputError("the two runs were asked different captions: they are not the same data")
    names = sorted({a.groups["category"] for a, _ in both})
    found = []
    for category in (None, *names):
        some = [pair for pair in both if category in (None, pair[0].groups["category"])]
        clear = [pair for pair in some if all(case.pick in KINDS for case in pair)]
        if clear:
            picked = np.array([[case.stereotyped for case in pair] for pair in clear])
            found.append((category, len(some), len(some) - len(clear), mcnemar(*picked.T)))
    q = benjamini_hochberg(np.array([row[3].p for row in found]))
    return [ModelComparison(*row, p_bh=float(x)) for row, x in zip(found, q, strict=True)]


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
    """The correlation of vlrs with vlbs over models: does who sees more also stereotype more?

    Each run, and each reading of it, is a model; `reading` takes one of them.
    """
    points = [point for run in runs for point in _points(run, reading)]
    return correlated(
        tuple(name for name, _, _ in points),
        np.array([x for _, x, _ in points]),
        np.array([y for _, _, y in points]),
    )


def correlated(models: Sequence[str], x: Any, y: Any) -> ModelCorrelation:
    """Pearson's and Spearman's correlation of two figures over models.

    >>> correlated("abc", [1, 2, 3], [2, 4, 7]).pearson.__round__(3)
    0.993
    """
    from itertools import permutations
    from math import factorial

    from scipy.stats import pearsonr, spearmanr

    x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    if len(x) < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        raise InputError(
            f"a correlation over models takes at least 3 whose figures differ; got {len(x)}"
        )
    r = float(pearsonr(x, y).statistic)
    if factorial(len(x)) <= 50_000:
        orders = np.array(list(permutations(range(len(x)))))
        drawn = (y[orders] - y.mean()) @ (x - x.mean()) / (len(x) * x.std() * y.std())
        p = float((np.abs(drawn) >= abs(r) - 1e-9).mean())
    else:
        p = float(pearsonr(x, y).pvalue)
    half = Z / np.sqrt(len(x) - 3) if len(x) > 3 else np.nan
    with np.errstate(divide="ignore"):
        low, high = np.tanh(np.arctanh(r) - half), np.tanh(np.arctanh(r) + half)
    return ModelCorrelation(
        tuple(models), tuple(x.tolist()), tuple(y.tolist()), r, float(low), float(high), p,
        float(spearmanr(x, y).statistic),
    )  # fmt: skip


def _points(run: Run, reading: str | None) -> Iterator[tuple[str, float, float]]:
    rows = run.where(probe="stereotype", metric="vlrs", category=None)
    for row in rows:
        where = row["experiment"]
        if "picture" in where or row["value"] is None or reading not in (None, where):
            continue
        [bias] = run.where(probe="stereotype", metric="vlbs", category=None, experiment=where)
        if bias["value"] is not None:
            yield f"{row['model']} ({where})", row["value"], bias["value"]


def _instances(run: Run) -> list[dict[str, Any]]:
    if "stereotype" not in run.instances:
        raise InputError("the run has no cases of caption choice: audit with --probe stereotype")
    found: list[dict[str, Any]] = run.instances["stereotype"].to_pylist()
    return found
