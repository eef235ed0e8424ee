"""Forced-choice questions: all orders of the options, by letters and by their texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import permutations
from typing import Any

import numpy as np

from tiltmeter import stimuli
from tiltmeter.errors import InputError
from tiltmeter.probes.texts import unknown_texts
from tiltmeter.stimuli import article
from tiltmeter.types import Continuer, Floats

LETTERS, TEXTS = "letters", "texts"
OFFERED = ", unknown offered"  # ends the name of a reading with that option


@dataclass(frozen=True)
class ChoiceQuestion:
    """Two options. Values above 0 are for the first."""

    first: str
    second: str
    category: str = ""
    pos: str = ""

    @property
    def name(self) -> str:
        return f"{self.first}, not {self.second}"


@dataclass(frozen=True)
class Reading:
    """A way to ask: its forms are paraphrases, with a {} for each option.

    `answers` are letters, or empty where options are answered by their text. `unknown` is the text
    of a third option.
    """

    name: str
    forms: tuple[str, ...]
    answers: tuple[str, ...] = ()
    unknown: str | None = None
    articles: bool = True

    def options(self, question: ChoiceQuestion) -> list[str]:
        """Texts of the options: nouns have an article."""
        shown = [question.first, question.second]
        if self.articles and question.pos == "noun":
            shown = [f"{article(option)} {option}" for option in shown]
        return shown if self.unknown is None else [*shown, self.unknown]


@dataclass(frozen=True, eq=False)
class Choices:
    """How a model chooses, averaged over orders and paraphrases; one value per image.

    Attributes
    ----------
    log_odds
        Of the first option against the second, in nats; NaN where a likelihood is only bounded.
    position
        Nats that the option has which comes first in the order, whatever it is.
    mass
        Probability of all options together.
    share
        Probability of the first option, of all answers.
    unknown
        Probability of the unknown option, of all options.
    """

    log_odds: Floats
    position: Floats
    mass: Floats
    share: Floats
    unknown: Floats


def ask_all(
    model: Continuer, images: Any | None, reading: Reading, asked: Sequence[ChoiceQuestion],
    progress: Callable[[float], None] = lambda share: None,
) -> list[Choices]:  # fmt: skip
    """Ask every question about every image (or none).

    All questions are asked about a block of images before the next one, so that a model can read
    an image once for all of them.
    """
    count = 1 if images is None else len(images)
    block = getattr(model, "block", count)
    parts: list[list[Choices]] = [[] for _ in asked]
    for start in range(0, count, block):
        some = None if images is None else images[start : start + block]
        for number, question in enumerate(asked):
            progress((start + min(block, count - start) * number / len(asked)) / count)
            parts[number].append(ask(model, some, reading, question))
    return [
        Choices(*(np.concatenate([getattr(part, one.name) for part in own])
                  for one in fields(Choices)))
        for own in parts
    ]  # fmt: skip


def ask(
    model: Continuer, images: Any | None, reading: Reading, question: ChoiceQuestion
) -> Choices:
    """Ask a question about every image (or none), in all orders of its options."""
    options = reading.options(question)
    by_order = []
    position = []
    for form in reading.forms:
        if form.count("{}") != len(options):
            raise InputError(f"the form {form!r} has not {len(options)} options", value=form)
        for order in permutations(range(len(options))):
            prompt = _filled(form, [options[at] for at in order])
            answers = reading.answers[: len(options)] or tuple(options[at] for at in order)
            found = model.continuations(images, prompt, answers)
            listed = np.where(found.exact, found.logprobs, np.nan)
            logprobs = listed[:, np.argsort(order)]  # images x options
            by_order.append(logprobs)
            # of the two real options, the earlier minus the later
            first, second = (0, 1) if order.index(0) < order.index(1) else (1, 0)
            position.append(logprobs[:, first] - logprobs[:, second])
    scores = np.stack(by_order)  # orders x images x options
    p = np.exp(scores)
    return Choices(
        (scores[..., 0] - scores[..., 1]).mean(axis=0),
        np.mean(position, axis=0),
        p.sum(axis=2).mean(axis=0),
        p[..., 0].mean(axis=0),
        (p[..., 2] / p.sum(axis=2)).mean(axis=0)
        if len(options) > 2
        else np.full(p.shape[1], np.nan),
    )


def _filled(form: str, options: Sequence[str]) -> str:
    parts = form.split("{}")
    return "".join(part + option for part, option in zip(parts, [*options, ""], strict=True))


def readings(world: Any, paraphrases: int) -> list[Reading]:
    """Letters and texts, without and with an unknown option; those that a planted world knows."""
    if world is not None:
        from tiltmeter.testbed.answers import UNKNOWN
        from tiltmeter.testbed.dialogue import LETTERS as ANSWERS

        lettered = "which (A) {} (B) {}"
        return [
            Reading(LETTERS, (lettered,), ANSWERS, articles=False),
            Reading(TEXTS, ("which {} or {}",), articles=False),
            Reading(LETTERS + OFFERED, (f"{lettered} (C) {{}}",), ANSWERS, UNKNOWN, articles=False),
        ]
    table = stimuli.load("questions").table
    answers = tuple(table["answers"])
    found = []
    for unknown in (False, True):
        for kind in (LETTERS, TEXTS):
            forms = tuple(table[kind + "_unknown" * unknown])[:paraphrases]
            found.append(
                Reading(kind + OFFERED * unknown, forms, answers if kind == LETTERS else (),
                        table["unknown"] if unknown else None)
            )  # fmt: skip
    return found


def questions(world: Any) -> list[ChoiceQuestion]:
    """The built-in questions; of a planted world, pairs of its activities and occupations."""
    if world is not None:
        names = [world.concepts[at].name for at in world.planted_targets]
        half = len(names) // 2
        return [ChoiceQuestion(*pair, "Activity or occupation", "concept")
                for pair in zip(names[:half], names[half : 2 * half], strict=True)]  # fmt: skip
    table = stimuli.load("questions").table
    return [
        ChoiceQuestion(first, second, category, pos)
        for pos in ("noun", "adjective")
        for category, pairs in table[pos].items()
        for first, second in pairs
    ]


def known_questions(model: Any, asked: Sequence[ChoiceQuestion]) -> list[ChoiceQuestion]:
    """Questions whose options the model has tokens for: others would be about unknown words."""
    unknown = {
        *unknown_texts(model, {option for one in asked for option in (one.first, one.second)})
    }
    return [one for one in asked if not {one.first, one.second} & unknown]


def neutral_questions(world: Any, pos: str, count: int) -> list[ChoiceQuestion]:
    """Pairs of neutral words of one part of speech: the reference of questions."""
    if world is not None:
        planted = {*world.planted_targets.tolist()}
        words = [world.concepts[at].name for at in world.targets if at not in planted]
    else:
        lists = {"noun": "neutral-people", "adjective": "placebo-adjectives"}
        words = [word.text for word in stimuli.load(lists[pos]).words]
    return [ChoiceQuestion(*pair, "neutral", pos) for pair in _pairs(words, count)]


def _pairs(words: Sequence[str], count: int) -> Iterable[tuple[str, str]]:
    """Different pairs of words, each word as often as the others."""
    n = len(words)
    for at in range(min(count, n * (n - 1) // 2)):
        step = 1 + at // n
        yield words[at % n], words[(at + step * 7) % n] if n > 7 * step else words[(at + 1) % n]


def pairs_questions(kind: str, scene: str) -> list[ChoiceQuestion]:
    """The questions of PAIRS about a scene; none where it has none."""
    table: Mapping[str, Any] = stimuli.load("pairs-questions").table
    own = table.get(kind, {})
    listed = own.get(scene, own.get("*", []))
    adjectives = set(table["adjectives"])
    return [
        ChoiceQuestion(first, second, kind, "adjective" if first in adjectives else "noun")
        for first, second in listed
    ]
