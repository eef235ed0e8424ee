"""The utility cost of debiasing: accuracy on masked words, and recall of captions and images.

Measured on held-out captions, before and after, on the same rows and with the same words masked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tiltmeter.debiasers.word_swaps import WordPairs, gender_pairs, read_caption
from tiltmeter.errors import InputError
from tiltmeter.metrics.arrays import to_numpy
from tiltmeter.metrics.utility import found_in_top_k
from tiltmeter.models.match_grid import match_grid
from tiltmeter.stats.intervals import wilson
from tiltmeter.stats.paired import paired_test
from tiltmeter.types import DualEncoder, Floats, MaskedPredictor, Matcher

K = (1, 5, 10)
BLOCK = 128  # captions at a time
#: Images that a model without embeddings is asked to match with every caption.
MOST_MATCHED = 100


@dataclass(frozen=True)
class UtilityChange:
    """One metric before and after on the same items, and the paired change."""

    metric: str
    before: float
    before_low: float
    before_high: float
    after: float
    after_low: float
    after_high: float
    change: float
    change_low: float
    change_high: float
    p: float
    n: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def masked_hits(
    model: MaskedPredictor,
    captions: Any,
    *,
    rng: np.random.Generator,
    pairs: Sequence[Sequence[str]] | None = None,
    spared: Sequence[str] = (),
    max_length: int = 24,
) -> Floats:
    """Return whether each caption's masked word is predicted: each piece the most probable.

    One word is masked in each caption, at random; which one depends on `rng` alone.

    Parameters
    ----------
    model
        A model with a masked head.
    captions
        Images with captions.
    rng
        Source of the masks.
    pairs
        Bias words, masked only where nothing else can be: the others are what must not suffer.
    spared
        Words that are never masked.
    max_length
        Word pieces that a caption is cut to.

    Returns
    -------
    array of shape (n_captions,)
        1, 0, or NaN where a caption has no word that can be masked.
    """
    words, known = WordPairs.of(pairs or gender_pairs()), dict.fromkeys(spared, ())
    chosen: list[tuple[str, tuple[int, ...]]] = []
    for text in captions.texts:
        caption = read_caption(text, model, words, max_length, known)
        at = caption.masks(0.0, rng, hide_bias=False)
        masked = caption.text(at, model.mask_token) if len(at) else ""
        chosen.append((masked, tuple(caption.answer(at))))
    of, hits = np.asarray(captions.of), np.full(len(chosen), np.nan)
    for length in sorted({len(answer) for _, answer in chosen} - {0}):
        rows = np.array([row for row, (_, answer) in enumerate(chosen) if len(answer) == length])
        for start in range(0, len(rows), BLOCK):
            here = rows[start : start + BLOCK]
            logprobs = model.mask_logprobs(captions.images[of[here]], [chosen[r][0] for r in here])
            best = np.asarray(to_numpy(logprobs)).argmax(axis=-1)
            hits[here] = (best == np.array([chosen[row][1] for row in here])).all(axis=1)
    return hits


def recall(model: Any, captions: Any, k: Sequence[int] = K) -> dict[str, Floats]:
    """Return whether each query finds its counterpart among its k best, in both directions.

    By embeddings where the model has them; otherwise every caption is matched with every one of the
    first hundred images.

    Parameters
    ----------
    model
        A dual encoder or a matcher.
    captions
        Images with captions.
    k
        Sizes of the lists.

    Returns
    -------
    dict of str to array of shape (n_queries, n_k)
        `text to image` and `image to text`.
    """
    of, images = np.asarray(captions.of), np.arange(len(captions.ids))
    if isinstance(model, DualEncoder):
        texts = np.asarray(to_numpy(model.encode_texts(list(captions.texts))))
        scores = texts @ np.asarray(to_numpy(model.encode_images(captions.images))).T
    elif isinstance(model, Matcher):
        images = images[:MOST_MATCHED]
        rows = np.flatnonzero(of < len(images))
        matched, of = [captions.texts[row] for row in rows], of[rows]
        scores = match_grid(model, captions.images[images], matched).T
    else:
        name = getattr(model, "name", type(model).__name__)
        raise InputError(f"{name} has neither embeddings nor a matching head: it cannot retrieve")
    hits = {}
    for direction, table, queries, items in (
        ("text to image", scores, of, images),
        ("image to text", scores.T, images, of),
    ):
        possible = [size for size in k if size <= table.shape[1]]
        best = np.argsort(-table, axis=1, kind="stable")[:, : max(possible)]
        hits[direction] = found_in_top_k(best, queries, items, possible)
    return hits


def utility_changes(
    before: Any,
    after: Any,
    captions: Any,
    *,
    seed: int = 0,
    pairs: Sequence[Sequence[str]] | None = None,
    spared: Sequence[str] = (),
) -> list[UtilityChange]:
    """Return all metrics that both models have, before and after.

    Parameters
    ----------
    before, after
        The model and the corrected model.
    captions
        Held-out images with captions.
    seed
        Seed of masks and intervals.
    pairs, spared
        See `masked_hits`.
    """
    rng = np.random.default_rng([seed, 2])
    changes = []
    if isinstance(before, MaskedPredictor):
        first, second = (
            masked_hits(
                model, captions, rng=np.random.default_rng([seed, 1]), pairs=pairs, spared=spared
            )
            for model in (before, after)
        )
        changes.append(_change("masked accuracy", first, second, rng))
    if isinstance(before, DualEncoder | Matcher):
        hits, hits_after = (recall(model, captions) for model in (before, after))
        for direction, table in hits.items():
            for at, k in enumerate(K[: table.shape[1]]):
                after_k = hits_after[direction][:, at]
                changes.append(_change(f"recall@{k}, {direction}", table[:, at], after_k, rng))
    return changes


def _change(metric: str, before: Floats, after: Floats, rng: np.random.Generator) -> UtilityChange:
    known = ~np.isnan(before) & ~np.isnan(after)
    a, b = before[known], after[known]
    n = len(a)
    (low_a, high_a), (low_b, high_b) = (wilson(np.array(x.sum()), np.array(n)) for x in (a, b))
    change = paired_test(a, b, rng=rng, draws=2000)
    return UtilityChange(
        metric, float(a.mean()), float(low_a), float(high_a), float(b.mean()), float(low_b),
        float(high_b), change.mean, change.ci_low, change.ci_high, change.p, n,
    )  # fmt: skip
