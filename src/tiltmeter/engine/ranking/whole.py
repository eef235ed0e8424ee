"""Rankings in one piece: all images are in memory, and the scores of some prompts at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tiltmeter.engine.ranking.estimates import (
    MANY_TIES,
    MetricTask,
    PromptBlocks,
    estimates,
    passes,
)
from tiltmeter.engine.ranking.job import Drawn, Gaps, RankingJob, SampleSummary, matched, scaled
from tiltmeter.engine.ranking.reranked import add_shown, orders
from tiltmeter.engine.ranking.samples import checked, samples_of
from tiltmeter.metrics import numpy_kernels as loops
from tiltmeter.metrics.arrays import to_numpy
from tiltmeter.metrics.association import c_asc_of_moments
from tiltmeter.metrics.convention import Convention
from tiltmeter.metrics.ranking import log_shares, target_shares
from tiltmeter.metrics.summary import Moments, TopItems, check_k
from tiltmeter.stats import kernels
from tiltmeter.stats.bootstrap import stratified_weights
from tiltmeter.stats.resampling import Resampling
from tiltmeter.types import Array, Floats, Groups, Ints, Progress

#: Prompts at one time, by device: their scores and rankings are all that is held.
BLOCK, BLOCK_OF_TENSORS = 64, 512
#: Ranks walked over for NDKL's permutations, and for its intervals: seconds, not minutes.
NDKL_STEPS, FEWEST_DRAWS = 4 * 10**8, 99
GAP_RESAMPLES = 200  # of the images, at most, for gaps between groups


@dataclass(frozen=True, eq=False)
class RankedSample:
    """The images that some attributes are measured on, and all that is drawn for them."""

    rows: Ints | None  # None: all of them
    groups: dict[str, Groups]
    #: Permutations x images: labels of all attributes permuted together ...
    relabelled: Ints
    #: ... and by attribute the group that such a label stands for.
    group_of: dict[str, Ints]
    #: By attribute, bootstraps x images.
    weights: dict[str, Ints]
    shuffled: Ints  # the images in random order


@dataclass(frozen=True, eq=False)
class Backend:
    """Where the work is done: NumPy arrays and their loops, or tensors on a device and theirs."""

    loops: Any
    kernels: Any
    device: str | None = None

    @classmethod
    def on(cls, device: str) -> Backend:
        if device == "cpu":
            return cls(loops, kernels)
        from tiltmeter.metrics import torch_kernels as tensor_loops
        from tiltmeter.stats import torch_kernels as tensor_kernels

        return cls(tensor_loops, tensor_kernels, device)

    def put(self, x: Array) -> Array:
        """An array where the work is done; whole numbers as indices, but for single bytes."""
        if self.device is None:
            return x
        import torch

        wide = x.dtype.kind in "iu" and x.dtype.itemsize > 1
        return torch.as_tensor(x.astype(np.int64) if wide else x, device=self.device)


def draw_sample(
    rows: Ints | None,
    groups: dict[str, Groups],
    resampling: Resampling,
    rng: np.random.Generator,
) -> RankedSample:
    """Permuted labels and resampling weights of some images."""
    count = len(next(iter(groups.values())))
    codes = np.stack([g.codes for g in groups.values()], axis=1)
    cells = np.zeros(count, np.int64)
    for one in groups.values():
        cells = cells * len(one.names) + one.codes
    _, first, labels = np.unique(cells, return_index=True, return_inverse=True)
    kinds = codes[first]  # of the finest partition, the group by each attribute
    labels = labels.astype(np.min_scalar_type(len(kinds)))
    relabelled = np.empty((resampling.permutations, count), labels.dtype)
    for draw in range(resampling.permutations):
        relabelled[draw] = labels[rng.permutation(count)]
    weights = {
        name: stratified_weights(g, resampling.bootstraps, rng) for name, g in groups.items()
    }
    return RankedSample(
        rows,
        groups,
        relabelled,
        dict(zip(groups, kinds.T, strict=True)),
        weights,
        rng.permutation(count).astype(np.int32),
    )


class WholeRanking:
    """A job in one piece."""

    def __init__(
        self, job: RankingJob, rng: np.random.Generator, device: str, progress: Progress
    ) -> None:
        if job.reorder is not None:  # re-ranking every resample is not done: no intervals
            job, device = replace(job, resampling=replace(job.resampling, bootstraps=0)), "cpu"
        self.job, self.rng, self.progress = job, rng, progress
        self.place = Backend.on(device)
        self.drawn = [
            draw_sample(
                rows, {name: checked(one) for name, one in groups.items()}, job.resampling, rng
            )
            for rows, groups in list(samples_of(job.groups, job.labels, job.convention, rng))
        ]
        for sample in self.drawn:
            for k in job.convention.k:
                check_k(k, len(next(iter(sample.groups.values()))))
        self.images = scaled(job.images.read(), job.convention.images)
        self.texts = matched(job.texts, self.images)
        self.samples = [SampleSummary(one.rows, one.groups) for one in self.drawn]
        self.failed: dict[int, tuple[str, int]] = {}

    def turns(self) -> Iterator[Iterator[Drawn]]:
        job = self.job
        turns = [
            (sample, summary, wanted)
            for sample, summary in zip(self.drawn, self.samples, strict=True)
            for tasks in passes(
                sample.groups, len(self.texts), job.words, job.convention, job.resampling
            )
            if (wanted := [task for task in tasks if task.ranks or job.reorder is None])
        ]
        for turn, (sample, summary, tasks) in enumerate(turns):

            def progress(what: str, share: float, turn: int = turn) -> None:
                self.progress(what, (turn + share) / len(turns))

            found = self._measure(sample, summary, tasks, progress)
            yield self._estimates(sample, tasks, found, progress)
        for sample, summary in zip(self.drawn, self.samples, strict=True):
            if job.reorder is None:
                chosen = self._images_of(sample)
                for name, groups in sample.groups.items():
                    draws = job.resampling.bootstraps
                    gaps = gaps_of(self.texts, chosen, groups, draws, self.rng)
                    summary.gaps[name] = gaps

    def _images_of(self, sample: RankedSample) -> Floats:
        return self.images if sample.rows is None else self.images[sample.rows]

    def _estimates(
        self,
        sample: RankedSample,
        tasks: list[MetricTask],
        found: dict[MetricTask, PromptBlocks],
        progress: Progress,
    ) -> Iterator[Drawn]:
        job = self.job
        shown = None if job.reorder is None else max(job.convention.k)
        for done, task in enumerate(tasks):
            progress(f"statistics of {task.attribute}", 0.8 + 0.2 * done / len(tasks))
            labels = (sample.relabelled, sample.group_of[task.attribute])
            groups, part = sample.groups[task.attribute], found.pop(task)
            for estimate in estimates(
                task, part, groups, job.convention, job.words, labels, self.rng, shown
            ):
                yield estimate, self.rng.spawn(1)[0]

    def _measure(
        self,
        sample: RankedSample,
        summary: SampleSummary,
        tasks: Sequence[MetricTask],
        progress: Progress,
    ) -> dict[MetricTask, PromptBlocks]:
        """Goes over the prompts in blocks; scores and rankings of a block are gone after it."""
        job, place, convention = self.job, self.place, self.job.convention
        words, drawn = job.words, _Drawn.of_sample(sample, place)
        parts = {task: PromptBlocks(len(self.texts), words) for task in tasks}
        chosen = self._images_of(sample)
        texts, images, shuffled = (place.put(x) for x in (self.texts, chosen, sample.shuffled))
        top_ids, top_scores = [], []
        few = int(np.clip(NDKL_STEPS // (len(images) * words), FEWEST_DRAWS, 10**9))
        drawing = any(map(len, (sample.relabelled, *sample.weights.values())))
        block = BLOCK if place.device is None else BLOCK_OF_TENSORS
        for start in range(0, len(texts), block):
            progress("ranking images", 0.8 * start / len(texts))
            scores = texts[start : start + block] @ images.T
            here = max(0, min(words - start, len(scores)))  # words come first
            if job.reorder is not None:
                shown = orders(job.reorder, scores, convention, sample.rows, images)
                for task in tasks:
                    groups, of = sample.groups[task.attribute], sample.group_of[task.attribute]
                    labels, shares = (
                        (sample.relabelled, of),
                        target_shares(convention.target, groups),
                    )
                    add_shown(parts[task], start, shown, here, few, groups.codes, shares, labels)
                top_ids.append(shown[max(shown)][:here])
                top_scores.append(place.loops.take(scores[:here], top_ids[-1]))
                continue
            near = [task for task in tasks if not task.ranks]
            z = place.kernels.standardized(scores) if drawing and near else scores
            for task in near:
                _add_c_asc(parts[task], start, scores, z, drawn[task.attribute])
            del z
            if len(near) == len(tasks):
                continue
            order = place.loops.rank(scores)
            top = order[:here, : max(convention.k)]
            top_ids.append(np.array(to_numpy(top), np.int32))
            top_scores.append(to_numpy(place.loops.take(scores[:here], top)))
            tied = to_numpy(place.loops.tied_ranks(scores, order))
            loose = order
            if convention.ties == "expected" and tied.max() >= MANY_TIES and drawing:
                # which of two tied images a draw meets first must not depend on the order of rows
                mixed = scores[:, shuffled]
                if place.device is None:
                    mixed = np.ascontiguousarray(mixed)
                loose = shuffled[place.loops.rank(mixed)]
            for task in tasks:
                if task.ranks:
                    part, own = parts[task], drawn[task.attribute]
                    part.add("tied", tied)
                    _add_counts(part, start, scores, order, loose, top, own, convention)
                    _add_ndkl(part, start, order, loose, here, few, own, convention)
            del scores, order, loose  # before the next block's are there
        if top_ids:
            summary.top = np.concatenate(top_ids), np.concatenate(top_scores)
        for task, part in parts.items():
            if task.ranks:
                counts = {k: part.values(f"top {k}") for k in sorted(convention.k)}
                summary.counts[task.attribute] = counts
            else:
                sizes = sample.groups[task.attribute].counts
                moments = Moments(sizes, part.values("mean"), part.values("m2"))
                summary.moments[task.attribute] = moments
        return parts


def gaps_of(
    texts: Floats, images: Floats, groups: Groups, bootstraps: int, rng: np.random.Generator
) -> Gaps:
    """Scores are products: so are gaps, of texts and mean images; resampled within groups."""

    def gaps(at: Ints) -> tuple[Floats, Floats]:
        x = np.asarray(texts, np.float64)[at]
        weights = stratified_weights(groups, min(bootstraps, GAP_RESAMPLES), rng)
        drawn = [x @ _directions(images, groups, one).T for one in weights]
        here = x @ _directions(images, groups).T
        return here, np.array(drawn).reshape(len(drawn), *here.shape)

    return gaps


def _directions(images: Floats, groups: Groups, weights: Ints | None = None) -> Floats:
    """Mean image of each group minus that of all others."""
    weight = np.ones(len(groups)) if weights is None else weights.astype(np.float64)
    member = np.eye(len(groups.names))[groups.codes].T * weight  # groups x images
    sums = (member.astype(images.dtype) @ images).astype(np.float64)  # images are many
    counts = member.sum(axis=1, keepdims=True)
    rest, others = sums.sum(axis=0) - sums, counts.sum() - counts
    return np.asarray(sums / counts - rest / others)


@dataclass(frozen=True, eq=False)
class _Drawn:
    """What is drawn for one attribute, where the work is done."""

    place: Backend
    groups: Groups
    codes: Array
    labels: Array
    of: Array
    weights: Array

    @classmethod
    def of_sample(cls, sample: RankedSample, place: Backend) -> dict[str, _Drawn]:
        labels = place.put(sample.relabelled)  # shared by all
        return {
            name: cls(
                place,
                groups,
                place.put(groups.codes),
                labels,
                place.put(sample.group_of[name]),
                place.put(sample.weights[name]),
            )
            for name, groups in sample.groups.items()
        }

    @property
    def size(self) -> int:
        return len(self.groups.names)


def _add_c_asc(part: PromptBlocks, start: int, scores: Array, z: Array, own: _Drawn) -> None:
    sizes, of_sums = own.groups.counts, kernels.c_asc_of_sums
    moments = Moments.of(scores, own.groups)
    part.add("c_asc", to_numpy(c_asc_of_moments(moments)))
    part.add("mean", to_numpy(moments.mean))
    part.add("m2", to_numpy(moments.m2))
    if len(own.labels):
        sums = own.place.kernels.relabelled_sums(z, own.labels, own.size, own.of)
        part.draw("c_asc null", start, of_sums(sums, sizes), np.float32, words=False)
    if len(own.weights):
        sums, squares = own.place.kernels.weighted_sums(z, own.codes, own.weights, own.size)
        part.draw("c_asc boot", start, of_sums(sums, sizes, squares), np.float32, words=False)


def _add_counts(
    part: PromptBlocks,
    start: int,
    scores: Array,
    order: Array,
    loose: Array,
    top: Array,
    own: _Drawn,
    convention: Convention,
) -> None:
    place, ks = own.place, tuple(sorted(convention.k))
    found = TopItems.of(scores, own.groups, max(ks), order=order)
    for k in ks:
        part.add(f"top {k}", to_numpy(found.counts(k, convention.ties)))
        if len(own.weights):
            drawn = place.kernels.weighted_top_counts(loose, own.codes, own.weights, k, own.size)
            part.draw(f"top {k} boot", start, drawn, np.min_scalar_type(k), words=False)
    if len(own.labels) and len(top):
        each = place.kernels.relabelled_top_counts(top, own.labels, ks, own.size, own.of)
        for k, drawn in zip(ks, each, strict=True):
            part.draw(f"top {k} null", start, drawn, np.min_scalar_type(k), words=True)


def _add_ndkl(
    part: PromptBlocks,
    start: int,
    order: Array,
    loose: Array,
    here: int,
    few: int,
    own: _Drawn,
    convention: Convention,
) -> None:
    place, shares = own.place, target_shares(convention.target, own.groups)
    found = place.loops.ndkl(order, own.codes, place.put(log_shares(shares)))
    part.add("ndkl", to_numpy(found))
    if here and len(own.labels):
        drawn = place.kernels.relabelled_ndkl(order[:here], own.labels[:few], shares, own.of)
        part.draw("ndkl null", start, drawn, float, words=True)
    if here and len(own.weights):
        drawn = place.kernels.weighted_ndkl(loose[:here], own.codes, own.weights[:few], shares)
        part.draw("ndkl boot", start, drawn, float, words=True)
