"""The same draws as `kernels`, as tensor code that stays on its device.

Sums over groups are products with the membership of items; ranks within a group are running sums.
What comes back are NumPy arrays: draws x queries (x groups), small beside what they are made of.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import numpy as np
import torch

from tiltmeter.metrics.association import ROUNDING
from tiltmeter.metrics.numpy_kernels import ndkl_tables
from tiltmeter.metrics.ranking import log_shares
from tiltmeter.types import Floats, Ints

Tensor = torch.Tensor
NUMBERS = 2**27  # held at one time


def standardized(scores: Tensor) -> Tensor:
    """Scores of each query less their mean, over their spread (n - 1); items x queries."""
    wide = scores.double()
    mean = wide.mean(1, keepdim=True)
    spread = wide.std(1, keepdim=True)
    z = torch.where(spread > ROUNDING * mean.abs(), (wide - mean) / spread, torch.nan)
    return z.float().T.contiguous()


def relabelled_sums(z: Tensor, codes: Tensor, groups: int, of: Tensor) -> Floats:
    """Sum of `z` (items x queries) over each group, for each row of `codes` (draws x items)."""
    found = []
    for rows in _some(len(codes), len(z)):
        labels = of[codes[rows].long()]
        found.append(_sums(z, labels, groups))
    return np.concatenate(found)


def weighted_sums(z: Tensor, codes: Tensor, weights: Tensor, groups: int) -> tuple[Floats, Floats]:
    """Weighted sums of `z` by group (draws x queries x groups) and of `z`^2 (draws x queries)."""
    squared, sums, squares = z**2, [], []
    for rows in _some(len(weights), len(z)):
        w = weights[rows].float()
        sums.append(_sums(z, codes.expand(len(w), -1), groups, w))
        squares.append((w @ squared).cpu().numpy())
    return np.concatenate(sums), np.concatenate(squares)


def _sums(z: Tensor, labels: Tensor, groups: int, weights: Tensor | None = None) -> Floats:
    """Of items x queries, by the labels of each draw: draws x queries x groups.

    Items are gone through group by group, each draw's in its own order.
    """
    order = labels.argsort(dim=1, stable=True)
    counts = torch.stack([(labels == group).sum(1) for group in range(groups)], 1).flatten()
    starts = counts.cumsum(0) - counts
    w = None if weights is None else weights.gather(1, order).flatten()
    sums = torch.nn.functional.embedding_bag(
        order.flatten(), z, starts, mode="sum", per_sample_weights=w
    )
    return np.asarray(sums.reshape(len(labels), groups, -1).mT.cpu().numpy())


def relabelled_top_counts(
    top: Tensor, codes: Tensor, ks: tuple[int, ...], groups: int, of: Tensor
) -> list[Ints]:
    """Counts of each group in the first k of each row of `top`, for each row of `codes`."""
    found: list[list[Ints]] = [[] for _ in ks]
    for rows in _some(len(codes), top.numel() * groups):
        member = _member(of[codes[rows][:, top].long()], groups)
        for each, k in zip(found, ks, strict=True):
            each.append(member[:, :, :k].sum(2).int().cpu().numpy())
    return [np.concatenate(each) for each in found]


def weighted_top_counts(order: Tensor, codes: Tensor, weights: Tensor, k: int, groups: int) -> Ints:
    """Weighted counts of each group when the weights down a ranking have added up to k."""
    depth = min(2 * k + 64, order.shape[1])  # about k items weigh k
    found = []
    for rows in _some(len(weights), len(order) * depth):
        taken = _down_to(order[:, :depth], weights[rows], k)
        if (taken.sum(2) < k).any():
            taken = _down_to(order, weights[rows], k)
        member = _member(codes[order[:, : taken.shape[2]]], groups)
        counts = torch.einsum("dqi,qig->dqg", taken.float(), member)
        found.append(counts.round().int().cpu().numpy())
    return np.concatenate(found)


def _down_to(order: Tensor, weights: Tensor, k: int) -> Tensor:
    """What the ranked items weigh, as far as k goes: draws x queries x items."""
    w = weights[:, order].int()
    before = w.cumsum(2) - w
    return torch.minimum(w, (k - before).clamp(min=0))


def relabelled_ndkl(order: Tensor, codes: Tensor, shares: Floats, of: Tensor) -> Floats:
    """Whole-ranking NDKL of each row of `order`, for each row of `codes`: draws x queries."""
    walk = _Walk(order.shape[1], shares, order.device)
    if walk.by_lane:
        return walk.lanes(order, of.to(torch.uint8)[codes.long()], None)
    ones = torch.ones_like(order, dtype=torch.int32)
    return np.stack([walk.ndkl(of[labels.long()][order], ones) for labels in codes])


def weighted_ndkl(order: Tensor, codes: Tensor, weights: Tensor, shares: Floats) -> Floats:
    """Whole-ranking NDKL where each item stands as often as its weight: draws x queries."""
    walk = _Walk(order.shape[1], shares, order.device)
    if walk.by_lane:
        return walk.lanes(order, codes, weights)
    ranked = codes[order]
    return np.stack([walk.ndkl(ranked, row[order].int()) for row in weights])


class _Walk:
    """NDKL = sum over ranks i of D_i (step of its group's count - ln q) - a constant.

    D_i is what all ranks from i on count for: an item's step is in each of their KLs.
    """

    def __init__(self, items: int, shares: Floats, device: torch.device) -> None:
        step, xlogx, discount = ndkl_tables(items)
        self.constant = float((xlogx * discount).sum())
        tail = discount[::-1].cumsum()[::-1].copy()
        self.step, self.tail, self.log_q = (
            torch.as_tensor(table, device=device) for table in (step, tail, log_shares(shares))
        )
        self.by_lane = device.type == "cuda" and find_spec("triton") is not None

    def lanes(self, order: Tensor, codes: Tensor, weights: Tensor | None) -> Floats:
        """The same on a GPU, all draws at once: draws x queries."""
        from tiltmeter.stats.triton_walk import walk

        total = walk(order, codes, weights, (self.step, self.tail, self.log_q))
        return np.asarray((total - self.constant).clamp(min=0).cpu().numpy())

    def ndkl(self, ranked: Tensor, weight: Tensor) -> Floats:
        """Of groups in the order of their ranks (queries x items), each standing so often."""
        rank = weight.cumsum(1, dtype=torch.int32) - weight
        nth = torch.zeros_like(rank)
        for group in range(len(self.log_q)):
            own = weight * (ranked == group)
            nth += torch.where(ranked == group, own.cumsum(1, dtype=torch.int32) - own, 0)
        less, last = self.log_q[ranked], len(self.tail) - 1
        total = torch.zeros(len(ranked), dtype=torch.float64, device=ranked.device)
        for copy in range(int(weight.max())):
            at, count = (rank + copy).clamp(max=last), (nth + copy).clamp(max=last)
            part = self.tail[at] * (self.step[count] - less)
            total += torch.where(weight > copy, part, 0.0).sum(1)
        return np.asarray((total - self.constant).clamp(min=0).cpu().numpy())


def _member(codes: Tensor, groups: int) -> Tensor:
    return (codes[..., None] == torch.arange(groups, device=codes.device)).float()


def _some(rows: int, each: int) -> Iterator[slice]:
    step = max(NUMBERS // max(each, 1), 1)
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))
