"""The same loops as `numpy_kernels`, as tensor code that stays on its device."""

from __future__ import annotations

import torch

from tiltmeter.metrics.numpy_kernels import log_tables

Tensor = torch.Tensor


def rank(scores: Tensor) -> Tensor:
    """Items of each row, best first; equal scores keep the order of the rows."""
    return torch.sort(scores, dim=1, descending=True, stable=True).indices


def select(scores: Tensor, k: int) -> Tensor:
    """The top `k` items of each row, best first; of equal scores the earlier rows."""
    edge = torch.topk(scores, k, dim=1).values[:, -1:]
    above, equal = scores > edge, scores == edge
    left = k - above.sum(1, keepdim=True)  # places left for items that score just the edge
    chosen = (above | (equal & (equal.cumsum(1) <= left))).nonzero()[:, 1].reshape(-1, k)
    return chosen.gather(1, rank(scores.gather(1, chosen)))


def take(x: Tensor, ids: Tensor) -> Tensor:
    """The items `ids` of each row."""
    return x.gather(1, ids)


def equal_counts(scores: Tensor, edge: Tensor, codes: Tensor, groups: int) -> Tensor:
    """How many items of each group score just `edge`, for each row."""
    return (scores == edge[:, None]).double() @ _membership(codes, groups)


def tied_ranks(scores: Tensor, order: Tensor) -> Tensor:
    """Share of the ranks of each row whose score is not unique."""
    ranked = take(scores, order)
    same = torch.nn.functional.pad(ranked[:, 1:] == ranked[:, :-1], (1, 1))
    return (same[:, 1:] | same[:, :-1]).double().mean(1)


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


def ndkl(order: Tensor, codes: Tensor, log_target: Tensor) -> Tensor:
    """Discounted mean of KL(first i || target) over all i, for each ranking in `order`."""
    ranked = codes[order]
    rows, n = ranked.shape
    xlogx, discount = (torch.as_tensor(table, device=ranked.device) for table in log_tables(n))
    # the how-manieth of its group each item is: its place among all, sorted by group and rank,
    # less where its group begins
    by_group = torch.sort(ranked, dim=1, stable=True)
    begins = group_counts(ranked, len(log_target)).cumsum(1).long().roll(1, dims=1)
    begins[:, 0] = 0
    place = torch.arange(n, device=ranked.device).expand(rows, n)
    nth = torch.empty_like(ranked).scatter_(
        1, by_group.indices, place - begins.gather(1, by_group.values)
    )
    step = xlogx[nth + 1] - xlogx[nth] - log_target[ranked]
    gain = (step.cumsum(1) - xlogx[1:]).clamp(min=0)  # i * KL
    return gain @ discount


def _membership(codes: Tensor, groups: int) -> Tensor:
    return torch.nn.functional.one_hot(codes, groups).double()
