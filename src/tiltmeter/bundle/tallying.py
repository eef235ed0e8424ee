"""What a ranking leaves of every prompt: enough to recompute its figures, nothing about one image.

A row of COUNTS is a prompt and an attribute: the groups and their sizes, count, mean and centred
second moment of the scores of each group, and how many of each group are among the top k.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tiltmeter.errors import InputError
from tiltmeter.gate.evidence import GoneError, seen
from tiltmeter.metrics.arrays import to_numpy
from tiltmeter.metrics.convention import Convention
from tiltmeter.metrics.summary import Moments, TopItems
from tiltmeter.probes.probe import Effort
from tiltmeter.probes.ranking import (
    BLOCK,
    BLOCK_OF_TENSORS,
    Place,
    _drawn,
    checked,
    samples_of,
    unit_vectors,
)
from tiltmeter.probes.reordered import Reordering, orders, reordering_of
from tiltmeter.results import Run
from tiltmeter.types import Array, Faces, Floats, Groups, Ints, Prompt

NAME = "counts"  # among the tables that a run keeps beside its vectors

COUNTS = pa.schema(
    [
        ("model", pa.string()),
        ("dataset", pa.string()),
        ("attribute", pa.string()),
        ("concept", pa.string()),
        ("template", pa.string()),
        ("category", pa.string()),
        ("role", pa.string()),
        ("pos", pa.string()),
        ("groups", pa.list_(pa.string())),
        ("sizes", pa.list_(pa.int64())),
        ("mean", pa.list_(pa.float64())),  # null where an order was shown that is not by score
        ("m2", pa.list_(pa.float64())),
        ("k", pa.list_(pa.int64())),
        ("top", pa.list_(pa.list_(pa.float64()))),  # for each k, for each group
    ]
)


def tally(
    model: Any,
    faces: Faces,
    *,
    prompts: Sequence[Prompt],
    attributes: Sequence[str],
    convention: Convention,
    seed: int,
    effort: Effort,
    device: str = "cpu",
) -> pa.Table:
    """COUNTS of the ranking that the same arguments give: same blocks, same device, same order."""
    prompts = sorted(prompts, key=lambda prompt: prompt.role != "word")
    convention = convention.on(faces.name, faces.groups)
    by = {name: checked(faces.attribute(name)) for name in attributes}
    reorder = reordering_of(model, faces)
    texts, images = unit_vectors(model, faces, prompts, convention)
    place = Place.on("cpu" if reorder is not None else device)
    block = BLOCK if place.device is None else BLOCK_OF_TENSORS
    said = {name: [getattr(prompt, name) for prompt in prompts]
            for name in ("concept", "template", "category", "role", "pos")}  # fmt: skip
    tables = []
    for rows, groups in _rows(by, faces, convention, seed, effort, shown=reorder is not None):
        chosen = images if rows is None else images[rows]
        found: dict[str, list[_Block]] = {name: [] for name in groups}
        put_texts, put_images = place.put(texts), place.put(chosen)
        for start in range(0, len(texts), block):
            scores = put_texts[start : start + block] @ put_images.T
            some = (
                _of_scores(scores, groups, convention, place)
                if reorder is None
                else _of_orders(reorder, scores, groups, convention, rows, chosen)
            )
            for name, one in some:
                found[name].append(one)
        for name, blocks in found.items():
            told = {"model": getattr(model, "name", type(model).__name__), "dataset": faces.name}
            tables.append(_table(blocks, groups[name], convention, {**told, **said}))
    return pa.concat_tables(tables).combine_chunks()


def of_kept_vectors(run: Run, *, store: str | None = None) -> pa.Table:
    """COUNTS of a run that has none, from the vectors that it kept; GoneError where it cannot be.

    It kept no vectors of neutral words, so there are no counts of these.
    """
    ranked = [row for row in run.where(probe="ranking", metric="skew") if row["group"]]
    if not ranked:
        raise GoneError("it ranked nothing: it was made without the probe ranking")
    if any((row["note"] or "").startswith("order re-ranked") for row in ranked):
        raise GoneError("its order is a re-ranker's, which vectors do not tell")
    if "panel" in run.meta:
        raise GoneError("it holds several audits, which keep no vectors")
    kept = seen(run, store=store)
    groups = {name: Groups.from_labels(labels, attribute=name)
              for name, labels in kept.labels.items()}  # fmt: skip
    faces = Faces(tuple(kept.ids), groups, vectors=kept.images, name=ranked[0]["dataset"])
    arguments = run.meta.get("arguments", {})
    used = {**arguments.get("defaulted", {}), **arguments.get("given", {})}
    return tally(
        _Kept(ranked[0]["model"], kept.texts),
        faces,
        prompts=kept.prompts,
        attributes=list(dict.fromkeys(row["attribute"] for row in ranked)),
        convention=convention_of(run.meta),
        seed=int(run.meta.get("seed", 0)),
        effort=Effort(used.get("permutations", 1000), used.get("bootstraps", 400)),
    )


def convention_of(meta: dict[str, Any]) -> Convention:
    """The choices that a run was made under, as its record has them."""
    told = meta.get("convention")
    if not isinstance(told, dict):
        raise InputError("the run's record does not say under which convention it was made")
    try:
        return Convention(**{**told, "k": tuple(told["k"])})
    except (TypeError, KeyError) as error:
        raise InputError(f"the run's convention cannot be read: {error}") from None


class _Kept:
    """A model that is gone but for its vectors of some texts."""

    def __init__(self, name: str, vectors: Floats) -> None:
        self.name, self.vectors = name, vectors

    def encode_texts(self, texts: Sequence[str]) -> Array:
        if len(texts) != len(self.vectors):
            raise InputError(f"{len(self.vectors)} vectors are kept, for {len(texts)} texts")
        return self.vectors


class _Block:
    """Of some prompts: prompts x groups of each, and k x prompts x groups."""

    def __init__(self, mean: Floats | None, m2: Floats | None, top: list[Floats]) -> None:
        self.mean, self.m2, self.top = mean, m2, top


def _rows(
    by: dict[str, Groups],
    faces: Faces,
    convention: Convention,
    seed: int,
    effort: Effort,
    *,
    shown: bool,
) -> Iterator[tuple[Ints | None, dict[str, Groups]]]:
    """The images that each attribute was measured on: the draws of the audit, made again."""
    rng = np.random.default_rng(seed)
    effort = Effort(effort.permutations, 0) if shown else effort
    for rows, groups in samples_of(by, faces.groups, convention, rng):
        yield rows, groups
        if convention.balance == "balanced":  # the next attribute's images are drawn after these
            _drawn(rows, groups, effort, rng)


def _of_scores(
    scores: Array, groups: Mapping[str, Groups], convention: Convention, place: Place
) -> Iterator[tuple[str, _Block]]:
    order, most = place.loops.rank(scores), max(convention.k)
    for name, one in groups.items():
        moments, tops = Moments.of(scores, one), TopItems.of(scores, one, most, order=order)
        top = [to_numpy(tops.counts(k, convention.ties)) for k in sorted(convention.k)]
        yield name, _Block(to_numpy(moments.mean), to_numpy(moments.m2), top)


def _of_orders(
    reorder: Reordering,
    scores: Floats,
    groups: Mapping[str, Groups],
    convention: Convention,
    rows: Ints | None,
    images: Floats,
) -> Iterator[tuple[str, _Block]]:
    shown = orders(reorder, scores, convention, rows, images)
    for name, one in groups.items():
        top = [
            np.array([np.bincount(row, minlength=len(one.names)) for row in one.codes[order]])
            for order in shown.values()
        ]
        yield name, _Block(None, None, top)


def _table(
    blocks: Sequence[_Block], groups: Groups, convention: Convention, said: Mapping[str, Any]
) -> pa.Table:
    ks = sorted(convention.k)
    count = sum(len(block.top[0]) for block in blocks)
    tops = [np.concatenate([block.top[at] for block in blocks]) for at in range(len(ks))]
    columns: dict[str, Any] = {
        **{name: [one] * count if isinstance(one, str) else one for name, one in said.items()},
        "attribute": [groups.attribute] * count,
        "groups": [list(groups.names)] * count,
        "sizes": [groups.counts.tolist()] * count,
        "k": [ks] * count,
        "top": np.stack(tops, axis=1).astype(float).tolist(),
    }
    for name in ("mean", "m2"):
        parts = [getattr(block, name) for block in blocks]
        columns[name] = [None] * count if parts[0] is None else np.concatenate(parts).tolist()
    return pa.table([pa.array(columns[field.name], field.type) for field in COUNTS], schema=COUNTS)
