"""Rankings by parts: one pass over the images, on any engine, that keeps no score.

Parts leave digests that merge. Counts in the top k are exact, and so are all metrics made of them;
their nulls and intervals are drawn for the images that come up alone (`tops`). C-ASC and its noise
come from the moments (`moments`). Where whole rankings fit into memory NDKL is exact; else it comes
from histograms, with bounds, and so do its null and its interval (`stats.whole_ranking`). A
re-ranker is given the best items of each of its groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from tiltmeter.engine.engines import Engine, FailedPart
from tiltmeter.engine.ranking.estimates import MetricTask, PromptBlocks, estimates
from tiltmeter.engine.ranking.job import Drawn, RankingJob, SampleSummary, matched, scaled
from tiltmeter.engine.ranking.moments import (
    boot_draws,
    c_asc_estimate,
    gap,
    null_draws,
    together,
)
from tiltmeter.engine.ranking.reranked import RankingOrder, add_shown
from tiltmeter.engine.ranking.samples import checked, samples_of
from tiltmeter.engine.ranking.top_items import TopImages, held, relabelled
from tiltmeter.engine.ranking.whole import FEWEST_DRAWS, NDKL_STEPS
from tiltmeter.engine.vectors import SelectedVectors, VectorPart, parts_of, sample
from tiltmeter.errors import InputError
from tiltmeter.metrics.digest import IMAGES, Digest, RerankPools, digest_blocks, finest
from tiltmeter.metrics.histogram import BoundedValue, HistogramGrid
from tiltmeter.metrics.numpy_kernels import ndkl_of_labels
from tiltmeter.metrics.ranking import log_shares, target_shares
from tiltmeter.metrics.summary import check_k
from tiltmeter.stats.draws import BootstrapDraws
from tiltmeter.stats.estimate import MetricEstimate
from tiltmeter.stats.null import band_of, p_of_sample
from tiltmeter.stats.resampling import Resampling
from tiltmeter.stats.whole_ranking import ndkl_by_chance, resampled_ndkl, stretch_counts
from tiltmeter.types import Floats, Groups, Ints, Progress

SAMPLE = 4096  # images that the bins are laid out by
RESAMPLES = 99  # for NDKL's interval: of their spread alone
#: Random rankings for NDKL's p, by word and at the most: Holm takes smaller ones than maxT.
DRAWS, MOST_DRAWS = 50, 20_000
#: Images of a part: all but few are cut into as many parts, whoever works on them.
SMALLEST, LARGEST, PARTS = 1 << 14, 1 << 20, 16
#: Scores that are held, where they are so few: rankings are then known whole.
FEW_SCORES = 1 << 22


@dataclass(frozen=True, eq=False)
class DigestTask:
    """What travels to a worker: the texts, and how images are counted."""

    texts: Floats
    groups: int
    k: int
    grid: HistogramGrid
    images: str  # the convention's choice
    pools: RerankPools | None = None

    def __call__(self) -> Callable[[VectorPart], Digest]:
        return self.work

    def work(self, part: VectorPart) -> Digest:
        """The digest of a part, of which no more than a block is in memory."""
        found = digest_blocks(
            self.texts, self._blocks(part),
            groups=self.groups, k=self.k, grid=self.grid, first=part.first, pools=self.pools,
        )  # fmt: skip
        return replace(found, histogram=found.histogram.packed())

    def _blocks(self, part: VectorPart) -> Iterator[tuple[Floats, Ints]]:
        for at in range(0, len(part.codes), IMAGES):
            vectors = part.vectors.part(at, at + IMAGES).read()
            yield scaled(vectors, self.images, part.first + at), part.codes[at : at + IMAGES]


#: What a re-ranker shows for each k: images by number, and their scores, prompts x k each.
Shown = dict[int, tuple[Ints, Floats]]


@dataclass(frozen=True, eq=False)
class ImagePass:
    """One pass over the images of a job: how they are counted, and some of them to draw from."""

    job: RankingJob
    work: DigestTask
    cells: Ints  # of each image, its group in the finest partition
    kinds: Ints  # cells x attributes (and a re-ranker's groups): each one's group
    rows: Ints  # some images, evenly from all ...
    some: Floats  # ... and their embeddings

    @classmethod
    def over(cls, job: RankingJob, reranked: Groups | None) -> ImagePass:
        rows, some = sample(job.images, SAMPLE)
        some = scaled(some, job.convention.images)
        texts = matched(job.texts, some)
        partitions = [*job.groups.values(), *([] if reranked is None else [reranked])]
        cells, kinds = finest(partitions)
        n, most, pools = len(job.images), max(job.convention.k), None
        if job.reorder is not None:
            of = kinds[:, -1] if reranked is not None else np.zeros(len(kinds), int)
            pools = RerankPools(of, most + 1)
        k = n if n * len(texts) <= FEW_SCORES else held(most, n)
        grid = HistogramGrid.around(texts @ some.T)
        work = DigestTask(texts, len(kinds), k, grid, job.convention.images, pools)
        return cls(job, work, cells, kinds, rows, some)


class PartsRanking:
    """A job by parts."""

    def __init__(
        self, job: RankingJob, rng: np.random.Generator, engine: Engine, progress: Progress
    ) -> None:
        if job.reorder is not None and not job.reorder.from_best:
            raise InputError(
                f"{job.reorder.by} chooses by the embeddings of all images, which --engine "
                f"{engine.name} never has together: use --engine local"
            )
        self.job, self.rng, self.engine, self.progress = job, rng, engine, progress
        self.samples = [
            SampleSummary(rows, {name: checked(one) for name, one in groups.items()})
            for rows, groups in samples_of(job.groups, job.labels, job.convention, rng)
        ]
        for one in self.samples:
            check_k(max(job.convention.k), len(next(iter(one.groups.values()))))
        self.failed: dict[int, tuple[str, int]] = {}

    def turns(self) -> Iterator[Iterator[Drawn]]:
        for summary in self.samples:
            job, rows = self.job, summary.rows
            reranked = None if job.reorder is None else job.reorder.groups
            if rows is not None:
                job = replace(job, images=SelectedVectors(job.images, rows), groups=summary.groups)
                reranked = None if reranked is None else reranked[rows]
            done = ImagePass.over(job, reranked)
            whole = self._digest(done, summary)
            shown = None if job.reorder is None else _shown(job.reorder, whole, job, rows)
            ids, scores = (whole.top.ids, whole.top.scores) if shown is None else shown[max(shown)]
            first = np.s_[: job.words, : max(job.convention.k)]
            summary.top = ids[first], scores[first]
            for at, name in enumerate(job.groups):
                if shown is None:
                    yield self._by_score(done, whole, summary, name, at)
                else:
                    yield self._by_order(shown, summary, name)

    def _digest(self, asked: ImagePass, summary: SampleSummary) -> Digest:
        """All parts together; groups are those of the images that could be read."""
        images = asked.job.images
        parts = parts_of(images, asked.cells, self.engine.size or part_size(len(images)))
        whole: Digest | None = None
        there = np.ones(len(images), bool)
        for at, found in enumerate(self.engine.run(asked.work, parts)):
            part = parts[at]
            if isinstance(found, FailedPart):
                self.failed[part.first] = found.reason, len(part.codes)
                there[part.first : part.first + len(part.codes)] = False
            elif whole is None:
                whole = replace(found, histogram=found.histogram.unpacked())
            else:
                whole = whole.absorb(found)
            self.progress("ranking images", (at + 1) / len(parts))
        if whole is None:
            raise InputError(f"no vectors could be read: {next(iter(self.failed.values()))[0]}")
        if not there.all():
            summary.groups = {
                name: checked(groups[there]) for name, groups in summary.groups.items()
            }
            check_k(max(asked.job.convention.k), int(there.sum()))
        return whole

    def _by_score(
        self, asked: ImagePass, whole: Digest, summary: SampleSummary, name: str, at: int
    ) -> Iterator[Drawn]:
        job, rng, groups = asked.job, self.rng, summary.groups[name]
        texts, draws = asked.work.texts, job.resampling
        found = whole.regroup(asked.kinds[:, at], len(groups.names))
        null = boot = None
        if draws.permutations:
            null = null_draws(together(texts, asked.some), groups.counts, draws.permutations, rng)
        if draws.bootstraps:
            within = together(texts, asked.some, job.groups[name].codes[asked.rows])
            boot = boot_draws(within, found.moments, draws.bootstraps, rng)
        summary.moments[name] = found.moments
        summary.counts[name] = {
            k: found.top_counts(k, job.convention.ties) for k in sorted(job.convention.k)
        }
        drawn = np.empty((len(texts), 0, len(groups.names))) if boot is None else boot.gap
        gaps = gap(found.moments.mean, groups.counts), drawn.swapaxes(0, 1)
        summary.gaps[name] = lambda at: (gaps[0][at], gaps[1][:, at])
        near = c_asc_estimate(found.moments, groups, null=null, boot=boot and boot.c_asc)
        for estimate in (near, *_ranked(job, found, groups, summary.counts[name], rng)):
            yield replace(estimate, holm=True), rng.spawn(1)[0]

    def _by_order(self, shown: Shown, summary: SampleSummary, name: str) -> Iterator[Drawn]:
        """Metrics of a re-ranker's order; permuted labels are drawn for the images shown alone."""
        job, groups, rng = self.job, summary.groups[name], self.rng
        longest = max(shown)
        seen, places = np.unique(
            np.concatenate([ids.ravel() for ids, _ in shown.values()]), return_inverse=True
        )
        ends = np.cumsum([ids.size for ids, _ in shown.values()])[:-1]
        order = {
            k: at.reshape(-1, k).astype(np.int32)
            for k, at in zip(shown, np.split(places, ends), strict=True)
        }
        labels = np.empty((0, len(seen)), np.uint8)
        if job.resampling.permutations:
            labels = relabelled(len(seen), groups.counts, job.resampling.permutations, rng)
        dealt = labels, np.arange(len(groups.names))
        part = PromptBlocks(len(job.texts), job.words)
        few = int(np.clip(NDKL_STEPS // (longest * job.words), FEWEST_DRAWS, 10**9))
        target = target_shares(job.convention.target, groups)
        codes = _all_codes(self.job.groups[name], summary.rows)[seen]
        add_shown(part, 0, order, job.words, few, codes, target, dealt)
        summary.counts[name] = {k: part.values(f"top {k}") for k in order}
        task = MetricTask(name, True)
        for estimate in estimates(
            task, part, groups, job.convention, job.words, dealt, rng, longest
        ):
            yield estimate, rng.spawn(1)[0]


def part_size(images: int) -> int:
    """Images of a part, where nobody asked for another size."""
    return int(np.clip(-(-images // PARTS), SMALLEST, LARGEST))


def _all_codes(groups: Groups, rows: Ints | None) -> Ints:
    return groups.codes if rows is None else groups.codes[rows]


def _shown(reorder: RankingOrder, found: Digest, job: RankingJob, rows: Ints | None) -> Shown:
    """What the re-ranker makes of the best items of each of its groups, prompt by prompt."""
    best = [one for one in found.best if one is not None]
    ids, scores = (
        np.concatenate([getattr(one, name) for one in best], axis=1) for name in ("ids", "scores")
    )
    by_id = np.argsort(ids, axis=1)  # of equal scores the first image comes first
    ids, scores = (np.take_along_axis(x, by_id, axis=1) for x in (ids, scores))
    shown = {}
    for k in sorted(job.convention.k):
        at = np.stack([
            reorder(score[None], k, one if rows is None else rows[one], None)[0]
            for score, one in zip(scores, ids, strict=True)
        ])  # fmt: skip
        shown[k] = np.take_along_axis(ids, at, axis=1), np.take_along_axis(scores, at, axis=1)
    return shown


def _ranked(
    job: RankingJob,
    found: Digest,
    groups: Groups,
    counts: dict[int, Floats],
    rng: np.random.Generator,
) -> Iterator[MetricEstimate]:
    """What takes rankings: metrics of the top k, and NDKL of all and of the top k."""
    convention, words, resampling = job.convention, job.words, job.resampling
    q = target_shares(convention.target, groups)
    part = PromptBlocks(len(found.top.scores), words)
    for k, each in counts.items():
        part.add(f"top {k}", each)
    tops = TopImages.of(found.top, held(max(convention.k), found.items))
    tops.add_draws(part, groups, convention.k, words, resampling, rng)
    bounded, notes = _whole_ndkl(found, q)
    part.add("ndkl", bounded.value)
    part.add("tied", np.zeros(len(bounded.value)))
    none: tuple[Ints, Ints] = (np.empty((0, len(groups)), np.uint8), np.arange(len(groups.names)))
    task = MetricTask(groups.attribute, True)
    *top, plain = estimates(task, part, groups, convention, words, none, rng)
    yield from top
    log_q, sizes = log_shares(q), groups.counts
    yield _with_noise(
        replace(plain, notes=notes),
        bounded.low,  # whatever the order within bins: p is not below that
        words,
        resampling,
        lambda draws: ndkl_by_chance(sizes, q, draws, rng),
        lambda draws: np.stack([
            resampled_ndkl(stretch_counts(*one), q, draws, rng)
            for one in zip(found.top.codes[:words], found.histogram.counts[:words], strict=True)
        ]),
    )  # fmt: skip
    for k in convention.k:
        values = found.ndkl(q, k)
        yield _with_noise(
            replace(plain, values=values[:, None], k=k, notes=None),
            values,
            words,
            resampling,
            partial(_ndkl_by_chance, k, sizes, log_q, rng),
            partial(tops.resampled_ndkl, k, sizes, log_q, words, rng),
        )


def _whole_ndkl(found: Digest, target: Floats) -> tuple[BoundedValue, list[str] | None]:
    """NDKL of whole rankings: exact where they are held, else within bounds, which are noted."""
    if found.top.scores.shape[1] == found.items:
        exact = found.ndkl(target, found.items)
        return BoundedValue(exact, exact, exact), None
    bounded = found.whole_ndkl(target)
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
    """NDKL with its null, the p-value of the `least` that it can be, and draws of words."""
    if resampling.permutations:
        drawn = null(max(resampling.permutations, min(DRAWS * words, MOST_DRAWS)))
        p, band = p_of_sample(least, drawn, estimate.side)[:, None], band_of(drawn[:, None])
        estimate = replace(estimate, exact_null=band, exact_p=p, alike=drawn)
    if resampling.bootstraps:
        # in order, so that a mean over words has the widest interval that it can have
        spread = np.sort(boot(min(resampling.bootstraps, RESAMPLES)), axis=1)
        estimate = replace(estimate, boot=BootstrapDraws(spread[..., None]))
    return estimate
