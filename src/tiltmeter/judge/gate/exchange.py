"""Paired test of two models on the same images, by word and group.

Every image has a standardised rank under each model, from -1.7 to 1.7 whatever the scale of the
scores. The statistic is the change in a metric's distance from its ideal. Under the null the models
are exchangeable: the two ranks of each image are swapped at random, the same images for all words,
attributes and metrics, and each change is compared with the largest of all (maxT). For a metric
that is a difference of means, or made of counts, a swap needs only a signed sum over images: all
swaps together are one matrix product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tiltmeter.engine.ranking.samples import samples_of
from tiltmeter.judge.gate.paired_tests import Key, PairedTests
from tiltmeter.judge.gate.run_embeddings import PairedRuns
from tiltmeter.metrics import numpy_kernels as loops
from tiltmeter.metrics.convention import Convention
from tiltmeter.metrics.ranking import max_skew_of_shares, target_shares
from tiltmeter.metrics.summary import top_weights
from tiltmeter.probes.ranking.tabulate import RowUnit, concepts
from tiltmeter.stats import kernels
from tiltmeter.stats.bootstrap import stratified_weights
from tiltmeter.types import Floats, Groups, Ints, Progress, intersect

BLOCK = 64  # prompts per block
MAX_SIGNS = 2**24  # signs in memory at a time


def swap_tests(
    pair: PairedRuns,
    attributes: Sequence[str],
    convention: Convention,
    *,
    draws: int,
    bootstraps: int,
    seed: int,
    progress: Progress | None = None,
) -> PairedTests:
    """C-ASC of ranks by group, and MaxSkew@k, for each word and over all, before and after."""
    rng = np.random.default_rng(seed)
    flips = np.packbits(rng.integers(0, 2, (draws, len(pair)), dtype=np.uint8), axis=1)
    units, tests = concepts(pair.prompts), PairedTests()
    by = {name: intersect(pair.groups, name) for name in attributes}
    for rows, groups in samples_of(by, pair.groups, convention, rng):
        # skip attributes with a group that is too small in the sample
        groups = {name: labels for name, labels in groups.items() if labels.counts.min() > 1}
        if not groups:
            continue
        count = len(pair) if rows is None else len(rows)
        ks = [k for k in convention.k if k <= count]
        sample = _Sample.drawn(rows, groups, flips, len(pair), bootstraps, rng)
        totals: dict[tuple[Any, ...], _Total] = {}
        for done, (block, part) in enumerate(_blocks(units)):
            if progress:
                progress("swapping images between the models", BLOCK * done / len(pair.prompts))
            scores = [s if rows is None else s[:, rows] for s in pair.scores(part)]
            _add_c_asc(tests, totals, sample, scores, block, part.start)
            orders = [loops.rank(s) for s in scores] if ks else []
            for k in ks:
                ranked = list(zip(scores, orders, strict=True))
                _add_max_skew(tests, totals, sample, ranked, block, part.start, k, convention)
        for key, total in totals.items():
            total.add_to(tests, dict(key))
    return tests


def standard_ranks(scores: Floats) -> Floats:
    """Ranks of each row, standardised; ties get their mean rank.

    >>> standard_ranks(np.array([[10.0, 30.0, 20.0]]))
    array([[-1.,  1.,  0.]], dtype=float32)
    """
    ranks = loops.mean_ranks(scores) - (scores.shape[1] + 1) / 2
    spread = ranks.std(axis=1, ddof=1, keepdims=True)
    return np.asarray(ranks / np.where(spread > 0, spread, 1.0), np.float32)


@dataclass(frozen=True, eq=False)
class _Sample:
    """The images of a sample, with their groups, swaps and bootstrap weights."""

    groups: dict[str, Groups]
    cells: Groups  # the finest partition: its cells sum up to the groups of every attribute
    of: dict[str, Ints]  # group of each cell, by attribute
    order: Ints  # images by cell
    flips: Ints  # draws x images / 8
    rows: Ints  # images of this sample, by cell
    images: int
    weights: dict[str, Ints]  # bootstraps x images, by attribute

    @classmethod
    def drawn(
        cls,
        rows: Ints | None,
        groups: dict[str, Groups],
        flips: Ints,
        images: int,
        bootstraps: int,
        rng: np.random.Generator,
    ) -> _Sample:
        codes = np.stack([labels.codes for labels in groups.values()], axis=1)
        kinds, cells = np.unique(codes, axis=0, return_inverse=True)
        cells = cells.reshape(-1)
        order = np.argsort(cells, kind="stable")
        return cls(
            groups,
            Groups(cells, tuple(map(str, range(len(kinds)))), "cell"),
            dict(zip(groups, kinds.T, strict=True)),
            order,
            flips,
            order if rows is None else rows[order],
            images,
            {name: stratified_weights(labels, bootstraps, rng) for name, labels in groups.items()},
        )

    def signed_sums(self, values: Floats) -> Floats:
        """Sums of values (images x columns) over each cell, with the signs of each swap."""
        values = np.ascontiguousarray(values[self.order], np.float32)
        ends = np.cumsum(self.cells.counts)
        out = np.empty((len(self.flips), len(ends), values.shape[1]), np.float32)
        step = max(1, MAX_SIGNS // max(len(values), 1))
        for start in range(0, len(self.flips), step):
            batch = slice(start, start + step)
            bits = np.unpackbits(self.flips[batch], axis=1, count=self.images)[:, self.rows]
            signs = bits.astype(np.float32) * 2 - 1
            for cell, end in enumerate(ends):
                members = slice(end - self.cells.counts[cell], end)
                out[batch, cell] = signs[:, members] @ values[members]
        return out

    def by_group(self, sums: Floats, attribute: str) -> Floats:
        """Sums over cells, added up to groups: ... x columns x groups."""
        count = len(self.groups[attribute].names)
        member = np.eye(count, dtype=np.float32)[self.of[attribute]]  # cells x groups
        return np.asarray(np.moveaxis(sums, 1, 2) @ member)


@dataclass(eq=False)
class _Total:
    """Running mean of a metric over words."""

    before: float = 0.0
    after: float = 0.0
    excess: float = 0.0
    swapped: Floats | float = 0.0
    redrawn: Floats | float = 0.0
    count: int = 0

    def take(
        self, before: Floats, after: Floats, excess: Floats, swapped: Floats, redrawn: Floats
    ) -> None:
        """Add words, which are the first axis of values and the second of draws."""
        defined_words = ~np.isnan(excess).reshape(len(excess), -1).any(axis=1)
        self.count += int(defined_words.sum())
        self.before += float(_flat(before[defined_words], 0).sum())
        self.after += float(_flat(after[defined_words], 0).sum())
        self.excess += float(_flat(excess[defined_words], 0).sum())
        self.swapped = self.swapped + _flat(swapped[:, defined_words], 1).sum(axis=1, dtype=float)
        self.redrawn = self.redrawn + _flat(redrawn[:, defined_words], 1).sum(axis=1, dtype=float)

    def add_to(self, tests: PairedTests, key: Key) -> None:
        if self.count > 1:
            n = self.count
            values = (np.array([x / n]) for x in (self.before, self.after, self.excess))
            draws = (np.asarray(x)[:, None] / n for x in (self.swapped, self.redrawn))
            tests.add([key], *values, *draws)


def _flat(values: Floats, kept: int) -> Floats:
    """Mean over the axes after the words, such as groups; `kept` axes precede the words."""
    return np.asarray(values.reshape(*values.shape[: kept + 1], -1).mean(axis=-1))


def _add_c_asc(
    tests: PairedTests,
    totals: dict[tuple[Any, ...], _Total],
    sample: _Sample,
    scores: Sequence[Floats],
    block: Sequence[RowUnit],
    start: int,
) -> None:
    """Add C-ASC of standardised ranks: by word and group, by group, and over all."""
    first, second = (_per_unit(standard_ranks(s), block, start).T for s in scores)
    half_difference, half_sum = (
        sample.signed_sums(x / 2) for x in (second - first, second + first)
    )
    for name, groups in sample.groups.items():
        order = np.argsort(groups.codes, kind="stable")
        sizes, ends = groups.counts, np.cumsum(groups.counts)

        def c_asc(
            weights: Floats,
            z: Floats,
            order: Ints = order,
            ends: Ints = ends,
            sizes: Ints = sizes,
        ) -> Floats:
            z = z[order]
            parts = [
                weights[:, end - size_key : end] @ z[end - size_key : end]
                for size_key, end in zip(sizes, ends, strict=True)
            ]
            return kernels.c_asc_of_sums(np.stack(parts, axis=-1), sizes)

        once = np.ones((1, len(order)), np.float32)
        a, b = (c_asc(once, z)[0].astype(float) for z in (first, second))  # words x groups
        # if the sign of an association changed, it is compared with its mirror image: there, swaps
        # change the sum of the two, and leave the difference
        sign_changed = (a > 0) != (b > 0)
        middle = np.where(sign_changed, b - a, b + a).astype(np.float32) / 2
        from_sum, from_difference = (
            kernels.c_asc_of_sums(sample.by_group(sums, name), sizes)
            for sums in (half_sum, half_difference)
        )
        half = np.where(sign_changed, from_sum, from_difference)  # swaps x words x groups
        swapped = np.abs(middle + half) - np.abs(middle - half)
        weights = sample.weights[name][:, order].astype(np.float32)
        redrawn = np.abs(c_asc(weights, second)) - np.abs(c_asc(weights, first))
        key = {"metric": "c_asc", "attribute": name, "experiment": "ranks"}
        keys = [
            {**key, "concept": unit.concept, "category": unit.category, "template": unit.template,
             "group": group}
            for unit in block for group in groups.names
        ]  # fmt: skip
        excess = np.abs(b) - np.abs(a)
        tests.add(keys, a, b, excess, swapped, redrawn)
        magnitudes = (np.abs(a), np.abs(b), excess, swapped, redrawn)
        size_key = {**key, "metric": "mean_abs_c_asc"}
        _total(totals, size_key).take(*magnitudes)
        if len(groups.names) > 2:
            for column, group in enumerate(groups.names):
                _total(totals, {**size_key, "group": group}).take(
                    *(x[..., column] for x in magnitudes)
                )


def _add_max_skew(
    tests: PairedTests,
    totals: dict[tuple[Any, ...], _Total],
    sample: _Sample,
    ranked: Sequence[tuple[Floats, Ints]],
    block: Sequence[RowUnit],
    start: int,
    k: int,
    convention: Convention,
) -> None:
    """Add MaxSkew@k by word and over all; `ranked` are scores and orders, before and after."""
    first, second = (
        top_weights(*scores_and_order, k, convention.ties).astype(np.float32)
        for scores_and_order in ranked
    )
    sums = sample.signed_sums((second - first).T / 2)
    for name, groups in sample.groups.items():
        q = target_shares(convention.target, groups)

        def max_skew(counts: Floats, q: Floats = q) -> Floats:
            shares = counts / counts.sum(axis=-1, keepdims=True)
            values = max_skew_of_shares(
                shares, q, k=k, empty=convention.empty, skew=convention.skew
            )
            return _per_unit(np.asarray(values), block, start, axis=-1)

        member = np.eye(len(groups.names))[groups.codes]
        a, b = (
            scores_and_order @ member for scores_and_order in (first, second)
        )  # prompts x groups
        half = sample.by_group(sums, name)
        middle = (a + b) / 2
        swapped = _clipped(max_skew, middle + half) - _clipped(max_skew, middle - half)
        redrawn = np.diff(
            [
                max_skew(kernels.weighted_top_counts(
                    order, groups.codes, sample.weights[name], k, len(groups.names)))
                for _, order in ranked
            ],
            axis=0,
        )[0]  # fmt: skip
        before, after = max_skew(a), max_skew(b)
        key = {"metric": "max_skew", "attribute": name, "k": k}
        keys = [
            {**key, "concept": unit.concept, "category": unit.category, "template": unit.template}
            for unit in block
        ]
        excess = np.abs(after) - np.abs(before)
        tests.add(keys, before, after, excess, swapped, redrawn)
        _total(totals, key).take(before, after, excess, swapped, redrawn)


def _clipped(function: Callable[[Floats], Floats], counts: Floats) -> Floats:
    """Apply a function to counts, which rounding may have put below 0."""
    return function(np.clip(counts.astype(float), 0.0, None))


def _per_unit(values: Floats, block: Sequence[RowUnit], start: int, axis: int = 0) -> Floats:
    """Means over the prompts of each word; prompts are on `axis`, and begin at `start`."""
    values = np.moveaxis(values, axis, 0)
    if all(len(unit.prompts) == 1 for unit in block):
        means = values
    else:
        means = np.stack([values[unit.prompts - start].mean(axis=0) for unit in block])
    return np.asarray(np.moveaxis(means, 0, axis))


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


def _total(totals: dict[tuple[Any, ...], _Total], key: Key) -> _Total:
    return totals.setdefault(tuple(key.items()), _Total())
