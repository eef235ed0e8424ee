"""Zero-shot classification accuracy (Radford et al. 2021, section 3.1).

An image gets the class whose caption is nearest to it; a class's caption is the mean over the
templates. This measures utility, not bias: what debiasing must not cost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tiltmeter import stimuli
from tiltmeter.engine.engines import Engine, LocalEngine
from tiltmeter.engine.image_hits import ClassHits, by_blocks
from tiltmeter.engine.vectors import InMemoryVectors, Vectors
from tiltmeter.errors import InputError
from tiltmeter.metrics.arrays import to_numpy, unit
from tiltmeter.metrics.utility import zero_shot_correct
from tiltmeter.probes.probe import AuditContext, Probe
from tiltmeter.results import INSTANCES, rows
from tiltmeter.stats.intervals import wilson
from tiltmeter.stats.significance import Interval, columns
from tiltmeter.types import Floats, Groups, Progress, TextEncoder, planted_world

TEMPLATES = ("a photo of a {}",)


def templates_of(chosen: str) -> tuple[str, ...]:
    """The templates of an option: a template, or a list of templates by name or file.

    Parameters
    ----------
    chosen : str
        `a photo of a {}.`, `clip-imagenet` (CLIP's 80 templates), `clip-cifar`, or a YAML file.

    Raises
    ------
    InputError
        The list has no templates.

    Examples
    --------
    >>> len(templates_of("clip-imagenet")), templates_of("a {}"), templates_of("")
    (80, ('a {}',), ('a photo of a {}',))
    """
    if not chosen or "{}" in chosen:
        return (chosen,) if chosen else TEMPLATES
    listed = stimuli.load(chosen)
    templates = tuple(text for texts in listed.templates.values() for text in texts)
    if not templates:
        raise InputError(
            f"{chosen} has no templates for classes: use clip-imagenet, clip-cifar, a YAML file "
            "with `templates`, or a template such as 'a photo of a {}'"
        )
    return templates


def zero_shot(
    model: TextEncoder,
    classes: Groups,
    vectors: Floats | Vectors,
    *,
    dataset: str,
    templates: Sequence[str] = TEMPLATES,
    ids: Sequence[str] | None = None,
    perfect: Floats | None = None,
    seed: int = 0,
    engine: Engine = LocalEngine(),  # noqa: B008
    progress: Progress = lambda what, share: None,
) -> tuple[pa.Table, pa.Table]:
    """Top-1 accuracy of zero-shot classification, overall and for each class.

    Parameters
    ----------
    model : TextEncoder
        Embeds the captions.
    classes : Groups
        The true class of each image.
    vectors : array, images x dimensions, or Vectors
        Image embeddings, or where they are.
    dataset : str
        Name for the column `dataset`.
    templates : sequence of str
        Captions with `{}` for the class.
    ids : sequence of str, optional
        Names of the images. Defaults to their row numbers.
    perfect : array, images x classes, optional
        Scores of a perfect model, where one is known: the column `truth`.
    seed : int
        Recorded only.
    engine : Engine
        Where images are classified. In this process by default.
    progress : callable
        Told what is done, and the share of it.

    Returns
    -------
    tuple of pyarrow.Table
        Rows of RESULTS; and for each image whether it is correct (tied classes share a hit).
    """
    texts = [template.replace("{}", name.replace("_", " ")) for name in classes.names
             for template in templates]  # fmt: skip
    vectors_of_texts = np.asarray(unit(to_numpy(model.encode_texts(texts)), "texts"))
    captions = vectors_of_texts.reshape(len(classes.names), len(templates), -1).mean(axis=1)
    images = InMemoryVectors(vectors) if isinstance(vectors, np.ndarray) else vectors
    of_block = ClassHits(np.asarray(unit(captions, "captions")))
    hits = np.concatenate(by_blocks(of_block, images, classes.codes, engine, progress))
    count = np.array([len(hits), *classes.counts])

    def totals(hits: Floats) -> Floats:  # of all images, then of each class
        return np.array([hits.sum(), *np.bincount(classes.codes, hits, len(classes.names))])

    def shares(correct: Floats) -> Floats:
        return np.asarray(
            np.divide(correct, count, out=np.full(len(count), np.nan), where=count > 0)
        )

    correct = totals(hits)
    truth = None
    if perfect is not None:
        truth = shares(totals(zero_shot_correct(perfect.T, classes.codes)))
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
        truth=truth,
        **columns(shares(correct), interval=Interval(edges=wilson(correct, count))),
        ci_method="Wilson",
        n=count.tolist(),
        seed=seed,
        note=[None if n else "the dataset has no image of this class" for n in count],
    )
    instances = rows(
        len(hits),
        INSTANCES,
        model=getattr(model, "name", type(model).__name__),
        dataset=dataset,
        concept=[classes.names[code] for code in classes.codes],
        id=list(ids or map(str, range(len(hits)))),
        rank=1,
        score=hits,
    )
    return table, instances


def _run(
    model: TextEncoder, data: Mapping[str, Any], context: AuditContext
) -> tuple[pa.Table, pa.Table]:
    utility = data["utility"]
    embedded = context.embed(utility)
    classes = utility.classes[np.asarray(embedded.rows)]
    ids = [utility.ids[row] for row in embedded.rows]
    return zero_shot(
        model, classes, embedded.located, dataset=utility.name, ids=ids,
        perfect=utility.perfect() if planted_world(utility) else None, seed=context.seed,
        templates=templates_of(context.options["templates"]), engine=context.engine,
        progress=context.progress,
    )  # fmt: skip


PROBE = Probe(
    "Utility: top-1 accuracy of zero-shot classification.",
    _run,
    needs=("utility",),
    options={"templates": ""},
    by_parts=True,
)
