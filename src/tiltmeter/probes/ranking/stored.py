"""Tables that a run keeps of a ranking: counts, texts and image embeddings.

A row of COUNTS is one prompt and attribute: the groups and their sizes, mean and centred second
moment of each group's scores, and the number of each group in the top k. The metrics can be
recomputed from them, and they say nothing about single images. `texts` has the words' texts and
embeddings. `faces` has ids, labels and embeddings of the images, or their keys in a store.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tiltmeter.datasets.shards import ShardedFaces
from tiltmeter.engine.embedding.embed_images import EmbeddedFaces
from tiltmeter.engine.ranking.job import SampleSummary
from tiltmeter.metrics.convention import Convention
from tiltmeter.types import Floats, Prompt

#: A run keeps at most so many bytes of image embeddings itself; more need a store.
MOST_KEPT = 2**26
LABEL = "label "  # prefix of attribute columns, next to `id` and `vector`
PROMPT = ("text", "concept", "template", "category", "pos")

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
        ("mean", pa.list_(pa.float64())),  # null for a re-ranker, whose order is not by score
        ("m2", pa.list_(pa.float64())),
        ("k", pa.list_(pa.int64())),
        ("top", pa.list_(pa.list_(pa.float64()))),  # for each k, for each group
    ]
)


def counts_table(
    samples: Sequence[SampleSummary],
    prompts: Sequence[Prompt],
    convention: Convention,
    constants: dict[str, object],
) -> pa.Table:
    """COUNTS of a ranking."""
    prompt_columns = {name: [getattr(prompt, name) for prompt in prompts]
            for name in ("concept", "template", "category", "role", "pos")}  # fmt: skip
    ks, count, tables = sorted(convention.k), len(prompts), []
    for sample in samples:
        for name, groups in sample.groups.items():
            moments, top_counts = sample.moments.get(name), sample.counts[name]
            columns: dict[str, Any] = {
                **prompt_columns,
                **{key: [constants[key]] * count for key in ("model", "dataset")},
                "attribute": [groups.attribute] * count,
                "groups": [list(groups.names)] * count,
                "sizes": [groups.counts.tolist()] * count,
                "mean": [None] * count if moments is None else np.asarray(moments.mean).tolist(),
                "m2": [None] * count if moments is None else np.asarray(moments.m2).tolist(),
                "k": [ks] * count,
                "top": np.stack([top_counts[k] for k in ks], axis=1).astype(float).tolist(),
            }
            arrays = [pa.array(columns[field.name], field.type) for field in COUNTS]
            tables.append(pa.table(arrays, schema=COUNTS))
    return pa.concat_tables(tables).combine_chunks()


def kept_texts(prompts: Sequence[Prompt], embeddings: Floats) -> pa.Table:
    """Texts of words with their embeddings; words come before neutral words."""
    columns = {name: [getattr(prompt, name) for prompt in prompts] for name in PROMPT}
    return pa.table({**columns, "vector": vector_column(embeddings[: len(prompts)])})


def kept_faces(ranked: EmbeddedFaces) -> dict[str, pa.Table]:
    """Ids and labels of images, with their embeddings or their keys in a store, as `faces`.

    Those of a collection in shards are not kept: they stay where they are.
    """
    faces, images = ranked.faces, ranked.images
    if isinstance(faces, ShardedFaces):
        return {}
    columns: dict[str, Any] = {"id": list(faces.ids)}
    for name, groups in faces.groups.items():
        columns[LABEL + name] = pa.array(groups.names).take(pa.array(groups.codes))
    if ranked.items is not None:
        columns["item"] = ranked.items
    elif len(images) * images.part(0, 1).read().size * 4 <= MOST_KEPT:
        columns["vector"] = vector_column(images.read())
    return {"faces": pa.table(columns)}


def vector_column(vectors: Floats) -> pa.Array:
    """A matrix as a column of float32 rows."""
    flat = np.ascontiguousarray(vectors, np.float32)
    return pa.FixedSizeListArray.from_arrays(pa.array(flat.reshape(-1)), flat.shape[1])
