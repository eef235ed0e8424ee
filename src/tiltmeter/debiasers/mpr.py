"""MPR (Oesterling et al. 2024): the best k items that represent a reference set.

Multi-group proportional representation of k items is the largest difference, over a class of
functions, between a function's mean over the items and its mean over a reference set. MOPR shows
the most similar items for which it is at most `rho`:

    max sum_i a_i s_i   with   sum_i a_i = k,   0 <= a_i <= 1,
    |sum_i a_i c(x_i) / k - mean_reference c| <= rho   for every c of the class,

a linear program, whose infinitely many constraints are added as they are violated. Each
c has variance 1 over the reference set, so rho is in standard deviations. For linear functions of
group labels the measure is the square root of the chi-square divergence of the shares, only the
counts of each group matter, and two multipliers solve the same program much faster.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from math import comb
from typing import Self

import numpy as np
from scipy.optimize import brentq, linprog

from tiltmeter.debiasers.debiaser import (
    GroupTexts,
    Reranker,
    check_at_least,
    check_choice,
    check_labelled,
)
from tiltmeter.debiasers.learners import learner
from tiltmeter.errors import InputError
from tiltmeter.metrics.arrays import as_groups, matrix, to_numpy
from tiltmeter.metrics.numpy_kernels import rank
from tiltmeter.metrics.summary import check_k
from tiltmeter.types import Array, Floats, Groups, Ints

FEATURES = ("labels", "vectors")
CLASSES = ("linear", "trees")
SLACK = 0.1  # of one item of k: a constraint violated by less counts as satisfied
MOST_SUBSETS = 500  # ways of rounding that are tried


@dataclass(frozen=True, eq=False)
class Selection:
    """The items chosen for one query."""

    items: Ints  # k of them, best score first
    bound: float  # the program's value: no k items within `rho` have a larger sum of scores
    rho: float  # that of the program; larger than requested where nothing can be as near
    mpr: float  # of the items themselves
    cuts: int


@dataclass(eq=False)
class Mpr(Reranker):
    """MPR (Oesterling et al. 2024): the most similar k items that represent a reference set.

    The images it is fitted on are the reference.

    Parameters
    ----------
    rho
        How far the mean of any function may be off, in standard deviations; inf is the plain order.
    features
        `labels`: functions of group labels; `vectors`: of the embeddings, without labels of the
        items.
    functions
        `linear`, or shallow `trees`.
    ridge
        Added to the variances.
    depth
        Depth of the trees.
    cuts
        Maximum number of constraints.

    Attributes
    ----------
    attribute_ : str or None
        The attribute whose labels are used.
    names_ : list of str
        Its groups.
    mean_ : array of shape (n_features,)
        Mean of the reference set.
    whiten_ : array of shape (n_features, rank)
        A difference of means times this is its coordinates along functions of variance 1.
    reference_ : array of shape (n_images, n_features)
        The reference set; for trees only.
    """

    rho: float = 0.05
    features: str = "labels"
    functions: str = "linear"
    ridge: float = 0.0
    depth: int = 3
    cuts: int = 100

    @property
    def from_best(self) -> bool:
        # functions of labels are equal for all items of a group, so these come in by score; a
        # tree is fitted to all items
        return self.features == "labels" and self.functions == "linear"

    def fit(
        self,
        X: Array | None = None,
        groups: Groups | Array | None = None,
        *,
        texts: GroupTexts | None = None,
    ) -> Self:
        """Learn the reference set: its mean and covariance; for trees, all of it."""
        check_choice("features", self.features, FEATURES)
        check_choice("functions", self.functions, CLASSES)
        check_at_least(0, rho=self.rho, ridge=self.ridge)
        x, labels = check_labelled(X, groups)
        self.attribute_ = labels.attribute if self.features == "labels" else None
        self.names_ = list(labels.names)
        features = np.eye(len(labels.names))[labels.codes] if self.features == "labels" else x
        self.mean_: Floats = features.mean(axis=0)
        centred = features - self.mean_
        covariance = centred.T @ centred / len(features)
        values, basis = np.linalg.eigh(covariance)
        values = values + self.ridge
        nonzero = values > 1e-10 * max(values.max(), 1e-300)
        self.whiten_: Floats = basis[:, nonzero] / np.sqrt(values[nonzero])
        if self.functions == "trees":
            self.reference_: Floats = features
        return self

    def order(
        self, scores: Array, groups: Groups | None, k: int, *, vectors: Array | None = None
    ) -> Ints:
        self.check_fitted()
        values = np.asarray(to_numpy(matrix(scores, "scores", "queries", "items")), np.float64)
        check_k(k, values.shape[1])
        if np.isinf(self.rho):
            return rank(np.asarray(to_numpy(scores)))[:, :k]
        x = self.item_features(groups, vectors, values.shape[1])
        return np.stack([self.select(row, x, k).items for row in values])

    def item_features(self, groups: Groups | None, vectors: Array | None, items: int) -> Floats:
        """Return the features of items: indicators of their groups, or their embeddings."""
        if self.features == "vectors":
            if vectors is None or len(vectors) != items:
                raise InputError("mpr with features=vectors needs the vectors of the items")
            return np.asarray(to_numpy(vectors), np.float64)
        if groups is None:
            raise InputError(
                "mpr with features=labels needs the groups of the items; or use features=vectors"
            )
        groups = as_groups(groups, items)
        unknown = [name for name in groups.names if name not in self.names_]
        if unknown:
            raise InputError(
                f"the reference set has no group {unknown[0]!r} (it has {', '.join(self.names_)}): "
                "fit on images of every group"
            )
        column = np.array([self.names_.index(name) for name in groups.names])
        return np.asarray(np.eye(len(self.names_))[column[groups.codes]])

    def select(self, scores: Floats, x: Floats, k: int) -> Selection:
        """Select the k items for one query, with an upper bound on their sum of scores."""
        weights = np.zeros(len(scores))
        weights[np.argsort(-scores, kind="stable")[:k]] = 1
        counts = self.features == "labels" and self.functions == "linear" and self.ridge == 0
        if counts and (self.mean_ > 0).all():
            codes = x.argmax(axis=1)
            solved = solve_by_counts(scores, codes, self.mean_, weights, self.rho)
        else:
            solved = self.solve_by_cuts(scores, x, weights)
        weights, bound, rho, cuts = solved
        items = self._round(scores, x, weights, k, bound)
        items = items[np.argsort(-scores[items], kind="stable")]
        return Selection(items, bound, rho, self.measure(x[items]), cuts)

    def solve_by_cuts(
        self, scores: Floats, x: Floats, weights: Floats
    ) -> tuple[Floats, float, float, int]:
        """Solve the program for any functions, starting with the plain top k.

        Returns the weights, their sum of scores, rho, and the number of constraints. If that
        reaches `cuts`, the bound is still valid, but the items may be further off than rho.
        """
        k, rho = round(weights.sum()), self.rho
        rows: list[Floats] = []  # one per function: its value on items minus its reference mean
        bound = float(scores @ weights)
        while len(rows) < self.cuts:
            worst = self.worst(weights / k, x)
            if worst is None or worst @ weights / k <= rho + SLACK / k:
                break
            rows.append(worst)
            weights, bound, rho = _solve_program(scores, np.array(rows), k, rho)
        return weights, bound, rho, len(rows)

    def measure(self, x: Floats) -> float:
        """Return the MPR of items, given their features."""
        worst = self.worst(np.full(len(x), 1 / len(x)), x)
        return 0.0 if worst is None else float(worst.mean())

    def worst(self, share: Floats, x: Floats) -> Floats | None:
        """Return the function that differs most, on the items and minus its reference mean.

        None if there is none. Linear functions have a closed form. Among trees it is the one fitted
        to separate the chosen items from the reference, as in the paper: maybe not the best.
        """
        if self.functions == "linear":
            difference = (share @ x - self.mean_) @ self.whiten_
            size = float(np.linalg.norm(difference))
            if size == 0:
                return None
            return np.asarray((x - self.mean_) @ (self.whiten_ @ (difference / size)))
        both = np.vstack([x, self.reference_])
        m = len(self.reference_)
        target = np.concatenate([share, np.full(m, -1 / m)])
        tree = learner("tree", "DecisionTreeRegressor", max_depth=self.depth, random_state=0)
        values = np.asarray(tree.fit(both, target).predict(both))
        reference = values[len(x) :]
        spread = float(np.sqrt(reference.var() + self.ridge))
        if spread < 1e-12:
            return None
        function = (values[: len(x)] - reference.mean()) / spread
        return np.asarray(function if function @ share >= 0 else -function)

    def _round(self, scores: Floats, x: Floats, weights: Floats, k: int, bound: float) -> Ints:
        """Whole items: those with weight 1, and of the fractional ones those that represent best.

        Of all ways to fill the remaining places, some have no larger sum of scores than the
        program, since the program's own sum is a mean of them; only those are considered.
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
            ways = [np.array(subset) for subset in combinations(part, places)]
            ways = [subset for subset in ways if scores[subset].sum() <= room] or [best]
            far = [self.measure(x[np.concatenate([sure, subset])]) for subset in ways]
            sums = [-scores[subset].sum() for subset in ways]
            best = ways[int(np.lexsort((sums, np.round(far, 9)))[0])]
        return np.concatenate([sure, best])


