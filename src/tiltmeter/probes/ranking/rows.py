"""Rows of results from a ranking's estimates, and the top images by id."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from tiltmeter.errors import InputError
from tiltmeter.metrics.convention import Convention
from tiltmeter.probes.ranking.agreement import agreement
from tiltmeter.probes.ranking.levels import AggregationLevels
from tiltmeter.probes.ranking.tabulate import tabulate
from tiltmeter.probes.ranking.wording import wording
from tiltmeter.results import INSTANCES
from tiltmeter.results.schema import chosen
from tiltmeter.stats.estimate import MetricEstimate
from tiltmeter.stats.multiplicity import holm
from tiltmeter.stats.placebo import verdicts
from tiltmeter.types import Faces, Floats, Groups, Ints, Prompt

Planted = Callable[[str, Sequence[Prompt], Groups], Floats | None]


def words_first(prompts: Sequence[Prompt]) -> tuple[list[Prompt], int]:
    """Sort words before neutral words, and count the words: only these get the costly draws."""
    ordered = sorted(prompts, key=lambda prompt: prompt.role != "word")
    words = sum(prompt.role == "word" for prompt in ordered)
    if any(prompt.category == "placebo" for prompt in ordered[:words]):
        raise InputError(
            "the category 'placebo' is reserved for neutral words: rename that category"
        )
    if not words:
        raise InputError("there is no word to measure: every prompt is a neutral word")
    return ordered, words


def constants_of(
    model: object, faces: Faces, convention: Convention, seed: int
) -> dict[str, object]:
    """Columns that are the same in all rows."""
    return {
        "probe": "ranking",
        "model": getattr(model, "name", type(model).__name__),
        "dataset": faces.name,
        "convention": convention.name,
        "seed": seed,
    }


def estimate_rows(
    estimate: MetricEstimate,
    layout: AggregationLevels,
    prompts: Sequence[Prompt],
    planted: Planted | None,
    *,
    rng: np.random.Generator,
    constants: dict[str, object],
) -> list[pa.Table]:
    """Rows of one estimate: values on every level, shares of variance, agreement with the truth."""
    estimate = estimate.computed()
    truth = None if planted is None else planted(estimate.metric, prompts, estimate.groups)
    table = tabulate(estimate, layout, truth=truth, rng=rng, constants=constants)
    return [
        with_family(table) if estimate.holm else table,
        wording(estimate, layout, rng=rng, constants=constants),
        agreement(estimate, layout, truth, rng=rng, constants=constants),
    ]


def with_family(table: pa.Table) -> pa.Table:
    """Family-wise p-values by Holm where there were no permutations, and verdicts for words.

    Prompts are one family, words over all templates another.
    """
    p, p_placebo, p_fwer = (
        np.array(table[name].to_pylist(), float) for name in ("p", "p_placebo", "p_fwer")
    )
    concept, category, template = (
        np.array(table[name].to_pylist(), object) for name in ("concept", "category", "template")
    )
    word = (concept != None) & (category != "placebo")  # noqa: E711
    adjusted_by_holm = np.zeros(len(p), bool)
    if not np.isfinite(p_fwer[word]).any():
        for level in (template == None, template != None):  # noqa: E711
            adjusted = holm(np.where(word & level, p, np.nan))
            adjusted_by_holm |= np.isfinite(adjusted)
            p_fwer = np.where(np.isfinite(adjusted), adjusted, p_fwer)
    columns = {
        "p_fwer": p_fwer,
        "verdict": verdicts(p_fwer, p_placebo),
        "note": [
            "; ".join(filter(None, (note, "p_fwer by Holm" if new else None))) or None
            for new, note in zip(adjusted_by_holm, table["note"].to_pylist(), strict=True)
        ],
    }
    for name, values in columns.items():
        field = table.schema.field(name)
        column = pa.array(values, field.type, from_pandas=True)
        table = table.set_column(table.schema.get_field_index(name), field, column)
    return table


def instances(
    constants: dict[str, object],
    faces: Faces,
    prompts: Sequence[Prompt],
    top: Ints,
    scores: Floats,
    experiment: str | None = None,
) -> pa.Table:
    """The top images of each word's prompts: ids, scores and groups, never pixels."""
    rows, k = top.shape
    image_rows = top.ravel()
    attributes, count = list(faces.groups.values()), len(image_rows)
    # group names of all attributes in one list, and each image's positions in it, in 32 bits:
    # there are millions of rows, and wider positions would need more memory than the rest
    begins = np.cumsum([0, *(len(attribute.names) for attribute in attributes)])
    codes = np.empty((count, len(attributes)), np.int32)
    for column, (g, first) in enumerate(zip(attributes, begins[:-1], strict=True)):
        codes[:, column] = (g.codes + first).astype(np.int32)[image_rows]
    groups = pa.MapArray.from_arrays(
        np.arange(0, codes.size + 1, len(attributes), dtype=np.int32),
        chosen(list(faces.groups), np.tile(np.arange(len(attributes), dtype=np.int32), count)),
        chosen([name for attribute in attributes for name in attribute.names], codes.ravel()),
    )
    del codes
    prompt_of = np.repeat(np.arange(rows, dtype=np.int32), k)
    columns = {
        "model": pa.repeat(pa.scalar(constants["model"], pa.string()), count),
        "dataset": pa.repeat(pa.scalar(constants["dataset"], pa.string()), count),
        "experiment": pa.repeat(pa.scalar(experiment, pa.string()), count),
        "concept": chosen([prompt.concept for prompt in prompts], prompt_of),
        "template": chosen([prompt.template for prompt in prompts], prompt_of),
        "id": chosen(faces.ids, image_rows),
        "groups": groups,
        "rank": pa.array(np.tile(np.arange(1, k + 1, dtype=np.int64), rows)),
        "score": pa.array(scores.ravel(), pa.float64()),
        "pick": pa.nulls(count, pa.string()),
    }
    return pa.Table.from_arrays([columns[field.name] for field in INSTANCES], schema=INSTANCES)
