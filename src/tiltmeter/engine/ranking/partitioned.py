"""Rankings by parts: one pass over the images, on any engine, without keeping scores.

Parts produce digests that merge. Top-k counts are exact, and so are all metrics made of them; their
nulls and intervals are drawn for the top images only (`top_items`). C-ASC comes with its null and
interval from moments (`moments`). NDKL is exact if whole rankings fit into memory; otherwise it
comes from histograms, with bounds, and so do its null and interval (`stats.whole_ranking`). A
re-ranker gets the best items of each of its groups.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from tiltmeter.engine.engines import Engine, FailedPart
from tiltmeter.engine.parts import (
    ImageParts,
    PartReader,
    VectorPart,
    cells_of,
    retry_without_failed,
    run_parts,
)
from tiltmeter.engine.ranking.estimates import (
    MetricTask,
    PromptBlocks,
    estimates,
    random_ndkl,
)
from tiltmeter.engine.ranking.in_memory import FEWEST_DRAWS, NDKL_STEPS
from tiltmeter.engine.ranking.job import Drawn, RankingJob, SampleSummary, matched, scaled
from tiltmeter.engine.ranking.moments import (
    boot_draws,
    c_asc_estimate,
    correlation_factor,
    gap,
    null_draws,
)
from tiltmeter.engine.ranking.reranked import RankingOrder, add_reranked
from tiltmeter.engine.ranking.samples import checked, samples_of
from tiltmeter.engine.ranking.top_items import TopImages, relabelled, top_size
from tiltmeter.engine.vectors import SelectedVectors
from tiltmeter.errors import InputError
from tiltmeter.metrics.digest import Digest, RerankPools, digest_blocks
from tiltmeter.metrics.histogram import BoundedValue, HistogramGrid
from tiltmeter.metrics.numpy_kernels import ndkl_of_labels
from tiltmeter.metrics.ranking import log_shares, target_shares
from tiltmeter.metrics.summary import Moments, check_k
from tiltmeter.stats.draws import BootstrapDraws
from tiltmeter.stats.estimate import MetricEstimate
from tiltmeter.stats.null import null_band, p_from_shared_null
from tiltmeter.stats.resampling import Resampling
from tiltmeter.stats.whole_ranking import ndkl_by_chance, resampled_ndkl, stretch_counts
from tiltmeter.types import Floats, Groups, GroupSizes, Ints, Progress

SAMPLE = 4096  # images from which the histogram bins are chosen
RESAMPLES = 99  # for NDKL's interval, which uses their spread only
#: Random rankings for NDKL's p, per word and at most: Holm needs smaller p-values than maxT.
DRAWS, MOST_DRAWS = 50, 20_000
#: With at most so many scores, whole rankings are kept.
FEW_SCORES = 1 << 22


class PartDigest(NamedTuple):
    """What a worker returns of a part: the digest of all its leaves, and the moments of each."""

    digest: Digest | None  # None: no leaf could be read
    moments: list[Moments]
    failed: dict[int, str]  # unreadable leaves by their first image, with reasons


@dataclass(frozen=True, eq=False)
class DigestTask:
    """Sent to workers: the texts, how images are read, and how they are counted."""

    reader: PartReader
    texts: Floats
    groups: int
    k: int
    grid: HistogramGrid
    images: str  # scaling, by the convention
    pools: RerankPools | None = None

    def __call__(self) -> Callable[[VectorPart | range], PartDigest]:
        return self.work

    def work(self, part: VectorPart | range) -> PartDigest:
        """The digest of a part, read in blocks."""
        (digest, moments), failed = retry_without_failed(partial(self._digest, part))
        if digest is not None:
            digest = replace(digest, histogram=digest.histogram.packed())
        return PartDigest(digest, moments, failed)

    def _digest(
        self, part: VectorPart | range, failed: frozenset[int]
    ) -> tuple[Digest | None, list[Moments]]:
        digest: Digest | None = None
        moments = []
        for first, _, leaf in self.reader.leaves(part):
            if first in failed:
                continue
            blocks = self.reader.blocks(leaf, scaling=self.images)
            pairs = ((vectors, codes) for _, vectors, codes in blocks)
            digest = digest_blocks(
                self.texts, pairs, groups=self.groups, k=self.k, grid=self.grid, first=first,
                pools=self.pools, after=digest,
            )  # fmt: skip
            moments.append(digest.moments)
        return digest, moments


class RerankedTop(NamedTuple):
    """A re-ranker's top k: image numbers, scores and cells, each prompts x k."""

    ids: Ints
    scores: Floats
    cells: Ints


