"""Rankings in one piece: all images are in memory, with the scores of a block of prompts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from tiltmeter.engine.ranking.estimates import (
    MANY_TIES,
    MetricTask,
    PromptBlocks,
    estimates,
    plan_passes,
    random_ndkl,
)
from tiltmeter.engine.ranking.job import Drawn, Gaps, RankingJob, SampleSummary, matched, scaled
from tiltmeter.engine.ranking.reranked import add_reranked, orders
from tiltmeter.engine.ranking.samples import checked, samples_of
from tiltmeter.metrics import numpy_kernels as loops
from tiltmeter.metrics.arrays import to_numpy
from tiltmeter.metrics.association import c_asc_of_moments, standard_deviation
from tiltmeter.metrics.convention import Convention
from tiltmeter.metrics.ranking import log_shares, target_shares
from tiltmeter.metrics.summary import Moments, TopItems, check_k
from tiltmeter.stats import kernels
from tiltmeter.stats.bootstrap import bootstrap_weights_within_groups
from tiltmeter.stats.permuted_labels import PermutedLabels, pack_attributes
from tiltmeter.stats.product_draws import CAscDraws
from tiltmeter.stats.random_draws import permuted_rows
from tiltmeter.stats.resampling import Resampling
from tiltmeter.stats.weighted_rankings import WeightLanes
from tiltmeter.types import Array, Floats, Groups, Ints, Progress

#: Prompts per block: only their scores and rankings are in memory. On a GPU a block takes up to
#: half of its memory: thousands of rankings are walked in hardly more time than a few.
BLOCK, MOST_ON_GPU, BYTES_PER_SCORE = 64, 4096, 64
#: Ranks processed for NDKL's permutations and intervals (seconds, not minutes); fewest draws.
NDKL_STEPS, FEWEST_DRAWS = 4 * 10**8, 99
FEW_IMAGES = 2**12  # sums of fewer image embeddings are in double precision
COLUMNS = 128  # of image embeddings that are summed together on the CPU
GAP_RESAMPLES = 200  # bootstrap resamples, at most, for gaps between groups


@dataclass(eq=False)
class RankedSample:
    """The images that some attributes are measured on, with permuted labels and weights."""

    rows: Ints | None  # None: all of them
    groups: dict[str, Groups]
    #: Permutations x images: labels of all attributes permuted together ...
    relabelled: Ints
    #: ... and the group of each label, by attribute.
    group_of: dict[str, Ints]
    #: Bootstrap weights by attribute, bootstraps x images.
    weights: dict[str, Ints]
    shuffled: Ints  # the images in random order

    @cached_property
    def packed(self) -> list[PermutedLabels]:
        """Permuted labels as bits, for the CPU."""
        return pack_attributes(self.relabelled, self.group_of)

    @cached_property
    def lanes(self) -> dict[str, WeightLanes]:
        """Bootstrap weights as `weights`, for rankings on the CPU."""
        return {name: WeightLanes.pack(weights) for name, weights in self.weights.items()}

    def release_packed(self) -> None:
        """Free what is packed for rankings, which is large; it is packed again if needed."""
        self.__dict__.pop("lanes", None)
        self.__dict__.pop("packed", None)

    def release_draws(self) -> None:
        """Free permuted labels and weights: statistics do not read them."""
        self.relabelled = self.relabelled[:0].copy()
        self.weights.clear()


@dataclass(frozen=True, eq=False)
class Backend:
    """Kernels for NumPy arrays on the CPU, or for tensors on a device."""

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

    def block(self, images: int) -> int:
        """Prompts processed at one time; always the same on the same machine."""
        if self.device is None or not self.device.startswith("cuda"):
            return BLOCK
        import torch

        room = torch.cuda.get_device_properties(self.device).total_memory // 2
        return min(max(room // (BYTES_PER_SCORE * images), BLOCK), MOST_ON_GPU)

    def put(self, x: Array) -> Array:
        """Move an array to the device; integers of more than one byte become int64 indices."""
        if self.device is None:
            return x
        import torch

        wide = x.dtype.kind in "iu" and x.dtype.itemsize > 1
        return torch.as_tensor(x.astype(np.int64) if wide else x, device=self.device)

    def cast(self, x: Array, kind: Any) -> Array:
        """An array of the device in another floating-point precision."""
        if self.device is None:
            return x.astype(kind, copy=False)
        import torch

        return x.to(torch.float64 if kind is np.float64 else torch.float32)


def draw_sample(
    rows: Ints | None,
    groups: dict[str, Groups],
    resampling: Resampling,
    rng: np.random.Generator,
) -> RankedSample:
    """Draw permuted labels and bootstrap weights for some images."""
    count = len(next(iter(groups.values())))
    codes = np.stack([g.codes for g in groups.values()], axis=1)
    cells = np.zeros(count, np.int64)
    for labels_of in groups.values():
        cells = cells * len(labels_of.names) + labels_of.codes
    _, first, labels = np.unique(cells, return_index=True, return_inverse=True)
    kinds = codes[first]  # group of each cell of the finest partition, by attribute
    labels = labels.astype(np.min_scalar_type(len(kinds)))
    relabelled = permuted_rows(labels, resampling.permutations, rng)
    weights = {
        name: bootstrap_weights_within_groups(g, resampling.bootstraps, rng)
        for name, g in groups.items()
    }
    return RankedSample(
        rows,
        groups,
        relabelled,
        dict(zip(groups, kinds.T, strict=True)),
        weights,
        rng.permutation(count).astype(np.int32),
    )


class _Block(NamedTuple):
    """A block of prompts: its start, its number of words, and how it is measured."""

    start: int
    n_words: int
    ndkl_draws: int
    convention: Convention


class InMemoryRanking:
    """Computes a ranking job with all images in memory."""

    def __init__(
        self, job: RankingJob, rng: np.random.Generator, device: str, progress: Progress
    ) -> None:
        if job.reorder is not None:  # resamples are not re-ranked: no intervals
            job, device = replace(job, resampling=replace(job.resampling, bootstraps=0)), "cpu"
        self.job, self.rng, self.progress = job, rng, progress
        self.backend = Backend.on(device)
        self.drawn = [
            draw_sample(
                rows,
                {name: checked(labels) for name, labels in groups.items()},
                job.resampling,
                rng,
            )
            for rows, groups in list(samples_of(job.groups, job.labels, job.convention, rng))
        ]
        for sample in self.drawn:
            for k in job.convention.k:
                check_k(k, len(next(iter(sample.groups.values()))), below=True)
        self.images = scaled(job.images.read(), job.convention.images)
        self.texts = matched(job.texts, self.images)
        self.samples = [SampleSummary(sample.rows, sample.groups) for sample in self.drawn]
        self.failed: dict[int, tuple[str, int]] = {}

    def turns(self) -> Iterator[Iterator[Drawn]]:
        yield from self._passes()
        self.drawn.clear()  # labels and weights are large, and not needed any more
        for summary in self.samples:
            if self.job.reorder is None:
                images, draws = self._images_of(summary.rows), self.job.resampling.bootstraps
                for name, groups in summary.groups.items():
                    summary.gaps[name] = gaps_of(self.texts, images, groups, draws, self.rng)

    def _passes(self) -> Iterator[Iterator[Drawn]]:
        job = self.job
        turns = [
            (sample, summary, pass_tasks)
            for sample, summary in zip(self.drawn, self.samples, strict=True)
            for tasks in plan_passes(
                sample.groups, self.texts.shape, job.words, job.convention, job.resampling
            )
            if (pass_tasks := [task for task in tasks if task.ranks or job.reorder is None])
        ]
        for turn, (sample, summary, tasks) in enumerate(turns):

            def progress(what: str, share: float, turn: int = turn) -> None:
                self.progress(what, (turn + share) / len(turns))

            blocks = self._measure(sample, summary, tasks, progress)
            if all(later is not sample for later, _, _ in turns[turn + 1 :]):
                sample.release_draws()  # they are large, and all prompts have been processed
            yield self._estimates(sample, tasks, blocks, progress)

    @property
    def _depth(self) -> int | None:
        """Ranks that a re-ranker orders; None: all."""
        return None if self.job.reorder is None else max(self.job.convention.k)

    def _images_of(self, rows: Ints | None) -> Floats:
        return self.images if rows is None else self.images[rows]

    def _estimates(
        self,
        sample: RankedSample,
        tasks: list[MetricTask],
        blocks: dict[MetricTask, PromptBlocks],
        progress: Progress,
    ) -> Iterator[Drawn]:
        job = self.job
        depth = self._depth
        for done, task in enumerate(tasks):
            progress(f"statistics of {task.attribute}", 0.8 + 0.2 * done / len(tasks))
            groups, part = sample.groups[task.attribute], blocks.pop(task)
            for estimate in estimates(
                task, part, groups, job.convention, job.words, self.rng, depth
            ):
                yield estimate, self.rng.spawn(1)[0]

    def _measure(
        self,
        sample: RankedSample,
        summary: SampleSummary,
        tasks: Sequence[MetricTask],
        progress: Progress,
    ) -> dict[MetricTask, PromptBlocks]:
        """Process the prompts in blocks; only one block of scores and rankings is in memory."""
        job, backend, convention = self.job, self.backend, self.job.convention
        draws = _AttributeDraws.of_sample(sample, backend)
        parts = {task: PromptBlocks(len(self.texts), job.words) for task in tasks}
        chosen = self._images_of(sample.rows)
        texts, images, shuffled = (backend.put(x) for x in (self.texts, chosen, sample.shuffled))
        tops: list[tuple[Ints, Floats]] = []
        ndkl_draws = int(np.clip(NDKL_STEPS // (len(images) * job.words), FEWEST_DRAWS, 10**9))
        drawing = any(map(len, (sample.relabelled, *sample.weights.values())))
        resampling = any(map(len, sample.weights.values()))
        c_asc_tasks = [] if job.reorder else [task for task in tasks if not task.ranks]
        block = backend.block(len(images))
        for start in range(0, len(texts), block):
            progress("ranking images", 0.8 * start / len(texts))
            scores = texts[start : start + block] @ images.T
            n_words = max(0, min(job.words - start, len(scores)))  # words come first
            at = _Block(start, n_words, ndkl_draws, convention)
            if job.reorder is not None:
                tops.append(self._rerank(sample, parts, at, scores, images))
                continue
            z = backend.kernels.standardized(scores) if c_asc_tasks and resampling else None
            for task in c_asc_tasks:
                _add_c_asc(parts[task], scores, z, draws[task.attribute])
            del z
            if len(c_asc_tasks) < len(tasks):
                ranked = {t.attribute: part for t, part in parts.items() if t.ranks}
                order = self._rank(ranked, draws, at, scores, shuffled if drawing else None)
                if n_words and len(sample.relabelled):
                    _add_permuted(ranked, at, order[:n_words], draws, sample)
                top = order[:n_words, : max(convention.k)]
                top_scores = backend.loops.take(scores[:n_words], top)
                tops.append((np.array(to_numpy(top), np.int32), to_numpy(top_scores)))
                del order
            del scores  # before the next block is allocated
        sample.release_packed()
        if drawing and c_asc_tasks:
            self._draw_c_asc({draws[task.attribute]: parts[task] for task in c_asc_tasks}, images)
        if tops:
            ids, top_scores = zip(*tops, strict=True)
            summary.top = np.concatenate(ids), np.concatenate(top_scores)
        for task, part in parts.items():
            groups, group_of = sample.groups[task.attribute], sample.group_of[task.attribute]
            if task.ranks:
                counts = {k: part.values(f"top {k}") for k in sorted(convention.k)}
                summary.counts[task.attribute] = counts
                if len(labels := sample.relabelled[:, : self._depth]):
                    part.drawn["ndkl random"] = random_ndkl(labels, group_of, groups, convention)
            else:
                moments = Moments(groups.counts, part.values("mean"), part.values("m2"))
                summary.moments[task.attribute] = moments
        return parts

    def _draw_c_asc(self, parts: dict[_AttributeDraws, PromptBlocks], images: Array) -> None:
        """Add the draws of C-ASC: sums of image embeddings, or of scores if these are fewer."""
        texts, features = self.texts, images
        if len(texts) < texts.shape[1]:
            features, texts = images @ self.backend.put(texts).T, np.eye(len(texts))
        # permutations of few images may equal the sample, and rounding must not hide it
        kind = np.float64 if len(features) < FEW_IMAGES else np.float32
        centred = _Centred(features, features.mean(0), self.backend, kind)
        attributes = list(parts)
        permuted = _permuted_sums(centred, attributes) if len(attributes[0].labels) else []
        for draws in attributes:
            part, sizes = parts[draws], draws.groups.counts
            spread = standard_deviation(Moments(sizes, part.values("mean"), part.values("m2")))
            scaled_texts = (texts / np.where(spread > 0, spread, np.nan)).astype(kind)
            if permuted:
                part.drawn["c_asc null"] = CAscDraws.of_sums(scaled_texts, permuted.pop(0), sizes)
            if len(draws.weights):
                sums = centred.sums("weighted_sums", draws.codes, draws.weights, draws.size)
                squares = part.values("squares")
                part.drawn["c_asc boot"] = CAscDraws.of_sums(scaled_texts, sums, sizes, squares)

    def _rerank(
        self,
        sample: RankedSample,
        parts: dict[MetricTask, PromptBlocks],
        at: _Block,
        scores: Array,
        images: Array,
    ) -> tuple[Ints, Floats]:
        """Add a block of prompts in the re-ranker's order; its top images and their scores."""
        assert self.job.reorder is not None
        reranked = orders(self.job.reorder, scores, at.convention, sample.rows, images)
        for task, part in parts.items():
            groups, group_of = sample.groups[task.attribute], sample.group_of[task.attribute]
            shares, labels = (
                target_shares(at.convention.target, groups),
                (sample.relabelled, group_of),
            )
            add_reranked(
                part, at.start, reranked, at.n_words, at.ndkl_draws, groups.codes, shares, labels
            )
        ids = reranked[max(reranked)][: at.n_words]
        return ids, self.backend.loops.take(scores[: at.n_words], ids)

    def _rank(
        self,
        parts: dict[str, PromptBlocks],
        draws: dict[str, _AttributeDraws],
        at: _Block,
        scores: Array,
        shuffled: Array | None,
    ) -> Array:
        """Add a block of prompts in the order of scores, with resamples; returns the order."""
        backend, convention = self.backend, at.convention
        order = backend.loops.rank(scores)
        tied = to_numpy(backend.loops.tied_ranks(scores, order))
        random_ties = order
        if convention.ties == "expected" and tied.max() >= MANY_TIES and shuffled is not None:
            # the order of tied images in a draw must not depend on the order of rows
            random_ties = backend.loops.reorder_ties(scores, order, shuffled)
        for name, part in parts.items():
            part.add("tied", tied)
            _add_counts(part, at, scores, order, random_ties, draws[name])
            _add_ndkl(part, at, order, random_ties, draws[name])
        return order


