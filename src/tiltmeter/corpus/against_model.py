"""Does the data explain the model? The corpus's tilt of each word beside the model's."""

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

FEWEST_CAPTIONS = 5  # of a word that name a group: fewer say nothing about its tilt
FEWEST_WORDS = 10
DRAWS = 1000
#: How datasets call the groups that captions name.
NAMES = {
    "male": "male", "man": "male", "men": "male", "m": "male", "boy": "male",
    "female": "female", "woman": "female", "women": "female", "f": "female", "girl": "female",
    "white": "White", "caucasian": "White", "black": "Black", "african american": "Black",
    "latino hispanic": "Latino_Hispanic", "latino": "Latino_Hispanic",
    "hispanic": "Latino_Hispanic", "east asian": "East Asian", "southeast asian": "Southeast Asian",
    "indian": "Indian", "south asian": "Indian", "middle eastern": "Middle Eastern",
    "asian": "Asian",
}  # fmt: skip

Tilts = Mapping[str, float]


def explain(corpus: pa.Table, run: Run, *, dataset: str, seed: int) -> pa.Table:
    """Spearman's correlation over words of the corpus's tilt and the model's C-ASC.

    For women, against log-odds (of nouns, of pronouns); for a race, against PMI. One row for each
    model, group and kind of tilt; the interval is a bootstrap over words. Words that fewer than 5
    captions tie to a group are left out.
    """
    model = model_tilts(run)
    tables: list[pa.Table] = []
    races = [name for name in dict.fromkeys(NAMES.values()) if name not in ("male", "female")]
    for metric, experiment, attribute, group in (
        ("log_odds", "noun", "gender", "female"),
        ("log_odds", "pronoun", "gender", "female"),
        *(("pmi", "race", "race", name) for name in races),
    ):
        data = _corpus_tilts(corpus, metric, experiment, group)
        for (name, images, of), tilts in model.items():
            if of != group:
                continue
            found = _correlation(data, tilts, np.random.default_rng([seed, len(tables)]))
            tables.append(
                rows(1, probe=PROBE, metric="spearman", model=name, dataset=dataset, split=images,
                     experiment=f"{experiment} {metric} ~ c_asc", attribute=attribute, group=group,
                     ideal=0.0, seed=seed, **found)
            )  # fmt: skip
    if not tables:
        groups = sorted({str(row["group"]) for row in run.where(metric="c_asc")})
        raise InputError(
            "the run has no C-ASC of a group that captions name (female, or a race of FairFace); "
            f"its groups are {', '.join(groups) or 'none'}"
        )
    return combined(tables)


def model_tilts(run: Run) -> dict[tuple[str, str, str], Tilts]:
    """C-ASC by word, for each model, dataset and group that captions can name."""
    found: dict[tuple[str, str, str], dict[str, dict[bool, list[float]]]] = {}
    for row in run.where(metric="c_asc"):
        group = NAMES.get(str(row["group"]).lower().replace("_", " ").replace("/", " "))
        placebo = row["category"] == "placebo"
        if group is None or row["concept"] is None or row["value"] is None or placebo:
            continue
        words = found.setdefault((row["model"], row["dataset"], group), {})
        of_all = row["template"] is None  # the mean over templates, where there are several
        words.setdefault(row["concept"], {}).setdefault(of_all, []).append(row["value"])
    return {
        key: {word: float(np.mean(by.get(True) or by[False])) for word, by in words.items()}
        for key, words in found.items()
    }


def _corpus_tilts(table: pa.Table, metric: str, experiment: str, group: str) -> Tilts:
    return {
        row["concept"]: row["value"]
        for row in table.to_pylist()
        if row["metric"] == metric and row["experiment"] == experiment and row["group"] == group
        and row["value"] is not None
        and (row["n_group"] if metric == "pmi" else row["n"]) >= FEWEST_CAPTIONS
    }  # fmt: skip


def _correlation(data: Tilts, model: Tilts, rng: np.random.Generator) -> dict[str, Any]:
    shared = sorted(set(data) & set(model))
    n = len(shared)
    if n < FEWEST_WORDS:
        reason = (
            f"a correlation takes {FEWEST_WORDS} words or more that have a tilt in the captions "
            f"and in the run; there are {n}"
        )
        return {"value": float("nan"), "n": n, "note": reason}
    x, y = (np.array([side[word] for word in shared]) for side in (data, model))
    value = float(spearman(x, y)[0])
    if np.isnan(value):
        return {"value": value, "n": n, "note": "one side does not vary over the words"}
    picks = rng.integers(0, n, size=(DRAWS, n))
    draws: Floats = np.array([float(spearman(x[pick], y[pick])[0]) for pick in picks])
    return {**columns(value, interval=Interval(boot=draws, method="bootstrap over words")), "n": n}
