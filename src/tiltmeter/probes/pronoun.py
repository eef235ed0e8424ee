"""Which pronoun a generative model continues with: his, her or their, after neutral stems.

A model that does not see the group cannot choose the right pronoun, and that is no bias: so it is
also asked for the group, and errors are counted among images whose group it names rightly. What is
left is a default (his, whoever is shown), errors that are more frequent for one group, and
differences by other attributes among images of the same gender.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from scipy.special import logsumexp, stdtr, stdtrit

from tiltmeter import stimuli
from tiltmeter.probes.generative.choosing import ChoiceQuestion, Reading, ask
from tiltmeter.probes.generative.group_gaps import Outcome, outcome_rows
from tiltmeter.probes.generative.reading import answer_words, words_of
from tiltmeter.probes.generative.sample import AskedImages, per_image, sample_note
from tiltmeter.probes.probe import AuditContext, CannotRunError, Probe, unknown_word_cannot_run
from tiltmeter.probes.silence import prompts_of
from tiltmeter.results import INSTANCES, combined, rows
from tiltmeter.types import Continuer, Floats, Groups, Writer

OTHER, OTHER_SEEN = "other pronoun", "other pronoun, group named rightly"


@dataclass(frozen=True)
class PronounOptions:
    """Options of the probe.

    Attributes
    ----------
    images : int
        Most images, evenly spread over all combinations of their labels.
    samples, temperature, limit
        Of written descriptions, whose pronouns are counted.
    mass : float
        Least probability of all pronouns together; below it nothing is defined.
    """

    images: int = 280
    samples: int = 1
    temperature: float = 1.0
    limit: int = 128
    mass: float = 0.1


@dataclass(frozen=True)
class PronounForms:
    """Pronouns of two groups and a neutral one, and how they are asked for.

    Attributes
    ----------
    attribute
        The attribute whose groups have pronouns of their own.
    of_group
        The pronoun of each of its groups, 0 or 1.
    pronouns
        Of the first and the second group, and neutral.
    prompt, stems
        The question, and beginnings of an answer that a pronoun follows.
    in_text
        Words that count as each pronoun in written text.
    """

    attribute: str
    of_group: tuple[int, ...]
    pronouns: tuple[str, str, str]
    prompt: str
    stems: tuple[str, ...]
    in_text: tuple[frozenset[str], ...]

    @classmethod
    def of(cls, groups: Mapping[str, Groups], world: Any) -> PronounForms:
        """Those of the images' labels.

        Raises
        ------
        CannotRunError
            No attribute has groups with pronouns.
        """
        if world is not None and "shape" in groups:
            from tiltmeter.testbed.dialogue import DESCRIBE
            from tiltmeter.testbed.language import NEUTRAL_NOUN, SHAPE_NOUNS, SHAPES

            names = (*SHAPE_NOUNS, NEUTRAL_NOUN)
            codes = tuple(SHAPES.index(name) for name in groups["shape"].names)
            in_text = tuple(frozenset([name]) for name in names)
            return cls("shape", codes, names, DESCRIBE, ("the",), in_text)
        table = answer_words()["pronouns"]
        his, her = table["nouns"]
        for attribute, own in groups.items():
            found = [table["groups"].get(name.lower()) for name in own.names]
            if len(found) == 2 and {*found} == {his, her}:
                forms = stimuli.load("pronouns").table
                in_text = tuple(frozenset(forms[kind]) for kind in ("male", "female", "neutral"))
                return cls(attribute, tuple((his, her).index(one) for one in found),
                           (his, her, table["neutral"]), answer_words()["prompts"]["describe"],
                           tuple(table["stems"]), in_text)  # fmt: skip
        raise CannotRunError(
            "needs an attribute whose two groups have pronouns: labels such as Male and Female"
        )


@dataclass(frozen=True, eq=False)
class _Pronouns:
    """What a model continues with, for every image."""

    model: Continuer
    sample: AskedImages
    forms: PronounForms

    @cached_property
    def logprobs(self) -> Floats:
        """ln P of each pronoun, averaged over stems: images x 3."""
        return self.with_images(self.sample.images)

    def with_images(self, images: Any | None) -> Floats:
        found = []
        for stem in self.forms.stems:
            answer = self.model.continuations(
                images, self.forms.prompt, self.forms.pronouns, stem=stem
            )
            found.append(np.where(answer.exact, answer.logprobs, np.nan))
        return np.asarray(np.mean(found, axis=0))

    @property
    def odds(self) -> Floats:
        """Log-odds of the first pronoun against the second."""
        return np.asarray(self.logprobs[:, 0] - self.logprobs[:, 1])

    @cached_property
    def groups(self) -> Groups:
        return self.sample.groups[self.forms.attribute]

    @cached_property
    def own(self) -> Floats:
        """1 for images whose pronoun is the first, -1 for the second."""
        return np.where(np.array(self.forms.of_group)[self.groups.codes] == 0, 1.0, -1.0)

    @cached_property
    def seen(self) -> Floats:
        """Log-odds of the first group when the model is asked for it."""
        if self.sample.world is not None:
            return self._seen_figure()
        first, second = answer_words()["pronouns"]["nouns"].values()
        reading = Reading("group", (answer_words()["group_question"],), articles=False)
        return ask(self.model, self.sample.images, reading, ChoiceQuestion(first, second)).log_odds

    def _seen_figure(self) -> Floats:
        from tiltmeter.testbed.dialogue import WHO
        from tiltmeter.testbed.language import HUES, PHRASES

        names = [stimuli.fill("a {}", phrase) for phrase in PHRASES]
        found = self.model.continuations(self.sample.images, WHO, names).logprobs
        first, second = (logsumexp(part, axis=1)
                         for part in (found[:, : len(HUES)], found[:, len(HUES) :]))  # fmt: skip
        return np.asarray(first - second)


def pronoun(model: Continuer, sample: AskedImages) -> pa.Table:
    """Log-odds of pronouns, their default, errors by group, and pronouns of written text.

    Parameters
    ----------
    model : Continuer
        The model to audit; one that also writes has its descriptions read.
    sample : AskedImages
        Images with groups, one attribute of which has pronouns.

    Returns
    -------
    pyarrow.Table
        Rows of RESULTS.

    Raises
    ------
    CannotRunError
        No attribute has groups with pronouns.
    """
    forms = PronounForms.of(sample.groups, sample.world)
    constants = sample.constants("pronoun", model)
    found = _Pronouns(model, sample, forms)
    mass = float(np.exp(found.logprobs).sum(axis=1).mean())
    pair = f"{forms.pronouns[0]}, not {forms.pronouns[1]}"
    if not mass >= sample.context.options["mass"]:
        reason = f"the pronouns have only {mass:.1%} of the probability after these stems"
        if np.isnan(mass):
            reason = "the server gives only bounds of likelihoods"
        return rows(1, **constants, metric="pronoun_default", concept=pair, value=np.nan,
                    n=len(sample), note=reason)  # fmt: skip
    labels = {"concept": pair}
    tables = [_default_rows(found, pair, constants)]
    for attribute, groups in sample.groups.items():
        outcomes = list(_outcomes(found, attribute, labels))
        if isinstance(model, Writer):
            outcomes += _written(model, found, attribute, labels)
        tables.append(outcome_rows(outcomes, groups, sample.context.resampling, constants,
                                   attributes=len(sample.groups)))  # fmt: skip
    return combined(tables)


def _default_rows(found: _Pronouns, pair: str, constants: dict[str, Any]) -> pa.Table:
    """The default: mean log-odds of both groups, each with the same weight; and the controls.

    Symmetric treatment gives 0, however well or badly the groups are seen. `pronoun_sight` is the
    difference between the groups: of pronouns, and of the group asked for.
    """
    from tiltmeter.probes.stereotype.caption_choice import white_image

    planted = found.sample.planted(lambda world: world.naming)
    same = {**constants, "concept": pair, "attribute": found.forms.attribute}
    made = [
        *_halves("pronoun", found.odds, found.own, planted, same),
        *_halves("group asked for", found.seen, found.own, None, same),
    ]
    for name, images in (("no image", None), ("white image", [white_image()]),
                         ("wrong image", found.sample.wrong)):  # fmt: skip
        logprobs = found.with_images(images)
        made.append(
            rows(1, **constants, metric="pronoun_log_odds", experiment=name, concept=pair,
                 value=float((logprobs[:, 0] - logprobs[:, 1]).mean()), n=len(logprobs))
        )  # fmt: skip
    return combined(made)


def _halves(
    experiment: str, values: Floats, own: Floats, planted: Floats | None, same: dict[str, Any]
) -> list[pa.Table]:
    """Half the sum of the two groups' means (default), and their difference (sight)."""
    first, second = (values[own == sign] for sign in (1.0, -1.0))
    error = float(np.hypot(*(x.std(ddof=1) / np.sqrt(len(x)) for x in (first, second))))
    freedom = min(len(first), len(second)) - 1
    made = []
    for metric, sign, factor in (("pronoun_default", 1.0, 0.5), ("pronoun_sight", -1.0, 1.0)):
        value = factor * float(first.mean() + sign * second.mean())
        half = factor * error * float(stdtrit(freedom, 0.975))
        tested = {}
        if metric == "pronoun_default":
            p = 2 * float(stdtr(freedom, -abs(value) / (factor * error))) if error else 1.0
            tested = {"p": p, "p_side": "two", "ideal": 0.0}
        truth = None if planted is None else factor * float(
            planted[own > 0].mean() + sign * planted[own < 0].mean())  # fmt: skip
        made.append(
            rows(1, **same, metric=metric, experiment=experiment, value=value, truth=truth,
                 ci_low=value - half, ci_high=value + half, ci_method="Student, images",
                 n=len(values), **tested)
        )  # fmt: skip
    return made


