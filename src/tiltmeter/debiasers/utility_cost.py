"""What debiasing costs: hidden words guessed right, and captions that find their pictures.

Measured on captions that were held out, before and after, on the same rows and with the same words
hidden: so that the price stands beside the gain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tiltmeter.debiasers.word_swaps import Pairs, gender_pairs, read_caption
from tiltmeter.errors import InputError
from tiltmeter.metrics.arrays import to_numpy
from tiltmeter.metrics.utility import recall_hits
from tiltmeter.stats.intervals import wilson
from tiltmeter.stats.paired import paired_test
from tiltmeter.types import DualEncoder, Floats, MaskedPredictor, Matcher

K = (1, 5, 10)
BLOCK = 128  # captions at a time
#: Pictures that a model without vectors is asked to match with every caption.
MOST_MATCHED = 100


@dataclass(frozen=True)
class UtilityChange:
    """One figure before and after on the same items, and the paired change."""

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
    longest: int = 24,
) -> Floats:
    """Whether each caption's hidden word is guessed: all of its pieces, each the most probable.

    One word is hidden in each caption, at random; which one hangs on `rng` alone. Bias words of
    `pairs` are hidden only where there is nothing else: debiasing should not cost the others. NaN
    where a caption holds no word that could be hidden.
    """
    words, known = Pairs.of(pairs or gender_pairs()), dict.fromkeys(spared, ())
    chosen: list[tuple[str, tuple[int, ...]]] = []
    for text in captions.texts:
        caption = read_caption(text, model, words, longest, known)
        at = caption.masks(0.0, rng, hide_bias=False)
        hidden = caption.text(at, model.mask_token) if len(at) else ""
        chosen.append((hidden, tuple(caption.answer(at))))
    of, hits = np.asarray(captions.of), np.full(len(chosen), np.nan)
    for length in sorted({len(answer) for _, answer in chosen} - {0}):
        rows = np.array([row for row, (_, one) in enumerate(chosen) if len(one) == length])
        for start in range(0, len(rows), BLOCK):
            here = rows[start : start + BLOCK]
            found = model.mask_logprobs(captions.images[of[here]], [chosen[r][0] for r in here])
            best = np.asarray(to_numpy(found)).argmax(axis=-1)
            hits[here] = (best == np.array([chosen[row][1] for row in here])).all(axis=1)
    return hits


def recall(model: Any, captions: Any, k: Sequence[int] = K) -> dict[str, Floats]:
    """Whether each query finds what belongs to it among its k best, both ways: queries x k.

    By vectors where the model has them; else every caption is matched with every picture, of which
    then the first hundred are taken.
    """
    of, pictures = np.asarray(captions.of), np.arange(len(captions.ids))
    if isinstance(model, DualEncoder):
        texts = np.asarray(to_numpy(model.encode_texts(list(captions.texts))))
        scores = texts @ np.asarray(to_numpy(model.encode_images(captions.images))).T
    elif isinstance(model, Matcher):
        pictures = pictures[:MOST_MATCHED]
        rows = np.flatnonzero(of < len(pictures))
        said, of = [captions.texts[row] for row in rows], of[rows]
        columns = [
            to_numpy(model.match(captions.images[np.full(len(said), one)], said))
            for one in pictures
        ]
        scores = np.stack(columns, axis=1)
    else:
        name = getattr(model, "name", type(model).__name__)
        raise InputError(f"{name} neither gives vectors nor matches: it cannot retrieve anything")
    found = {}
    for way, table, asked, there in (
        ("text to image", scores, of, pictures),
        ("image to text", scores.T, pictures, of),
    ):
        some = [one for one in k if one <= table.shape[1]]
        best = np.argsort(-table, axis=1, kind="stable")[:, : max(some)]
        found[way] = recall_hits(best, asked, there, some)
    return found


def prices(
    before: Any,
    after: Any,
    captions: Any,
    *,
    seed: int = 0,
    pairs: Sequence[Sequence[str]] | None = None,
    spared: Sequence[str] = (),
) -> list[UtilityChange]:
    """All figures that both models have, before and after."""
    rng = np.random.default_rng([seed, 2])
    found = []
    if isinstance(before, MaskedPredictor):
        first, second = (
            masked_hits(
                one, captions, rng=np.random.default_rng([seed, 1]), pairs=pairs, spared=spared
            )
            for one in (before, after)
        )
        found.append(_price("masked accuracy", first, second, rng))
    if isinstance(before, DualEncoder | Matcher):
        ways = [recall(one, captions) for one in (before, after)]
        for way, table in ways[0].items():
            for at, k in enumerate(K[: table.shape[1]]):
                found.append(_price(f"recall@{k}, {way}", table[:, at], ways[1][way][:, at], rng))
    return found


def _price(metric: str, before: Floats, after: Floats, rng: np.random.Generator) -> UtilityChange:
    known = ~np.isnan(before) & ~np.isnan(after)
    a, b = before[known], after[known]
    n = len(a)
    (low_a, high_a), (low_b, high_b) = (wilson(np.array(x.sum()), np.array(n)) for x in (a, b))
    change = paired_test(a, b, rng=rng, draws=2000)
    return UtilityChange(
        metric, float(a.mean()), float(low_a), float(high_a), float(b.mean()), float(low_b),
        float(high_b), change.mean, change.ci_low, change.ci_high, change.p, n,
    )  # fmt: skip
