"""Retrieval: how the top k of words changed between two models on the same images.

MaxSkew@k decides; normalised entropy (So-B-IT) is tested by category too, and decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from tiltmeter.engine.ranking.samples import samples_of
from tiltmeter.judge.gate.change_verdict import mean_change
from tiltmeter.judge.gate.run_embeddings import PairedRuns
from tiltmeter.metrics import numpy_kernels as loops
from tiltmeter.metrics.convention import Convention
from tiltmeter.metrics.ranking import entropy_of_shares, max_skew_of_shares, target_shares
from tiltmeter.metrics.summary import top_weights
from tiltmeter.probes.ranking.levels import RowUnit, concepts
from tiltmeter.stats import kernels
from tiltmeter.stats.bootstrap import bootstrap_weights_within_groups
from tiltmeter.types import Floats, Groups, Progress, intersect

BLOCK = 64  # prompts per block
Row = dict[str, Any]


class RetrievalTests(NamedTuple):
    """Tests of MaxSkew@k by attribute, MaxSkew@k by word, and tests of entropy by category."""

    tests: list[Row]
    words: list[Row]
    entropy: list[Row]


@dataclass(eq=False)
class _Words:
    """MaxSkew@k and entropy by word (2 x words), before and after; summed changes of resamples."""

    before: list[Floats] = field(default_factory=list)
    after: list[Floats] = field(default_factory=list)
    redrawn: Floats | float = 0.0  # 2 x resamples x sets of words


def retrieval_tests(
    pair: PairedRuns,
    attributes: Sequence[str],
    convention: Convention,
    *,
    bootstraps: int,
    seed: int,
    dataset: str | None = None,
    progress: Progress | None = None,
) -> RetrievalTests:
    """The change of mean MaxSkew@k and of mean entropy by attribute; and MaxSkew@k by word.

    The error of a change is that of the words and of the images together; images are resampled
    within groups, the same for both models.
    """
    rng = np.random.default_rng(seed)
    units = concepts(pair.prompts)
    by = {name: intersect(pair.groups, name) for name in attributes}
    made = RetrievalTests([], [], [])
    sets = _sets(units)
    members = np.stack(list(sets.values()), axis=1)  # words x sets of words
    for rows, groups in samples_of(by, pair.groups, convention, rng):
        # skip attributes with a group that is too small in the sample
        groups = {name: labels for name, labels in groups.items() if labels.counts.min() > 1}
        n = len(pair) if rows is None else len(rows)
        weights = {
            name: bootstrap_weights_within_groups(of, bootstraps, rng)
            for name, of in groups.items()
        }
        found = {(name, k): _Words() for name in groups for k in convention.k if k < n}
        first = 0  # word of the block
        for done, (block, part) in enumerate(_blocks(units)):
            if progress:
                progress("comparing rankings", BLOCK * done / len(pair.prompts))
            scores = [s if rows is None else s[:, rows] for s in pair.scores(part)]
            orders = [loops.rank(s) for s in scores]
            of_block = members[first : first + len(block)].astype(float)
            first += len(block)
            for (name, k), by_word in found.items():
                top = _Top(groups[name], k, convention, block, part.start)
                before, after = (top.of_top(*one) for one in zip(scores, orders, strict=True))
                by_word.before.append(before)
                by_word.after.append(after)
                drawn = [np.abs(top.resampled(order, weights[name])) for order in orders]
                by_word.redrawn = by_word.redrawn + np.nan_to_num(drawn[1] - drawn[0]) @ of_block
        for (name, k), by_word in found.items():
            same: Row = {"probe": "ranking", "attribute": name, "k": k, "dataset": dataset,
                         "method": "paired", "n": n}  # fmt: skip
            before, after = (np.concatenate(x, axis=1) for x in (by_word.before, by_word.after))
            errors = np.std(by_word.redrawn, axis=1, ddof=1)  # 2 x sets
            skew = {**same, "metric": "max_skew", "ideal": 0.0}
            known = ~np.isnan(before[0] + after[0])
            if known.any():
                error = float(errors[0, 0]) / known.sum()
                made.tests.append(skew | mean_change(before[0, known], after[0, known], error))
            ideal = float(entropy_of_shares(groups[name].shares))
            for at, (category, mine) in enumerate(sets.items()):
                error = float(errors[1, at]) / mine.sum()
                change = mean_change(before[1, mine], after[1, mine], error)
                change |= {"before": ideal + float(before[1, mine].mean()),
                           "after": ideal + float(after[1, mine].mean())}  # fmt: skip
                made.entropy.append({**same, "metric": "normalized_entropy", "ideal": ideal,
                                     "category": category, **change})  # fmt: skip
            made.words.extend(
                {**skew, "concept": unit.concept, "category": unit.category,
                 "template": unit.template, "before": a, "after": b, "difference": b - a,
                 "excess": b - a}
                for unit, a, b in zip(units, before[0].tolist(), after[0].tolist(), strict=True)
            )  # fmt: skip
    return made


def _sets(units: Sequence[RowUnit]) -> dict[str | None, Any]:
    """All words (None), then the words of each category, where there are several."""
    categories = sorted({unit.category for unit in units if unit.category})
    sets: dict[str | None, Any] = {None: np.ones(len(units), bool)}
    for category in categories if len(categories) > 1 else ():
        sets[category] = np.array([unit.category == category for unit in units])
    return sets


@dataclass(frozen=True, eq=False)
class _Top:
    """MaxSkew@k of the words of one block by one attribute, and entropy minus that of the data."""

    groups: Groups
    k: int
    convention: Convention
    block: Sequence[RowUnit]
    start: int  # first prompt of the block

    def of_top(self, scores: Floats, order: Any) -> Floats:
        """2 x words; tied images count in part."""
        top = top_weights(scores, order, self.k, self.convention.ties)
        return self._of_counts(top @ np.eye(len(self.groups.names))[self.groups.codes])

    def resampled(self, order: Any, weights: Any) -> Floats:
        """2 x resamples x words."""
        groups = self.groups
        return self._of_counts(
            kernels.weighted_top_counts(order, groups.codes, weights, self.k, len(groups.names))
        )

    def _of_counts(self, counts: Floats) -> Floats:
        shares = counts / counts.sum(axis=-1, keepdims=True)
        target = target_shares(self.convention.target, self.groups)
        skew = max_skew_of_shares(shares, target, k=self.k, empty=self.convention.empty,
                                  skew=self.convention.skew)  # fmt: skip
        uneven = entropy_of_shares(shares) - entropy_of_shares(self.groups.shares)
        values = np.stack([np.asarray(skew), np.asarray(uneven)])
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