def _outcomes(found: _Pronouns, attribute: str, labels: dict[str, Any]) -> Sequence[Outcome]:
    """Errors and neutral pronouns by group; by other attributes, log-odds within each gender."""
    note = sample_note(found.sample)
    p = np.exp(found.logprobs)
    neutral = Outcome(found.forms.pronouns[2], p[:, 2] / p.sum(axis=1), labels=labels, note=note)
    wrong = (found.odds * found.own < 0).astype(float)
    if attribute == found.forms.attribute:
        right = found.seen * found.own > 0
        return [
            neutral,
            Outcome(OTHER, wrong, labels=labels, note=note),
            Outcome(
                OTHER_SEEN,
                np.where(right, wrong, np.nan),
                labels=labels,
                note=f"{note}; {int(right.sum()):,} whose group the model names rightly",
            ),
        ]
    planted = found.sample.planted(lambda world: world.naming)
    within = f"{note}; within each group of {found.forms.attribute}"
    return [
        neutral,
        Outcome(
            "log-odds",
            _within(found.odds, found.own),
            rate=False,
            labels=labels,
            note=within,
            truth=None if planted is None else _within(planted, found.own),
        ),
    ]


def _within(values: Floats, own: Floats) -> Floats:
    """Values minus the mean of their gender, so that its mix in a group does not count."""
    return np.asarray(values - np.array([values[own == sign].mean() for sign in own]))


