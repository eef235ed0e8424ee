"""Does a caption still find its image, and an image one of its captions? Recall@k.

No bias is measured here: this is what debiasing must not cost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tiltmeter.metrics.arrays import to_numpy
from tiltmeter.metrics.retrieval import top_k
from tiltmeter.metrics.utility import recall_hits
from tiltmeter.probes.probe import AuditContext, Probe
from tiltmeter.results import INSTANCES, combined, rows
from tiltmeter.stats.significance import Interval, columns
from tiltmeter.types import Floats, Ints, TextEncoder

K = (1, 5, 10)
DRAWS = 1000


def retrieval(
    model: TextEncoder,
    texts: Sequence[str],
    of: Ints,
    vectors: Floats,
    *,
    dataset: str,
    ids: Sequence[str] | None = None,
    seed: int = 0,
) -> tuple[pa.Table, pa.Table]:
    """Recall@1, 5 and 10, from captions to images and back.

    `of` says which image (row of `vectors`) a text is of. Intervals are a bootstrap over
    images, each with all of its captions. The second table has for each image (`ids`, else
    numbers) and each k (`rank`) how many of its queries found what belongs to them (`score`).
    """
    encoded = np.asarray(to_numpy(model.encode_texts(list(texts))), vectors.dtype)
    pictures, rng = np.arange(len(vectors)), np.random.default_rng(seed)
    even = np.full(len(vectors), 1 / len(vectors))
    weights = rng.multinomial(len(vectors), even, DRAWS).astype(np.float32)
    tables, every = [], []
    for way, queries, items, asked, there in (
        ("text to image", encoded, vectors, of, pictures),
        ("image to text", vectors, encoded, pictures, of),
    ):
        ks = [k for k in K if k <= len(items)]
        hits = recall_hits(top_k(queries, items, max(ks)).ids, asked, there, ks)
        known = ~np.isnan(hits[:, 0])
        # an image brings its queries along: their hits are added up before the draws
        found = np.zeros((len(vectors), len(ks)))
        np.add.at(found, asked[known], hits[known])
        count = np.bincount(asked[known], minlength=len(vectors))
        means = (weights @ found) / (weights @ count)[:, None]
        tables.append(
            rows(
                len(ks),
                probe="retrieval",
                metric="recall",
                model=getattr(model, "name", type(model).__name__),
                dataset=dataset,
                experiment=way,
                k=ks,
                ideal=1.0,
                null_mean=[_by_chance(there, k) for k in ks],
                **columns(
                    hits[known].mean(axis=0),
                    interval=Interval(
                        edges=np.percentile(means, [2.5, 97.5], axis=0),
                        method="bootstrap over images",
                    ),
                ),
                n=int(known.sum()),
                n_undefined=int((~known).sum()),
                seed=seed,
            )
        )
        every.append(
            rows(
                len(ks) * len(vectors),
                INSTANCES,
                model=getattr(model, "name", type(model).__name__),
                dataset=dataset,
                experiment=way,
                id=[str(one) for one in (pictures if ids is None else ids) for _ in ks],
                rank=ks * len(vectors),
                score=found.ravel(),
            )
        )
    return combined(tables), combined(every, INSTANCES)


def _by_chance(there: Ints, k: int) -> float:
    """Recall of a random order: the chance to meet one of those that belong to a query."""
    counts = np.bincount(there)
    counts, total = counts[counts > 0], len(there)
    miss = np.ones(len(counts))
    for drawn in range(k):
        miss *= np.clip(total - counts - drawn, 0, None) / (total - drawn)
    return float(1 - miss.mean())


def _run(
    model: TextEncoder, data: Mapping[str, Any], setting: AuditContext
) -> tuple[pa.Table, pa.Table]:
    captions = data["captions"]
    found = setting.see(captions)
    place = {row: at for at, row in enumerate(found.rows)}
    known = [at for at, picture in enumerate(captions.of.tolist()) if picture in place]
    texts = [captions.texts[at] for at in known]
    of = np.array([place[int(captions.of[at])] for at in known], dtype=np.int64)
    ids = [captions.ids[row] for row in found.rows]
    return retrieval(
        model, texts, of, found.vectors, dataset=captions.name, ids=ids, seed=setting.seed
    )


PROBE = Probe(
    "Does a caption still find its picture, and a picture its captions? Recall@k.",
    _run,
    needs=("captions",),
)
