"""Stereotypes in caption choice (VLStereoSet, Zhou et al. 2022).

An image has three captions: a stereotypical, an anti-stereotypical and an irrelevant one. Measured:
how often each is picked with the image, a white image, another image, or none; and whether the bias
comes from the captions' words (lmss) or from the image (vlss).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from tiltmeter.io.image_files import GeneratedImages, ImageFiles
from tiltmeter.probes.probe import AuditContext, CannotRunError, Probe, unknown_word_cannot_run
from tiltmeter.probes.stereotype import controls
from tiltmeter.probes.stereotype.caption_choice import (
    IMAGE_KINDS,
    CaptionCases,
    CaptionScorer,
    other_rows,
    readings,
)
from tiltmeter.probes.stereotype.estimates import CaptionScores, experiment
from tiltmeter.probes.stereotype.statistics import CaptionSets
from tiltmeter.probes.texts import neutral_captions
from tiltmeter.results import INSTANCES, rows
from tiltmeter.stats.resampling import Resampling
from tiltmeter.stats.significance import columns
from tiltmeter.types import Continuer, DualEncoder, Floats, Matcher, Progress

#: What a generative model is asked: captions are scored as answers.
QUESTION = "Describe this image."


def stereotype(
    model: Any,
    cases: CaptionCases,
    *,
    vectors: Floats | None = None,
    convention: str | None = None,
    seed: int = 0,
    resampling: Resampling | None = None,
    progress: Progress | None = None,
    question: str = QUESTION,
) -> tuple[pa.Table, pa.Table]:
    """Relevance, bias and ability of caption choice, sources of the bias, and controls.

    Parameters
    ----------
    model : Matcher, DualEncoder or Continuer
        The model to audit; one that is several gets several readings.
    cases : CaptionCases
        Images with three captions each.
    vectors : array, optional
        Image embeddings of a dual encoder, if already made.
    convention : str, optional
        Recorded only.
    seed : int
        Seed of permutations, bootstrap and the choice of wrong images.
    resampling : Resampling, optional
        Numbers of permutations and bootstrap resamples.
    progress : callable, optional
        Called as `progress(what, share)`.
    question : str
        What a generative model is asked: captions are scored as answers.

    Returns
    -------
    tuple of pyarrow.Table
        Rows of RESULTS; and for each case the probabilities of its captions and its shifts
        (INSTANCES).

    Raises
    ------
    InputError
        If the model can score no captions.
    CannotRunError
        If the model does not know a word.
    """
    resampling, progress = resampling or Resampling(), progress or (lambda what, share: None)
    rng = np.random.default_rng(seed)
    wrong_rows = other_rows(cases.targets, rng)
    sets = CaptionSets.of(cases, resampling.bootstraps, resampling.permutations, rng)
    has_images = cases.images is not None or vectors is not None
    texts: Sequence[Sequence[str]] = cases.captions
    if has_images:
        texts = [(*three, *(pair or three[:2])) for three, pair in
                 zip(cases.captions, cases.neutral, strict=True)]  # fmt: skip
    name = getattr(model, "name", type(model).__name__)
    result_rows: list[dict[str, Any]] = []
    instances: list[dict[str, Any]] = []
    scorers = readings(model, cases, wrong_rows, vectors, question)
    for done, scorer in enumerate(scorers.values()):
        scores: dict[str, Floats | None] = {}
        for step, image_kind in enumerate(IMAGE_KINDS):
            progress(f"{scorer.name}, {image_kind} image", (done + step / 4) / len(scorers))
            can = has_images or image_kind in ("white", "none")
            with unknown_word_cannot_run():
                scores[image_kind] = scorer(image_kind, texts) if can else None
        choice = CaptionScores(cases, sets, scorer.name, scores)
        result_rows += [*choice.rows(), *choice.shift_rows(1.0, scorer.name)]
        instances += [
            *choice.cases_picked(1.0, scorer.name),
            *choice.cases_shifted(1.0, scorer.name),
        ]
        if scorer.scale is not None:
            scaled_name = f"{scorer.name} x logit scale"
            result_rows += choice.shift_rows(scorer.scale, scaled_name)
            instances += choice.cases_picked(scorer.scale, scaled_name)
            instances += choice.cases_shifted(scorer.scale, scaled_name)
        result_rows += _controls(scorer, choice, resampling, rng)
    constants = {
        "probe": "stereotype",
        "model": name,
        "dataset": cases.name,
        "convention": convention,  # recorded only
        "seed": seed,
    }
    instance_rows = [{"model": name, "dataset": cases.name, **instance} for instance in instances]
    return _table(result_rows, constants), pa.Table.from_pylist(instance_rows, schema=INSTANCES)


def _controls(
    scorer: CaptionScorer, choice: CaptionScores, resampling: Resampling, rng: np.random.Generator
) -> list[dict[str, Any]]:
    """Rows of the controls for the captions' length and position."""
    image_kind = "white" if choice.scores["true"] is None else "true"
    scores = choice.scores[image_kind]
    if scores is None:
        return []
    labels = {"experiment": experiment(scorer.name, image_kind)}
    result_rows = controls.length_rows(
        choice.cases, choice.sets, scores[:, :3], resampling.permutations, rng
    )
    result_rows += controls.position_rows(choice.cases, scores[:, :3], scorer, image_kind)
    return [{**row, **labels} for row in result_rows]


