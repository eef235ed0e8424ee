"""What a ranking's estimates become: rows of results, and the images that came up, by id."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from tiltmeter.errors import InputError
from tiltmeter.metrics.convention import Convention
from tiltmeter.probes.ranking.agreement import agreement
from tiltmeter.probes.ranking.tabulate import RowLayout, tabulate
from tiltmeter.probes.ranking.wording import wording
from tiltmeter.results import INSTANCES
from tiltmeter.stats.estimate import MetricEstimate
from tiltmeter.stats.multiplicity import holm
from tiltmeter.stats.placebo import verdict
from tiltmeter.types import Faces, Floats, Groups, Ints, Prompt

Planted = Callable[[str, Sequence[Prompt], Groups], Floats | None]


def words_first(prompts: Sequence[Prompt]) -> tuple[list[Prompt], int]:
    """Prompts of words, how many they are, and then placebos: only words need the costly draws."""
    found = sorted(prompts, key=lambda prompt: prompt.role != "word")
    words = sum(prompt.role == "word" for prompt in found)
    if any(prompt.category == "placebo" for prompt in found[:words]):
        raise InputError("the category 'placebo' is kept for placebos: give those words another")
    if not words:
        raise InputError("there is no word to measure: every prompt is a placebo")
    return found, words


def constants_of(
    model: object, faces: Faces, convention: Convention, seed: int
) -> dict[str, object]:
    """What all rows of a run have."""
    return {
        "probe": "ranking",
        "model": getattr(model, "name", type(model).__name__),
        "dataset": faces.name,
        "convention": convention.name,
        "seed": seed,
    }


def estimate_rows(
    estimate: MetricEstimate,
    layout: RowLayout,
    prompts: Sequence[Prompt],
    planted: Planted | None,
    *,
    rng: np.random.Generator,
    constants: dict[str, object],
) -> list[pa.Table]:
    """Its values on every level; what its spread is made of; whether it orders as was planted."""
    truth = None if planted is None else planted(estimate.metric, prompts, estimate.groups)
    table = tabulate(estimate, layout, truth=truth, rng=rng, constants=constants)
    return [
        with_family(table) if estimate.holm else table,
        wording(estimate, layout, rng=rng, constants=constants),
        agreement(estimate, layout, truth, rng=rng, constants=constants),
    ]


def with_family(table: pa.Table) -> pa.Table:
    """Family-wise p-values and verdicts for words: by Holm, where there were no permutations.

    Prompts are one family, words in several templates another.
    """
    p, p_placebo, p_fwer = (
        np.array(table[name].to_pylist(), float) for name in ("p", "p_placebo", "p_fwer")
    )
    concept, category, template = (
        np.array(table[name].to_pylist(), object) for name in ("concept", "category", "template")
    )
    word = (concept != None) & (category != "placebo")  # noqa: E711
    told = np.zeros(len(p), bool)
    if not np.isfinite(p_fwer[word]).any():
        for level in (template == None, template != None):  # noqa: E711
            adjusted = holm(np.where(word & level, p, np.nan))
            told |= np.isfinite(adjusted)
            p_fwer = np.where(np.isfinite(adjusted), adjusted, p_fwer)
    columns = {
        "p_fwer": p_fwer,
        "verdict": [verdict(*pair) for pair in zip(p_fwer, p_placebo, strict=True)],
        "note": [
            "; ".join(filter(None, (note, "p_fwer by Holm" if new else None))) or None
            for new, note in zip(told, table["note"].to_pylist(), strict=True)
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
    at = top.ravel()
    attributes, count = list(faces.groups.values()), len(at)
    # the names of all groups in one list, and of each image those that are its own
    begins = np.cumsum([0, *(len(one.names) for one in attributes)])
    own = np.stack([g.codes[at] + first for g, first in zip(attributes, begins[:-1], strict=True)])
    groups = pa.MapArray.from_arrays(
        np.arange(0, own.size + 1, len(attributes), dtype=np.int32),
        _chosen(list(faces.groups), np.tile(np.arange(len(attributes)), count)),
        _chosen([name for one in attributes for name in one.names], own.T.ravel()),
    )
    columns = {
        "model": pa.repeat(pa.scalar(constants["model"], pa.string()), count),
        "dataset": pa.repeat(pa.scalar(constants["dataset"], pa.string()), count),
        "experiment": pa.repeat(pa.scalar(experiment, pa.string()), count),
        "concept": _chosen([prompt.concept for prompt in prompts], np.repeat(np.arange(rows), k)),
        "template": _chosen([prompt.template for prompt in prompts], np.repeat(np.arange(rows), k)),
        "id": _chosen(faces.ids, at),
        "groups": groups,
        "rank": pa.array(np.tile(np.arange(1, k + 1), rows), pa.int64()),
        "score": pa.array(scores.ravel(), pa.float64()),
        "pick": pa.nulls(count, pa.string()),
    }
    return pa.Table.from_arrays([columns[field.name] for field in INSTANCES], schema=INSTANCES)


def _chosen(names: Sequence[str], at: Ints) -> pa.Array:
    """The names at some places, without a Python string for each of millions."""
    return pa.array(names, pa.string()).take(pa.array(at))
