"""Recall@k of text-to-image and image-to-text retrieval.

This measures utility, not bias: what debiasing must not cost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tiltmeter.engine.engines import Engine, LocalEngine
from tiltmeter.engine.image_hits import CaptionHits, by_blocks, nearest_images
from tiltmeter.engine.vectors import InMemoryVectors, Vectors
from tiltmeter.metrics.arrays import to_numpy
from tiltmeter.metrics.utility import expected_recall, found_in_top_k
from tiltmeter.probes.probe import AuditContext, Probe
from tiltmeter.results import INSTANCES, combined, rows
from tiltmeter.stats.significance import Interval, columns
from tiltmeter.types import Floats, Ints, Progress, TextEncoder, planted_world

K = (1, 5, 10)
DRAWS = 1000


def retrieval(
    model: TextEncoder,
    texts: Sequence[str],
    of: Ints,
    vectors: Floats | Vectors,
    *,
    dataset: str,
    ids: Sequence[str] | None = None,
    perfect: Floats | None = None,
    seed: int = 0,
    engine: Engine = LocalEngine(),  # noqa: B008
    progress: Progress = lambda what, share: None,
) -> tuple[pa.Table, pa.Table]:
    """Recall@1, 5 and 10, from captions to images and from images to captions.

    Parameters
    ----------
    model : TextEncoder
        Embeds the captions.
    texts : sequence of str
        Captions.
    of : array of int
        For each text, the image (row of `vectors`) that it describes.
    vectors : array, images x dimensions, or Vectors
        Image embeddings, or where they are.
    dataset : str
        Name for the column `dataset`.
    ids : sequence of str, optional
        Names of the images. Defaults to their row numbers.
    perfect : array, texts x images, optional
        Scores of a perfect model, where one is known: the column `truth`. Text i describes image i.
    seed : int
        Seed of the bootstrap over images, each with all of its captions.
    engine : Engine
        Where images and captions are compared. In this process by default.
    progress : callable
        Told what is done, and the share of it.

    Returns
    -------
    tuple of pyarrow.Table
        Rows of RESULTS; and for each image and k (column `rank`) the number of its queries that
        found a match (column `score`).
    """
    images = InMemoryVectors(vectors) if isinstance(vectors, np.ndarray) else vectors
    encoded = np.asarray(to_numpy(model.encode_texts(list(texts))))
    image_rows, rng = np.arange(len(images)), np.random.default_rng(seed)
    even = np.full(len(images), 1 / len(images))
    weights = rng.multinomial(len(images), even, DRAWS).astype(np.float32)
    names = [str(image_id) for image_id in (image_rows if ids is None else ids)]
    constants = {"model": getattr(model, "name", type(model).__name__), "dataset": dataset}
    tables, instances = [], []
    for direction, query_images, item_images, best in (
        ("text to image", of, image_rows, perfect),
        ("image to text", image_rows, of, None if perfect is None else perfect.T),
    ):
        ks = [k for k in K if k <= len(item_images)]
        if direction == "text to image":
            found = nearest_images(encoded, images, max(ks), engine, progress)
            hits = found_in_top_k(found, query_images, item_images, ks)
        else:
            of_block = CaptionHits(encoded, of, ks)
            hits = np.concatenate(by_blocks(of_block, images, image_rows, engine, progress))
        constants["experiment"] = direction
        chance = [_by_chance(item_images, k) for k in ks]
        table, by_image = _recall_rows(hits, query_images, weights, ks, chance)
        table["truth"] = None if best is None else [expected_recall(best, k) for k in ks]
        tables.append(rows(len(ks), **constants, **table, probe="retrieval", seed=seed))
        instances.append(
            rows(
                len(ks) * len(images),
                INSTANCES,
                **constants,
                id=[name for name in names for _ in ks],
                rank=ks * len(images),
                score=by_image.ravel(),
            )
        )
    return combined(tables), combined(instances, INSTANCES)


def _recall_rows(
    hits: Floats, query_images: Ints, weights: Floats, ks: list[int], chance: list[float]
) -> tuple[dict[str, Any], Floats]:
    """Columns of recall at each k, and the hits of each image (images x k).

    `hits` are queries x k, `weights` bootstrap resamples x images.
    """
    images = weights.shape[1]
    known = ~np.isnan(hits[:, 0])
    # resampling an image resamples all of its queries: sum their hits first
    by_image = np.zeros((images, len(ks)))
    np.add.at(by_image, query_images[known], hits[known])
    count = np.bincount(query_images[known], minlength=images)
    means = (weights @ by_image) / (weights @ count)[:, None]
    interval = Interval(
        edges=np.percentile(means, [2.5, 97.5], axis=0), method="bootstrap over images"
    )
    return {
        **columns(hits[known].mean(axis=0), interval=interval),
        "metric": "recall",
        "k": ks,
        "ideal": 1.0,
        "null_mean": chance,
        "n": int(known.sum()),
        "n_undefined": int((~known).sum()),
    }, by_image


def _by_chance(item_images: Ints, k: int) -> float:
    """Expected recall@k of a random order."""
    counts = np.bincount(item_images)
    counts, total = counts[counts > 0], len(item_images)
    miss = np.ones(len(counts))
    for place in range(k):
        miss *= np.clip(total - counts - place, 0, None) / (total - place)
    return float(1 - miss.mean())


def _run(
    model: TextEncoder, data: Mapping[str, Any], context: AuditContext
) -> tuple[pa.Table, pa.Table]:
    captions = data["captions"]
    embedded = context.embed(captions)
    row_of = {row: index for index, row in enumerate(embedded.rows)}
    known = [index for index, image in enumerate(captions.of.tolist()) if image in row_of]
    texts = [captions.texts[index] for index in known]
    of = np.array([row_of[int(captions.of[index])] for index in known], dtype=np.int64)
    ids = [captions.ids[row] for row in embedded.rows]
    return retrieval(
        model, texts, of, embedded.located, dataset=captions.name, ids=ids,
        perfect=captions.perfect() if planted_world(captions) else None, seed=context.seed,
        engine=context.engine, progress=context.progress,
    )  # fmt: skip


PROBE = Probe(
    "Utility: recall@k of text-to-image and image-to-text retrieval.",
    _run,
    needs=("captions",),
    by_parts=True,
)