def solve_by_counts(
    scores: Floats, codes: Ints, q: Floats, top: Floats, rho: float
) -> tuple[Floats, float, float, int]:
    """Solve the program where functions depend on groups alone, with reference shares `q`.

    With m_g items of group g it is to maximise the scores within sum_g (m_g - k q_g)^2 / q_g <=
    (k rho)^2. For a multiplier of that, and one of the number of items, the weight of each item is
    known: those of a group come in by score, and each raises the price of the next. `top` is the
    plain top k. The bound is the dual's, which no selection within rho can exceed.
    """
    k = round(top.sum())
    best = np.argsort(-scores, kind="stable")
    place = np.empty(len(scores))  # of an item among those of its group
    for code in range(len(q)):
        members = best[codes[best] == code]
        place[members] = np.arange(len(members))
    share = q[codes]

    def far(weights: Floats) -> float:
        counts = np.bincount(codes, weights, minlength=len(q))
        return float(np.sqrt(((counts - k * q) ** 2 / q).sum()) / k)

    def priced(price: float) -> Floats:
        start = scores - price * (place - k * share) / share  # value of its first fraction
        last = start - price / share

        def weights(level: float) -> Floats:
            return np.asarray(np.clip((start - level) * share / price, 0, 1))

        low, high = float(last.min()) - 1, float(start.max()) + 1
        level = brentq(lambda at: weights(at).sum() - k, low, high, xtol=1e-14, rtol=1e-14)
        return weights(level)

    if far(top) <= rho:
        return top, float(scores @ top), rho, 0
    spread = float(np.ptp(scores)) or 1.0
    low, high = -12.0, 6.0  # powers of ten, of the spread of scores
    if far(priced(spread * 10**high)) >= rho:
        price = spread * 10**high
        rho = far(priced(price))  # the least possible
    else:
        if far(priced(spread * 10**low)) <= rho:
            high = low
        else:
            high = brentq(lambda at: far(priced(spread * 10**at)) - rho, low, high, xtol=1e-9)
        price = spread * 10**high
    weights = priced(price)
    slack = (k * rho) ** 2 - (k * far(weights)) ** 2
    return weights, float(scores @ weights) + price / 2 * slack, rho, 1


def _solve_program(scores: Floats, rows: Floats, k: int, rho: float) -> tuple[Floats, float, float]:
    """Weights of the items, the sum of scores, and rho: that given, or the least possible."""
    n = len(scores)
    both = np.vstack([rows, -rows]) / k
    ones = np.ones((1, n))
    solution = linprog(
        -scores, A_ub=both, b_ub=np.full(len(both), rho), A_eq=ones, b_eq=[k], bounds=(0, 1),
        method="highs",
    )  # fmt: skip
    if solution.status == 2:  # infeasible: find the least rho that is not
        cost = np.zeros(n + 1)
        cost[-1] = 1
        wide = np.hstack([both, np.full((len(both), 1), -1.0)])
        least = linprog(
            cost, A_ub=wide, b_ub=np.zeros(len(both)), A_eq=np.hstack([ones, [[0.0]]]), b_eq=[k],
            bounds=[(0, 1)] * n + [(0, None)], method="highs",
        )  # fmt: skip
        return _solve_program(scores, rows, k, float(least.fun) * (1 + 1e-6) + 1e-8)
    if solution.status != 0:
        raise InputError(f"the linear program of mpr was not solved: {solution.message}")
    return np.asarray(solution.x), float(-solution.fun), rho
