"""Bias of what is ranked on one part of the images: means over words, beside noise and the change.

Labels permuted again, and weights of resampled images, are drawn once and serve every candidate: so
that a change is paired, and a null respects words that lean together (one draw of labels is laid
over the rankings of all words, and the mean over words is taken in each draw).
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
    crossed_means,
    standard_error_interval,
    stratified_weights,
)
from tiltmeter.stats.intervals import Z
from tiltmeter.stats.null import NullBand, band_of, p_of_draws
from tiltmeter.types import Faces, Floats, Groups, Ints, Prompt

METRICS = ("max_skew", "ndkl", "c_asc_size")
#: Relabellings that NDKL, which walks whole rankings, is given of all.
FEWER = 5


@dataclass(frozen=True)
class CandidateEstimate:
    """A number, the noise around it, and how it differs from the model before."""

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
        """Whether chance alone gives as much: not above the band's upper edge."""
        return self.null is not None and self.value <= self.null[2]

    def verdict(self, *, less_is_better: bool = True) -> str | None:
        """better, worse or no evidence, by the interval of the change."""
        if np.isnan(self.change_low):
            return None
        up, down = self.change_low > 0, self.change_high < 0
        if not (up or down):
            return "no evidence"
        return "better" if down == less_is_better else "worse"


