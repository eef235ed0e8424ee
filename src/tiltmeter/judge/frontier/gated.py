"""The questions of `compare`, asked of a candidate: the same tests and the same judgement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa

from tiltmeter.errors import UnknownNameError
from tiltmeter.judge.frontier.evaluation import BiasEvaluator
from tiltmeter.judge.frontier.utility import UtilityTask, encoded
from tiltmeter.judge.gate.association import LiftRuns, WordTexts, association_tests
from tiltmeter.judge.gate.change_verdict import (
    ASSOCIATION,
    HARMS,
    MARGIN,
    RETRIEVAL,
    UTILITY,
    WORSE,
    question_of,
)
from tiltmeter.judge.gate.comparison import judged_tests
from tiltmeter.judge.gate.intervals import interval_tests
from tiltmeter.judge.gate.retrieval import retrieval_tests
from tiltmeter.judge.gate.run_embeddings import PairedRuns, RunImages, group_by_word
from tiltmeter.judge.gate.utility import change_of_answers
from tiltmeter.probes.harms import harms
from tiltmeter.probes.lift.contrastive import ClassTexts, class_texts
from tiltmeter.probes.lift.words import lift_prompts
from tiltmeter.probes.texts import harm_prompts
from tiltmeter.results import PLACEBO
from tiltmeter.stats.resampling import Resampling
from tiltmeter.types import Faces, Floats, Prompt, planted_world

BOOTSTRAPS = 100
Row = dict[str, Any]


@dataclass(frozen=True, eq=False)
class EncodedPrompts:
    """Prompts as the model encodes them, for a candidate to correct."""

    prompts: Sequence[Prompt]
    vectors: Floats
    world: Any

    @classmethod
    def of(cls, model: Any, prompts: Sequence[Prompt]) -> EncodedPrompts:
        vectors = encoded(model.encode_texts, [prompt.text for prompt in prompts])
        return cls(prompts, vectors, planted_world(model))

    def corrected(self, correct: Callable[..., Any]) -> Any:
        """A model that knows these texts, as a candidate corrects them."""
        place = {prompt.text: at for at, prompt in enumerate(self.prompts)}
        return SimpleNamespace(
            encode_texts=lambda texts: correct(self.vectors[[place[t] for t in texts]], texts),
            world=self.world,
        )


@dataclass(frozen=True, eq=False)
class GatePrompts:
    """Texts of the questions about association and harms."""

    lift: EncodedPrompts | None  # None: the model states no scale, so its scores have no unit
    scale: float
    harms: EncodedPrompts | None  # None: the model does not know the classes

    @classmethod
    def of(cls, model: Any, prompts: Sequence[Prompt], faces: Faces) -> GatePrompts:
        scale = getattr(model, "logit_scale", None)
        words = None if scale is None else EncodedPrompts.of(model, lift_prompts(prompts, model))
        try:
            classes = EncodedPrompts.of(model, harm_prompts(None, faces))
        except UnknownNameError:
            classes = None
        return cls(words, float(scale or 1.0), classes)

    def candidate(
        self, part: BiasEvaluator, texts: Floats, images: Floats, correct: Callable[..., Any]
    ) -> CandidateEmbeddings:
        """What is compared of a candidate, whose texts are corrected by `correct`."""
        lift: list[ClassTexts] = []
        if self.lift is not None:
            made = class_texts(self.lift.corrected(correct), self.lift.prompts, self.scale)
            lift = [one for one in made if len(one.vectors)]
        gaps: list[Row] = []
        if self.harms is not None:
            found = harms(
                self.harms.corrected(correct), replace(part.faces, vectors=images),
                prompts=self.harms.prompts, attributes=part.attributes,
                convention=part.convention, seed=part.seed,
                resampling=Resampling(0, BOOTSTRAPS, part.seed),
            )  # fmt: skip
            gaps = found.table.to_pylist()
        return CandidateEmbeddings(texts, images, lift, gaps)


@dataclass(frozen=True, eq=False)
class CandidateEmbeddings:
    """What a candidate makes of the texts and of the images of one part."""

    texts: Floats
    images: Floats
    lift: Sequence[ClassTexts] = ()
    harms: Sequence[Row] = ()


def gate_tests(
    part: BiasEvaluator,
    before: CandidateEmbeddings,
    after: CandidateEmbeddings,
    utility: Sequence[Row],
) -> pa.Table:
    """Rows of COMPARISON with the verdicts that `compare` gives for the same images."""
    groups = part.faces.groups
    classes = [
        WordTexts(one.scored.words, (one.vectors, other.vectors))
        for one, other in zip(before.lift, after.lift, strict=True)
    ]
    sides = RunImages(before.images, groups), RunImages(after.images, groups)
    runs = LiftRuns(classes, sides, paired=True)
    lifts = association_tests(runs, part.attributes, part.faces.name)[0] if classes else []
    every = np.arange(len(part.prompts))
    order, _ = group_by_word(part.prompts, every, every)
    pair = PairedRuns(
        [part.prompts[at] for at in order],
        groups,
        (before.texts[order], after.texts[order]),
        (before.images, after.images),
    )
    rankings = retrieval_tests(
        pair, part.attributes, part.convention, bootstraps=BOOTSTRAPS, seed=part.seed,
        dataset=part.faces.name,
    )  # fmt: skip
    gaps = interval_tests(list(before.harms), list(after.harms), HARMS)
    tests = {ASSOCIATION: lifts, RETRIEVAL: rankings.tests, HARMS: gaps, UTILITY: utility}
    return judged_tests(tests, MARGIN, part.convention.name)


def utility_row(task: UtilityTask, before: Floats, after: Floats) -> Row:
    """The change of one utility, image by image."""
    probe, metric = ("retrieval", "recall") if task.classes is None else ("zero_shot", "accuracy")
    return {
        "probe": probe, "metric": metric, "experiment": task.name, "ideal": 1.0, "n": len(after),
        "before": float(before.mean()), "after": float(after.mean()), "method": "paired",
        **change_of_answers(before, after, len(after)),
    }  # fmt: skip


def worse_answers(tests: pa.Table) -> list[str]:
    """What is worse, in words: `retrieval by hue`."""
    worse: dict[str, list[str]] = {}
    for row in tests.to_pylist():
        if row["verdict"] == WORSE:
            neutral = " (neutral words)" if row["category"] == PLACEBO else ""
            worse.setdefault(question_of(row) or "", []).append((row["attribute"] or "") + neutral)
    return [
        f"{question}{f' by {by}' if (by := ' and '.join(dict.fromkeys(names))) else ''}"
        for question, names in worse.items()
    ]
