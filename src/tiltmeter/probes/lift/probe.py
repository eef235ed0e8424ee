"""How many times as high does the model score a word with one group as with the others?

Scores are logits, so a gap between groups is a log ratio, in one unit for every model. Words are
judged by neutral words of the same class in the same templates: nouns by neutral words about
people, adjectives by neutral adjectives. Definition: `tiltmeter.metrics.group_lift`; verdicts:
`tiltmeter.stats.lift_verdict`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tiltmeter import stimuli
from tiltmeter.engine.engines import Engine, LocalEngine
from tiltmeter.engine.group_moments import MomentsTask, group_moments
from tiltmeter.engine.ranking.job import scaled
from tiltmeter.engine.vectors import InMemoryVectors, Vectors, sample
from tiltmeter.errors import InputError
from tiltmeter.metrics.arrays import unit
from tiltmeter.metrics.convention import Convention
from tiltmeter.metrics.digest import intersect_groups
from tiltmeter.metrics.group_lift import lift_of_group_scores
from tiltmeter.metrics.summary import Moments
from tiltmeter.probes.embeddings import image_embeddings, text_embeddings
from tiltmeter.probes.lift.rows import WordClass, class_rows
from tiltmeter.probes.lift.visibility import visibility_rows
from tiltmeter.probes.probe import (
    AuditContext,
    CannotRunError,
    Probe,
    ProbeResult,
    check_vocabulary,
)
from tiltmeter.probes.ranking.stored import kept_faces, vector_column
from tiltmeter.probes.texts import PLACEBOS
from tiltmeter.results import INSTANCES, combined, rows
from tiltmeter.stats.lift_verdict import RULE, bias_size, enough_images
from tiltmeter.stats.resampling import Resampling
from tiltmeter.stats.visible_splits import visible_splits
from tiltmeter.types import Faces, Floats, Progress, Prompt, TextEncoder, planted_world

#: Images that random splits are made of: an evenly spaced sample of all.
SPLIT_IMAGES = 4096
TEXTS = "lift_texts"  # the table of a run with the texts that were scored
PEOPLE = "neutral-people"  # the list that nouns are judged by


def lift_table(
    model: TextEncoder,
    faces: Faces,
    *,
    prompts: Sequence[Prompt],
    attributes: Sequence[str],
    convention: Convention,
    images: Vectors | None = None,
    engine: Engine | None = None,
    splits: int = 200,
    resampling: Resampling = Resampling(),  # noqa: B008
    progress: Progress = lambda what, share: None,
) -> ProbeResult:
    """Lift of every word, with verdicts of words, categories, classes and attributes.

    Parameters
    ----------
    model : TextEncoder
        A dual encoder with a `logit_scale`.
    faces : Faces
        Images with groups.
    prompts : sequence of Prompt
        Words, and neutral words (role ``placebo``) of the same parts of speech, in templates.
    attributes : sequence of str
        Attributes, or intersections such as ``race*gender``.
    convention : Convention
        How image embeddings are scaled.
    images : Vectors, optional
        Image embeddings; by default those of `faces`, or the model's.
    engine : Engine, optional
        Where images are scored. In this process by default.
    splits : int
        Random visible splits of the images that a class of words is compared with.
    resampling : Resampling
        Its bootstraps and seed are used.
    progress : callable
        Told what is done, and the share of it.

    Returns
    -------
    ProbeResult
        Rows of RESULTS, and the texts that were scored.

    Raises
    ------
    CannotRunError
        The model states no scale, or no class of words has neutral words.
    """
    scale = getattr(model, "logit_scale", None)
    if scale is None:
        raise CannotRunError(
            "needs a model that states its logit_scale: without it scores have no unit"
        )
    if not (np.isfinite(scale) and scale > 0):
        raise CannotRunError(f"logit_scale must be a positive number; the model states {scale}")
    groups = {name: faces.attribute(name) for name in attributes}
    cells, kinds = intersect_groups(list(groups.values()))
    embeddings = images or InMemoryVectors(image_embeddings(model, faces))
    with check_vocabulary():
        classes = word_classes(model, prompts, float(scale))
    if not classes:
        raise CannotRunError("needs neutral words of the same part of speech as its words")
    texts = np.concatenate([one.texts for one in classes])
    task = MomentsTask(texts, len(kinds), convention.images)
    moments, failed = group_moments(task, embeddings, cells, engine or LocalEngine(), progress)
    rng = np.random.default_rng(resampling.seed)
    at, some = sample(embeddings, SPLIT_IMAGES)
    some = np.asarray(scaled(some, convention.images))
    constants = {
        "probe": "lift",
        "model": getattr(model, "name", type(model).__name__),
        "dataset": faces.name,
        "convention": convention.name,
        "seed": resampling.seed,
    }
    world = planted_world(faces)
    note = f"{len(failed)} unreadable parts are left out" if failed else None
    tables, start = [], 0

    def not_judged(pos: str, attribute: str, reason: str) -> pa.Table:
        return rows(1, **constants, metric="lift", experiment=pos, attribute=attribute,
                    value=np.nan, note=reason)  # fmt: skip

    for words in classes:
        own = slice(start, start := start + len(words.texts))
        part = Moments(moments.count, moments.mean[own], moments.m2[own])
        for index, (name, by) in enumerate(groups.items()):
            regrouped = part.regroup(kinds[:, index], len(by.names))
            enough = enough_images(np.asarray(regrouped.count))
            few = [group for code, group in enumerate(by.names) if code not in enough]
            if len(enough) < 2:
                reason = f"fewer than {RULE.group_images} images in all groups but one"
                tables.append(not_judged(words.pos, name, reason))
                continue
            judged = Moments(
                regrouped.count[enough], regrouped.mean[:, enough], regrouped.m2[:, enough]
            )
            by_chance = split_sizes(words, some, cells[at], len(enough), splits, rng)
            try:
                found = class_rows(
                    words, judged, [by.names[code] for code in enough], name, by_chance, world,
                    {**constants, "note": _notes(note, few)}, resampling.bootstraps, rng,
                )  # fmt: skip
            except InputError as error:  # scores that do not differ
                found = not_judged(words.pos, name, str(error))
            tables.append(found)
    lacking = {} if planted_world(model) else dict.fromkeys(
        prompt.pos or "no part of speech" for prompt in prompts if prompt.role == "word"
    )  # fmt: skip
    tables += [
        not_judged(pos, name, "no neutral words of this part of speech in these templates")
        for pos in lacking
        if pos not in {words.pos for words in classes}
        for name in groups
    ]
    sampled = {name: by[at] for name, by in groups.items()}
    tables.append(visibility_rows(model, some, sampled, float(scale), constants))
    return ProbeResult(combined(tables), rows(0, INSTANCES), {TEXTS: kept_texts(classes, scale)})


def kept_texts(classes: Sequence[WordClass], scale: float) -> pa.Table:
    """Texts of all words and neutral words, from which `compare` scores images again."""
    words = [
        (one.pos, role, *word)
        for one in classes
        for role, listed in (("word", one.words), ("placebo", one.neutral))
        for word in listed
    ]
    names = ("pos", "role", "concept", "category")
    columns: dict[str, Any] = dict(zip(names, zip(*words, strict=True), strict=True))
    vectors = vector_column(np.concatenate([one.texts for one in classes]))
    return pa.table({**columns, "scale": [float(scale)] * len(words), "vector": vectors})


def word_classes(model: TextEncoder, prompts: Sequence[Prompt], scale: float) -> list[WordClass]:
    """Words and their neutral words by part of speech, as texts whose products are scores.

    A text is the mean over the templates of a word, minus the mean of the neutral words: what an
    image gives to all words alike is no lift. A class without neutral words is left out. In a
    planted world all concepts are icons, of one class.
    """
    embeddings = scale * np.asarray(unit(text_embeddings(model, prompts), "texts"), float)
    one_class = "concept" if planted_world(model) else None
    found: dict[str, dict[str, dict[tuple[str, str], list[int]]]] = {}
    for row, prompt in enumerate(prompts):
        pos = one_class or prompt.pos
        if pos and prompt.role in ("word", "placebo"):
            by_word = found.setdefault(pos, {"word": {}, "placebo": {}})[prompt.role]
            by_word.setdefault((prompt.concept, prompt.category or ""), []).append(row)
    classes = []
    for pos, roles in sorted(found.items()):
        texts, neutral = (
            [embeddings[at].mean(axis=0) for at in by_word.values()] for by_word in roles.values()
        )
        if texts and neutral:
            centred = np.stack([*texts, *neutral]) - np.mean(neutral, axis=0)
            classes.append(WordClass(pos, list(roles["word"]), list(roles["placebo"]), centred))
    return classes


def split_sizes(
    words: WordClass, images: Floats, cells: Any, groups: int, splits: int, rng: np.random.Generator
) -> Floats:
    """Size of the bias by random visible splits of some images."""
    found = []
    for codes in visible_splits(images, cells, groups, splits, rng):
        members = np.eye(groups)[codes]
        # a mean of scores is the score of the mean image
        scores = words.texts @ (members.T @ images / members.sum(axis=0)[:, None]).T
        own, neutral = scores[: len(words.words)], scores[len(words.words) :]
        found.append(
            bias_size(lift_of_group_scores(own, neutral), lift_of_group_scores(neutral, neutral))
        )
    return np.array(found)


def lift_prompts(prompts: Sequence[Prompt], model: object) -> list[Prompt]:
    """Prompts of an audit with the neutral words that lift is judged by.

    Nouns get neutral words about people. A model of a planted world knows only that world's own
    neutral words, and gets all of them.
    """
    known = {prompt.text for prompt in prompts}
    if planted_world(model):
        own = [p for name in PLACEBOS.values() for p in stimuli.prompts(stimuli.load(name))]
        return [*prompts, *(prompt for prompt in own if prompt.text not in known)]
    nouns = [p for p in prompts if p.role == "word" and p.pos == "noun"]
    if not nouns:
        return list(prompts)
    templates = list(dict.fromkeys(prompt.template for prompt in nouns))
    people = stimuli.prompts(stimuli.load(PEOPLE).words, templates=templates, role="placebo")
    kept = [p for p in prompts if not (p.role == "placebo" and p.pos == "noun")]
    return [*kept, *people]


def _notes(note: str | None, few: Sequence[str]) -> str | None:
    left_out = f"left out, fewer than {RULE.group_images} images: {', '.join(few)}" if few else None
    return "; ".join(text for text in (note, left_out) if text) or None


def _run(model: TextEncoder, data: Mapping[str, Any], context: AuditContext) -> ProbeResult:
    ranked = context.embedded(data["faces"])
    result = lift_table(
        model,
        ranked.faces,
        prompts=lift_prompts(context.prompts(), model),
        attributes=context.attributes_of(ranked.faces),
        convention=context.convention,
        images=ranked.images,
        engine=context.engine,
        splits=context.options["splits"],
        resampling=context.resampling,
        progress=context.progress,
    )
    if not context.keep_vectors:
        return result._replace(kept={})
    return result._replace(kept={**result.kept, "faces": kept_faces(ranked)})


PROBE = Probe(
    "How many times as high does the model score a word with one group as with the others?",
    _run,
    needs=("faces",),
    options={"splits": 200},
    by_parts=True,
)
