"""The questions of `compare`, asked of a candidate: the same tests and the same judgement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa

from tiltmeter.judge.frontier.evaluation import BiasEvaluator
from tiltmeter.judge.frontier.utility import UtilityTask, encoded
from tiltmeter.judge.gate.association import LiftRuns, WordTexts, association_tests
from tiltmeter.judge.gate.change_verdict import (
    ASSOCIATION,
    MARGIN,
    RETRIEVAL,
    UTILITY,
    WORSE,
    question_of,
)
from tiltmeter.judge.gate.comparison import judged_tests
from tiltmeter.judge.gate.retrieval import retrieval_tests
from tiltmeter.judge.gate.run_embeddings import PairedRuns, RunImages, group_by_word
from tiltmeter.judge.gate.utility import change_of_answers
from tiltmeter.probes.lift.contrastive import ClassTexts, class_texts
from tiltmeter.probes.lift.words import lift_prompts
from tiltmeter.types import Floats, Prompt, planted_world

BOOTSTRAPS = 100
Row = dict[str, Any]


@dataclass(frozen=True, eq=False)
class LiftTexts:
    """Words and neutral words of the association question, as the model encodes them."""

    prompts: Sequence[Prompt]
    vectors: Floats
    scale: float
    world: Any

    @classmethod
    def of(cls, model: Any, prompts: Sequence[Prompt]) -> LiftTexts | None:
        """None if the model states no scale: then its scores have no unit."""
        scale = getattr(model, "logit_scale", None)
        if scale is None:
            return None
        both = lift_prompts(prompts, model)
        vectors = encoded(model.encode_texts, [prompt.text for prompt in both])
        return cls(both, vectors, float(scale), planted_world(model))

    def classes(self, correct: Callable[..., Any]) -> list[ClassTexts]:
        """The texts as a candidate corrects them."""
        place = {prompt.text: at for at, prompt in enumerate(self.prompts)}
        model = SimpleNamespace(
            encode_texts=lambda texts: correct(self.vectors[[place[t] for t in texts]], texts),
            world=self.world,
        )
        texts = class_texts(model, self.prompts, self.scale)
        return [one for one in texts if len(one.vectors)]


@dataclass(frozen=True, eq=False)
class CandidateEmbeddings:
    """What a candidate makes of the texts and of the images of one part."""

    texts: Floats
    images: Floats
    lift: Sequence[ClassTexts] = ()


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
    tests = {ASSOCIATION: lifts, RETRIEVAL: rankings.tests, UTILITY: utility}
    return judged_tests(tests, MARGIN, part.convention.name)


def utility_row(task: UtilityTask, before: Floats, after: Floats) -> Row:
    """The change of one utility, image by image."""
    probe, metric = ("retrieval", "recall") if task.classes is None else ("zero_shot", "accuracy")
    return {
        "probe": probe, "metric": metric, "experiment": task.name, "ideal": 1.0, "n": len(after),
        "before": float(before.mean()), "after": float(after.mean()), "method": "paired",
        **change_of_answers(before, after, len(after)),
    }  # fmt: skip


def worse_rows(tests: pa.Table) -> list[str]:
    """What is worse, in words: `retrieval by hue`."""
    worse: dict[str, list[str]] = {}
    for row in tests.to_pylist():
        if row["verdict"] == WORSE:
            worse.setdefault(question_of(row) or "", []).append(row["attribute"] or "")
    return [
        f"{question}{f' by {by}' if (by := ' and '.join(dict.fromkeys(names))) else ''}"
        for question, names in worse.items()
    ]
