"""Neutral words on the same images, as a reference for prompts.

Any direction in embedding space is associated with some group: compared with chance alone, nearly
every prompt is significant. So a prompt is compared with words without a known stereotype.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tiltmeter.errors import TiltmeterError
from tiltmeter.explorer.ranking import QueryResult, plain
from tiltmeter.metrics.arrays import kernels, to_numpy, unit
from tiltmeter.metrics.association import c_asc_of_moments
from tiltmeter.metrics.convention import Convention
from tiltmeter.metrics.group_lift import lift_of_group_scores
from tiltmeter.metrics.numpy_kernels import group_counts
from tiltmeter.metrics.ranking import max_skew_of_shares, target_shares
from tiltmeter.metrics.summary import Moments
from tiltmeter.stats import defined
from tiltmeter.stats.lift_verdict import enough_images
from tiltmeter.stats.null import TOLERANCE
from tiltmeter.types import Floats, Groups, Ints, Prompt

MOST_WORDS = 60
FEWEST = 20  # fewer cannot reach the 5% level
BLOCK = 16  # words scored at a time
DEEPEST = 1000  # the largest k on offer


@dataclass(frozen=True, eq=False)
class NeutralReference:
    """Top images of neutral words; their C-ASC and mean scores by attribute."""

    top_images: Ints  # words x images, best first
    c_asc: dict[str, Floats]  # words x groups
    means: dict[str, Floats]  # words x groups
    scale: float | None = None  # of the model's logits; without it there is no lift

    def __len__(self) -> int:
        return len(self.top_images)

    def compare(
        self, result: QueryResult, groups: Groups, convention: Convention
    ) -> dict[str, Any]:
        """Compare a result with neutral words: lift, number that are as extreme, 90% range."""
        k, q = result.k, target_shares(convention.target, groups)
        counts = group_counts(groups.codes[self.top_images[:, :k]], len(groups.names))
        skews = max_skew_of_shares(counts / k, q, k=k, empty=convention.empty, skew=convention.skew)
        lo, hi = defined.quantile(skews, [0.05, 0.95])
        neutral_sizes = np.abs(self.c_asc[groups.attribute])
        return {
            "words": len(self),
            "lift": self.lift(result, groups),
            "max_skew": {"low": plain(float(lo)), "high": plain(float(hi)),
                         "as_far": int((skews >= result.max_skew.value - TOLERANCE).sum())},
            "c_asc_as_far": [int((neutral_sizes[:, column] >= abs(group.c_asc) - TOLERANCE).sum())
                             for column, group in enumerate(result.groups)],
        }  # fmt: skip

    def lift(self, result: QueryResult, groups: Groups) -> list[dict[str, Any] | None] | None:
        """How many times as high the prompt scores with each group as with the others.

        Beside it 95% of neutral words, and how many are as far. None without a scale, and for
        groups with too few images.
        """
        enough = enough_images(groups.counts)
        if self.scale is None or len(enough) < 2:
            return None
        neutral = self.scale * self.means[groups.attribute][:, enough]
        own = self.scale * np.array([[result.groups[code].mean for code in enough]])
        lifts = lift_of_group_scores(own, neutral)[0]
        spread = lift_of_group_scores(neutral, neutral)
        low, high = np.quantile(spread, (0.025, 0.975), axis=0)
        found: list[dict[str, Any] | None] = [None] * len(groups.names)
        for at, code in enumerate(enough):
            ratio, lo, hi = (float(np.exp(x[at])) for x in (lifts, low, high))
            as_far = int((np.abs(spread[:, at]) >= abs(lifts[at]) - TOLERANCE).sum())
            found[code] = {"ratio": ratio, "low": lo, "high": hi, "as_far": as_far}
        return found


def chosen(prompts: Sequence[Prompt]) -> list[str]:
    """Texts of neutral words, one per word, evenly selected if there are too many."""
    texts = {
        prompt.concept: prompt.text for prompt in reversed(prompts) if prompt.role == "placebo"
    }
    texts_in_order = list(texts.values())[::-1]
    selected = np.linspace(0, len(texts_in_order) - 1, min(MOST_WORDS, len(texts_in_order))).astype(
        int
    )
    return [texts_in_order[row] for row in selected]


def neutral(
    encode_texts: Callable[[Sequence[str]], Any],
    vectors: Floats,
    groups: Mapping[str, Groups],
    texts: Sequence[str],
    scale: float | None = None,
) -> NeutralReference | None:
    """Rankings of neutral words by a model; None if they are too few or unknown to it."""
    if len(texts) < FEWEST:
        return None
    try:
        text_vectors = unit(to_numpy(encode_texts(list(texts))), "texts").astype(vectors.dtype)
    except TiltmeterError:  # supplied embeddings or a closed vocabulary without these words
        return None
    top_images, c_asc_by_attribute = [], {name: list[Floats]() for name in groups}
    means: dict[str, list[Floats]] = {name: [] for name in groups}
    for start in range(0, len(text_vectors), BLOCK):
        scores = text_vectors[start : start + BLOCK] @ vectors.T
        top_images.append(kernels(scores).select(scores, min(DEEPEST, scores.shape[1])))
        for name, labels in groups.items():
            moments = Moments.of(scores, labels)
            c_asc_by_attribute[name].append(np.asarray(c_asc_of_moments(moments)))
            means[name].append(np.asarray(moments.mean, float))
    return NeutralReference(
        np.concatenate(top_images),
        {name: np.concatenate(x) for name, x in c_asc_by_attribute.items()},
        {name: np.concatenate(x) for name, x in means.items()},
        scale,
    )
