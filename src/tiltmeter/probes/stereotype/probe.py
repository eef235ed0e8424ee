"""Does a model pick the stereotype where the image denies it? (VLStereoSet, Zhou et al. 2022)

An image has three captions: one stereotypical, one against the stereotype, one beside the point.
How often each is picked, with the image, with a white one, another one, or none; and whether the
tilt comes from the captions' words (lmss) or from the image (vlss).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tiltmeter.io.image_files import GeneratedImages, ImageFiles
from tiltmeter.probes.probe import AuditContext, Probe, words_known
from tiltmeter.probes.stereotype import controls
from tiltmeter.probes.stereotype.caption_choice import (
    PICTURES,
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
from tiltmeter.types import DualEncoder, Floats, Matcher, Progress


def stereotype(
    model: Any,
    cases: CaptionCases,
    *,
    vectors: Floats | None = None,
    convention: str | None = None,
    seed: int = 0,
    resampling: Resampling | None = None,
    progress: Progress | None = None,
) -> tuple[pa.Table, pa.Table]:
    """Relevance, bias and ability of caption choice, their sources, and controls.

    `vectors` are those of the images, where a dual encoder has made them already. Returns rows of
    RESULTS, and for each case the probabilities of its captions and its shifts (INSTANCES).
    """
    resampling, progress = resampling or Resampling(), progress or (lambda what, share: None)
    rng = np.random.default_rng(seed)
    other = other_rows(cases.targets, rng)
    sets = CaptionSets.of(cases, resampling.bootstraps, resampling.permutations, rng)
    there = cases.images is not None or vectors is not None
    texts: Sequence[Sequence[str]] = cases.captions
    if there:
        texts = [(*three, *(pair or three[:2])) for three, pair in
                 zip(cases.captions, cases.neutral, strict=True)]  # fmt: skip
    name = getattr(model, "name", type(model).__name__)
    found: list[dict[str, Any]] = []
    instances: list[dict[str, Any]] = []
    ways = readings(model, cases, other, vectors)
    for done, way in enumerate(ways.values()):
        scores: dict[str, Floats | None] = {}
        for at, picture in enumerate(PICTURES):
            progress(f"{way.name}, {picture} picture", (done + at / 4) / len(ways))
            can = there or picture in ("white", "none")
            with words_known():
                scores[picture] = way(picture, texts) if can else None
        choice = CaptionScores(cases, sets, way.name, scores)
        found += [*choice.rows(), *choice.shift_rows(1.0, way.name)]
        instances += [*choice.cases_picked(1.0, way.name), *choice.cases_shifted(1.0, way.name)]
        if way.scale is not None:
            own = f"{way.name} x logit scale"
            found += choice.shift_rows(way.scale, own)
            instances += choice.cases_picked(way.scale, own)
            instances += choice.cases_shifted(way.scale, own)
        found += _controls(way, choice, resampling, rng)
    progress("done", 1.0)
    constants = {
        "probe": "stereotype",
        "model": name,
        "dataset": cases.name,
        "convention": convention,  # of the run: no choice of it matters here
        "seed": seed,
    }
    shown = [{"model": name, "dataset": cases.name, **one} for one in instances]
    return _table(found, constants), pa.Table.from_pylist(shown, schema=INSTANCES)


def _controls(
    way: CaptionScorer, choice: CaptionScores, resampling: Resampling, rng: np.random.Generator
) -> list[dict[str, Any]]:
    """Is it the length of a caption, or its place in the list, that is picked?"""
    picture = "white" if choice.scores["true"] is None else "true"
    scores = choice.scores[picture]
    if scores is None:
        return []
    where = {"experiment": experiment(way.name, picture)}
    found = controls.length_rows(
        choice.cases, choice.sets, scores[:, :3], resampling.permutations, rng
    )
    found += controls.position_rows(choice.cases, scores[:, :3], way, picture)
    return [{**one, **where} for one in found]


def _table(found: Sequence[dict[str, Any]], constants: dict[str, Any]) -> pa.Table:
    """Rows of RESULTS; a family is one metric of one experiment, over all and each category."""
    value, p = (np.array([row.get(name, np.nan) for row in found], float)
                for name in ("value", "p"))  # fmt: skip
    p_bh, p_fwer = np.full(len(p), np.nan), np.full(len(p), np.nan)
    families: dict[tuple[Any, ...], list[int]] = {}
    for at, row in enumerate(found):
        key = tuple(row.get(name) for name in ("metric", "experiment", "split"))
        families.setdefault(key, []).append(at)
    for family in families.values():
        adjusted = columns(value[family], p=p[family], side="two", family="holm")
        p_bh[family], p_fwer[family] = adjusted["p_bh"], adjusted["p_fwer"]
    names = sorted({name for row in found for name in row} | {"value", "note"})
    listed = {name: [row.get(name) for row in found] for name in names}
    return rows(len(found), **constants, **listed, p_bh=p_bh, p_fwer=p_fwer)


def _run(model: Any, data: Mapping[str, Any], setting: AuditContext) -> tuple[pa.Table, pa.Table]:
    triplets = data["triplets"]
    cases = CaptionCases.of(triplets, neutral_captions(triplets, setting.options["neutral"]))
    vectors = None
    if isinstance(cases.images, ImageFiles | GeneratedImages):
        if isinstance(model, DualEncoder):
            seen = setting.see(triplets)
            kept, vectors = seen.rows, seen.vectors
        else:
            kept = setting.readable("triplets", triplets)
        cases = cases.only(kept)
    return stereotype(
        model,
        cases,
        vectors=vectors,
        convention=setting.convention.name,
        seed=setting.seed,
        resampling=setting.resampling,
        progress=setting.progress,
    )


PROBE = Probe(
    "Does it pick the stereotype where the picture denies it? vlrs, vlbs, ivlas, lmss, vlss.",
    _run,
    needs=("triplets",),
    protocols=(DualEncoder, Matcher),
    options={"neutral": None},
)
