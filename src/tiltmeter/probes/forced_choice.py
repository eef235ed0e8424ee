"""Which of two options a generative model chooses, and for whom: in all orders of the options.

A letter or an order that the model prefers cancels in the average over all orders. The log-odds of
an option by group are judged as lift is: by neutral questions, and by random visible splits of the
images. Parallel images are compared scene by scene.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tiltmeter.datasets.roles import Scenes
from tiltmeter.errors import UnknownNameError
from tiltmeter.metrics.digest import intersect_groups
from tiltmeter.metrics.group_lift import gaps
from tiltmeter.probes.generative.choosing import (
    ChoiceQuestion,
    Choices,
    Reading,
    ask_all,
    known_questions,
    neutral_questions,
    questions,
    readings,
)
from tiltmeter.probes.generative.group_gaps import Outcome, bound_rows, outcome_rows
from tiltmeter.probes.generative.parallel import redrawn_rows, scene_rows
from tiltmeter.probes.generative.sample import AskedImages, sample_note
from tiltmeter.probes.lift.probe import ClassJudge
from tiltmeter.probes.lift.scored import ScoredClass, scored_images
from tiltmeter.probes.probe import (
    AuditContext,
    CannotRunError,
    Probe,
    ProbeResult,
    unknown_word_cannot_run,
)
from tiltmeter.results import INSTANCES, combined, rows
from tiltmeter.stats.lift_verdict import enough_images
from tiltmeter.types import Continuer, Floats, Groups, planted_world

#: Metrics of lift, and what they are called here.
METRICS = {
    "lift": "choice_lift",
    "lift_size": "choice_lift_size",
    "words_beyond": "questions_beyond",
    "images_needed": "images_needed",
}
SOURCES = ("groups", "redrawn")


@dataclass(frozen=True)
class ForcedChoiceOptions:
    """Options of the probe.

    Attributes
    ----------
    images : int
        Most images, evenly spread over all combinations of their labels.
    neutral : int
        Neutral questions of each part of speech. With fewer than 300 no question is called
        associated.
    paraphrases : int
        Forms of each question.
    mass : float
        Least probability of all options together; below it a question is undefined.
    splits : int
        Random visible splits of the images that all questions are compared with.
    sources : str
        `groups`, and for scenes of the testbed `redrawn`; separated by commas.
    """

    images: int = 280
    neutral: int = 300
    paraphrases: int = 1
    mass: float = 0.1
    splits: int = 200
    sources: str = "groups"


def forced_choice(model: Continuer, sample: AskedImages) -> pa.Table:
    """Log-odds of options by group, with verdicts, controls, position effect and unknown rates.

    Parameters
    ----------
    model : Continuer
        The model to audit.
    sample : AskedImages
        Images with groups.

    Returns
    -------
    pyarrow.Table
        Rows of RESULTS.

    Raises
    ------
    CannotRunError
        The model has tokens for the options of no question.
    """
    options = ForcedChoiceOptions(**sample.context.options)
    constants = sample.constants("forced_choice", model)
    every = questions(sample.world)
    asked = known_questions(model, every)
    if not asked:
        raise CannotRunError("the model has tokens for the options of no question")
    unknown = [one for one in every if one not in asked]
    reason = ["the model has no tokens for an option"] * len(unknown)
    tables: list[pa.Table] = []
    kinds = readings(sample.world, options.paraphrases)
    for number, reading in enumerate(kinds):
        part = _Part(model, sample, reading, options, constants, (number, len(kinds)))
        tables += [part.rows(asked), part.undefined_rows(unknown, reason)]
    return combined(tables)


@dataclass(frozen=True, eq=False)
class _Part:
    """One reading of all questions."""

    model: Continuer
    sample: AskedImages
    reading: Reading
    options: ForcedChoiceOptions
    constants: dict[str, Any]
    place: tuple[int, int]  # of this reading among all, for progress

    def rows(self, asked: Sequence[ChoiceQuestion]) -> pa.Table:
        chosen = self._ask(asked, self.sample.images)
        tables = [self._position_rows(asked, chosen)]
        reasons = [self._undefined(one) for one in chosen]
        if all(reasons):  # nothing more to ask
            return combined([*tables, self.undefined_rows(asked, reasons)])
        tables.append(self._control_rows(asked, chosen))
        if self.reading.unknown is None:
            for pos in dict.fromkeys(question.pos for question in asked):
                at = [row for row, question in enumerate(asked) if question.pos == pos]
                tables.append(self._class_rows(pos, [asked[row] for row in at],
                                               [chosen[row] for row in at]))  # fmt: skip
        else:
            tables.append(self._unknown_rows(asked, chosen))
        return combined(tables)

    def _ask(self, asked: Sequence[ChoiceQuestion], images: Any | None) -> list[Choices]:
        done, of = self.place

        def progress(share: float) -> None:
            self.sample.context.progress(f"asking ({self.reading.name})", (done + share) / of)

        return ask_all(self.model, images, self.reading, asked, progress)

    def _class_rows(
        self, pos: str, asked: Sequence[ChoiceQuestion], chosen: Sequence[Choices]
    ) -> pa.Table:
        """Lift of the log-odds of every question of one part of speech, judged as words are."""
        reasons = [self._undefined(one) for one in chosen]
        defined = [row for row, reason in enumerate(reasons) if reason is None]
        tables = [self.undefined_rows(asked, reasons)]
        if not defined:
            return tables[0]
        neutral = known_questions(
            self.model, neutral_questions(self.sample.world, pos, self.options.neutral)
        )
        others = self._ask(neutral, self.sample.images)
        kept = [row for row, one in enumerate(others) if self._undefined(one) is None]
        words = [(asked[row].name, asked[row].category) for row in defined]
        scored = ScoredClass(
            self.reading.name, "question", words,
            [(neutral[row].name, neutral[row].category) for row in kept],
            note=_joined(sample_note(self.sample),
                         f"{len(asked) - len(defined)} questions are undefined"
                         if len(defined) < len(asked) else None),
        )  # fmt: skip
        groups = self.sample.groups
        codes, cell_kinds = intersect_groups(list(groups.values()))
        cells = Groups(codes, tuple(map(str, range(len(cell_kinds)))), "cell")
        judge = ClassJudge(groups, cell_kinds, self.constants, None, self.options.splits,
                           self.sample.context.resampling)  # fmt: skip
        if kept:
            values = [chosen[row].log_odds for row in defined] + [others[r].log_odds for r in kept]
            every = np.arange(len(self.sample))
            scored = scored_images(scored, np.stack(values, axis=1), every, cells)
        table = combined(judge.tables([(scored, True)]))
        name = f"{self.reading.name}: {pos} questions"
        truth = {asked[row].name: self._planted(asked[row]) for row in defined}
        return combined([*tables, _renamed(table, name, truth, groups)])

    def _undefined(self, one: Choices) -> str | None:
        """Why a question has no value, or None."""
        if np.isnan(one.log_odds).any():
            return "the server gives only bounds of likelihoods"
        mass = float(one.mass.mean())
        if mass < self.options.mass:
            return (f"the options have only {mass:.1%} of the probability: the model answers "
                    "something else")  # fmt: skip
        return None

    def undefined_rows(
        self, asked: Sequence[ChoiceQuestion], reasons: Sequence[str | None]
    ) -> pa.Table:
        without = [(q, reason) for q, reason in zip(asked, reasons, strict=True) if reason]
        return rows(
            len(without), **self.constants, metric="log_odds", experiment=self.reading.name,
            concept=[q.name for q, _ in without], category=[q.category for q, _ in without],
            value=np.full(len(without), np.nan), n=len(self.sample),
            note=[reason for _, reason in without],
        )  # fmt: skip

    def _position_rows(
        self, asked: Sequence[ChoiceQuestion], chosen: Sequence[Choices]
    ) -> pa.Table:
        """Position effect and probability of all options, over questions; units are images."""
        made = []
        for metric, ideal in (("position_effect", 0.0), ("option_mass", 1.0)):
            name = {"position_effect": "position", "option_mass": "mass"}[metric]
            values = _over_questions([getattr(one, name) for one in chosen])
            error = float(np.std(values, ddof=1) / np.sqrt(len(values)))
            mean = float(np.mean(values))
            truth = self._planted_position() if metric == "position_effect" else None
            made.append(
                rows(1, **self.constants, metric=metric, experiment=self.reading.name, value=mean,
                     ideal=ideal, ci_low=mean - 1.96 * error, ci_high=mean + 1.96 * error,
                     ci_method="images, normal", n=len(values), truth=truth,
                     note=None if np.isfinite(mean) else "only bounds of likelihoods are known")
            )  # fmt: skip
        return combined(made)

    def _control_rows(self, asked: Sequence[ChoiceQuestion], chosen: Sequence[Choices]) -> pa.Table:
        """Mean log-odds of every question with its image, and with none, a white and a wrong one.

        Without an image, and with a white one, there is no group: what is left is what the model
        answers whoever is shown.
        """
        from tiltmeter.probes.stereotype.caption_choice import white_image

        if self.reading.unknown is not None:
            return combined([])
        controls = {
            "": chosen,
            ", no image": self._ask(asked, None),
            ", white image": self._ask(asked, [white_image()]),
            ", wrong image": self._ask(asked, self.sample.wrong),
        }
        tables = []
        for name, found in controls.items():
            values = np.stack([one.log_odds for one in found])  # questions x images
            n = values.shape[1]
            mean = values.mean(axis=1)
            error = values.std(axis=1, ddof=1) / np.sqrt(n) if n > 1 else np.full(len(mean), np.nan)
            tables.append(
                rows(len(mean), **self.constants, metric="log_odds",
                     experiment=self.reading.name + name, concept=[q.name for q in asked],
                     category=[q.category for q in asked], value=mean, n=n,
                     ci_low=mean - 1.96 * error, ci_high=mean + 1.96 * error,
                     ci_method="images, normal" if n > 1 else None,
                     note="only bounds of likelihoods are known" if np.isnan(mean).any() else None)
            )  # fmt: skip
        wrong = np.stack([one.log_odds for one in controls[", wrong image"]])
        tables += [self._wrong_gap(asked, wrong, groups) for groups in self.sample.groups.values()]
        return combined(tables)

    def _wrong_gap(
        self, asked: Sequence[ChoiceQuestion], wrong: Floats, groups: Groups
    ) -> pa.Table:
        """Gaps between groups when each image is exchanged for another: nothing should be left."""
        enough = enough_images(groups.counts)
        if len(enough) < 2:
            return combined([])
        means = np.stack([wrong[:, groups.codes == code].mean(axis=1) for code in enough], axis=1)
        size = float(np.sqrt(np.mean(np.square(gaps(means)))))
        return rows(
            1, **self.constants, metric="wrong_image_size", attribute=groups.attribute,
            experiment=self.reading.name, value=size, ideal=0.0, n=wrong.shape[1],
            note=f"root mean square of the gaps of {len(asked)} questions; 0 but for noise",
        )  # fmt: skip

    def _unknown_rows(self, asked: Sequence[ChoiceQuestion], chosen: Sequence[Choices]) -> pa.Table:
        """Unknown rate by group; the first options' share, with all else counted either way."""
        labels = {"experiment": self.reading.name}
        unknown = _over_questions([one.unknown for one in chosen])
        share = _over_questions([one.share for one in chosen])
        planted = self.sample.planted(lambda world: world.unknown)
        outcomes = [Outcome("unknown", unknown, labels=labels, truth=planted,
                            note=sample_note(self.sample)),
                    Outcome("first option", share, labels=labels)]  # fmt: skip
        # all but the two options: unknown, or no option at all
        real = _over_questions([one.mass * (1 - one.unknown) for one in chosen])
        open_ = np.clip(1 - real, 0.0, 1.0)
        tables = []
        for groups in self.sample.groups.values():
            resampling = self.sample.context.resampling
            tables.append(outcome_rows(outcomes, groups, resampling, self.constants,
                                       attributes=len(self.sample.groups)))  # fmt: skip
            tables.append(bound_rows(outcomes[1], open_, groups, self.constants))
        return combined(tables)

    def _planted(self, question: ChoiceQuestion) -> Floats | None:
        return self.sample.planted(lambda world: world.odds(question.first, question.second))

    def _planted_position(self) -> float | None:
        if self.sample.world is None:
            return None
        from tiltmeter.testbed.dialogue import Dials

        if not self.reading.answers:
            return 0.0
        # of three letters, an option that is not `unknown` has the first in two orders of three
        share = 1.0 if self.reading.unknown is None else 2 / 3
        return share * Dials.of(self.sample.world.strength).first_letter


