"""NDKL of many rankings under many draws on a GPU: each lane walks down one ranking.

Tensor code would write every running count of every group to memory; here they stay in registers.
Needs triton, which comes with torch for CUDA.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

LANES = 64  # rankings processed in parallel


@triton.jit  # type: ignore[untyped-decorator]
def _walk(  # type: ignore[no-untyped-def]
    order, codes, weights, step, tail, log_q, out, items, queries, by_draw,
    WEIGHTED: tl.constexpr, GROUPS: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    draw = tl.program_id(1).to(tl.int64)
    lane = tl.program_id(0) * LANES + tl.arange(0, LANES)
    there = lane < queries
    lane = tl.minimum(lane, queries - 1)  # surplus lanes repeat the last ranking
    group = tl.arange(0, GROUPS)
    count = tl.zeros([LANES, GROUPS], tl.int32)
    rank = tl.zeros([LANES], tl.int32)
    total = tl.zeros([LANES], tl.float64)
    codes += draw * by_draw
    weights += draw * items
    # items are read two steps ahead, labels and weights one: no step waits for memory that long
    item = tl.load(order + lane)
    following = tl.load(order + queries + lane)
    code = tl.load(codes + item).to(tl.int32)
    if WEIGHTED:
        weight = tl.load(weights + item).to(tl.int32)
    for _ in range(items):
        next_code = tl.load(codes + following).to(tl.int32)
        if WEIGHTED:
            next_weight = tl.load(weights + following).to(tl.int32)
        following = tl.load(order + 2 * queries + lane)
        order += queries
        own = code[:, None] == group[None, :]
        nth = tl.sum(tl.where(own, count, 0), 1)
        log_share = tl.load(log_q + code)
        if WEIGHTED:
            for copy in range(tl.max(weight, 0)):
                more = copy < weight
                part = tl.load(step + nth + copy, mask=more, other=0.0) - log_share
                part *= tl.load(tail + rank + copy, mask=more, other=0.0)
                total += tl.where(more, part, 0.0)
            rank += weight
            count += tl.where(own, weight[:, None], 0)
            weight = next_weight
        else:
            total += tl.load(tail + rank) * (tl.load(step + nth) - log_share)
            rank += 1
            count += own.to(tl.int32)
        code = next_code
    tl.store(out + draw * queries + lane, total, mask=there)


def walk(
    order: torch.Tensor,
    codes: torch.Tensor,
    weights: torch.Tensor | None,
    tables: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
) -> torch.Tensor:
    """Sums along each row of `order`: draws x queries.

    Either `codes` are draws x items, or `weights` are, and `codes` has one per item. `tables`: what
    the n-th item of a group adds, the weight of a rank, and the logarithm of each group's share.
    """
    drawn = codes if weights is None else weights
    queries, items = order.shape
    out = torch.empty((len(drawn), queries), dtype=torch.float64, device=order.device)
    ahead = order[:, -1:].expand(-1, 2)
    ranked = torch.cat([order, ahead], 1).T.int().contiguous()
    _walk[(triton.cdiv(queries, LANES), len(drawn))](
        ranked, codes.contiguous(), drawn.contiguous(), *tables, out, items,
        queries, items if weights is None else 0, WEIGHTED=weights is not None,
        GROUPS=max(2, triton.next_power_of_2(len(tables[2]))), LANES=LANES, num_warps=2,
    )  # fmt: skip
    return out
