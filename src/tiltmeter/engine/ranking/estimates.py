"""What a walk over the prompts leaves of an attribute, and the estimates that are made of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from tiltmeter.metrics import numpy_kernels as loops
from tiltmeter.metrics.convention import Convention
from tiltmeter.metrics.ranking import (
    entropy_of_shares,
    largest_skew,
    log_shares,
    max_of,
    skew_of_shares,
    target_shares,
)
from tiltmeter.stats import defined, kernels
from tiltmeter.stats.bootstrap import small_sample_stretch
from tiltmeter.stats.draws import BootstrapDraws
from tiltmeter.stats.estimate import MetricEstimate
from tiltmeter.stats.intervals import wilson_of_draws
from tiltmeter.stats.null import (
    NullBand,
    band_of,
    draw_top_counts,
    p_of_sample,
    stretches,
    top_count_null,
    top_count_p,
)
from tiltmeter.stats.resampling import Resampling
from tiltmeter.types import Floats, Groups, Ints

DRAWS_HELD = 4 * 10**8  # bytes of draws: what needs more goes over the prompts once more
NULL_DRAWS = 10_000  # random top-k counts, for the null of MaxSkew, MinSkew and entropy
MANY_TIES = 0.001  # share of tied ranks from which ties are spoken of


class PromptBlocks:
    """What the blocks of prompts leave for one task."""

    def __init__(self, prompts: int, words: int) -> None:
        self.prompts, self.words = prompts, words
        self.lists: dict[str, list[Floats]] = {}
        self.drawn: dict[str, Floats] = {}

    def add(self, name: str, part: Floats) -> None:
        self.lists.setdefault(name, []).append(part)

    def values(self, name: str) -> Floats:
        """Prompts x columns."""
        return np.concatenate(self.lists[name])

    def draw(self, name: str, start: int, part: Floats, kind: Any, *, words: bool) -> None:
        """Puts a block's draws where they belong, in as few bytes as their `kind` has."""
        if name not in self.drawn:
            shape = (self.words if words else self.prompts, len(part), *part.shape[2:])
            self.drawn[name] = np.empty(shape, kind)
        self.drawn[name][start : start + part.shape[1]] = part.swapaxes(0, 1)

    def draws(self, name: str) -> Floats | None:
        """Prompts x draws x columns, handed over for good; None where there are none."""
        return self.drawn.pop(name, None)


class MetricTask(NamedTuple):
    """Some metrics of an attribute: C-ASC, or those that take rankings."""

    attribute: str
    ranks: bool


def passes(
    groups: Mapping[str, Groups],
    prompts: int,
    words: int,
    convention: Convention,
    resampling: Resampling,
) -> list[list[MetricTask]]:
    """Tasks that go over the prompts together: as many as their draws leave room for, in order."""
    whole = sum(np.min_scalar_type(k).itemsize for k in convention.k)  # bytes for drawn counts
    c_asc = 4 * prompts * (resampling.permutations + resampling.bootstraps)
    counts = whole * (words * resampling.permutations + prompts * resampling.bootstraps)
    found: list[list[MetricTask]] = []
    room = 0
    for name, one in groups.items():
        for ranks, each in ((False, c_asc), (True, counts)):
            need = each * len(one.names)
            if not found or room < need:
                found.append([])
                room = DRAWS_HELD
            found[-1].append(MetricTask(name, ranks))
            room -= need
    return found


def estimates(
    task: MetricTask,
    part: PromptBlocks,
    groups: Groups,
    convention: Convention,
    words: int,
    relabelled: tuple[Ints, Ints],
    rng: np.random.Generator,
    shown: int | None = None,
) -> Iterator[MetricEstimate]:
    """The task's estimates, one metric after the other.

    `relabelled` are permuted labels (draws x images), and the group each stands for. NDKL is that
    of the whole ranking, or of the first `shown`.
    """
    if not task.ranks:
        yield MetricEstimate(
            "c_asc",
            groups,
            part.values("c_asc"),
            side="two",
            ideal=0.0,
            null=_draws(part.draws("c_asc null")),
            boot=_draws(part.draws("c_asc boot")),
            stretch=small_sample_stretch(groups.counts),
            undefined="all images have the same score",
        )
        return
    for k in sorted(convention.k):
        yield from _top_k_estimates(part, groups, convention, k, words, rng)
    yield _ndkl_estimate(part, groups, convention, *relabelled, shown)


