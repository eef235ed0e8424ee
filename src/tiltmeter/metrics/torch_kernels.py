"""The same functions as `numpy_kernels`, for tensors on any device."""

from __future__ import annotations

import torch

from tiltmeter.metrics.numpy_kernels import ndkl_tables

Tensor = torch.Tensor


def rank(scores: Tensor) -> Tensor:
    """Items of each row, best first; equal scores keep the order of the rows."""
    return torch.sort(scores, dim=1, descending=True, stable=True).indices


def select(scores: Tensor, k: int) -> Tensor:
    """The top `k` items of each row, best first; of equal scores the earlier ones."""
    edge = torch.topk(scores, k, dim=1).values[:, -1:]
    above, equal = scores > edge, scores == edge
    left = k - above.sum(1, keepdim=True)  # places left for items equal to the edge
    chosen = (above | (equal & (equal.cumsum(1) <= left))).nonzero()[:, 1].reshape(-1, k)
    return chosen.gather(1, rank(scores.gather(1, chosen)))


def take(x: Tensor, ids: Tensor) -> Tensor:
    """The items `ids` of each row."""
    return x.gather(1, ids)


def equal_counts(scores: Tensor, edge: Tensor, codes: Tensor, groups: int) -> Tensor:
    """Number of items of each group with a score of exactly `edge`, for each row."""
    return (scores == edge[:, None]).double() @ _membership(codes, groups)


def tied_ranks(scores: Tensor, order: Tensor) -> Tensor:
    """Share of the ranks of each row whose score is not unique."""
    ranked = take(scores, order)
    same = torch.nn.functional.pad(ranked[:, 1:] == ranked[:, :-1], (1, 1))
    return (same[:, 1:] | same[:, :-1]).double().mean(1)


def reorder_ties(scores: Tensor, order: Tensor, items: Tensor) -> Tensor:
    """`order` with equal scores in the order of `items`."""
    return items[rank(scores[:, items])]


def group_counts(codes: Tensor, groups: int, weights: Tensor | None = None) -> Tensor:
    """How often (or with what weight) each group occurs in each row of group codes."""
    counts = torch.zeros(len(codes), groups, dtype=torch.float64, device=codes.device)
    share = torch.ones_like(codes) if weights is None else weights
    return counts.scatter_add_(1, codes, share.double())


def moments(scores: Tensor, codes: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    """Mean and centred sum of squares of each group, for each row."""
    member = _membership(codes, groups)
    size = member.sum(0).clamp(min=1)
    scores = scores.double()
    mean = scores @ member / size
    m2 = (scores - mean[:, codes]) ** 2 @ member
    return mean, m2


def exp_sums(scores: Tensor, codes: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    """Largest score of each group, and the sum of exp(score - largest), for each row."""
    scores, at = scores.double(), codes.expand(scores.shape)
    peak = scores.new_full((len(scores), groups), -torch.inf).scatter_reduce(1, at, scores, "amax")
    total = torch.exp(scores - peak.gather(1, at)) @ _membership(codes, groups)
    return peak, total


def ndkl(order: Tensor, codes: Tensor, log_target: Tensor, weights: Tensor | None = None) -> Tensor:
    """Discounted mean of KL(first i || target) over all i, for each ranking in `order`.

    Items count as often as their `weights`, which sum to the number of items.
    """
    ranked = codes[order]
    step, tail, constant = ndkl_tails(order.shape[1], order.device)
    weight = torch.ones_like(ranked) if weights is None else weights[order].long()
    rank = weight.cumsum(1) - weight
    # number of earlier items of its group: its place among all, sorted by group and rank,
    # minus where its group begins
    by_group = torch.sort(ranked, dim=1, stable=True)
    own = weight.gather(1, by_group.indices)
    counts = group_counts(ranked, len(log_target), weight).long()
    begins = (counts.cumsum(1) - counts).gather(1, by_group.values)
    nth = torch.empty_like(ranked).scatter_(1, by_group.indices, own.cumsum(1) - own - begins)
    log_q, last = log_target[ranked], order.shape[1] - 1
    total = torch.zeros(len(order), dtype=torch.float64, device=order.device)
    for copy in range(1 if weights is None else int(weight.max())):
        at, count = (rank + copy).clamp(max=last), (nth + copy).clamp(max=last)
        total += torch.where(weight > copy, tail[at] * (step[count] - log_q), 0.0).sum(1)
    return (total - constant).clamp(min=0)


def ndkl_tails(items: int, device: torch.device) -> tuple[Tensor, Tensor, float]:
    """NDKL = sum over ranks i of D_i (step of its group's count - ln q) - a constant.

    D_i is the weight of all ranks from i on: an item's step is in each of their KLs.
    """
    step, xlogx, discount = ndkl_tables(items)
    tail = discount[::-1].cumsum()[::-1].copy()
    steps, tails = (torch.as_tensor(table, device=device) for table in (step, tail))
    return steps, tails, float((xlogx * discount).sum())


def _membership(codes: Tensor, groups: int) -> Tensor:
    return torch.nn.functional.one_hot(codes, groups).double()
