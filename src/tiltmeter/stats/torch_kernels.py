"""The same draws as `kernels`, for tensors on any device.

Sums over groups are products with the membership of items; ranks within a group are running sums.
Results are NumPy arrays, draws x queries (x groups): small next to what they are computed from.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import numpy as np
import torch

from tiltmeter.metrics import torch_kernels as loops
from tiltmeter.metrics.association import ROUNDING
from tiltmeter.metrics.ranking import log_shares
from tiltmeter.types import Floats, Ints

Tensor = torch.Tensor
NUMBERS = 2**27  # in memory at one time


def standardized(scores: Tensor) -> Tensor:
    """Scores of each query as z-scores (dividing by n - 1): items x queries."""
    wide = scores.double()
    mean = wide.mean(1, keepdim=True)
    spread = wide.std(1, keepdim=True)
    z = torch.where(spread > ROUNDING * mean.abs(), (wide - mean) / spread, torch.nan)
    return z.float().T.contiguous()


def relabelled_sums(z: Tensor, codes: Tensor, groups: int, of: Tensor | None = None) -> Floats:
    """Sum of `z` (items x queries) over each group, for each row of `codes` (draws x items)."""
    sums = []
    for rows in _chunks(len(codes), len(z)):
        labels = codes[rows].long() if of is None else of[codes[rows].long()]
        sums.append(_sums(z, labels, groups))
    return np.concatenate(sums)


def weighted_sums(z: Tensor, codes: Tensor, weights: Tensor, groups: int) -> Floats:
    """Weighted sums of `z` (items x columns) by group: draws x columns x groups."""
    parts = [_sums(z, codes.expand(len(w), -1), groups, w) for w in _weights(z, weights)]
    return np.concatenate(parts)


def weighted_squares(z: Tensor, weights: Tensor) -> Floats:
    """Weighted sums of the squares of `z` (items x queries): draws x queries."""
    squared = z**2
    return np.concatenate([(w @ squared).cpu().numpy() for w in _weights(z, weights)])


def _weights(z: Tensor, weights: Tensor) -> Iterator[Tensor]:
    return (weights[rows].to(z.dtype) for rows in _chunks(len(weights), len(z)))


def _sums(z: Tensor, labels: Tensor, groups: int, weights: Tensor | None = None) -> Floats:
    """Sums of items x queries, by the labels of each draw: draws x queries x groups.

    Items are visited group by group, each draw's in its own order.
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
    counts: list[list[Ints]] = [[] for _ in ks]
    for rows in _chunks(len(codes), top.numel() * groups):
        member = _member(of[codes[rows][:, top].long()], groups)
        for each, k in zip(counts, ks, strict=True):
            each.append(_compact(member[:, :, :k].sum(2), k))
    return [np.concatenate(each, axis=1).swapaxes(0, 1) for each in counts]


def weighted_top_counts(order: Tensor, codes: Tensor, weights: Tensor, k: int, groups: int) -> Ints:
    """Weighted counts of each group down a ranking until the weights sum to k."""
    depth = min(2 * k + 64, order.shape[1])  # about k items have a weight of k
    parts = []
    for rows in _chunks(len(weights), len(order) * depth):
        taken = _down_to(order[:, :depth], weights[rows], k)
        if (taken.sum(2) < k).any():
            taken = _down_to(order, weights[rows], k)
        member = _member(codes[order[:, : taken.shape[2]]], groups)
        counts = torch.einsum("dqi,qig->dqg", taken.float(), member)
        parts.append(_compact(counts.round(), k))
    return np.concatenate(parts, axis=1).swapaxes(0, 1)


def _compact(counts: Tensor, k: int) -> Ints:
    """Counts up to k, draws x queries x groups, as queries x draws x groups in few bytes."""
    kind = torch.uint8 if k < 2**8 else torch.int16 if k < 2**15 else torch.int32
    return np.asarray(counts.to(kind).transpose(0, 1).contiguous().cpu().numpy())


def _down_to(order: Tensor, weights: Tensor, k: int) -> Tensor:
    """Weights of the ranked items, up to a sum of k: draws x queries x items."""
    w = weights[:, order].int()
    before = w.cumsum(2) - w
    return torch.minimum(w, (k - before).clamp(min=0))


def relabelled_ndkl(order: Tensor, codes: Tensor, shares: Floats, of: Tensor) -> Floats:
    """Whole-ranking NDKL of each row of `order`, for each row of `codes`: draws x queries."""
    log_q = torch.as_tensor(log_shares(shares), device=order.device)
    if _by_lane(order):
        return _lanes(order, of.to(torch.uint8)[codes.long()], None, log_q)
    return _stacked([loops.ndkl(order, of[labels.long()], log_q) for labels in codes])


def weighted_ndkl(order: Tensor, codes: Tensor, weights: Tensor, shares: Floats) -> Floats:
    """Whole-ranking NDKL where each item counts as often as its weight: draws x queries."""
    log_q = torch.as_tensor(log_shares(shares), device=order.device)
    if _by_lane(order):
        return _lanes(order, codes, weights, log_q)
    return _stacked([loops.ndkl(order, codes, log_q, row) for row in weights])


def _by_lane(order: Tensor) -> bool:
    return order.device.type == "cuda" and find_spec("triton") is not None


def _lanes(order: Tensor, codes: Tensor, weights: Tensor | None, log_q: Tensor) -> Floats:
    """NDKL on a GPU, all draws at once: draws x queries."""
    from tiltmeter.stats.triton_walk import walk

    step, tail, constant = loops.ndkl_tails(order.shape[1], order.device)
    total = walk(order, codes, weights, (step, tail, log_q))
    return np.asarray((total - constant).clamp(min=0).cpu().numpy())


def _stacked(rows: list[Tensor]) -> Floats:
    return np.asarray(torch.stack(rows).cpu().numpy())


def _member(codes: Tensor, groups: int) -> Tensor:
    return (codes[..., None] == torch.arange(groups, device=codes.device)).float()


def _chunks(rows: int, each: int) -> Iterator[slice]:
    step = max(NUMBERS // max(each, 1), 1)
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))
