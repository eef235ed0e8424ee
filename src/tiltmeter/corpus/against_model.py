"""Correlation of bias in a corpus with bias in a model, over words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from tiltmeter.corpus.estimates import PROBE
from tiltmeter.errors import InputError
from tiltmeter.metrics.propagation import spearman
from tiltmeter.results import Run, combined, rows
from tiltmeter.stats.significance import Interval, columns
from tiltmeter.types import Floats

FEWEST_CAPTIONS = 5  # of a word that name a group; words with fewer are left out
FEWEST_WORDS = 10
DRAWS = 1000
#: Names of groups in datasets, and the group words of captions that they correspond to.
NAMES = {
    "male": "male", "man": "male", "men": "male", "m": "male", "boy": "male",
    "female": "female", "woman": "female", "women": "female", "f": "female", "girl": "female",
    "white": "White", "caucasian": "White", "black": "Black", "african american": "Black",
    "latino hispanic": "Latino_Hispanic", "latino": "Latino_Hispanic",
    "hispanic": "Latino_Hispanic", "east asian": "East Asian", "southeast asian": "Southeast Asian",
    "indian": "Indian", "south asian": "Indian", "middle eastern": "Middle Eastern",
    "asian": "Asian",
}  # fmt: skip

BiasByWord = Mapping[str, float]


def explain(corpus: pa.Table, run: Run, *, dataset: str, seed: int) -> pa.Table:
    """Spearman's correlation over words of the corpus's bias and the model's C-ASC.

    The bias in the corpus is log-odds for women (by nouns, by pronouns), and PMI for a race. One
    row for each model, group and kind of bias; the interval is a bootstrap over words. Words with
    fewer than 5 captions that name a group are left out.

    Raises
    ------
    InputError
        If the run has no C-ASC of a group that captions name.
    """
    model = model_bias_by_word(run)
    tables: list[pa.Table] = []
    races = [name for name in dict.fromkeys(NAMES.values()) if name not in ("male", "female")]
    for metric, experiment, attribute, group in (
        ("log_odds", "noun", "gender", "female"),
        ("log_odds", "pronoun", "gender", "female"),
        *(("pmi", "race", "race", name) for name in races),
    ):
        corpus_bias = _corpus_bias(corpus, metric, experiment, group)
        for (name, images, model_group), model_bias in model.items():
            if model_group != group:
                continue
            correlation = _correlation(
                corpus_bias, model_bias, np.random.default_rng([seed, len(tables)])
            )
            tables.append(
                rows(1, probe=PROBE, metric="spearman", model=name, dataset=dataset, split=images,
                     experiment=f"{experiment} {metric} ~ c_asc", attribute=attribute, group=group,
                     ideal=0.0, seed=seed, **correlation)
            )  # fmt: skip
    if not tables:
        groups = sorted({str(row["group"]) for row in run.where(metric="c_asc")})
        raise InputError(
            "the run has no C-ASC of a group that captions name (female, or a race of FairFace); "
            f"its groups are {', '.join(groups) or 'none'}"
        )
    return combined(tables)


def model_bias_by_word(run: Run) -> dict[tuple[str, str, str], BiasByWord]:
    """C-ASC by word, for each model, dataset and group that captions can name."""
    by_key: dict[tuple[str, str, str], dict[str, dict[bool, list[float]]]] = {}
    for row in run.where(metric="c_asc"):
        group = NAMES.get(str(row["group"]).lower().replace("_", " ").replace("/", " "))
        placebo = row["category"] == "placebo"
        if group is None or row["concept"] is None or row["value"] is None or placebo:
            continue
        words = by_key.setdefault((row["model"], row["dataset"], group), {})
        over_templates = row["template"] is None  # the mean over several templates
        words.setdefault(row["concept"], {}).setdefault(over_templates, []).append(row["value"])
    return {
        key: {
            word: float(np.mean(by_level.get(True) or by_level[False]))
            for word, by_level in words.items()
        }
        for key, words in by_key.items()
    }


def _corpus_bias(table: pa.Table, metric: str, experiment: str, group: str) -> BiasByWord:
    return {
        row["concept"]: row["value"]
        for row in table.to_pylist()
        if row["metric"] == metric and row["experiment"] == experiment and row["group"] == group
        and row["value"] is not None
        and (row["n_group"] if metric == "pmi" else row["n"]) >= FEWEST_CAPTIONS
    }  # fmt: skip


def _correlation(data: BiasByWord, model: BiasByWord, rng: np.random.Generator) -> dict[str, Any]:
    shared = sorted(set(data) & set(model))
    n = len(shared)
    if n < FEWEST_WORDS:
        reason = (
            f"a correlation needs at least {FEWEST_WORDS} words measured both in the captions "
            f"and in the run; got {n}"
        )
        return {"value": float("nan"), "n": n, "note": reason}
    x, y = (np.array([bias[word] for word in shared]) for bias in (data, model))
    value = float(spearman(x, y)[0])
    if np.isnan(value):
        return {
            "value": value,
            "n": n,
            "note": "the bias in the captions or in the model does not vary over words",
        }
    picks = rng.integers(0, n, size=(DRAWS, n))
    draws: Floats = np.array([float(spearman(x[pick], y[pick])[0]) for pick in picks])
    return {**columns(value, interval=Interval(boot=draws, method="bootstrap over words")), "n": n}
