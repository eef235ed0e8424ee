"""Retrieval: how MaxSkew@k changed, over words, between two models on the same images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tiltmeter.engine.ranking.samples import samples_of
from tiltmeter.judge.gate.change_verdict import mean_change
from tiltmeter.judge.gate.run_embeddings import PairedRuns
from tiltmeter.metrics import numpy_kernels as loops
from tiltmeter.metrics.convention import Convention
from tiltmeter.metrics.ranking import max_skew_of_shares, target_shares
from tiltmeter.metrics.summary import top_weights
from tiltmeter.probes.ranking.tabulate import RowUnit, concepts
from tiltmeter.stats import kernels
from tiltmeter.stats.bootstrap import stratified_weights
from tiltmeter.types import Floats, Groups, Progress, intersect

BLOCK = 64  # prompts per block
Row = dict[str, Any]


@dataclass(eq=False)
class _Words:
    """MaxSkew@k by word, before and after, and the summed change of each bootstrap resample."""

    before: list[Floats] = field(default_factory=list)
    after: list[Floats] = field(default_factory=list)
    redrawn: Floats | float = 0.0


def retrieval_tests(
    pair: PairedRuns,
    attributes: Sequence[str],
    convention: Convention,
    *,
    bootstraps: int,
    seed: int,
    dataset: str | None = None,
    progress: Progress | None = None,
) -> tuple[list[Row], list[Row]]:
    """The change of mean MaxSkew@k by attribute; and MaxSkew@k by word.

    The error of a change is that of the words and of the images together; images are resampled
    within groups, the same for both models.
    """
    rng = np.random.default_rng(seed)
    units = concepts(pair.prompts)
    by = {name: intersect(pair.groups, name) for name in attributes}
    tests: list[Row] = []
    words: list[Row] = []
    for rows, groups in samples_of(by, pair.groups, convention, rng):
        # skip attributes with a group that is too small in the sample
        groups = {name: labels for name, labels in groups.items() if labels.counts.min() > 1}
        n = len(pair) if rows is None else len(rows)
        weights = {name: stratified_weights(of, bootstraps, rng) for name, of in groups.items()}
        found = {(name, k): _Words() for name in groups for k in convention.k if k <= n}
        for done, (block, part) in enumerate(_blocks(units)):
            if progress:
                progress("comparing rankings", BLOCK * done / len(pair.prompts))
            scores = [s if rows is None else s[:, rows] for s in pair.scores(part)]
            orders = [loops.rank(s) for s in scores]
            for (name, k), by_word in found.items():
                skew = _Skew(groups[name], k, convention, block, part.start)
                before, after = (skew.of_top(*one) for one in zip(scores, orders, strict=True))
                by_word.before.append(before)
                by_word.after.append(after)
                drawn = [skew.resampled(order, weights[name]) for order in orders]
                by_word.redrawn = by_word.redrawn + np.nansum(drawn[1] - drawn[0], axis=1)
        for (name, k), by_word in found.items():
            same: Row = {"probe": "ranking", "metric": "max_skew", "attribute": name, "k": k,
                         "dataset": dataset, "ideal": 0.0, "method": "paired", "n": n}  # fmt: skip
            before, after = np.concatenate(by_word.before), np.concatenate(by_word.after)
            known = ~np.isnan(before + after)
            if known.any():
                error = float(np.std(by_word.redrawn, ddof=1)) / known.sum()
                tests.append(same | mean_change(before[known], after[known], error))
            words += [
                {**same, "concept": unit.concept, "category": unit.category,
                 "template": unit.template, "before": a, "after": b, "difference": b - a,
                 "excess": b - a}
                for unit, a, b in zip(units, before.tolist(), after.tolist(), strict=True)
            ]  # fmt: skip
    return tests, words


@dataclass(frozen=True, eq=False)
class _Skew:
    """MaxSkew@k of the words of one block by one attribute."""

    groups: Groups
    k: int
    convention: Convention
    block: Sequence[RowUnit]
    start: int  # first prompt of the block

    def of_top(self, scores: Floats, order: Any) -> Floats:
        """By word; tied images count in part."""
        top = top_weights(scores, order, self.k, self.convention.ties)
        return self._of_counts(top @ np.eye(len(self.groups.names))[self.groups.codes])

    def resampled(self, order: Any, weights: Any) -> Floats:
        """Resamples x words."""
        groups = self.groups
        return self._of_counts(
            kernels.weighted_top_counts(order, groups.codes, weights, self.k, len(groups.names))
        )

    def _of_counts(self, counts: Floats) -> Floats:
        shares = counts / counts.sum(axis=-1, keepdims=True)
        target = target_shares(self.convention.target, self.groups)
        values = np.asarray(
            max_skew_of_shares(shares, target, k=self.k, empty=self.convention.empty,
                               skew=self.convention.skew)
        )  # fmt: skip
        by_word = [values[..., unit.prompts - self.start].mean(axis=-1) for unit in self.block]
        return np.stack(by_word, axis=-1)


def _blocks(units: Sequence[RowUnit]) -> Iterator[tuple[list[RowUnit], slice]]:
    """Words in blocks of about BLOCK consecutive prompts."""
    block: list[RowUnit] = []
    start = end = 0
    for unit in units:
        if block and end - start + len(unit.prompts) > BLOCK:
            yield block, slice(start, end)
            block, start = [], end
        block.append(unit)
        end += len(unit.prompts)
    if block:
        yield block, slice(start, end)