def gaps_of(
    texts: Floats, images: Floats, groups: Groups, bootstraps: int, rng: np.random.Generator
) -> Gaps:
    """Gaps as products of texts and differences of mean images, resampled within groups."""

    def gaps(rows: Ints) -> tuple[Floats, Floats]:
        x = np.asarray(texts, np.float64)[rows]
        weights = bootstrap_weights_within_groups(groups, min(bootstraps, GAP_RESAMPLES), rng)
        resampled = [x @ _directions(images, groups, draw_weights).T for draw_weights in weights]
        observed = x @ _directions(images, groups).T
        return observed, np.array(resampled).reshape(len(resampled), *observed.shape)

    return gaps


def _directions(images: Floats, groups: Groups, weights: Ints | None = None) -> Floats:
    """Mean image of each group minus that of all others."""
    weight = np.ones(len(groups)) if weights is None else weights.astype(np.float64)
    member = np.eye(len(groups.names))[groups.codes].T * weight  # groups x images
    sums = (member.astype(images.dtype) @ images).astype(np.float64)  # images are many
    counts = member.sum(axis=1, keepdims=True)
    rest, other_counts = sums.sum(axis=0) - sums, counts.sum() - counts
    return np.asarray(sums / counts - rest / other_counts)


@dataclass(frozen=True, eq=False)
class _AttributeDraws:
    """Labels and weights of one attribute, on the device of the backend."""

    backend: Backend
    sample: RankedSample
    name: str
    codes: Array
    labels: Array
    of: Array
    weights: Array
    by_cell: bool  # whether there are fewer labels than groups of all attributes

    @classmethod
    def of_sample(cls, sample: RankedSample, backend: Backend) -> dict[str, _AttributeDraws]:
        labels = backend.put(sample.relabelled)  # shared by all
        weights = {name: backend.put(drawn) for name, drawn in sample.weights.items()}
        return {
            name: cls(
                backend,
                sample,
                name,
                backend.put(groups.codes),
                labels,
                backend.put(sample.group_of[name]),
                weights[name],
                len(sample.group_of[name]) <= sum(len(g.names) for g in sample.groups.values()),
            )
            for name, groups in sample.groups.items()
        }

    @property
    def groups(self) -> Groups:
        return self.sample.groups[self.name]

    @property
    def size(self) -> int:
        return len(self.groups.names)

    @property
    def ranked_weights(self) -> Any:
        """Weights as rankings need them."""
        return self.sample.lanes[self.name] if self.backend.device is None else self.weights