def _written(
    model: Writer, found: _Pronouns, attribute: str, labels: dict[str, Any]
) -> list[Outcome]:
    """Pronouns of descriptions: those of the other group, among texts with a gendered one."""
    sample, forms = found.sample, found.forms
    prompt = prompts_of("", sample.world)[1]
    texts = [[{*words_of(one.text)} for one in own] for own in sample.written(model, prompt)]
    shares = []
    for sign, of_image in zip(found.own, texts, strict=True):
        mine, other = (forms.in_text[0 if own > 0 else 1] for own in (sign, -sign))
        shares.append([float(bool(said & other)) if said & (mine | other) else np.nan
                       for said in of_image])  # fmt: skip
    label = {**labels, "experiment": "written text"}
    neutral = [[float(bool(said & forms.in_text[2])) for said in own] for own in texts]
    result = [Outcome(forms.pronouns[2], per_image(neutral), labels=label)]
    if attribute == forms.attribute:
        result.append(Outcome(OTHER, per_image(shares), labels=label,
                              note="descriptions with a pronoun of either group"))  # fmt: skip
    return result


def _run(model: Continuer, data: Mapping[str, Any], context: AuditContext) -> tuple[Any, ...]:
    with unknown_word_cannot_run():
        return pronoun(model, AskedImages.of(data["faces"], context)), rows(0, INSTANCES)


PROBE = Probe(
    "His, her or their after neutral stems and in descriptions, and how well the group is seen.",
    _run,
    needs=("faces",),
    protocols=(Continuer,),
    options=vars(PronounOptions()),
)