@dataclass(frozen=True, eq=False)
class CandidateRanking:
    """What one candidate shows for every prompt: an order, and the scores where it is theirs."""

    order: Ints  # prompts x items, or x k where a re-ranker chose k
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
    """What a figure becomes in each resample, for paired changes."""

    values: dict[tuple[str, str], Floats] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class CandidateEvaluator:
    """One part of the images, its groups, and the draws that all candidates share."""

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
                f"top {self.k} of {len(self.faces)} images leaves nothing to choose from: give "
                f"more images, or a smaller --k"
            )

    @property
    def k(self) -> int:
        return min(self.convention.k)

    @cached_property
    def groups(self) -> dict[str, Groups]:
        return {name: self.faces.attribute(name) for name in self.attributes}

    @cached_property
    def concepts(self) -> tuple[Ints, Ints]:
        """The word and the template of each prompt, as numbers."""
        words = {one: at for at, one in enumerate(dict.fromkeys(p.concept for p in self.prompts))}
        frames = {one: at for at, one in enumerate(dict.fromkeys(p.template for p in self.prompts))}
        return (
            np.array([words[prompt.concept] for prompt in self.prompts]),
            np.array([frames[prompt.template] for prompt in self.prompts]),
        )

    @cached_property
    def labels(self) -> dict[str, Ints]:
        """Labels of each attribute permuted again: draws x items."""
        rng = np.random.default_rng([self.seed, 1])
        deals = [rng.permutation(len(self.faces)) for _ in range(self.permutations)]
        return {
            name: np.array([g.codes[deal] for deal in deals]) for name, g in self.groups.items()
        }

    @cached_property
    def weights(self) -> Ints:
        """How often each image is drawn: every crossed group keeps its size."""
        rng = np.random.default_rng([self.seed, 2])
        crossed = self.faces.attribute("*".join(self.faces.groups))
        return stratified_weights(crossed, self.bootstraps, rng)

    def mean(self, values: Floats) -> Floats:
        """Mean over words of the mean over their templates; the last axis is prompts."""
        words, _ = self.concepts
        member = (words[:, None] == np.arange(words.max() + 1)).astype(float)
        per_word = (values @ member) / member.sum(axis=0)
        return np.asarray(defined.mean(np.moveaxis(per_word, -1, 0)))

    def by_prompt(self, shown: CandidateRanking) -> dict[tuple[str, str], Floats]:
        """Each metric for each prompt; C-ASC is of scores, so a re-ranker has none."""
        c, k = self.convention, self.k
        found: dict[tuple[str, str], Floats] = {}
        for name, groups in self.groups.items():
            found["max_skew", name] = self._skew(shown.counts(groups, k, c.ties), groups)
            if shown.scores is not None:
                sizes = np.abs(c_asc_of_moments(Moments.of(shown.scores, groups)))
                found["c_asc_size", name] = defined.mean(np.moveaxis(sizes, -1, 0))
            log_q = log_shares(target_shares(c.target, groups))
            found["ndkl", name] = loops.ndkl(shown.order, groups.codes, log_q)
        return found

    def means(self, shown: CandidateRanking) -> dict[tuple[str, str], float]:
        """The numbers alone, to choose by."""
        return self._means(self.by_prompt(shown))

    def _means(self, values: Mapping[tuple[str, str], Floats]) -> dict[tuple[str, str], float]:
        return {key: float(self.mean(of)) for key, of in values.items()}

    def draws(
        self, shown: CandidateRanking, by_prompt: Mapping[tuple[str, str], Floats]
    ) -> BootstrapValues:
        """Each mean in every resample: of images and words for MaxSkew, of words for the others."""
        if not self.bootstraps:
            return BootstrapValues()
        found = {}
        for key, values in by_prompt.items():
            metric, name = key
            many = np.broadcast_to(values, (self.bootstraps, len(values)))
            if metric == "max_skew" and shown.scores is not None:
                groups = self.groups[name]
                counts = kernels.weighted_top_counts(
                    shown.order, groups.codes, self.weights, self.k, len(groups.names)
                )
                many = self._skew(counts, groups)
            rng = np.random.default_rng([self.seed, 3])  # the same words for every candidate
            found[key] = crossed_means(many, *self.concepts, rng)
        return BootstrapValues(found)

    def null(
        self, shown: CandidateRanking, metric: str, attribute: str
    ) -> tuple[NullBand, Floats] | None:
        """The mean over words where labels mean nothing."""
        groups, labels = self.groups[attribute], self.labels[attribute]
        if not self.permutations or (metric == "c_asc_size" and shown.scores is None):
            return None
        if metric == "max_skew":
            top = np.ascontiguousarray(shown.order[:, : self.k])
            (counts,) = kernels.relabelled_top_counts(top, labels, (self.k,), len(groups.names))
            drawn = self.mean(self._skew(counts, groups))
        elif metric == "ndkl":
            shares = target_shares(self.convention.target, groups)
            some = labels[: max(len(labels) // FEWER, 1)]
            drawn = self.mean(kernels.relabelled_ndkl(shown.order, some, shares))
        else:
            sums = kernels.relabelled_sums(shown.standardized, labels, len(groups.names))
            sizes = np.abs(kernels.c_asc_of_sums(sums, groups.counts))
            drawn = self.mean(defined.mean(np.moveaxis(sizes, -1, 0)))
        return band_of(drawn), drawn

    def figures(
        self,
        shown: CandidateRanking,
        before: BootstrapValues | None = None,
        first: Mapping[tuple[str, str], float] | None = None,
    ) -> tuple[dict[tuple[str, str], CandidateEstimate], BootstrapValues]:
        """Every mean with its interval, null and change; and the draws, to compare others with.

        `before` and `first` are the draws and the means of the model as it was.
        """
        by_prompt, words = self.by_prompt(shown), int(self.concepts[0].max()) + 1
        means, drawn = self._means(by_prompt), self.draws(shown, by_prompt)
        found = {}
        for (metric, name), value in means.items():
            key = (metric, name)
            low = high = change = change_low = change_high = p = np.nan
            method, null = None, self.null(shown, metric, name)
            if key in drawn.values:
                low, high = map(
                    float, standard_error_interval(drawn.values[key], np.asarray(value))
                )
                images = metric == "max_skew" and shown.scores is not None
                method = f"bootstrap over {'images and words' if images else 'words'}"
            shorter = metric == "ndkl" and shown.scores is None  # of other ranks than before
            if first is not None and key in first and not shorter:
                change = value - first[key]
            if before is not None and key in before.values and not np.isnan(change):
                half = Z * float(defined.std(drawn.values[key] - before.values[key]))
                change_low, change_high = change - half, change + half
            if null is not None:
                p = float(p_of_draws(value, null[1], "greater"))
            found[key] = CandidateEstimate(
                value, words, low, high, method,
                None if null is None else (float(null[0].mean), float(null[0].lo),
                                           float(null[0].hi)),
                p, change, change_low, change_high, self.k if metric == "max_skew" else None,
                None if shown.scores is not None else "order re-ranked; NDKL is that of the "
                "items shown, not to be compared with that of whole rankings",
            )  # fmt: skip
        return found, drawn

    def _skew(self, counts: Ints, groups: Groups) -> Floats:
        """MaxSkew from counts of a top k (... x groups)."""
        c = self.convention
        shares, q = np.asarray(counts, float) / self.k, target_shares(c.target, groups)
        return np.asarray(max_skew_of_shares(shares, q, k=self.k, empty=c.empty, skew=c.skew))