def _add_c_asc(part: PromptBlocks, scores: Array, z: Array | None, draws: _AttributeDraws) -> None:
    moments = Moments.of(scores, draws.groups)
    part.add("c_asc", to_numpy(c_asc_of_moments(moments)))
    part.add("mean", to_numpy(moments.mean))
    part.add("m2", to_numpy(moments.m2))
    if z is not None:
        part.add("squares", draws.backend.kernels.weighted_squares(z, draws.weights).T)


class _Centred(NamedTuple):
    """Features minus their mean, which is the same for all groups: only rounding changes."""

    features: Array  # images x columns
    mean: Array
    backend: Backend
    kind: Any

    def sums(self, kernel: str, *given: Any) -> Floats:
        """Sums by a kernel, draws x groups x columns; of a few columns at a time on the CPU."""
        columns = self.features.shape[1]
        step = COLUMNS if self.backend.device is None else columns
        found = []
        for start in range(0, columns, step):
            at = slice(start, start + step)
            some = self.backend.cast(self.features[:, at] - self.mean[at], self.kind)
            found.append(getattr(self.backend.kernels, kernel)(some, *given).swapaxes(1, 2))
        return np.concatenate(found, axis=2)


def _permuted_sums(centred: _Centred, attributes: Sequence[_AttributeDraws]) -> list[Floats]:
    """Sums of features by permuted groups, draws x groups x features, of each attribute."""
    labels = attributes[0].labels
    if not attributes[0].by_cell:
        return [centred.sums("relabelled_sums", labels, draws.size, draws.of)
                for draws in attributes]  # fmt: skip
    of_cells = centred.sums("relabelled_sums", labels, len(attributes[0].of))
    found = []
    for draws in attributes:
        sums = np.zeros((len(of_cells), draws.size, of_cells.shape[2]), of_cells.dtype)
        for cell, group in enumerate(to_numpy(draws.of)):
            sums[:, group] += of_cells[:, cell]
        found.append(sums)
    return found


