"""What a run keeps of a ranking: counts to recompute metrics from, texts, and images' embeddings.

A row of COUNTS is a prompt and an attribute: the groups and their sizes, count, mean and centred
second moment of the scores of each group, and how many of each group are among the top k: nothing
about one image. `texts` has the texts of words with their embeddings. `faces` has the images' ids
and labels, and their embeddings; where a store keeps those, its name for each image.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tiltmeter.engine.embedding.embed import EmbeddedFaces
from tiltmeter.engine.ranking.job import SampleSummary
from tiltmeter.metrics.convention import Convention
from tiltmeter.types import Floats, Prompt

#: Bytes of image embeddings that a run keeps itself; more than these need a store.
MOST_KEPT = 2**26
LABEL = "label "  # before the name of an attribute: ids and embeddings are columns too
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
        ("mean", pa.list_(pa.float64())),  # null where an order was shown that is not by score
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
    said = {name: [getattr(prompt, name) for prompt in prompts]
            for name in ("concept", "template", "category", "role", "pos")}  # fmt: skip
    ks, count, tables = sorted(convention.k), len(prompts), []
    for sample in samples:
        for name, groups in sample.groups.items():
            moments, tops = sample.moments.get(name), sample.counts[name]
            columns: dict[str, Any] = {
                **said,
                **{key: [constants[key]] * count for key in ("model", "dataset")},
                "attribute": [groups.attribute] * count,
                "groups": [list(groups.names)] * count,
                "sizes": [groups.counts.tolist()] * count,
                "mean": [None] * count if moments is None else np.asarray(moments.mean).tolist(),
                "m2": [None] * count if moments is None else np.asarray(moments.m2).tolist(),
                "k": [ks] * count,
                "top": np.stack([tops[k] for k in ks], axis=1).astype(float).tolist(),
            }
            arrays = [pa.array(columns[field.name], field.type) for field in COUNTS]
            tables.append(pa.table(arrays, schema=COUNTS))
    return pa.concat_tables(tables).combine_chunks()


def kept_texts(prompts: Sequence[Prompt], embeddings: Floats) -> pa.Table:
    """The texts of words, which come first among those embedded."""
    columns = {name: [getattr(prompt, name) for prompt in prompts] for name in PROMPT}
    return pa.table({**columns, "vector": vector_column(embeddings[: len(prompts)])})


def kept_faces(ranked: EmbeddedFaces) -> pa.Table:
    """Ids and labels of images, and their embeddings, or the names that a store has for them."""
    faces, images = ranked.faces, ranked.images
    columns: dict[str, Any] = {"id": list(faces.ids)}
    for name, groups in faces.groups.items():
        columns[LABEL + name] = pa.array(groups.names).take(pa.array(groups.codes))
    if ranked.items is not None:
        columns["item"] = ranked.items
    elif len(images) * images.part(0, 1).read().size * 4 <= MOST_KEPT:
        columns["vector"] = vector_column(images.read())
    return pa.table(columns)


def vector_column(vectors: Floats) -> pa.Array:
    """Rows of a matrix, in single precision."""
    flat = np.ascontiguousarray(vectors, np.float32)
    return pa.FixedSizeListArray.from_arrays(pa.array(flat.reshape(-1)), flat.shape[1])
