"""Caption strength: its percentile among frequent words (So-B-IT, "Identifying strong vs. weak").

Each text is scored by the mean cosine of the k images nearest to it. The strength of a caption is
the share of frequent words with a lower score, for all images and for the images of each group. The
gap between groups is tested against the gaps of the frequent words.
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
from tiltmeter.probes.probe import AuditContext, CannotRunError, Probe, unknown_word_cannot_run
from tiltmeter.results import INSTANCES, combined, rows
from tiltmeter.stats.intervals import wilson
from tiltmeter.stats.null import NullBand
from tiltmeter.stats.significance import Interval, columns
from tiltmeter.stimuli.frequent_words import FrequentWords, frequent_words
from tiltmeter.types import Faces, Floats, Groups, Progress, Prompt, TextEncoder

BLOCK = 256  # texts per matrix product
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
    """Percentile of each prompt among frequent words, for all images and for each group's images.

    Parameters
    ----------
    model : TextEncoder
        The model to audit.
    faces : Faces
        Images with group labels.
    prompts : sequence of Prompt
        Those with the role `word` are measured.
    frequent : FrequentWords
        The reference, in the prompt's own template, or bare as in the paper.
    attributes : sequence of str
        Attributes and intersections whose groups are compared.
    convention : Convention
        Its smallest k is used.
    seed : int
        Recorded only.
    progress : callable, optional
        Called as `progress(what, share)`.

    Returns
    -------
    tuple of pyarrow.Table
        Rows of RESULTS, with the word in the column `target`; and no INSTANCES.

    Raises
    ------
    InputError
        If no prompt has the role `word`.
    CannotRunError
        If the model does not know a word.
    """
    progress = progress or (lambda what, share: None)
    words = list(dict.fromkeys(prompt for prompt in prompts if prompt.role == "word"))
    if not words:
        raise InputError("there is no word to measure: every prompt is a neutral word")
    k = min(convention.k)
    parts: dict[str | None, Groups] = {None: Groups(np.zeros(len(faces), int), ("all",), "all")}
    parts |= {name: checked(faces.attribute(name)) for name in attributes}
    with unknown_word_cannot_run():
        texts, images = unit_vectors(model, faces, words, convention)
    templates = list(dict.fromkeys(prompt.template for prompt in words))
    tables = []
    for done, template in enumerate(["{}"] if frequent.bare else templates):
        progress("encoding frequent words", done / len(templates))
        with unknown_word_cannot_run():
            vectors = _encoded(model, frequent.texts(template), images.dtype)
        prompt_rows = [
            row for row, prompt in enumerate(words) if frequent.bare or prompt.template == template
        ]
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
            "target": [words[row].concept for row in prompt_rows],
            "category": [words[row].category or None for row in prompt_rows],
            "template": [words[row].template or None for row in prompt_rows],
        }
        for attribute, groups in parts.items():
            share = list(parts).index(attribute) / len(parts)
            progress("nearest images", (done + share) / len(templates))
            known = (
                nearest_means(texts[prompt_rows], images, groups, k),
                nearest_means(vectors, images, groups, k),
            )
            tables += _tables(*known, attribute, groups, constants)
    return combined(tables), combined([], INSTANCES)


def nearest_means(texts: Floats, images: Floats, groups: Groups, k: int) -> Floats:
    """Mean cosine of the k images of each group nearest to each text, texts x groups.

    NaN for a group with fewer than k images.
    """
    means = np.full((len(texts), len(groups.names)), np.nan)
    members = [np.flatnonzero(groups.codes == code) for code in range(len(groups.names))]
    for start in range(0, len(texts), BLOCK):
        scores = texts[start : start + BLOCK] @ images.T
        for code, rows_of_group in enumerate(members):
            if len(rows_of_group) >= k:
                group_scores = (
                    scores if len(rows_of_group) == scores.shape[1] else scores[:, rows_of_group]
                )
                top = np.partition(group_scores, len(rows_of_group) - k, axis=1)[
                    :, len(rows_of_group) - k :
                ]
                means[start : start + BLOCK, code] = top.mean(axis=1, dtype=np.float64)
    return means


def percentile(values: Floats, reference: Floats) -> Floats:
    """Share of the reference below each value; equal ones count half.

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
    """Rows of one template: the percentile in each group, and the gap between groups."""
    enough = ~np.isnan(reference[0])
    percentiles = np.full(values.shape, np.nan)
    reference_percentiles = np.full(reference.shape, np.nan)
    for column in np.flatnonzero(enough):
        percentiles[:, column] = percentile(values[:, column], reference[:, column])
        reference_percentiles[:, column] = percentile(reference[:, column], reference[:, column])
    count, n_columns = values.shape
    n = len(reference)
    each = {name: np.repeat(constants[name], n_columns).tolist()
            for name in ("target", "category", "template")}  # fmt: skip
    p = np.minimum(1, 2 * (np.minimum(percentiles, 1 - percentiles) * n + 1) / (n + 1))
    too_small = f"the group has fewer than {constants['k']} images"
    notes = [None if ok else too_small for ok in enough] * count
    table = rows(
        values.size,
        **{**constants, **each},
        metric="strength",
        attribute=attribute,
        group=None if attribute is None else list(groups.names) * count,
        **columns(
            percentiles,
            null=NullBand(*np.array([0.5, 0.025, 0.975])),
            p=p,
            side="two",
            family="bh",
            interval=Interval(
                edges=wilson(percentiles * n, np.full(percentiles.shape, n)),
                method="Wilson, over the frequent words",
            ),
        ),
        n=n,
        n_group=groups.counts.tolist() * count if attribute is not None else len(groups),
        note=notes,
    )
    return (
        [table]
        if attribute is None
        else [table, _gaps(percentiles, reference_percentiles, attribute, constants, n)]
    )