def _add_counts(
    part: PromptBlocks,
    at: _Block,
    scores: Array,
    order: Array,
    random_ties: Array,
    draws: _AttributeDraws,
) -> None:
    ks = sorted(at.convention.k)
    top_items = TopItems.of(scores, draws.groups, max(ks), order=order)
    for k in ks:
        part.add(f"top {k}", to_numpy(top_items.counts(k, at.convention.ties)))
        if len(draws.weights):
            counts = draws.backend.kernels.weighted_top_counts(
                random_ties, draws.codes, draws.ranked_weights, k, draws.size
            )
            part.draw(f"top {k} boot", at.start, counts, np.min_scalar_type(k), words=False)


def _add_ndkl(
    part: PromptBlocks, at: _Block, order: Array, random_ties: Array, draws: _AttributeDraws
) -> None:
    backend, shares = draws.backend, target_shares(at.convention.target, draws.groups)
    values = backend.loops.ndkl(order, draws.codes, backend.put(log_shares(shares)))
    part.add("ndkl", to_numpy(values))
    if at.n_words and len(draws.weights):
        few = draws.ranked_weights
        few = few.first(at.ndkl_draws) if backend.device is None else few[: at.ndkl_draws]
        resampled = backend.kernels.weighted_ndkl(
            random_ties[: at.n_words], draws.codes, few, shares
        )
        part.draw("ndkl boot", at.start, resampled, float, words=True)


