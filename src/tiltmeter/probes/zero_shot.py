"""Does the model still know its classes? (Radford et al. 2021, section 3.1)

An image is given the class whose caption is nearest to it; a class's caption is the mean over the
templates. No bias is measured here: this is what debiasing must not cost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tiltmeter.metrics.arrays import to_numpy, unit
from tiltmeter.metrics.utility import zero_shot_hits
from tiltmeter.probes.probe import AuditContext, Probe
from tiltmeter.results import INSTANCES, rows
from tiltmeter.stats.intervals import wilson
from tiltmeter.stats.significance import Interval, columns
from tiltmeter.types import Floats, Groups, TextEncoder

TEMPLATES = ("a photo of a {}",)


def zero_shot(
    model: TextEncoder,
    classes: Groups,
    vectors: Floats,
    *,
    dataset: str,
    templates: Sequence[str] = TEMPLATES,
    ids: Sequence[str] | None = None,
    seed: int = 0,
) -> tuple[pa.Table, pa.Table]:
    """Top-1 accuracy over all images and for each class; and for each image whether it is right.

    Ties share a hit. `ids` name the images; else they are numbered.
    """
    texts = [template.replace("{}", name.replace("_", " ")) for name in classes.names
             for template in templates]  # fmt: skip
    made = np.asarray(unit(to_numpy(model.encode_texts(texts)), "texts"))
    captions = made.reshape(len(classes.names), len(templates), -1).mean(axis=1)
    scores = np.asarray(unit(captions, "captions")) @ np.asarray(unit(vectors, "images")).T
    hits = zero_shot_hits(scores, classes.codes)
    by_class = np.bincount(classes.codes, hits, len(classes.names))
    right = np.array([hits.sum(), *by_class])
    count = np.array([len(hits), *classes.counts])
    share = np.divide(right, count, out=np.full(len(count), np.nan), where=count > 0)
    table = rows(
        len(count),
        probe="zero_shot",
        metric="accuracy",
        model=getattr(model, "name", type(model).__name__),
        dataset=dataset,
        target=[None, *classes.names],
        k=1,
        ideal=1.0,
        null_mean=1 / len(classes.names),
        **columns(share, interval=Interval(edges=wilson(right, count))),
        ci_method="Wilson",
        n=count.tolist(),
        seed=seed,
        note=[None if n else "no image of this class" for n in count],
    )
    every = rows(
        len(hits),
        INSTANCES,
        model=getattr(model, "name", type(model).__name__),
        dataset=dataset,
        concept=[classes.names[code] for code in classes.codes],
        id=list(ids or map(str, range(len(hits)))),
        rank=1,
        score=hits,
    )
    return table, every


def _run(
    model: TextEncoder, data: Mapping[str, Any], setting: AuditContext
) -> tuple[pa.Table, pa.Table]:
    utility = data["utility"]
    found = setting.see(utility)
    classes = utility.classes[np.asarray(found.rows)]
    ids = [utility.ids[row] for row in found.rows]
    return zero_shot(
        model, classes, found.vectors, dataset=utility.name, ids=ids, seed=setting.seed
    )


PROBE = Probe("Does the model still know its classes? Top-1 accuracy.", _run, needs=("utility",))
