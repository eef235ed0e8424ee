"""Is a model only picking the shorter caption, or the one that stands first?"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.stats import rankdata

from tiltmeter.metrics.stereotype import picks
from tiltmeter.probes.stereotype.caption_choice import CaptionCases, CaptionScorer
from tiltmeter.probes.stereotype.statistics import CaptionSets, row_of, share_interval
from tiltmeter.types import Floats

#: Cases whose captions are given in another order.
TURNED = 60


def length_rows(
    cases: CaptionCases, sets: CaptionSets, scores: Floats, draws: int, rng: np.random.Generator
) -> list[dict[str, Any]]:
    """How often a caption is picked than which none is shorter, and whether longer is likelier.

    Lengths are in characters, since the captions of a set mostly have as many words. The null deals
    the lengths out again among the sets of captions: what is picked stays.
    """
    first = np.unique(cases.sets, return_index=True)[1]
    length = np.array([[len(text) for text in cases.captions[at]] for at in first])
    shortest = 1.0 * (length == length.min(axis=1, keepdims=True))
    chosen, everywhere = picks(scores), np.ones(len(cases), bool)
    picked = np.stack([sets.sums(column, everywhere) for column in chosen.T], axis=1)
    size = np.bincount(cases.sets)
    hits = (picked * shortest).sum(axis=1)
    share = float(hits.sum() / len(cases))
    weights = sets.weights
    drawn = None if weights is None else (weights @ hits) / (weights @ size)
    odds = sets.sums(scores[:, 0] - scores[:, 1], everywhere) / size
    longer = _ranks(length[:, 0] - length[:, 1])
    likelier = _ranks(odds)
    rho = float(longer @ likelier) if len(size) > 2 else np.nan
    null = of_rho = None
    if draws:
        order = sets.permuted(rng, draws)
        null = np.einsum("sk,rsk->r", picked, shortest[order]) / len(cases)
        of_rho = longer[order] @ likelier
    constant = np.isnan(rho)
    return [
        {
            "metric": "shortest",
            **row_of(share, 100, null=null, interval=share_interval(share, len(cases), drawn)),
            "n": len(cases),
        },
        {
            "metric": "length_spearman",
            "ideal": 0.0,
            **row_of(rho, null=of_rho),
            "n": len(size),
            "note": "all captions are equally long or equally probable" if constant else None,
        },
    ]


def position_rows(
    cases: CaptionCases, scores: Floats, way: CaptionScorer, picture: str
) -> list[dict[str, Any]]:
    """How many picks change when captions are given side by side, in turns, of the first cases.

    None for a dual encoder, which never sees one caption beside another.
    """
    if way.together is None:
        return []
    some = min(len(cases), TURNED)
    turn = np.arange(some) % 3
    turned = [np.roll(np.array(cases.captions[row], object), turn[row]).tolist()
              for row in range(some)]  # fmt: skip
    again = way.together(picture, turned)
    back = np.stack([np.roll(again[row], -turn[row]) for row in range(some)])
    changed = float((picks(back) != picks(scores[:some])).any(axis=1).mean())
    row = {
        "metric": "position",
        "ideal": 0.0,
        **row_of(changed, 100, interval=share_interval(changed, some, None)),
        "n": some,
    }
    return [row]


def _ranks(values: Floats) -> Floats:
    """Ranks, centred and of length 1: their products are Spearman's correlation."""
    ranks = rankdata(values)
    ranks = ranks - ranks.mean()
    length = np.sqrt((ranks**2).sum())
    return np.asarray(ranks / length if length > 0 else ranks * np.nan)