@dataclass(frozen=True, eq=False)
class ImagePass:
    """One pass over the images of a job: how they are counted, and a sample to draw from."""

    job: RankingJob
    work: DigestTask
    parts: ImageParts
    kinds: Ints  # cells x attributes (and a re-ranker's groups): group of each cell
    vectors: Floats  # of an evenly spaced sample of images ...
    sample: Ints  # ... and their cells

    @classmethod
    def over(cls, job: RankingJob, reranked: Groups | None, engine: Engine) -> ImagePass:
        partitions = [*job.groups.values(), *([] if reranked is None else [reranked])]
        cells, kinds = cells_of(partitions)
        parts = ImageParts.of(job.images, cells, engine)
        vectors, sampled = parts.sample(SAMPLE, engine)
        vectors = scaled(vectors, job.convention.images)
        texts = matched(job.texts, vectors)
        n, largest_k, pools = len(job.images), max(job.convention.k), None
        if job.reorder is not None:
            pool_of = kinds[:, -1] if reranked is not None else np.zeros(len(kinds), int)
            pools = RerankPools(pool_of, largest_k + 1)
        k = n if n * len(texts) <= FEW_SCORES else top_size(largest_k, n)
        grid = HistogramGrid.around(texts @ vectors.T)
        work = DigestTask(parts.reader, texts, len(kinds), k, grid, job.convention.images, pools)
        return cls(job, work, parts, kinds, vectors, sampled)


def check_order_on_engine(order: Any, engine: Engine) -> None:
    """Raise if a re-ranker, or a model with one, needs all images at once and does not get them."""
    if engine.name != "local" and getattr(order, "from_best", True) is False:
        raise InputError(
            f"{getattr(order, 'by', None) or getattr(order, 'name', 'this model')} needs the "
            f"embeddings of all images at once, which --engine {engine.name} does not have: use "
            "--engine local",
            code="bad-option",
            value=engine.name,
        )