def _add_permuted(
    parts: dict[str, PromptBlocks],
    at: _Block,
    order: Array,
    draws: dict[str, _AttributeDraws],
    sample: RankedSample,
) -> None:
    """Add top-k counts and NDKL under permuted labels, of words."""
    ks = tuple(sorted(at.convention.k))
    top, few = order[:, : max(ks)], slice(at.ndkl_draws)
    shares = {name: target_shares(at.convention.target, draws[name].groups) for name in parts}
    counts: dict[str, Sequence[Ints]] = {}
    ndkl: dict[str, Floats] = {}
    if next(iter(draws.values())).backend.device is None:
        for labels in sample.packed:
            some = labels.of_attributes(parts)
            counts |= some.top_counts(top, ks)
            if kernels.by_stretches(order):
                ndkl |= some.ndkl(order, shares, at.ndkl_draws)
    for name, part in parts.items():
        one = draws[name]
        if name not in counts:
            counts[name] = one.backend.kernels.relabelled_top_counts(
                top, one.labels, ks, one.size, one.of
            )
        if name not in ndkl:
            ndkl[name] = one.backend.kernels.relabelled_ndkl(
                order, one.labels[few], shares[name], one.of
            )
        for k, drawn in zip(ks, counts[name], strict=True):
            part.draw(f"top {k} null", at.start, drawn, np.min_scalar_type(k), words=True)
        part.draw("ndkl null", at.start, ndkl[name], float, words=True)
