"""Bias of candidates on one split of the images: means over words, with nulls and changes.

Permuted labels and bootstrap weights are drawn once and shared by all candidates: changes are
paired, and the null keeps the dependence between words (each permutation applies to the rankings of
all words, and the mean over words is taken for each).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from tiltmeter.errors import InputError
from tiltmeter.metrics import numpy_kernels as loops
from tiltmeter.metrics.association import c_asc_of_moments
from tiltmeter.metrics.convention import Convention
from tiltmeter.metrics.ranking import log_shares, max_skew_of_shares, target_shares
from tiltmeter.metrics.summary import Moments, TopItems
from tiltmeter.stats import defined, kernels
from tiltmeter.stats.bootstrap import (
    bootstrap_mean_of_words,
    bootstrap_weights_within_groups,
    standard_error_interval,
)
from tiltmeter.stats.intervals import Z
from tiltmeter.stats.null import NullBand, null_band, p_from_null_draws
from tiltmeter.types import Faces, Floats, Groups, Ints, Prompt

METRICS = ("max_skew", "ndkl", "c_asc_size")
#: NDKL, which uses whole rankings, gets this fraction (1 / FEWER) of the permutations.
FEWER = 5


@dataclass(frozen=True)
class CandidateEstimate:
    """An estimate with its interval and null, and its change from the original model."""

    value: float
    n: int
    low: float = np.nan
    high: float = np.nan
    ci_method: str | None = None
    null: tuple[float, float, float] | None = None  # mean, 2.5th and 97.5th percentile
    p: float = np.nan
    change: float = np.nan  # after - before
    change_low: float = np.nan
    change_high: float = np.nan
    k: int | None = None
    note: str | None = None

    @property
    def within_null(self) -> bool:
        """Whether the value is not above the upper edge of the null band."""
        return self.null is not None and self.value <= self.null[2]


@dataclass(frozen=True, eq=False)
class CandidateRanking:
    """The order that a candidate gives to the images for every prompt, with the scores.

    `scores` is None for a re-ranker, whose order is not by score.
    """

    order: Ints  # prompts x items, or x k for a re-ranker
    scores: Floats | None

    @classmethod
    def by_score(cls, texts: Floats, images: Floats) -> CandidateRanking:
        scores = np.asarray(texts @ images.T, np.float32)
        return cls(loops.rank(scores), scores)

    def counts(self, groups: Groups, k: int, ties: str) -> Floats:
        """Items of each group in the top k: prompts x groups."""
        if self.scores is None:
            return loops.group_counts(groups.codes[self.order[:, :k]], len(groups.names))
        top = TopItems.of(self.scores, groups, k, order=self.order)
        return np.asarray(top.counts(k, ties))

    @cached_property
    def standardized(self) -> Floats:
        assert self.scores is not None
        return kernels.standardized(self.scores)


@dataclass(frozen=True, eq=False)
class BootstrapValues:
    """Each mean in every bootstrap resample, for paired changes."""

    values: dict[tuple[str, str], Floats] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class BiasEvaluator:
    """Measures the bias of candidates on one split of the images, with draws that all share."""

    faces: Faces
    attributes: tuple[str, ...]
    prompts: tuple[Prompt, ...]
    convention: Convention
    permutations: int = 0
    bootstraps: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if len(self.faces) <= self.k:
            raise InputError(
                f"top {self.k} of {len(self.faces)} images is all of them: give more images, or "
                "a smaller --k"
            )

    @property
    def k(self) -> int:
        return min(self.convention.k)

    @cached_property
    def groups(self) -> dict[str, Groups]:
        return {name: self.faces.attribute(name) for name in self.attributes}

    @cached_property
    def concepts(self) -> tuple[Ints, Ints]:
        """Codes of the word and the template of each prompt."""
        words = {
            name: number
            for number, name in enumerate(dict.fromkeys(p.concept for p in self.prompts))
        }
        templates = {
            name: number
            for number, name in enumerate(dict.fromkeys(p.template for p in self.prompts))
        }
        return (
            np.array([words[prompt.concept] for prompt in self.prompts]),
            np.array([templates[prompt.template] for prompt in self.prompts]),
        )

    @cached_property
    def labels(self) -> dict[str, Ints]:
        """Permuted labels of each attribute: permutations x items."""
        rng = np.random.default_rng([self.seed, 1])
        permutations = [rng.permutation(len(self.faces)) for _ in range(self.permutations)]
        return {
            name: np.array([g.codes[permutation] for permutation in permutations])
            for name, g in self.groups.items()
        }

    @cached_property
    def weights(self) -> Ints:
        """Bootstrap counts of each image; every intersectional group keeps its size."""
        rng = np.random.default_rng([self.seed, 2])
        crossed = self.faces.attribute("*".join(self.faces.groups))
        return bootstrap_weights_within_groups(crossed, self.bootstraps, rng)

    def mean(self, values: Floats) -> Floats:
        """Mean over words of the mean over their templates; the last axis is prompts."""
        words, _ = self.concepts
        member = (words[:, None] == np.arange(words.max() + 1)).astype(float)
        per_word = (values @ member) / member.sum(axis=0)
        return np.asarray(defined.mean(np.moveaxis(per_word, -1, 0)))

    def by_prompt(self, ranking: CandidateRanking) -> dict[tuple[str, str], Floats]:
        """Each metric for each prompt; a re-ranker has no C-ASC, which needs scores."""
        c, k = self.convention, self.k
        by_metric: dict[tuple[str, str], Floats] = {}
        for name, groups in self.groups.items():
            by_metric["max_skew", name] = self._skew(ranking.counts(groups, k, c.ties), groups)
            if ranking.scores is not None:
                sizes = np.abs(c_asc_of_moments(Moments.of(ranking.scores, groups)))
                by_metric["c_asc_size", name] = defined.mean(np.moveaxis(sizes, -1, 0))
            log_q = log_shares(target_shares(c.target, groups))
            by_metric["ndkl", name] = loops.ndkl(ranking.order, groups.codes, log_q)
        return by_metric

    def means(self, ranking: CandidateRanking) -> dict[tuple[str, str], float]:
        """The means without statistics, for the choice of strengths."""
        return self._means(self.by_prompt(ranking))

    def _means(self, values: Mapping[tuple[str, str], Floats]) -> dict[tuple[str, str], float]:
        return {key: float(self.mean(by_prompt)) for key, by_prompt in values.items()}

    def draws(
        self, ranking: CandidateRanking, by_prompt: Mapping[tuple[str, str], Floats]
    ) -> BootstrapValues:
        """Each mean in every resample: of images and words for MaxSkew, otherwise of words."""
        if not self.bootstraps:
            return BootstrapValues()
        resampled = {}
        for key, values in by_prompt.items():
            metric, name = key
            values_drawn = np.broadcast_to(values, (self.bootstraps, len(values)))
            if metric == "max_skew" and ranking.scores is not None:
                groups = self.groups[name]
                counts = kernels.weighted_top_counts(
                    ranking.order, groups.codes, self.weights, self.k, len(groups.names)
                )
                values_drawn = self._skew(counts, groups)
            rng = np.random.default_rng([self.seed, 3])  # the same words for every candidate
            resampled[key] = bootstrap_mean_of_words(values_drawn, *self.concepts, rng)
        return BootstrapValues(resampled)

    def null(
        self, ranking: CandidateRanking, metric: str, attribute: str
    ) -> tuple[NullBand, Floats] | None:
        """Null band and null draws of a mean over words, under permuted labels."""
        groups, labels = self.groups[attribute], self.labels[attribute]
        if not self.permutations or (metric == "c_asc_size" and ranking.scores is None):
            return None
        if metric == "max_skew":
            top = np.ascontiguousarray(ranking.order[:, : self.k])
            (counts,) = kernels.relabelled_top_counts(top, labels, (self.k,), len(groups.names))
            null_means = self.mean(self._skew(counts, groups))
        elif metric == "ndkl":
            shares = target_shares(self.convention.target, groups)
            fewer_labels = labels[: max(len(labels) // FEWER, 1)]
            null_means = self.mean(kernels.relabelled_ndkl(ranking.order, fewer_labels, shares))
        else:
            sums = kernels.relabelled_sums(ranking.standardized, labels, len(groups.names))
            sizes = np.abs(kernels.c_asc_of_sums(sums, groups.counts))
            null_means = self.mean(defined.mean(np.moveaxis(sizes, -1, 0)))
        return null_band(null_means), null_means

    def estimates(
        self,
        ranking: CandidateRanking,
        before: BootstrapValues | None = None,
        before_means: Mapping[tuple[str, str], float] | None = None,
    ) -> tuple[dict[tuple[str, str], CandidateEstimate], BootstrapValues]:
        """Every mean with its interval, null and change; and its draws, to compare others with.

        `before` and `before_means` are the draws and the means of the original model.
        """
        by_prompt, words = self.by_prompt(ranking), int(self.concepts[0].max()) + 1
        means, resampled = self._means(by_prompt), self.draws(ranking, by_prompt)
        estimates = {}
        for (metric, name), value in means.items():
            key = (metric, name)
            low = high = change = change_low = change_high = p = np.nan
            method, null = None, self.null(ranking, metric, name)
            if key in resampled.values:
                low, high = map(
                    float,
                    standard_error_interval(resampled.values[key], np.asarray(value)),
                )
                images = metric == "max_skew" and ranking.scores is not None
                method = f"bootstrap over {'images and words' if images else 'words'}"
            partial = (
                metric == "ndkl" and ranking.scores is None
            )  # not comparable with whole rankings
            if before_means is not None and key in before_means and not partial:
                change = value - before_means[key]
            if before is not None and key in before.values and not np.isnan(change):
                half = Z * float(defined.std(resampled.values[key] - before.values[key]))
                change_low, change_high = change - half, change + half
            if null is not None:
                p = float(p_from_null_draws(value, null[1], "greater"))
            estimates[key] = CandidateEstimate(
                value, words, low, high, method,
                None if null is None else (float(null[0].mean), float(null[0].low),
                                           float(null[0].high)),
                p, change, change_low, change_high, self.k if metric == "max_skew" else None,
                None if ranking.scores is not None else "re-ranked order; NDKL is of the "
                "re-ranked items and not comparable with that of whole rankings",
            )  # fmt: skip
        return estimates, resampled

    def _skew(self, counts: Ints, groups: Groups) -> Floats:
        """MaxSkew from counts of a top k (... x groups)."""
        c = self.convention
        shares, q = np.asarray(counts, float) / self.k, target_shares(c.target, groups)
        return np.asarray(max_skew_of_shares(shares, q, k=self.k, empty=c.empty, skew=c.skew))
