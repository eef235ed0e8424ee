"""How many times as high does the model score a word with one group as with the others?

Scores are on the model's log scale, so a gap between groups is a log ratio, in one unit for every
model: scale x cosine of dual encoders (`contrastive`), ln P(word) of masked heads (`masked`), the
matching logit (`matching`), ln P(text) as an answer of a generative model (`answers`). Words are
judged by neutral words of the same class in the same templates. Definition:
`tiltmeter.metrics.group_lift`; verdicts: `tiltmeter.stats.lift_verdict`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from tiltmeter import stimuli
from tiltmeter.engine.engines import Engine, LocalEngine
from tiltmeter.engine.parts import cells_of
from tiltmeter.engine.vectors import InMemoryVectors, Vectors
from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.io.image_files import GeneratedImages, ImageFiles
from tiltmeter.metrics.convention import Convention
from tiltmeter.metrics.numpy_kernels import in_rows
from tiltmeter.models.match_grid import match_grid
from tiltmeter.probes.embeddings import image_embeddings
from tiltmeter.probes.lift.contrastive import class_texts, kept_texts, score_embeddings
from tiltmeter.probes.lift.masked import caption_groups, masked_captions, score_masked
from tiltmeter.probes.lift.pairs import answer_logprobs, score_pairs
from tiltmeter.probes.lift.rows import (
    NO_NEUTRAL,
    Attribute,
    RowContext,
    class_rows,
    spread_rows,
    undefined_row,
)
from tiltmeter.probes.lift.scale import Scale, model_scale
from tiltmeter.probes.lift.scored import (
    ANSWERS,
    CONTRASTIVE,
    MASKED,
    MATCHING,
    PROTOCOLS,
    ImageSample,
    ScoredClass,
    rows_per_cell,
)
from tiltmeter.probes.lift.splits import ImageDraws
from tiltmeter.probes.lift.visibility import visibility_rows
from tiltmeter.probes.lift.words import UNKNOWN, lift_prompts
from tiltmeter.probes.probe import (
    AuditContext,
    CannotRunError,
    Probe,
    ProbeResult,
    unknown_word_cannot_run,
)
from tiltmeter.probes.ranking.stored import kept_faces
from tiltmeter.results import INSTANCES, combined, rows
from tiltmeter.stats.lift_verdict import RULE, TOO_FEW_GROUPS, enough_images, left_out
from tiltmeter.stats.resampling import Resampling
from tiltmeter.types import (
    Continuer,
    Faces,
    Groups,
    Ints,
    MaskedPredictor,
    Matcher,
    Progress,
    Prompt,
    TextEncoder,
    planted_world,
)

NO_SCALE = Scale(None, "none")
PAIR_IMAGES = 140  # fewest in all where every image is read with every text
TEXTS = "lift_texts"  # the table of a run with the texts that were scored


@dataclass(frozen=True)
class LiftOptions:
    """Options of the probe.

    Attributes
    ----------
    scores : str
        Protocols, separated by commas; by default the first of contrastive, masked, matching and
        answers that the model has.
    splits : int
        Random visible splits of the images that a class of words is compared with.
    masked_images, matched_images : int
        Most images of each cell (every combination of labels) for these protocols. 0 takes as many
        as the groups of every attribute need to be judged, and 140 in all.
    matched_neutral : int
        Most neutral words of each class that matching heads and answers are given: by default as
        many as a verdict needs. More make p-values more exact, and take as much longer.
    captions : str
        Captions of masked words, separated by ``|``, in place of the templates.
    targets : str
        Further words of masked captions: lists separated by commas.
    question : str
        What a generative model is asked about an image; texts are scored as answers.
    """

    scores: str = ""
    splits: int = 200
    masked_images: int = 50
    matched_images: int = 0
    matched_neutral: int = RULE.neutral_words
    captions: str = ""
    targets: str = "activities"
    question: str = "Describe this image."


def lift_table(
    model: Any,
    faces: Faces,
    *,
    prompts: Sequence[Prompt],
    attributes: Sequence[str],
    convention: Convention,
    images: Vectors | None = None,
    engine: Engine = LocalEngine(),  # noqa: B008
    scale: Scale = NO_SCALE,
    options: LiftOptions = LiftOptions(),  # noqa: B008
    resampling: Resampling = Resampling(),  # noqa: B008
    progress: Progress = lambda what, share: None,
) -> ProbeResult:
    """Lift of every word, with verdicts of words, categories, classes and attributes.

    Parameters
    ----------
    model : TextEncoder, MaskedPredictor, Matcher or Continuer
        The model to audit.
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
    engine : Engine
        Where images are scored. In this process by default.
    scale : Scale
        Makes cosines logits; without one lift is in units of the spread of neutral words.
    options : LiftOptions
        Protocols and samples.
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
        No class of words has neutral words, or the model knows none of the words.
    InputError
        A masked caption names a group.
    """
    protocols = chosen_protocols(model, faces, engine, options.scores)
    groups = {name: faces.attribute(name) for name in attributes}
    codes, kinds = cells_of(list(groups.values()))
    cells = Groups(codes, tuple(map(str, range(len(kinds)))), "cell")
    captions: dict[str, list[str]] = {}
    if MASKED in protocols:  # before any work
        own = options.captions.split("|") if options.captions else []
        captions = masked_captions(prompts, own, faces)
    scored: list[ScoredClass] = []
    kept = {}
    if CONTRASTIVE in protocols:
        with unknown_word_cannot_run():
            texts = class_texts(model, prompts, scale.value or 1.0)
        vectors = images or InMemoryVectors(image_embeddings(model, faces))
        scored += score_embeddings(
            texts, vectors, codes, len(kinds), convention.images, engine, progress
        )
        if scale.value is not None and any(len(one.vectors) for one in texts):
            kept[TEXTS] = kept_texts(texts, scale.value)
    if MASKED in protocols:
        targets = [word for name in options.targets.split(",") if name
                   for word in stimuli.load(name).words]  # fmt: skip
        read = caption_groups(model, prompts, targets, captions)
        at = rows_per_cell(cells, options.masked_images)
        scored += score_masked(model, faces, cells, at, read, progress)
    pair_rows = rows_per_cell(cells, options.matched_images or _pairs_per_cell(kinds, attributes))
    pairs = (model, prompts, faces, cells, pair_rows, options.matched_neutral)
    if MATCHING in protocols:
        with unknown_word_cannot_run():
            scored += score_pairs(MATCHING, partial(match_grid, model), progress, *pairs)
    if ANSWERS in protocols:
        score = answer_logprobs(model, options.question)
        scored += score_pairs(ANSWERS, score, progress, *pairs)
    if not any(one.words for one in scored):
        raise CannotRunError("the model has tokens for none of the words")
    if not any(one.scores for one in scored):
        raise _no_neutral_words(scored)
    constants = {
        "probe": "lift",
        "model": getattr(model, "name", type(model).__name__),
        "dataset": faces.name,
        "convention": convention.name,
        "seed": resampling.seed,
    }
    judge = ClassJudge(groups, kinds, constants, planted_world(faces), options.splits, resampling)
    tables = judge.tables(
        [(one, one.protocol != CONTRASTIVE or scale.value is not None) for one in scored]
    )
    if CONTRASTIVE in protocols:
        tables.append(scale.rows(constants))
    seen = next((one.sample for one in scored if one.sample and one.sample.texts is not None), None)
    if seen is not None and scale.value is not None:
        sampled = {
            name: Groups(kinds[seen.cells, at], by.names, name)
            for at, (name, by) in enumerate(groups.items())
        }
        tables.append(visibility_rows(model, seen.features, sampled, scale.value, constants))
    record = {"logit_scale": scale.record()} if CONTRASTIVE in protocols else {}
    return ProbeResult(combined(tables), rows(0, INSTANCES), kept, model=record)


def _no_neutral_words(scored: Sequence[ScoredClass]) -> CannotRunError:
    """Say whether words lack a part of speech or neutral words."""
    unknown = sorted({word for one in scored if one.pos == UNKNOWN for word, _ in one.words})
    if not unknown:
        return CannotRunError("needs neutral words of the same part of speech as its words")
    more = f" and {len(unknown) - 3} more" if len(unknown) > 3 else ""
    return CannotRunError(
        f"needs the part of speech of {', '.join(map(repr, unknown[:3]))}{more}: add a column "
        "pos to the file of words (noun, adjective or activity), or type --words WORD:noun",
        value=unknown,
    )


def _pairs_per_cell(kinds: Ints, attributes: Sequence[str]) -> int:
    """Images of each cell where every image is read with every text: enough to judge by."""
    single = [at for at, name in enumerate(attributes) if "*" not in name]
    cells_of_groups = [np.bincount(kinds[:, at]) for at in single or range(len(attributes))]
    fewest = min(int(counts[counts > 0].min()) for counts in cells_of_groups)
    return max(-(-RULE.group_images // fewest), PAIR_IMAGES // len(kinds))


@dataclass(frozen=True, eq=False)
class ClassJudge:
    """Judges every class of words by every attribute."""

    groups: Mapping[str, Groups]
    kinds: Ints  # cells x attributes: the group of each
    constants: Mapping[str, Any]
    world: Any
    splits: int
    resampling: Resampling
    #: By features of the sample, which the judged classes keep, and attribute.
    drawn: dict[tuple[int, str], ImageDraws] = field(default_factory=dict)

    def tables(self, classes: Sequence[tuple[ScoredClass, bool]]) -> list[pa.Table]:
        """Tables of classes, each given with whether it is in nats; attributes in parallel."""
        names = list(self.groups)
        made: dict[str, list[pa.Table]] = {}

        def judge_by(part: slice) -> None:  # all classes share the draws of an attribute
            for name in names[part]:
                made[name] = [self._by(one, name, in_nats=nats) for one, nats in classes]

        in_rows(judge_by, len(names), step=1)
        return [made[name][at] for at in range(len(classes)) for name in names]

    def _by(self, scored: ScoredClass, name: str, *, in_nats: bool) -> pa.Table:
        by, at = self.groups[name], list(self.groups).index(name)
        context = RowContext(self.constants, self.world, self.resampling.bootstraps)
        if scored.scores is None or scored.sample is None:
            reason = NO_NEUTRAL if scored.words else "no word is left"
            return undefined_row(scored, name, reason, context)
        of_cell = np.asarray(scored.scores.moments.count)
        counts = np.bincount(self.kinds[:, at], of_cell, len(by.names)).astype(int)
        enough = enough_images(counts)
        if len(enough) < 2:
            return undefined_row(scored, name, TOO_FEW_GROUPS, context)
        constants = {**self.constants, "note": left_out(by.names, counts)}
        context = RowContext(constants, self.world, self.resampling.bootstraps)
        code_of = np.full(len(by.names), -1)
        code_of[enough] = np.arange(len(enough))
        judged = Attribute(name, [by.names[code] for code in enough], code_of[self.kinds[:, at]])
        try:
            if not in_nats:
                return spread_rows(scored, judged, context)
            return class_rows(scored, judged, self._draws(scored.sample, judged), context)
        except InputError as error:  # scores that show nothing
            return undefined_row(scored, name, str(error), context)

    def _draws(self, sample: ImageSample, by: Attribute) -> ImageDraws:
        key = (id(sample.features), by.name)
        if key not in self.drawn:
            self.drawn[key] = ImageDraws.of(
                sample, by.code_of_cell[sample.cells], len(by.names), self.splits,
                self.resampling.bootstraps, self.resampling.seed,
            )  # fmt: skip
        return self.drawn[key]


def chosen_protocols(model: Any, faces: Faces, engine: Engine, wanted: str) -> list[str]:
    """Protocols to score by: those asked for, or the cheapest that model and engine can.

    Raises
    ------
    UnknownNameError
        There is no such protocol.
    InputError
        The model, the data or the engine cannot do what is asked for.
    """
    reasons: dict[str, str | None] = {
        CONTRASTIVE: None if isinstance(model, TextEncoder) else "needs a model with embeddings",
        MASKED: None if isinstance(model, MaskedPredictor) else "needs a masked head",
        MATCHING: None if isinstance(model, Matcher) else "needs a model that matches",
        ANSWERS: None if isinstance(model, Continuer) else "needs a generative model",
    }
    for name in (MASKED, MATCHING, ANSWERS):
        if faces.images is None:
            reasons[name] = reasons[name] or "needs images, and not embeddings alone"
        if engine.name != "local":
            reasons[name] = reasons[name] or (
                f"does not run by parts (--engine {engine.name}): use --engine local"
            )
    asked = [name.strip() for name in wanted.split(",") if name.strip()]
    for name in asked:
        if name not in PROTOCOLS:
            raise UnknownNameError("protocol of lift.scores", name, PROTOCOLS)
        if reasons[name]:
            raise InputError(f"lift.scores={name} {reasons[name]}", code="bad-option", value=name)
    if asked:
        return asked
    able = [name for name in PROTOCOLS if not reasons[name]]
    if not able:
        raise CannotRunError("; ".join(f"{name} {reasons[name]}" for name in PROTOCOLS))
    return able[:1]


def _run(model: Any, data: Mapping[str, Any], context: AuditContext) -> ProbeResult:
    faces, options = data["faces"], LiftOptions(**context.options)
    protocols = chosen_protocols(model, faces, context.engine, options.scores)
    scale = NO_SCALE
    if CONTRASTIVE in protocols:
        scale = model_scale(model, data.get("captions"), context)
    ranked = context.embed_for_ranking(faces) if CONTRASTIVE in protocols else None
    if ranked is not None:
        faces = ranked.faces
    elif isinstance(faces.images, ImageFiles | GeneratedImages):
        faces = faces.select(context.readable("faces", faces))
    result = lift_table(
        model,
        faces,
        prompts=lift_prompts(context.prompts(), model, own_neutral=context.own_neutral),
        attributes=context.attributes_of(faces),
        convention=context.convention,
        images=None if ranked is None else ranked.images,
        engine=context.engine,
        scale=scale,
        options=options,
        resampling=context.resampling,
        progress=context.progress,
    )
    if not context.keep_vectors or ranked is None:
        return result._replace(kept={})
    return result._replace(kept={**result.kept, **kept_faces(ranked)})


PROBE = Probe(
    "How many times as high does the model score a word with one group as with the others?",
    _run,
    needs=("faces",),
    takes=("captions",),
    protocols=(TextEncoder, MaskedPredictor, Matcher, Continuer),
    options=vars(LiftOptions()),
    by_parts=True,
    options_by_parts={"scores": ("", CONTRASTIVE)},
)
