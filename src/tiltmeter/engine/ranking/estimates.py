"""Results of a pass over the prompts, and the estimates computed from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
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
from tiltmeter.stats.bootstrap import widen_for_small_groups
from tiltmeter.stats.draws import BootstrapDraws
from tiltmeter.stats.estimate import MetricEstimate
from tiltmeter.stats.intervals import wilson_of_top_k_shares
from tiltmeter.stats.null import (
    NullBand,
    draw_top_counts,
    null_band,
    p_from_shared_null,
    slices_of_draws,
    top_count_null,
    top_count_p,
)
from tiltmeter.stats.resampling import Resampling
from tiltmeter.types import Floats, Groups, Ints

DRAWS_HELD = 5 * 10**8  # bytes of draws in memory; more need another pass over the prompts
NULL_DRAWS = 10_000  # random top-k counts, for the null of MaxSkew, MinSkew and entropy
MANY_TIES = 0.001  # share of tied ranks from which a note is made


class PromptBlocks:
    """Collects the values and draws of one task, block by block."""

    def __init__(self, prompts: int, words: int) -> None:
        self.prompts, self.words = prompts, words
        self.lists: dict[str, list[Floats]] = {}
        self.drawn: dict[str, Any] = {}  # arrays, or what reads like one

    def add(self, name: str, part: Floats) -> None:
        self.lists.setdefault(name, []).append(part)

    def values(self, name: str) -> Floats:
        """Values of all prompts: prompts x columns."""
        return np.concatenate(self.lists[name])

    def draw(self, name: str, start: int, part: Floats, kind: Any, *, words: bool) -> None:
        """Store the draws of a block, as the dtype `kind`."""
        if name not in self.drawn:
            shape = (self.words if words else self.prompts, len(part), *part.shape[2:])
            self.drawn[name] = np.empty(shape, kind)
        self.drawn[name][start : start + part.shape[1]] = part.swapaxes(0, 1)

    def draws(self, name: str) -> Any | None:
        """Draws, prompts x draws x columns, removed from here; None if there are none."""
        return self.drawn.pop(name, None)


class MetricTask(NamedTuple):
    """Metrics of an attribute that are computed together: C-ASC, or those of rankings."""

    attribute: str
    ranks: bool


def plan_passes(
    groups: Mapping[str, Groups],
    texts: tuple[int, ...],
    words: int,
    convention: Convention,
    resampling: Resampling,
) -> list[list[MetricTask]]:
    """Group tasks into passes over the prompts, so that the draws of each fit into memory.

    `texts` are the prompts and their dimensions.
    """
    count_bytes = sum(np.min_scalar_type(k).itemsize for k in convention.k)  # of a drawn count
    c_asc = 4 * min(texts) * (resampling.permutations + resampling.bootstraps)
    counts = count_bytes * (words * resampling.permutations + texts[0] * resampling.bootstraps)
    plan: list[list[MetricTask]] = []
    room = 0
    for name, labels in groups.items():
        for ranks, bytes_per_group in ((False, c_asc), (True, counts)):
            need = bytes_per_group * len(labels.names)
            if not plan or room < need:
                plan.append([])
                room = DRAWS_HELD
            plan[-1].append(MetricTask(name, ranks))
            room -= need
    return plan


def estimates(
    task: MetricTask,
    part: PromptBlocks,
    groups: Groups,
    convention: Convention,
    words: int,
    rng: np.random.Generator,
    depth: int | None = None,
) -> Iterator[MetricEstimate]:
    """The estimates of a task; NDKL is of the whole ranking, or of the first `depth` items."""
    if not task.ranks:
        values = part.values("c_asc")
        complete = not np.isnan(values).any()
        yield MetricEstimate(
            "c_asc",
            groups,
            values,
            side="two",
            ideal=0.0,
            null=_draws(part.draws("c_asc null"), complete=complete),
            boot=_draws(part.draws("c_asc boot"), complete=complete),
            stretch=widen_for_small_groups(groups.counts),
            undefined="all images have the same score",
        )
        return
    for k in sorted(convention.k):
        yield from _top_k_estimates(part, groups, convention, k, words, rng)
    yield _ndkl_estimate(part, groups, depth)


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
    boot_of_words = None if boot is None else boot[:words]  # only words need these
    random = draw_top_counts(groups.counts, k, NULL_DRAWS, rng) / k
    exact = top_count_null(groups.counts, k)
    low, high = _wilson(counts, boot, k)
    # drawn counts are integers: look functions of them up in a table, counts x groups
    each_share = np.repeat(np.arange(k + 1)[:, None] / k, len(q), axis=1)
    table = skew(each_share)
    largest_of = np.abs(table) if convention.skew == "absolute" else table
    surprise = each_share * np.log(np.where(each_share > 0, each_share, 1.0))
    surprise /= -np.log(len(q)) if len(q) > 1 else np.nan
    complete = not np.isnan(table).any()

    def drawn_skew(counts: Ints) -> Floats:
        return kernels.looked_up(table, counts)

    yield MetricEstimate(
        "skew",
        groups,
        skew(counts / k),
        side="two",
        ideal=0.0,
        k=k,
        null=_draws(null, drawn_skew, complete),
        boot=_draws(boot_of_words, drawn_skew, complete),
        exact_null=NullBand(defined.mean(skew(random)), skew(exact.low / k), skew(exact.high / k)),
        exact_p=top_count_p(counts, groups.counts, k),
        exact_ci=None if boot is None else (skew(low), skew(high)),
        exact_ci_method="Wilson with the bootstrap's variance",
        undefined="the group is not in the top k",
    )
    entropy_of_prior = float(entropy_of_shares(groups.shares))
    # the smallest skew is at most 0, unless absent groups are left out or floored
    least = np.inf if convention.empty in ("nan", "floor") else 0.0
    for name, combine, combined, side, ideal, bounds in (
        ("max_skew", lambda p: largest(skew(p)), partial(kernels.largest_looked_up, largest_of),
         "greater", 0.0, (0.0, np.inf)),
        ("min_skew", lambda p: smallest(skew(p)),
         lambda counts: -kernels.largest_looked_up(-table, counts), "less", 0.0, (-np.inf, least)),
        ("normalized_entropy", entropy_of_shares, partial(kernels.sum_looked_up, surprise),
         "two", entropy_of_prior, (0.0, 1.0)),
    ):  # fmt: skip
        values, drawn = combine(counts / k), combine(random)
        yield MetricEstimate(
            name,
            groups,
            values[:, None],
            side=side,
            ideal=ideal,
            k=k,
            by_group=False,
            null=_draws(null, combined, complete),
            boot=_draws(boot_of_words, combined, complete),
            exact_null=null_band(drawn[:, None]),
            exact_p=p_from_shared_null(values, drawn, side)[:, None],
            regular=False,
            bounds=bounds,
            undefined="no group is in the top k",
        )


def random_ndkl(labels: Ints, group_of: Ints, groups: Groups, convention: Convention) -> Floats:
    """NDKL of random rankings, which permuted labels are, the same for all words.

    `labels` are draws x items, and `group_of` has the group of each label.
    """
    log_target = log_shares(target_shares(convention.target, groups))
    return loops.ndkl_of_labels(labels, log_target, group_of.astype(labels.dtype))


def _ndkl_estimate(part: PromptBlocks, groups: Groups, depth: int | None) -> MetricEstimate:
    values = part.values("ndkl")
    null, boot, random = (part.draws(f"ndkl {kind}") for kind in ("null", "boot", "random"))
    band, p = None, None
    if random is not None:
        band, p = (
            null_band(random[:, None]),
            p_from_shared_null(values, random, "greater")[:, None],
        )
    return MetricEstimate(
        "ndkl",
        groups,
        values[:, None],
        side="greater",
        ideal=0.0,
        k=depth,
        by_group=False,
        null=None if null is None else BootstrapDraws(null[..., None], complete=True),
        boot=None if boot is None else BootstrapDraws(boot[..., None], complete=True),
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
    stored: Floats | None,
    transform: Callable[[Floats], Floats] | None = None,
    complete: bool = False,
) -> BootstrapDraws | None:
    return None if stored is None else BootstrapDraws(stored, transform, complete)


def _wilson(counts: Floats, boot: Ints | None, k: int) -> tuple[Floats, Floats]:
    if boot is None:
        return wilson_of_top_k_shares(counts, None, k)
    low, high = np.empty(counts.shape), np.empty(counts.shape)
    for block in slices_of_draws(boot.shape, 0):
        shares = (boot[block] / np.float64(k)).swapaxes(0, 1)
        low[block], high[block] = wilson_of_top_k_shares(counts[block], shares, k)
    return low, high
