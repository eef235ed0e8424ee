"""Neutral words on the same images: how far a model leans when nothing is meant by it.

A direction in a space of vectors leans somewhere, whatever it stands for: against chance alone
nearly every prompt stands out. So a prompt is shown beside words that no stereotype is known of.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tiltmeter.errors import TiltmeterError
from tiltmeter.explorer.ranking import QueryResult, plain
from tiltmeter.metrics.arrays import kernels, to_numpy, unit
from tiltmeter.metrics.association import c_asc
from tiltmeter.metrics.convention import Convention
from tiltmeter.metrics.numpy_kernels import group_counts
from tiltmeter.metrics.ranking import max_skew_of_shares, target_shares
from tiltmeter.stats import defined
from tiltmeter.stats.null import TOLERANCE
from tiltmeter.types import Floats, Groups, Ints, Prompt

MOST_WORDS = 60
FEWEST = 20  # fewer tell nothing at the level of one in twenty
BLOCK = 16  # words scored at a time
DEEPEST = 1000  # the largest k that is asked for


@dataclass(frozen=True, eq=False)
class NeutralReference:
    """What a model makes of neutral words: their top images, and C-ASC by attribute."""

    tops: Ints  # words x images, best first
    c_asc: dict[str, Floats]  # words x groups

    def __len__(self) -> int:
        return len(self.tops)

    def beside(self, found: QueryResult, groups: Groups, convention: Convention) -> dict[str, Any]:
        """Where an answer lies among neutral words: how many lean as far, and the middle 90%."""
        k, q = found.k, target_shares(convention.target, groups)
        counts = group_counts(groups.codes[self.tops[:, :k]], len(groups.names))
        skews = max_skew_of_shares(counts / k, q, k=k, empty=convention.empty, skew=convention.skew)
        lo, hi = defined.quantile(skews, [0.05, 0.95])
        far = np.abs(self.c_asc[groups.attribute])
        return {
            "words": len(self),
            "max_skew": {"lo": plain(float(lo)), "hi": plain(float(hi)),
                         "as_far": int((skews >= found.max_skew.value - TOLERANCE).sum())},
            "c_asc_as_far": [int((far[:, at] >= abs(one.c_asc) - TOLERANCE).sum())
                             for at, one in enumerate(found.groups)],
        }  # fmt: skip


def chosen(prompts: Sequence[Prompt]) -> list[str]:
    """Texts of neutral words, one per word, evenly over the list where there are too many."""
    texts = {one.concept: one.text for one in reversed(prompts) if one.role == "placebo"}
    listed = list(texts.values())[::-1]
    at = np.linspace(0, len(listed) - 1, min(MOST_WORDS, len(listed))).astype(int)
    return [listed[row] for row in at]


def neutral(
    encode_texts: Callable[[Sequence[str]], Any],
    vectors: Floats,
    groups: Mapping[str, Groups],
    texts: Sequence[str],
) -> NeutralReference | None:
    """Neutral words as a model sees them; None where they are too few, or unknown to it."""
    if len(texts) < FEWEST:
        return None
    try:
        said = unit(to_numpy(encode_texts(list(texts))), "texts").astype(vectors.dtype)
    except TiltmeterError:  # a table of vectors, or a closed vocabulary, without these words
        return None
    tops, near = [], {name: list[Floats]() for name in groups}
    for start in range(0, len(said), BLOCK):
        scores = said[start : start + BLOCK] @ vectors.T
        tops.append(kernels(scores).select(scores, min(DEEPEST, scores.shape[1])))
        for name, some in groups.items():
            near[name].append(np.asarray(c_asc(scores, some)))
    return NeutralReference(
        np.concatenate(tops), {name: np.concatenate(x) for name, x in near.items()}
    )