def _top_k_estimates(
    part: PromptBlocks,
    groups: Groups,
    convention: Convention,
    k: int,
    words: int,
    rng: np.random.Generator,
) -> Iterator[MetricEstimate]:
    q = target_shares(convention.target, groups)

    def skew(p: Floats) -> Floats:
        return np.asarray(skew_of_shares(p, q, k=k, empty=convention.empty))

    def largest(skews: Floats) -> Floats:
        return np.asarray(largest_skew(skews, convention.skew))

    def smallest(skews: Floats) -> Floats:
        return np.asarray(-max_of(-skews))

    counts = part.values(f"top {k}")
    null, boot = (part.draws(f"top {k} {kind}") for kind in ("null", "boot"))
    spread = None if boot is None else boot[:words]  # draws that only words need
    random = draw_top_counts(groups.counts, k, NULL_DRAWS, rng) / k
    exact = top_count_null(groups.counts, k)
    low, high = _wilson(counts, boot, k)
    # drawn counts are whole: all they can give stands in a table
    table = skew(np.repeat(np.arange(k + 1)[:, None] / k, len(q), axis=1))

    def drawn_skew(whole: Ints) -> Floats:
        return kernels.looked_up(table, whole)

    def shares(whole: Ints) -> Floats:
        return np.asarray(whole / np.float64(k))

    yield MetricEstimate(
        "skew",
        groups,
        skew(counts / k),
        side="two",
        ideal=0.0,
        k=k,
        null=_draws(null, drawn_skew),
        boot=_draws(spread, drawn_skew),
        exact_null=NullBand(defined.mean(skew(random)), skew(exact.lo / k), skew(exact.hi / k)),
        exact_p=top_count_p(counts, groups.counts, k),
        exact_ci=None if boot is None else (skew(low), skew(high)),
        exact_ci_method="Wilson with the bootstrap's variance",
        undefined="the group is absent from the top k",
    )
    entropy_of_prior = float(entropy_of_shares(groups.shares))
    # some skew is at most 0, unless absence is left out or may count as more than its share
    least = np.inf if convention.empty in ("nan", "floor") else 0.0
    for name, of, groupwise, drawn_groupwise, side, ideal, bounds in (
        ("max_skew", largest, skew, drawn_skew, "greater", 0.0, (0.0, np.inf)),
        ("min_skew", smallest, skew, drawn_skew, "less", 0.0, (-np.inf, least)),
        ("normalized_entropy", entropy_of_shares, np.asarray, shares, "two", entropy_of_prior,
         (0.0, 1.0)),
    ):  # fmt: skip
        values, drawn = of(groupwise(counts / k)), of(groupwise(random))

        def made(whole: Ints, of: Any = of, groupwise: Any = drawn_groupwise) -> Floats:
            return np.asarray(of(groupwise(whole)))[..., None]

        yield MetricEstimate(
            name,
            groups,
            values[:, None],
            side=side,
            ideal=ideal,
            k=k,
            by_group=False,
            null=_draws(null, made),
            boot=_draws(spread, made),
            exact_null=band_of(drawn[:, None]),
            exact_p=p_of_sample(values, drawn, side)[:, None],
            regular=False,
            bounds=bounds,
            undefined="every group is absent from the top k",
        )


def _ndkl_estimate(
    part: PromptBlocks,
    groups: Groups,
    convention: Convention,
    labels: Ints,
    of: Ints,
    shown: int | None,
) -> MetricEstimate:
    values = part.values("ndkl")
    labels = labels[:, :shown]
    null, boot = part.draws("ndkl null"), part.draws("ndkl boot")
    band, p = None, None
    if len(labels):
        # labels permuted again are a random ranking, whatever the word
        log_target = log_shares(target_shares(convention.target, groups))
        of = of.astype(labels.dtype)
        some = [loops.ndkl_of_labels(of[labels[rows]], log_target)
                for rows in stretches(labels.shape, 0)]  # fmt: skip
        drawn = np.concatenate(some)
        band, p = band_of(drawn[:, None]), p_of_sample(values, drawn, "greater")[:, None]
    return MetricEstimate(
        "ndkl",
        groups,
        values[:, None],
        side="greater",
        ideal=0.0,
        k=shown,
        by_group=False,
        null=None if null is None else BootstrapDraws(null[..., None]),
        boot=None if boot is None else BootstrapDraws(boot[..., None]),
        exact_null=band,
        exact_p=p,
        regular=False,
        bounds=(0.0, np.inf),
        notes=[
            f"{share:.1%} of ranks are tied" if share >= MANY_TIES else None
            for share in part.values("tied")
        ],
    )


def _draws(
    kept: Floats | None, of: Callable[[Floats], Floats] | None = None
) -> BootstrapDraws | None:
    return None if kept is None else BootstrapDraws(kept, of)


def _wilson(counts: Floats, boot: Ints | None, k: int) -> tuple[Floats, Floats]:
    if boot is None:
        return wilson_of_draws(counts, None, k)
    low, high = np.empty(counts.shape), np.empty(counts.shape)
    for at in stretches(boot.shape, 0):
        drawn = (boot[at] / np.float64(k)).swapaxes(0, 1)
        low[at], high[at] = wilson_of_draws(counts[at], drawn, k)
    return low, high
