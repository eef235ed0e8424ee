"""WEAT of the prompts: are favourable words closer to a group than their opposites?

Berg et al. (2022, App. A and C): targets are texts, attributes are images. X are the favourable
words of some pairs, Y their opposites, A the images of one group and B all others. They found that
its sign changes with the wording, so each template has its own row, next to the mean over all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from tiltmeter.engine.ranking.job import Gaps
from tiltmeter.metrics.association import ROUNDING
from tiltmeter.results import RESULTS, rows
from tiltmeter.stats.significance import Interval, columns
from tiltmeter.types import Floats, Groups, Ints, Prompt

FEWEST_PAIRS = 4  # 70 partitions: with fewer, no p-value can be small
DRAWS = 1000  # random partitions of the words
UNDEFINED = "all of these words have the same score"


def opposites(
    gaps: Gaps,
    groups: Groups,
    prompts: Sequence[Prompt],
    pairs: Sequence[tuple[str, str]],
    *,
    rng: np.random.Generator,
    constants: Mapping[str, object],
) -> pa.Table:
    """Effect sizes d for each group and template, and their means; no rows with too few pairs.

    The null permutes the words between X and Y, in the same way for all templates and groups.
    """
    rows_of, templates = _places(prompts, pairs)  # templates x words, favourable ones first
    if not templates:
        return RESULTS.empty_table()
    half = rows_of.shape[1] // 2
    favourable = np.arange(2 * half) < half
    s, drawn = gaps(rows_of)
    value = _effects(s, favourable[None])[0]  # templates x groups
    permuted = rng.permuted(np.tile(favourable, (DRAWS, 1)), axis=1)
    null = _effects(s, permuted)  # draws x templates x groups
    boot = np.array([_effects(effects, favourable[None])[0] for effects in drawn])
    boot = boot.reshape(len(drawn), *value.shape)
    if len(templates) > 1:
        value, null, boot = (
            np.concatenate([effects, effects.mean(axis=-2, keepdims=True)], axis=-2)
            for effects in (value, null, boot)
        )
    template_names = [*templates, *([None] if len(templates) > 1 else [])]
    size = len(groups.names)
    notes: list[str | None] = [None] * (len(templates) * size)
    if len(templates) > 1:
        notes += [f"from {v[:-1].min():+.2f} to {v[:-1].max():+.2f} over {len(templates)} templates"
                  for v in value.T]  # fmt: skip
    return rows(
        value.size,
        **constants,
        metric="weat",
        experiment="favourable against unfavourable words, caliskan",
        target=f"{half} pairs of opposites",
        attribute=groups.attribute,
        group=list(groups.names) * len(template_names),
        template=[name for name in template_names for _ in range(size)],
        ideal=0.0,
        **columns(value, null=null, side="two", family="holm", interval=Interval(boot=boot)),
        ci_method="bootstrap over images" if len(boot) else None,
        n=len(groups),
        n_group=groups.counts.tolist() * len(template_names),
        note=[UNDEFINED if np.isnan(v) else n for v, n in zip(value.ravel(), notes, strict=True)],
    )


def _places(prompts: Sequence[Prompt], pairs: Sequence[tuple[str, str]]) -> tuple[Ints, list[str]]:
    """Prompts of the pairs' words, templates x words, for the templates that all words share."""
    row_of = {
        (prompt.template, prompt.concept): row
        for row, prompt in enumerate(prompts)
        if prompt.role == "word"
    }
    templates = list(dict.fromkeys(template for template, _ in row_of))
    words = {word for _, word in row_of}
    complete = [pair for pair in pairs if words.issuperset(pair)]
    listed = [prompt for prompt, _ in complete] + [other for _, other in complete]
    if len(complete) < FEWEST_PAIRS:
        return np.empty((0, 0), int), []
    shared = [t for t in templates if all((t, word) in row_of for word in listed)]
    return np.array([[row_of[t, word] for word in listed] for t in shared], int), shared


def _effects(s: Floats, in_x: Ints) -> Floats:
    """(mean_X s - mean_Y s) / std s; `s` is templates x words x groups, `in_x` draws x words."""
    half = s.shape[1] // 2
    sign = np.where(in_x, 1.0, -1.0) / half
    spread = s.std(axis=1, ddof=1)  # templates x groups
    spread = np.where(spread > ROUNDING * np.abs(s).max(axis=1), spread, np.nan)
    return np.asarray(np.einsum("rw,twg->rtg", sign, s) / spread)