class PartitionedRanking:
    """A ranking job by parts."""

    def __init__(
        self, job: RankingJob, rng: np.random.Generator, engine: Engine, progress: Progress
    ) -> None:
        check_order_on_engine(job.reorder, engine)
        self.job, self.rng, self.engine, self.progress = job, rng, engine, progress
        self.samples = [
            SampleSummary(rows, {name: checked(labels) for name, labels in groups.items()})
            for rows, groups in samples_of(job.groups, job.labels, job.convention, rng)
        ]
        for labels in self.samples:
            items = len(next(iter(labels.groups.values())))
            check_k(max(job.convention.k), items, below=True)
        self.failed: dict[int, tuple[str, int]] = {}

    def turns(self) -> Iterator[Iterator[Drawn]]:
        for summary in self.samples:
            job, rows = self.job, summary.rows
            reranked = None if job.reorder is None else job.reorder.groups
            if rows is not None:
                job = replace(job, images=SelectedVectors(job.images, rows), groups=summary.groups)
                reranked = None if reranked is None else reranked[rows]
            image_pass = ImagePass.over(job, reranked, self.engine)
            digest = self._digest(image_pass, summary)
            reranked_top = None
            if job.reorder is not None:
                group_of = None if reranked is None else image_pass.kinds[:, -1]
                reranked_top = _rerank(job.reorder, digest, job, group_of)
            top = digest.top if reranked_top is None else reranked_top[max(reranked_top)]
            first = np.s_[: job.words, : max(job.convention.k)]
            summary.top = top.ids[first], top.scores[first]
            for column, name in enumerate(job.groups):
                if reranked_top is None:
                    yield self._by_score(image_pass, digest, summary, name, column)
                else:
                    yield self._by_order(reranked_top, summary, name, image_pass.kinds[:, column])

    def _digest(self, image_pass: ImagePass, summary: SampleSummary) -> Digest:
        """Merge the digests of all parts; groups are reduced to readable images."""
        digest: Digest | None = None
        moments: Moments | None = None
        counts: Counter[int] = Counter()  # images of unreadable leaves
        parts = image_pass.parts.parts(self.engine)
        found = run_parts(self.engine, image_pass.work, parts, self.progress, "ranking images")
        for part, result in zip(parts, found, strict=True):
            if isinstance(result, FailedPart):  # of the engine itself
                result = PartDigest(None, [], {first: result.reason for first, _, _ in
                                               image_pass.work.reader.leaves(part)})  # fmt: skip
            sizes = {first: n for first, n, _ in image_pass.work.reader.leaves(part)}
            for first, reason in result.failed.items():
                self.failed[first] = reason, sizes[first]
                counts.update(failed=sizes[first])
            for of_leaf in result.moments:
                moments = of_leaf if moments is None else moments.merge(of_leaf)
            if result.digest is not None and digest is None:
                digest = replace(result.digest, histogram=result.digest.histogram.unpacked())
            elif result.digest is not None and digest is not None:
                digest = digest.absorb(result.digest)
        if digest is None or moments is None:
            raise InputError(f"no embeddings could be read: {next(iter(self.failed.values()))[0]}")
        if counts:
            left = np.asarray(moments.count).astype(np.int64)
            summary.groups = {
                name: checked(_readable(groups, image_pass.kinds[:, column], left))
                for column, (name, groups) in enumerate(summary.groups.items())
            }
            check_k(max(image_pass.job.convention.k), int(left.sum()), below=True)
        return replace(digest, moments=moments)

    def _by_score(
        self, image_pass: ImagePass, digest: Digest, summary: SampleSummary, name: str, column: int
    ) -> Iterator[Drawn]:
        job, rng, groups = image_pass.job, self.rng, summary.groups[name]
        texts, draws = image_pass.work.texts, job.resampling
        grouped = digest.regroup(image_pass.kinds[:, column], len(groups.names))
        null = boot = None
        if draws.permutations:
            null = null_draws(
                correlation_factor(texts, image_pass.vectors),
                groups.counts,
                draws.permutations,
                rng,
            )
        if draws.bootstraps:
            within = correlation_factor(
                texts, image_pass.vectors, image_pass.kinds[image_pass.sample, column]
            )
            boot = boot_draws(within, grouped.moments, draws.bootstraps, rng)
        summary.moments[name] = grouped.moments
        summary.counts[name] = {
            k: grouped.top_counts(k, job.convention.ties) for k in sorted(job.convention.k)
        }
        drawn = np.empty((len(texts), 0, len(groups.names))) if boot is None else boot.gap
        gaps = gap(grouped.moments.mean, groups.counts), drawn.swapaxes(0, 1)
        summary.gaps[name] = lambda rows: (gaps[0][rows], gaps[1][:, rows])
        c_asc = c_asc_estimate(grouped.moments, groups, null=null, boot=boot and boot.c_asc)
        for estimate in (
            c_asc,
            *_ranking_estimates(job, grouped, groups, summary.counts[name], rng),
        ):
            yield replace(estimate, holm=True), rng.spawn(1)[0]

    def _by_order(
        self, tops: dict[int, RerankedTop], summary: SampleSummary, name: str, group_of: Ints
    ) -> Iterator[Drawn]:
        """Metrics of a re-ranker's order; labels are permuted for its top images only."""
        job, groups, rng = self.job, summary.groups[name], self.rng
        longest = max(tops)
        images, first, places = np.unique(
            np.concatenate([top.ids.ravel() for top in tops.values()]),
            return_index=True,
            return_inverse=True,
        )
        codes = group_of[np.concatenate([top.cells.ravel() for top in tops.values()])[first]]
        ends = np.cumsum([top.ids.size for top in tops.values()])[:-1]
        order = {
            k: rows.reshape(-1, k).astype(np.int32)
            for k, rows in zip(tops, np.split(places, ends), strict=True)
        }
        labels = np.empty((0, len(images)), np.uint8)
        if job.resampling.permutations:
            labels = relabelled(len(images), groups.counts, job.resampling.permutations, rng)
        permuted = labels, np.arange(len(groups.names))
        part = PromptBlocks(len(job.texts), job.words)
        ndkl_draws = int(np.clip(NDKL_STEPS // (longest * job.words), FEWEST_DRAWS, 10**9))
        target = target_shares(job.convention.target, groups)
        add_reranked(part, 0, order, job.words, ndkl_draws, codes, target, permuted)
        summary.counts[name] = {k: part.values(f"top {k}") for k in order}
        task = MetricTask(name, True)
        if len(shown := labels[:, :longest]):
            part.drawn["ndkl random"] = random_ndkl(shown, permuted[1], groups, job.convention)
        for estimate in estimates(task, part, groups, job.convention, job.words, rng, longest):
            yield estimate, rng.spawn(1)[0]


def _readable(groups: Groups, group_of: Ints, images: Ints) -> GroupSizes:
    """Groups of the images that could be read, whose numbers by cell are given."""
    return GroupSizes(group_of, images, groups.names, groups.attribute)


def _rerank(
    reorder: RankingOrder, digest: Digest, job: RankingJob, group_of: Ints | None
) -> dict[int, RerankedTop]:
    """Re-rank the best items of each group, prompt by prompt, for every k."""
    best = [pool for pool in digest.best if pool is not None]
    ids, scores, cells = (
        np.concatenate([getattr(pool, name) for pool in best], axis=1)
        for name in ("ids", "scores", "codes")
    )
    by_id = np.argsort(ids, axis=1)  # among equal scores the first image comes first
    ids, scores, cells = (np.take_along_axis(x, by_id, axis=1) for x in (ids, scores, cells))
    tops = {}
    for k in sorted(job.convention.k):
        order = np.stack([
            reorder.of_items(score[None], k, None if group_of is None else group_of[own])[0]
            for score, own in zip(scores, cells, strict=True)
        ])  # fmt: skip
        tops[k] = RerankedTop(*(np.take_along_axis(x, order, axis=1) for x in (ids, scores, cells)))
    return tops


def _ranking_estimates(
    job: RankingJob,
    digest: Digest,
    groups: Groups,
    counts: dict[int, Floats],
    rng: np.random.Generator,
) -> Iterator[MetricEstimate]:
    """Metrics of rankings: of the top k, and NDKL of the whole ranking and of the top k."""
    convention, words, resampling = job.convention, job.words, job.resampling
    q = target_shares(convention.target, groups)
    part = PromptBlocks(len(digest.top.scores), words)
    for k, values in counts.items():
        part.add(f"top {k}", values)
    top_images = TopImages.of(digest.top, top_size(max(convention.k), digest.items))
    top_images.add_draws(part, groups, convention.k, words, resampling, rng)
    bounded, notes = _whole_ndkl(digest, q)
    part.add("ndkl", bounded.value)
    part.add("tied", np.zeros(len(bounded.value)))
    task = MetricTask(groups.attribute, True)
    *top, ndkl = estimates(task, part, groups, convention, words, rng)
    yield from top
    log_q, sizes = log_shares(q), groups.counts
    yield _with_noise(
        replace(ndkl, notes=notes),
        bounded.low,  # a lower bound for any order within bins, so that p is an upper bound
        words,
        resampling,
        lambda draws: ndkl_by_chance(sizes, q, draws, rng),
        lambda draws: np.stack([
            resampled_ndkl(stretch_counts(codes, counts), q, draws, rng)
            for codes, counts in zip(
                digest.top.codes[:words], digest.histogram.counts[:words], strict=True)
        ]),
    )  # fmt: skip
    for k in convention.k:
        values = digest.ndkl(q, k)
        yield _with_noise(
            replace(ndkl, values=values[:, None], k=k, notes=None),
            values,
            words,
            resampling,
            partial(_ndkl_by_chance, k, sizes, log_q, rng),
            partial(top_images.resampled_ndkl, k, sizes, log_q, words, rng),
        )


def _whole_ndkl(digest: Digest, target: Floats) -> tuple[BoundedValue, list[str] | None]:
    """NDKL of whole rankings: exact if they are kept, otherwise with bounds in a note."""
    if digest.top.scores.shape[1] == digest.items:
        exact = digest.ndkl(target, digest.items)
        return BoundedValue(exact, exact, exact), None
    bounded = digest.whole_ndkl(target)
    notes = [
        f"from histograms: between {low:.6g} and {high:.6g}"
        for low, high in zip(bounded.low, bounded.high, strict=True)
    ]
    return bounded, notes


def _ndkl_by_chance(
    k: int, sizes: Ints, log_q: Floats, rng: np.random.Generator, draws: int
) -> Floats:
    return ndkl_of_labels(relabelled(k, sizes, draws, rng), log_q)


def _with_noise(
    estimate: MetricEstimate,
    least: Floats,
    words: int,
    resampling: Resampling,
    null: Callable[[int], Floats],
    boot: Callable[[int], Floats],
) -> MetricEstimate:
    """NDKL with its null, the p-value of its lower bound `least`, and draws of words."""
    if resampling.permutations:
        null_values = null(max(resampling.permutations, min(DRAWS * words, MOST_DRAWS)))
        p, band = (
            p_from_shared_null(least, null_values, estimate.side)[:, None],
            null_band(null_values[:, None]),
        )
        estimate = replace(estimate, exact_null=band, exact_p=p, alike=null_values)
    if resampling.bootstraps:
        # sorted, so that the interval of a mean over words is the widest possible
        spread = np.sort(boot(min(resampling.bootstraps, RESAMPLES)), axis=1)
        estimate = replace(estimate, boot=BootstrapDraws(spread[..., None]))
    return estimate
