"""Does a caption say anything of these images at all? (So-B-IT, "Identifying strong vs. weak ...")

The strength of a caption is the share of frequent words that fit the images less well: each text's
figure is the mean cosine of the k images nearest to it. For all images, and for those of each group
alone: how far a caption's percentiles lie apart is held against the gaps of the frequent words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from tiltmeter.engine.ranking.samples import checked
from tiltmeter.errors import InputError, MissingError, UnknownNameError
from tiltmeter.metrics.arrays import to_numpy, unit
from tiltmeter.metrics.convention import Convention
from tiltmeter.probes.embeddings import unit_vectors
from tiltmeter.probes.probe import AuditContext, CannotRunError, Probe, words_known
from tiltmeter.results import INSTANCES, combined, rows
from tiltmeter.stats.intervals import wilson
from tiltmeter.stats.null import NullBand
from tiltmeter.stats.significance import Interval, columns
from tiltmeter.stimuli.frequent_words import FrequentWords, frequent_words
from tiltmeter.types import Faces, Floats, Groups, Progress, Prompt, TextEncoder

BLOCK = 256  # texts at one time
BASELINES = ("template", "bare")


def strength(
    model: TextEncoder,
    faces: Faces,
    *,
    prompts: Sequence[Prompt],
    frequent: FrequentWords,
    attributes: Sequence[str],
    convention: Convention,
    seed: int = 0,
    progress: Progress | None = None,
) -> tuple[pa.Table, pa.Table]:
    """Percentile of each prompt among frequent words, for all images and for each group's.

    The frequent words are in the prompt's own template, or bare, as in the paper. A row's
    `target` is the word. k is the convention's smallest.
    """
    progress = progress or (lambda what, share: None)
    words = list(dict.fromkeys(prompt for prompt in prompts if prompt.role == "word"))
    if not words:
        raise InputError("there is no word to measure: every prompt is a placebo")
    k = min(convention.k)
    parts: dict[str | None, Groups] = {None: Groups(np.zeros(len(faces), int), ("all",), "all")}
    parts |= {name: checked(faces.attribute(name)) for name in attributes}
    with words_known():
        texts, images = unit_vectors(model, faces, words, convention)
    templates = list(dict.fromkeys(prompt.template for prompt in words))
    tables = []
    for done, template in enumerate(["{}"] if frequent.bare else templates):
        progress("encoding frequent words", done / len(templates))
        with words_known():
            vectors = _encoded(model, frequent.texts(template), images.dtype)
        at = [row for row, one in enumerate(words) if frequent.bare or one.template == template]
        experiment = f"{len(frequent.words):,} words of {frequent.source}, " + (
            "bare" if frequent.bare else "in the same template"
        )
        constants: dict[str, Any] = {
            "probe": "strength",
            "model": getattr(model, "name", type(model).__name__),
            "dataset": faces.name,
            "convention": convention.name,
            "seed": seed,
            "k": k,
            "experiment": experiment,
            "target": [words[row].concept for row in at],
            "category": [words[row].category or None for row in at],
            "template": [words[row].template or None for row in at],
        }
        for attribute, groups in parts.items():
            share = list(parts).index(attribute) / len(parts)
            progress("nearest images", (done + share) / len(templates))
            known = near(texts[at], images, groups, k), near(vectors, images, groups, k)
            tables += _tables(*known, attribute, groups, constants)
    progress("done", 1.0)
    return combined(tables), combined([], INSTANCES)


def near(texts: Floats, images: Floats, groups: Groups, k: int) -> Floats:
    """Mean cosine of the k images of each group that are nearest to each text, texts x groups.

    NaN for a group of fewer than k images.
    """
    found = np.full((len(texts), len(groups.names)), np.nan)
    members = [np.flatnonzero(groups.codes == code) for code in range(len(groups.names))]
    for start in range(0, len(texts), BLOCK):
        scores = texts[start : start + BLOCK] @ images.T
        for code, at in enumerate(members):
            if len(at) >= k:
                mine = scores if len(at) == scores.shape[1] else scores[:, at]
                top = np.partition(mine, len(at) - k, axis=1)[:, len(at) - k :]
                found[start : start + BLOCK, code] = top.mean(axis=1, dtype=np.float64)
    return found


def percentile(values: Floats, reference: Floats) -> Floats:
    """Share of the reference below each value; half of those that are equal count.

    >>> percentile(np.array([2.5, 1.0]), np.array([1.0, 2.0, 3.0, 4.0]))
    array([0.5  , 0.125])
    """
    ordered = np.sort(reference)
    below, upto = (np.searchsorted(ordered, values, side=side) for side in ("left", "right"))
    return np.asarray((below + upto) / 2 / len(ordered))


def _encoded(model: TextEncoder, texts: Sequence[str], dtype: Any) -> Floats:
    return np.asarray(unit(to_numpy(model.encode_texts(texts)), "frequent words"), dtype=dtype)


def _tables(
    values: Floats,
    reference: Floats,
    attribute: str | None,
    groups: Groups,
    constants: dict[str, Any],
) -> list[pa.Table]:
    """Rows of one template: the percentile in each group, and how far groups lie apart."""
    enough = ~np.isnan(reference[0])
    place = np.full(values.shape, np.nan)
    others = np.full(reference.shape, np.nan)
    for column in np.flatnonzero(enough):
        place[:, column] = percentile(values[:, column], reference[:, column])
        others[:, column] = percentile(reference[:, column], reference[:, column])
    count, many = values.shape
    n = len(reference)
    each = {name: np.repeat(constants[name], many).tolist()
            for name in ("target", "category", "template")}  # fmt: skip
    p = np.minimum(1, 2 * (np.minimum(place, 1 - place) * n + 1) / (n + 1))
    short = f"the group has fewer than {constants['k']} images"
    said = [None if ok else short for ok in enough] * count
    table = rows(
        values.size,
        **{**constants, **each},
        metric="strength",
        attribute=attribute,
        group=None if attribute is None else list(groups.names) * count,
        **columns(
            place,
            null=NullBand(*np.array([0.5, 0.025, 0.975])),
            p=p,
            side="two",
            family="bh",
            interval=Interval(
                edges=wilson(place * n, np.full(place.shape, n)),
                method="Wilson, over the frequent words",
            ),
        ),
        n=n,
        n_group=groups.counts.tolist() * count if attribute is not None else len(groups),
        note=said,
    )
    return [table] if attribute is None else [table, _gaps(place, others, attribute, constants, n)]


def _gaps(
    place: Floats, others: Floats, attribute: str, constants: dict[str, Any], n: int
) -> pa.Table:
    """Highest less lowest percentile of the groups, against the same of the frequent words."""
    value, drawn = (_gap(one) for one in (place, others))
    known = not np.isnan(value).any()
    return rows(
        len(value),
        **constants,
        metric="gaps",
        attribute=attribute,
        ideal=0.0,
        **columns(value, null=drawn, side="greater", family="holm"),
        n=n,
        note=None if known else f"fewer than two groups have {constants['k']} images",
    )


def _gap(place: Floats) -> Floats:
    defined = ~np.isnan(place).any(axis=0)
    if defined.sum() < 2:
        return np.full(len(place), np.nan)
    return np.asarray(np.ptp(place[:, defined], axis=1))


def _run(
    model: TextEncoder, data: Mapping[str, Any], setting: AuditContext
) -> tuple[pa.Table, pa.Table]:
    options = setting.options
    try:
        frequent = frequent_words(options["words"], options["count"])
    except MissingError as error:
        raise CannotRunError(
            f"needs frequent words: --option strength.words=FILE (one a line), or {error}"
        ) from None
    if options["baseline"] not in BASELINES:
        raise UnknownNameError("baseline of strength", options["baseline"], BASELINES)
    faces = setting.seen(data["faces"])
    return strength(
        model,
        faces,
        prompts=setting.prompts(),
        frequent=replace(frequent, bare=options["baseline"] == "bare"),
        attributes=setting.attributes_of(faces),
        convention=setting.convention,
        seed=setting.seed,
        progress=setting.progress,
    )


PROBE = Probe(
    "Does a caption say anything of these images? Its percentile among frequent words.",
    _run,
    needs=("faces",),
    options={"words": "", "count": 10_000, "baseline": "template"},
    invited_by=(),
)