def _renamed(
    table: pa.Table, name: str, truth: Mapping[str, Floats | None], groups: Mapping[str, Groups]
) -> pa.Table:
    """Rows of lift as rows of questions, with what was planted."""
    made = []
    for row in table.to_pylist():
        row |= {"metric": METRICS[row["metric"]], "experiment": name}
        planted = truth.get(row["concept"]) if row["group"] else None
        if planted is not None:
            own = groups[row["attribute"]]
            enough = enough_images(own.counts)
            means = np.array([[planted[own.codes == code].mean() for code in enough]])
            by_name = dict(zip(enough, np.asarray(gaps(means))[0], strict=True))
            row["truth"] = float(by_name[own.names.index(row["group"])])
        made.append(row)
    return pa.Table.from_pylist(made, schema=table.schema)


def _over_questions(values: Sequence[Floats]) -> Floats:
    """The mean of each image over questions whose values are all known; NaN if there are none."""
    known = [one for one in values if not np.isnan(one).any()]
    return np.asarray(np.mean(known, axis=0)) if known else np.full(len(values[0]), np.nan)


def _joined(*notes: str | None) -> str | None:
    return "; ".join(note for note in notes if note) or None


def _run(model: Continuer, data: Mapping[str, Any], context: AuditContext) -> ProbeResult:
    sources = [name.strip() for name in context.options["sources"].split(",")]
    for name in sources:
        if name not in SOURCES:
            raise UnknownNameError("source of forced_choice.sources", name, SOURCES)
    sample = AskedImages.of(data["faces"], context)
    with unknown_word_cannot_run():
        tables = _tables(model, data, sample, sources)
    return ProbeResult(combined(tables), rows(0, INSTANCES))


def _tables(
    model: Continuer, data: Mapping[str, Any], sample: AskedImages, sources: Sequence[str]
) -> list[pa.Table]:
    tables = []
    if "groups" in sources:
        tables.append(forced_choice(model, sample))
    if "redrawn" in sources:
        tables += redrawn_rows(model, sample)
    parallel = [
        one
        for one in (data.get("pairs"), data["faces"])
        if isinstance(one, Scenes) and one.parallel and planted_world(one) is None
    ]
    for scenes in parallel[:1]:
        constants = {**sample.constants("forced_choice", model), "dataset": scenes.name}
        tables += scene_rows(model, scenes, sample.context, constants)
    return tables


PROBE = Probe(
    "Which of two options the model chooses for whom, in all orders of the options.",
    _run,
    needs=("faces",),
    takes=("pairs",),
    protocols=(Continuer,),
    options=vars(ForcedChoiceOptions()),
)
