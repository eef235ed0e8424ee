"""Paired differences: the same scene with another group, rendered or generated for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tiltmeter.datasets.roles import Scenes
from tiltmeter.errors import InputError
from tiltmeter.probes.generative.choosing import (
    ChoiceQuestion,
    Reading,
    ask_all,
    known_questions,
    neutral_questions,
    pairs_questions,
    questions,
    readings,
)
from tiltmeter.probes.generative.sample import AskedImages
from tiltmeter.probes.lift.scored import images_of
from tiltmeter.probes.probe import AuditContext, CannotRunError
from tiltmeter.results import rows
from tiltmeter.stats.lift_verdict import word_verdicts
from tiltmeter.stats.multiplicity import benjamini_hochberg, holm
from tiltmeter.stats.paired import paired_test
from tiltmeter.stats.placebo import p_placebo
from tiltmeter.types import Continuer, Floats, Groups, Ints

#: Most neutral questions about every scene: each needs as many forward passes as there are images.
SCENE_NEUTRAL = 60
NOT_ANSWERED = "the options have too little of the probability: the model answers something else"


def redrawn_rows(model: Continuer, sample: AskedImages) -> list[pa.Table]:
    """Every question about scenes of the testbed, and about the same with the other shape.

    Raises
    ------
    InputError
        The images are no scenes of the testbed.
    """
    scenes, options = sample.faces.images, sample.context.options
    if not hasattr(scenes, "redrawn") or "shape" not in sample.groups:
        raise InputError(
            f"only scenes of the testbed can be redrawn, by shape; got {sample.faces.name}: use "
            "forced_choice.sources=groups",
            code="bad-option",
            value="redrawn",
        )
    groups = sample.groups["shape"]
    other = scenes.redrawn(shape=1 - scenes.shape)
    sign = np.where(groups.codes == 0, 1.0, -1.0)  # the first group minus the second
    reading = readings(sample.world, 1)[0]
    asked = questions(sample.world)
    neutral = neutral_questions(sample.world, asked[0].pos, options["neutral"])
    both_ways = (_log_odds(model, each, reading, (*asked, *neutral)) for each in (scenes, other))
    changes = sign * np.subtract(*both_ways)
    means = changes.mean(axis=1)
    lift = means - np.median(means[len(asked) :])
    centred = changes - changes[len(asked) :].mean(axis=0)
    n = len(sample)
    error = centred.std(axis=1, ddof=1) / np.sqrt(n)
    both = np.array([1.0, -1.0])
    verdicts = word_verdicts(
        lift[: len(asked), None] * both, np.repeat(error[: len(asked), None], 2, axis=1),
        lift[len(asked) :, None] * both, np.array([n, n]),
    )  # fmt: skip
    low, high = np.quantile(lift[len(asked) :], (0.025, 0.975))
    own, half = lift[: len(asked)], 1.96 * error[: len(asked)]
    first = groups.codes == 0

    def truth(question: ChoiceQuestion) -> float:
        planted = sample.planted(lambda world: world.odds(question.first, question.second))
        assert planted is not None  # scenes have a world
        return float(planted[first].mean() - planted[~first].mean())

    return [
        rows(
            len(asked), **sample.constants("forced_choice", model), metric="pair_choice_lift",
            experiment=f"{reading.name}, redrawn", attribute="shape", group=groups.names[0],
            concept=[one.name for one in asked], category=[one.category for one in asked],
            value=own, ideal=0.0, truth=[truth(one) for one in asked], null_mean=0.0,
            null_low=low, null_high=high,
            ci_low=own - half, ci_high=own + half, ci_method="paired, images",
            p=verdicts.p, p_side="two", p_bh=verdicts.p_bh, p_placebo=verdicts.p_word,
            verdict=list(verdicts.verdict), n=n,
            note=f"the same scene with {groups.names[0]} and with {groups.names[1]}",
        )
    ]  # fmt: skip


def scene_rows(
    model: Continuer, scenes: Scenes, context: AuditContext, constants: Mapping[str, Any]
) -> list[pa.Table]:
    """The questions of PAIRS about each scene: how far answers differ between its images.

    A scene has few images, so its difference is compared with neutral questions about the same
    images. Over the scenes of a kind, differences are averaged with an interval over scenes.
    """
    reading = readings(None, context.options["paraphrases"])[0]
    asked = {scene: known_questions(model, pairs_questions(*scene))
             for scene in dict.fromkeys(zip(scenes.kinds, scenes.scenes, strict=True))}  # fmt: skip
    asked = {scene: own for scene, own in asked.items() if own}
    if not asked:
        raise CannotRunError(
            f"no question of PAIRS that the model has tokens for is about a scene of {scenes.name}"
        )
    neutral = known_questions(
        model, neutral_questions(None, "noun", min(SCENE_NEUTRAL, context.options["neutral"]))
    )
    scored: dict[tuple[str, str], tuple[Ints, Floats, Floats]] = {}
    for done, (scene, own) in enumerate(asked.items()):
        context.progress("asking about scenes", done / len(asked))
        keys = zip(scenes.kinds, scenes.scenes, strict=True)
        at = np.array([row for row, key in enumerate(keys) if key == scene])
        images, least = images_of(scenes, at), context.options["mass"]
        scored[scene] = (at, _log_odds(model, images, reading, own, least),
                         _log_odds(model, images, reading, neutral, least))  # fmt: skip
    tables = []
    for attribute in context.attributes_of(scenes):
        groups = scenes.attribute(attribute)
        if "*" not in attribute and len(groups.names) == 2:
            pairs = list(scenes.counterparts(attribute))
            tables.append(_paired(scored, asked, pairs, groups, reading, constants, context.seed))
    return tables


def _paired(
    scored: Mapping[tuple[str, str], tuple[Ints, Floats, Floats]],
    asked: Mapping[tuple[str, str], Sequence[ChoiceQuestion]],
    pairs: Sequence[tuple[int, int]], groups: Groups, reading: Reading,
    constants: Mapping[str, Any], seed: int,
) -> pa.Table:  # fmt: skip
    """Rows of scenes and of kinds of scenes by one attribute."""
    found = []
    for scene, (at, own, neutral) in scored.items():
        place = {int(row): number for number, row in enumerate(at)}
        both = [(place[a], place[b]) for a, b in pairs if a in place and b in place]
        if both:
            first, second = np.array(both).T
            changes, others = (np.mean(x[:, first] - x[:, second], axis=1) for x in (own, neutral))
            others = others[~np.isnan(others)]
            changes = changes if len(others) else np.full_like(changes, np.nan)
            found.append((scene, changes, others, len(both)))
    lines: list[dict[str, Any]] = []
    same = {**constants, "attribute": groups.attribute, "group": groups.names[0], "ideal": 0.0,
            "experiment": f"{reading.name}, parallel"}  # fmt: skip
    undefined: list[dict[str, Any]] = []
    for (kind, name), changes, others, n in found:
        low, high = np.quantile(others, (0.025, 0.975)) if len(others) else (np.nan, np.nan)
        for question, value in zip(asked[kind, name], changes, strict=True):
            question_of = {**same, "metric": "pair_choice", "category": kind, "target": name,
                           "concept": question.name, "n": n}  # fmt: skip
            if np.isnan(value):
                undefined.append({**question_of, "value": None, "note": NOT_ANSWERED})
                continue
            lines.append({
                **question_of, "value": float(value), "null_mean": float(others.mean()),
                "null_low": low, "null_high": high, "p_side": "two",
                "p_placebo": float(p_placebo(np.array([value]), others)[0]),
                "note": f"{groups.names[0]} minus {groups.names[1]} in the same scene; range of "
                f"{len(others)} neutral questions about it",
            })  # fmt: skip
    adjusted = benjamini_hochberg(np.array([line["p_placebo"] for line in lines]))
    for line, p in zip(lines, adjusted, strict=True):
        line["p_bh"] = float(p)
    totals = list(_kinds(found, same, groups, seed))
    for line, p in zip(totals, holm(np.array([one["p"] for one in totals])), strict=True):
        line["p_fwer"] = float(p)
    every = [*lines, *undefined, *totals]
    columns = {column for line in every for column in line}
    return rows(len(every), **{one: [line.get(one) for line in every] for one in columns})


def _kinds(found: Sequence[Any], same: Mapping[str, Any], groups: Groups, seed: int) -> Any:
    """The mean over scenes of a kind, minus what neutral questions have; units are scenes."""
    for kind in dict.fromkeys(scene[0] for scene, *_ in found):
        values = np.array([np.nanmean(changes) - others.mean() for scene, changes, others, _ in
                           found if scene[0] == kind and not np.isnan(changes).all()])  # fmt: skip
        line = {**same, "metric": "pair_choice_mean", "category": kind, "n": len(values),
                "p_side": "two"}  # fmt: skip
        if len(values) < 2:
            yield {
                **line,
                "value": None,
                "p": np.nan,
                "note": "only one scene" if len(values) else NOT_ANSWERED,
            }
            continue
        test = paired_test(np.zeros(len(values)), values, rng=np.random.default_rng(seed))
        yield {
            **line, "value": test.mean, "ci_low": test.ci_low, "ci_high": test.ci_high,
            "ci_method": "Student, over scenes", "p": test.p,
            "note": f"first option, {groups.names[0]} minus {groups.names[1]}; above neutral "
            "questions",
        }  # fmt: skip


def _log_odds(
    model: Continuer,
    images: Any,
    reading: Reading,
    asked: Sequence[ChoiceQuestion],
    mass: float = 0.0,
) -> Floats:
    """Questions x images; NaN where the options have less probability than `mass`."""
    chosen = ask_all(model, images, reading, asked)
    return np.stack([np.where(one.mass.mean() >= mass, one.log_odds, np.nan) for one in chosen])