def _table(measured: Sequence[dict[str, Any]], constants: dict[str, Any]) -> pa.Table:
    """Rows of RESULTS; a family is one metric of one experiment and split, over categories."""
    value, p = (np.array([row.get(name, np.nan) for row in measured], float)
                for name in ("value", "p"))  # fmt: skip
    p_bh, p_fwer = np.full(len(p), np.nan), np.full(len(p), np.nan)
    families: dict[tuple[Any, ...], list[int]] = {}
    for index, row in enumerate(measured):
        key = tuple(row.get(name) for name in ("metric", "experiment", "split"))
        families.setdefault(key, []).append(index)
    for family in families.values():
        adjusted = columns(value[family], p=p[family], side="two", family="holm")
        p_bh[family], p_fwer[family] = adjusted["p_bh"], adjusted["p_fwer"]
    names = sorted({name for row in measured for name in row} | {"value", "note"})
    columns_by_name = {name: [row.get(name) for row in measured] for name in names}
    return rows(len(measured), **constants, **columns_by_name, p_bh=p_bh, p_fwer=p_fwer)


def _run(model: Any, data: Mapping[str, Any], context: AuditContext) -> tuple[pa.Table, pa.Table]:
    triplets = data["triplets"]
    if getattr(model, "takes_regions", False):
        if triplets.regions is None:
            raise CannotRunError(
                "needs the regions that a detector found in the images, for this model takes no "
                "pixels: --data 'triplets=vlstereo:CSV?regions=FILE'"
            )
        triplets = replace(triplets, images=triplets.regions)
    cases = CaptionCases.of(triplets, neutral_captions(triplets, context.options["neutral"]))
    vectors = None
    if isinstance(cases.images, ImageFiles | GeneratedImages):
        if isinstance(model, DualEncoder):
            embedded = context.embed(triplets)
            kept, vectors = embedded.rows, embedded.vectors
        else:
            kept = context.readable("triplets", triplets)
        cases = cases.select(kept)
    return stereotype(
        model,
        cases,
        vectors=vectors,
        convention=context.convention.name,
        seed=context.seed,
        resampling=context.resampling,
        progress=context.progress,
        question=context.options["question"],
    )


PROBE = Probe(
    "Stereotypes in caption choice: vlrs, vlbs, ivlas, lmss, vlss.",
    _run,
    needs=("triplets",),
    protocols=(DualEncoder, Matcher, Continuer),
    options={"neutral": None, "question": QUESTION},
)