def _gaps(
    percentiles: Floats,
    reference_percentiles: Floats,
    attribute: str,
    constants: dict[str, Any],
    n: int,
) -> pa.Table:
    """Highest minus lowest percentile over groups, against the same gap of frequent words."""
    value, null = (_gap(ranks) for ranks in (percentiles, reference_percentiles))
    known = not np.isnan(value).any()
    return rows(
        len(value),
        **constants,
        metric="gaps",
        attribute=attribute,
        ideal=0.0,
        **columns(value, null=null, side="greater", family="holm"),
        n=n,
        note=None if known else f"fewer than two groups have {constants['k']} images",
    )


def _gap(percentiles: Floats) -> Floats:
    defined = ~np.isnan(percentiles).any(axis=0)
    if defined.sum() < 2:
        return np.full(len(percentiles), np.nan)
    return np.asarray(np.ptp(percentiles[:, defined], axis=1))


def _run(
    model: TextEncoder, data: Mapping[str, Any], context: AuditContext
) -> tuple[pa.Table, pa.Table]:
    options = context.options
    try:
        frequent = frequent_words(options["words"], options["count"])
    except MissingError as error:
        raise CannotRunError(
            f"needs frequent words: --option strength.words=FILE (one per line), or {error}",
            code=error.code,
            value=error.value,
        ) from None
    if options["baseline"] not in BASELINES:
        raise UnknownNameError("baseline of strength", options["baseline"], BASELINES)
    faces = context.with_embeddings(data["faces"])
    return strength(
        model,
        faces,
        prompts=context.prompts(),
        frequent=replace(frequent, bare=options["baseline"] == "bare"),
        attributes=context.attributes_of(faces),
        convention=context.convention,
        seed=context.seed,
        progress=context.progress,
    )


PROBE = Probe(
    "Caption strength: percentile of each word among frequent words.",
    _run,
    needs=("faces",),
    options={"words": "", "count": 10_000, "baseline": "template"},
    enabled_by=(),
)
