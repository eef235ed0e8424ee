"""Controls of caption choice: length and position of the captions."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.stats import rankdata

from tiltmeter.metrics.stereotype import caption_choices
from tiltmeter.probes.stereotype.caption_choice import CaptionCases, CaptionScorer
from tiltmeter.probes.stereotype.statistics import CaptionSets, row_of, share_interval
from tiltmeter.types import Floats

#: Number of cases whose captions are scored in another order.
TURNED = 60


def length_rows(
    cases: CaptionCases, sets: CaptionSets, scores: Floats, draws: int, rng: np.random.Generator
) -> list[dict[str, Any]]:
    """How often the shortest caption is picked, and whether longer ones score higher.

    Lengths are in characters, since the captions of a set mostly have the same number of words. The
    null permutes the lengths among the sets of captions and keeps the picks.
    """
    first = np.unique(cases.sets, return_index=True)[1]
    length = np.array([[len(text) for text in cases.captions[row]] for row in first])
    shortest = 1.0 * (length == length.min(axis=1, keepdims=True))
    chosen, everywhere = caption_choices(scores), np.ones(len(cases), bool)
    picked = np.stack([sets.sums(column, everywhere) for column in chosen.T], axis=1)
    size = np.bincount(cases.sets)
    hits = (picked * shortest).sum(axis=1)
    share = float(hits.sum() / len(cases))
    weights = sets.weights
    resampled = None if weights is None else (weights @ hits) / (weights @ size)
    odds = sets.sums(scores[:, 0] - scores[:, 1], everywhere) / size
    longer = _ranks(length[:, 0] - length[:, 1])
    likelier = _ranks(odds)
    rho = float(longer @ likelier) if len(size) > 2 else np.nan
    null = null_rho = None
    if draws:
        order = sets.permuted(rng, draws)
        null = np.einsum("sk,rsk->r", picked, shortest[order]) / len(cases)
        null_rho = longer[order] @ likelier
    constant = np.isnan(rho)
    return [
        {
            "metric": "shortest",
            **row_of(share, 100, null=null, interval=share_interval(share, len(cases), resampled)),
            "n": len(cases),
        },
        {
            "metric": "length_spearman",
            "ideal": 0.0,
            **row_of(rho, null=null_rho),
            "n": len(size),
            "note": "all captions have the same length or the same score" if constant else None,
        },
    ]


def position_rows(
    cases: CaptionCases, scores: Floats, scorer: CaptionScorer, image_kind: str
) -> list[dict[str, Any]]:
    """Share of the first cases whose pick changes if captions are scored together, rotated.

    Empty for a dual encoder, which embeds each caption on its own.
    """
    if scorer.together is None:
        return []
    count = min(len(cases), TURNED)
    shift = np.arange(count) % 3
    rotated = [np.roll(np.array(cases.captions[row], object), shift[row]).tolist()
              for row in range(count)]  # fmt: skip
    rescored = scorer.together(image_kind, rotated)
    back = np.stack([np.roll(rescored[row], -shift[row]) for row in range(count)])
    changed = float((caption_choices(back) != caption_choices(scores[:count])).any(axis=1).mean())
    row = {
        "metric": "position",
        "ideal": 0.0,
        **row_of(changed, 100, interval=share_interval(changed, count, None)),
        "n": count,
    }
    return [row]


def _ranks(values: Floats) -> Floats:
    """Ranks, centred and of unit length: their products are Spearman's correlation."""
    ranks = rankdata(values)
    ranks = ranks - ranks.mean()
    length = np.sqrt((ranks**2).sum())
    return np.asarray(ranks / length if length > 0 else ranks * np.nan)
