"""MPR (Oesterling et al. 2024): the best k items of which no function tells that they were chosen.

Multi-group proportional representation of k items is the largest difference, over a class of
functions, between a function's mean over the items and its mean over a reference set. MOPR shows
the most similar items for which it is at most `rho`:

    max sum_i a_i s_i   with   sum_i a_i = k,   0 <= a_i <= 1,
    |sum_i a_i c(x_i) / k - mean_reference c| <= rho   for every c of the class,

a linear programme, whose infinitely many constraints are added as they are found to be broken. Each
c has variance 1 over the reference set, so rho is in standard deviations. For linear functions of
group labels the measure is the square root of the chi-square divergence of the shares, only the
numbers of each group matter, and two multipliers solve the same programme much faster.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from math import comb
from typing import Self

import numpy as np
from scipy.optimize import brentq, linprog

from tiltmeter.debiasers.debiaser import GroupTexts, Reranker, checked, one_of
from tiltmeter.debiasers.learners import learner
from tiltmeter.errors import InputError
from tiltmeter.metrics.arrays import as_groups, matrix, to_numpy
from tiltmeter.metrics.numpy_kernels import rank
from tiltmeter.metrics.summary import check_k
from tiltmeter.types import Array, Floats, Groups, Ints

FEATURES = ("labels", "vectors")
CLASSES = ("linear", "trees")
SLACK = 0.1  # of one item of k: a constraint broken by less is as good as kept
MOST_SUBSETS = 500  # ways of rounding that are tried


@dataclass(frozen=True, eq=False)
class Selection:
    """What was chosen for one query."""

    items: Ints  # k of them, best score first
    bound: float  # the programme's value: no k items within `rho` have a larger sum of scores
    rho: float  # that of the programme; larger than asked where nothing can be as near
    mpr: float  # of the items themselves
    cuts: int


class Mpr(Reranker):
    """MPR (Oesterling et al. 2024): the most similar k items that represent a reference set.

    The images it is fitted on are the reference. `rho` is how far, in standard deviations, the mean
    of any function of the class may be off; inf is the plain order. Functions are `linear` in
    group labels (`features=labels`) or in the vectors (`features=vectors`: no label of the
    items is asked for), with `ridge` added to the variances, or shallow `trees` on them.
    """

    def __init__(
        self,
        rho: float = 0.05,
        features: str = "labels",
        functions: str = "linear",
        ridge: float = 0.0,
        depth: int = 3,
        cuts: int = 100,
    ) -> None:
        self.rho = rho
        self.features = features
        self.functions = functions
        self.ridge = ridge
        self.depth = depth
        self.cuts = cuts

    @property
    def from_best(self) -> bool:
        # functions of labels cannot tell items of a group apart, so these come in by score; a
        # tree is fitted to all items
        return self.features == "labels" and self.functions == "linear"

    def fit(
        self,
        vectors: Array | None,
        groups: Groups | Array | None,
        *,
        texts: GroupTexts | None = None,
    ) -> Self:
        """Learns the reference set: its means and spreads; for trees, all of it."""
        one_of("features", self.features, FEATURES)
        one_of("functions", self.functions, CLASSES)
        if not self.rho >= 0 or not self.ridge >= 0:
            raise InputError(f"rho and ridge are 0 or more; got {self.rho} and {self.ridge}")
        x, labels = checked(vectors, groups)
        self.attribute_ = labels.attribute if self.features == "labels" else None
        self.names_ = list(labels.names)
        seen = np.eye(len(labels.names))[labels.codes] if self.features == "labels" else x
        self.mean_: Floats = seen.mean(axis=0)
        centred = seen - self.mean_
        covariance = centred.T @ centred / len(seen)
        values, basis = np.linalg.eigh(covariance)
        values = values + self.ridge
        there = values > 1e-10 * max(values.max(), 1e-300)
        #: A difference of means times this is its coordinates along functions of variance 1.
        self.whiten_: Floats = basis[:, there] / np.sqrt(values[there])
        if self.functions == "trees":
            self.reference_: Floats = seen
        return self

    def order(
        self, scores: Array, groups: Groups | None, k: int, *, vectors: Array | None = None
    ) -> Ints:
        """The k items to show for each query, best first: queries x k rows of items."""
        self.check_fitted()
        found = np.asarray(to_numpy(matrix(scores, "scores", "queries", "items")), np.float64)
        check_k(k, found.shape[1])
        if np.isinf(self.rho):
            return rank(np.asarray(to_numpy(scores)))[:, :k]
        x = self.seen(groups, vectors, found.shape[1])
        return np.stack([self.chosen(row, x, k).items for row in found])

    def seen(self, groups: Groups | None, vectors: Array | None, items: int) -> Floats:
        """The features of items: indicators of their groups, or their vectors."""
        if self.features == "vectors":
            if vectors is None or len(vectors) != items:
                raise InputError(
                    "mpr with features=vectors ranks items by their vectors: pass them"
                )
            return np.asarray(to_numpy(vectors), np.float64)
        if groups is None:
            raise InputError(
                "mpr with features=labels needs the groups of the items that it ranks: pass them, "
                "or choose features=vectors"
            )
        groups = as_groups(groups, items)
        strange = [name for name in groups.names if name not in self.names_]
        if strange:
            raise InputError(
                f"the reference set has no group {strange[0]!r} (it has {', '.join(self.names_)}): "
                "fit on images of every group"
            )
        place = np.array([self.names_.index(name) for name in groups.names])
        return np.asarray(np.eye(len(self.names_))[place[groups.codes]])

    def chosen(self, scores: Floats, x: Floats, k: int) -> Selection:
        """The k items for one query, with the bound that they cannot beat."""
        weights = np.zeros(len(scores))
        weights[np.argsort(-scores, kind="stable")[:k]] = 1
        counts = self.features == "labels" and self.functions == "linear" and self.ridge == 0
        if counts and (self.mean_ > 0).all():
            codes = x.argmax(axis=1)
            solved = by_counts(scores, codes, self.mean_, weights, self.rho)
        else:
            solved = self.by_cuts(scores, x, weights)
        weights, bound, rho, cuts = solved
        items = self._rounded(scores, x, weights, k, bound)
        items = items[np.argsort(-scores[items], kind="stable")]
        return Selection(items, bound, rho, self.measure(x[items]), cuts)

    def by_cuts(
        self, scores: Floats, x: Floats, weights: Floats
    ) -> tuple[Floats, float, float, int]:
        """The programme for any functions, beginning with the plain top k.

        Gives the weights, their sum of scores, rho, and how many constraints it took. If these are
        as many as `cuts` allows, the bound still holds, and the items may be further off than rho.
        """
        k, rho = round(weights.sum()), self.rho
        rows: list[Floats] = []  # one a function: its value on items, less its reference mean
        bound = float(scores @ weights)
        while len(rows) < self.cuts:
            worst = self.worst(weights / k, x)
            if worst is None or worst @ weights / k <= rho + SLACK / k:
                break
            rows.append(worst)
            weights, bound, rho = _programme(scores, np.array(rows), k, rho)
        return weights, bound, rho, len(rows)

    def measure(self, x: Floats) -> float:
        """MPR of some items, given their features."""
        worst = self.worst(np.full(len(x), 1 / len(x)), x)
        return 0.0 if worst is None else float(worst.mean())

    def worst(self, share: Floats, x: Floats) -> Floats | None:
        """The function that differs most, on the items and less its reference mean; None: no one.

        Among linear functions it is found in closed form. Among trees it is the one fitted to tell
        the chosen items from the reference, as in the paper: the best found, maybe not the best.
        """
        if self.functions == "linear":
            off = (share @ x - self.mean_) @ self.whiten_
            size = float(np.linalg.norm(off))
            if size == 0:
                return None
            return np.asarray((x - self.mean_) @ (self.whiten_ @ (off / size)))
        both = np.vstack([x, self.reference_])
        m = len(self.reference_)
        told = np.concatenate([share, np.full(m, -1 / m)])
        tree = learner("tree", "DecisionTreeRegressor", max_depth=self.depth, random_state=0)
        values = np.asarray(tree.fit(both, told).predict(both))
        there = values[len(x) :]
        spread = float(np.sqrt(there.var() + self.ridge))
        if spread < 1e-12:
            return None
        found = (values[: len(x)] - there.mean()) / spread
        return np.asarray(found if found @ share >= 0 else -found)

    def _rounded(self, scores: Floats, x: Floats, weights: Floats, k: int, bound: float) -> Ints:
        """Whole items: those with weight 1, and of those with a part the ones that represent best.

        Of all ways to fill the places that are left, some have no larger sum of scores than the
        programme, since the programme's own sum is a mean of them; only those are looked at.
        """
        weights = np.where(np.abs(weights - np.round(weights)) < 1e-6, np.round(weights), weights)
        sure = np.flatnonzero(weights == 1)
        part = np.flatnonzero((weights > 0) & (weights < 1))
        part = part[np.argsort(scores[part], kind="stable")]
        places = k - len(sure)
        if places == 0:
            return sure
        if len(part) < places:  # rounding of the solver itself
            rest = np.argsort(-weights, kind="stable")
            return np.asarray(rest[:k])
        best = part[:places]  # the lowest scores: never above the bound
        if comb(len(part), places) <= MOST_SUBSETS:
            room = bound - scores[sure].sum() + 1e-9
            ways = [np.array(one) for one in combinations(part, places)]
            ways = [one for one in ways if scores[one].sum() <= room] or [best]
            far = [self.measure(x[np.concatenate([sure, one])]) for one in ways]
            sums = [-scores[one].sum() for one in ways]
            best = ways[int(np.lexsort((sums, np.round(far, 9)))[0])]
        return np.concatenate([sure, best])


def by_counts(
    scores: Floats, codes: Ints, q: Floats, top: Floats, rho: float
) -> tuple[Floats, float, float, int]:
    """The programme where groups and their reference shares `q` are all that functions see.

    With m_g items of group g it is to maximise the scores within sum_g (m_g - k q_g)^2 / q_g <=
    (k rho)^2. For a multiplier of that, and one of the number of items, the weight of each item is
    known: those of a group come in by score, and each raises the price of the next. `top` is the
    plain top k. The bound is the dual's, which no choice within rho can beat.
    """
    k = round(top.sum())
    best = np.argsort(-scores, kind="stable")
    place = np.empty(len(scores))  # of an item among those of its group
    for code in range(len(q)):
        own = best[codes[best] == code]
        place[own] = np.arange(len(own))
    share = q[codes]

    def far(weights: Floats) -> float:
        counts = np.bincount(codes, weights, minlength=len(q))
        return float(np.sqrt(((counts - k * q) ** 2 / q).sum()) / k)

    def priced(price: float) -> Floats:
        start = scores - price * (place - k * share) / share  # worth of its first bit
        last = start - price / share

        def weights(level: float) -> Floats:
            return np.asarray(np.clip((start - level) * share / price, 0, 1))

        low, high = float(last.min()) - 1, float(start.max()) + 1
        level = brentq(lambda one: weights(one).sum() - k, low, high, xtol=1e-14, rtol=1e-14)
        return weights(level)

    if far(top) <= rho:
        return top, float(scores @ top), rho, 0
    spread = float(np.ptp(scores)) or 1.0
    low, high = -12.0, 6.0  # powers of ten, of the spread of scores
    if far(priced(spread * 10**high)) >= rho:
        price = spread * 10**high
        rho = far(priced(price))  # the least there can be
    else:
        if far(priced(spread * 10**low)) <= rho:
            high = low
        else:
            high = brentq(lambda one: far(priced(spread * 10**one)) - rho, low, high, xtol=1e-9)
        price = spread * 10**high
    weights = priced(price)
    slack = (k * rho) ** 2 - (k * far(weights)) ** 2
    return weights, float(scores @ weights) + price / 2 * slack, rho, 1


def _programme(scores: Floats, rows: Floats, k: int, rho: float) -> tuple[Floats, float, float]:
    """Weights of the items, the sum of scores, and rho: that given, or the least there can be."""
    n = len(scores)
    both = np.vstack([rows, -rows]) / k
    one = np.ones((1, n))
    found = linprog(
        -scores, A_ub=both, b_ub=np.full(len(both), rho), A_eq=one, b_eq=[k], bounds=(0, 1),
        method="highs",
    )  # fmt: skip
    if found.status == 2:  # nothing is as near as that
        cost = np.zeros(n + 1)
        cost[-1] = 1
        wide = np.hstack([both, np.full((len(both), 1), -1.0)])
        least = linprog(
            cost, A_ub=wide, b_ub=np.zeros(len(both)), A_eq=np.hstack([one, [[0.0]]]), b_eq=[k],
            bounds=[(0, 1)] * n + [(0, None)], method="highs",
        )  # fmt: skip
        return _programme(scores, rows, k, float(least.fun) * (1 + 1e-6) + 1e-8)
    if found.status != 0:
        raise InputError(f"the linear programme of mpr was not solved: {found.message}")
    return np.asarray(found.x), float(-found.fun), rho
