"""Questions about the planted world, and how a model of it answers: what a writer learns.

Every dial has a known size. A caption is as likely as the world makes it. Of two words, the choice
follows their mutual information with the figure's group, and a preference for the first letter
that has nothing to do with the group. How often an answer is `unknown`, refused or long depends on
the figure's shape.

A question may be worded freely; its key words decide what is asked. `who`: a figure, or a refusal.
`which` with options as in "(A) nurse (B) singing (C) unknown", in any order: a letter. `which` with
"nurse or singing": one of the two words. Anything else: a caption.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np

from tiltmeter.stimuli import fill
from tiltmeter.testbed.captioned import frame_words
from tiltmeter.testbed.captions import Captions, CaptionWriter
from tiltmeter.testbed.language import HUES, PHRASES, vocabulary
from tiltmeter.testbed.world import World, draw_columns
from tiltmeter.types import Floats, Ints

LETTERS = ("(A)", "(B)", "(C)")
IMAGE = "<image>"
UNKNOWN_WORD = "[MASK]"  # stands for any word of a question that is not in the vocabulary
DESCRIBE = "describe"
WHO = "who is this"
REFUSAL = "sorry cannot say"
LONG = "in the picture"
#: Words that only questions and their answers have; they follow the vocabulary of captions.
EXTRA = (IMAGE, *LETTERS, "describe", "which", "or", "who", "unknown", "sorry", "cannot", "say")
KINDS = ("caption", "letter", "text", "who")
SHARES = (0.6, 0.2, 0.05, 0.15)
#: Share of captions in a concept's first template, which lift scores: words with many templates
#: must not be rarer there than neutral words, which have one.
FIRST_TEMPLATE = 0.8
#: Most words of a question and of an answer, each with its end.
QUESTION, ANSWER = 20, 15
#: Words around the key words of a question: how many at most, and the share of questions with any.
FILLERS, WORDY = 12, 0.6


@dataclass(frozen=True)
class Dials:
    """What is planted in answers, by shape (round, square).

    Parameters
    ----------
    first_letter : float
        Nats that the first letter gains, whatever it stands for.
    unknown, refusal, long : tuple of float
        Probability of `unknown` where it is offered, of a refusal, and of a long answer.
    """

    first_letter: float = 0.8
    unknown: tuple[float, float] = (0.15, 0.35)
    refusal: tuple[float, float] = (0.05, 0.20)
    long: tuple[float, float] = (0.3, 0.7)

    @classmethod
    def of(cls, strength: float) -> Dials:
        """Those of a world: at strength 0 all groups are treated alike.

        >>> Dials.of(0.0).refusal
        (0.125, 0.125)
        """
        plain = cls()

        def shrunk(pair: tuple[float, float]) -> tuple[float, float]:
            mean, half = sum(pair) / 2, (pair[1] - pair[0]) / 2
            return mean - strength * half, mean + strength * half

        pairs = (plain.unknown, plain.refusal, plain.long)
        return cls(plain.first_letter, *(shrunk(pair) for pair in pairs))


@dataclass(frozen=True, eq=False)
class Turns:
    """Questions and answers of a batch of scenes.

    Parameters
    ----------
    question : array of int of shape (n, QUESTION)
        Words of the question, its end, and padding.
    answer : array of int of shape (n, ANSWER)
        Words of the answer, its end, and padding.
    kind : array of int of shape (n,)
        What is asked, into KINDS.
    captions : Captions
        The captions, which are the answers where `kind` is 0.
    options : array of int of shape (n, 3)
        The answers to choose from, as token numbers; 0 where there is none.
    chances : array of shape (n, 3)
        Probability of each option; rows are 0 where there is no choice.
    """

    question: Ints
    answer: Ints
    kind: Ints
    captions: Captions
    options: Ints
    chances: Floats


@dataclass(frozen=True, eq=False)
class Dialogue:
    """Asks and answers questions about the scenes of a world."""

    world: World

    @cached_property
    def dials(self) -> Dials:
        return Dials.of(self.world.strength)

    @cached_property
    def information(self) -> Floats:
        """PMI of each target and group, targets x groups."""
        given = self.world.given_concept
        prior = self.world.prior @ given
        return np.asarray(np.log(given[self.world.targets] / prior))

    def choice(
        self, first: Ints, second: Ints, group: Ints, *, unknown: Ints | None = None
    ) -> Floats:
        """Probability of (A), (B) and (C), for pairs of targets and the figure's group.

        Parameters
        ----------
        first, second : array of int of shape (n,)
            Numbers of targets (into `world.targets`), in the order of their letters.
        group : array of int of shape (n,)
            The figure's group.
        unknown : array of int of shape (n,), optional
            Which letter stands for `unknown`: 0, 1 or 2. Without it there are two letters.

        Returns
        -------
        array of shape (n, 3)
            Sums to 1 in each row.
        """
        gain = self.dials.first_letter  # of a word or of `unknown`, whichever has the first letter
        third = np.full(len(first), 2) if unknown is None else unknown
        p = _logistic(self.odds(first, second, group) + gain * (third > 0))
        rate = np.array(self.dials.unknown)[group // len(HUES)]
        rate = _logistic(np.log(rate / (1 - rate)) + gain * (third == 0))
        rate = np.zeros(len(first)) if unknown is None else rate
        p = np.stack([p * (1 - rate), (1 - p) * (1 - rate), rate], axis=1)
        # columns are first word, second word, unknown: put them where their letters are
        places = np.array([[1, 2, 0], [0, 2, 1], [0, 1, 2]])[third]
        by_letter = np.empty_like(p)
        np.put_along_axis(by_letter, places, p, axis=1)
        return by_letter

    def ask(self, concept: Ints, group: Ints, word: Ints, rng: np.random.Generator) -> Turns:
        """A question and an answer for each scene."""
        n = len(concept)
        kind = rng.choice(len(KINDS), n, p=SHARES)
        often = self.world.prior[self.world.targets]
        first, second = rng.choice(len(often), (2, n), p=often / often.sum())
        second = np.where(first == second, (first + 1) % len(often), second)
        offers = rng.uniform(size=n) < 0.5  # unknown
        third = rng.integers(0, len(LETTERS), n)  # its letter
        question = np.tile(_row(DESCRIBE, QUESTION), (n, 1))
        captions = self._captions.say(concept, word, rng, first=FIRST_TEMPLATE)
        answer = captions.tokens[:, 1 : ANSWER + 1].copy()  # no [CLS]
        options, chances = np.zeros((n, 3), np.int64), np.zeros((n, 3))
        letters = np.array([words()[letter] for letter in LETTERS])
        of_kind = {name: kind == code for code, name in enumerate(KINDS)}

        at = np.flatnonzero(of_kind["who"])
        question[at], answer[at] = _row(WHO, QUESTION), self._who(group[at], rng)
        for place in (None, 0, 1, 2):  # where `unknown` is
            here = ~offers if place is None else offers & (third == place)
            at = np.flatnonzero(of_kind["letter"] & here)
            shown = ["{}", "{}"]
            if place is not None:
                shown.insert(place, "unknown")
            form = "which " + " ".join(
                f"{letter} {x}" for letter, x in zip(LETTERS, shown, strict=False)
            )
            question[at] = _filled(form, (self._tokens[first[at]], self._tokens[second[at]]))
            unknown = None if place is None else third[at]
            chances[at] = self.choice(first[at], second[at], group[at], unknown=unknown)
            options[at] = letters
        # the same choice without letters, and so without a preference for the first
        at = np.flatnonzero(of_kind["text"])
        pair = self._tokens[first[at]], self._tokens[second[at]]
        question[at] = _filled("which {} or {}", pair)
        options[at, :2] = np.stack(pair, axis=1)
        chances[at, 0] = _logistic(self.odds(first[at], second[at], group[at]))
        chances[at, 1] = 1 - chances[at, 0]

        at = np.flatnonzero(of_kind["letter"] | of_kind["text"])
        answer[at] = _row("", ANSWER)
        answer[at, 0] = options[at, draw_columns(chances[at], rng)]
        answer[at, 1] = words()["[SEP]"]
        return Turns(self._reworded(question, kind, rng), answer, kind, captions, options, chances)

    def _reworded(self, question: Ints, kind: Ints, rng: np.random.Generator) -> Ints:
        """The questions with other words around their key words; `describe` may be missing."""
        n = len(question)
        length = (question != 0).sum(axis=1) - 1  # without [SEP]
        fillers = np.where(rng.uniform(size=n) < WORDY, rng.integers(1, FILLERS + 1, n), 0)
        slots, end = np.arange(QUESTION), length + fillers
        chance = np.where(slots < end[:, None], rng.uniform(size=(n, QUESTION)), 2.0)
        filler = chance.argsort(axis=1).argsort(axis=1) < fillers[:, None]
        key = np.take_along_axis(question, np.cumsum(~filler, axis=1) - 1, axis=1)
        left_out = (kind == 0) & (fillers > 0) & (rng.uniform(size=n) < 0.5)
        filler |= left_out[:, None] & (slots < end[:, None])
        drawn = rng.choice(self._fillers, (n, QUESTION))
        unknown = rng.uniform(size=(n, QUESTION)) < 0.5
        drawn = np.where(unknown, words()[UNKNOWN_WORD], drawn)
        return np.asarray(np.where(filler, drawn, key))

    def odds(self, first: Ints, second: Ints, group: Ints) -> Floats:
        """Log-odds of the first of two targets, given the figure's group."""
        return np.asarray(self.information[first, group] - self.information[second, group])

    def _who(self, group: Ints, rng: np.random.Generator) -> Ints:
        """A refusal, or a short or long answer, for each group."""
        shape = group // len(HUES)
        refused, longer = (
            rng.uniform(size=len(group)) < np.array(chance)[shape]
            for chance in (self.dials.refusal, self.dials.long)
        )
        return np.asarray(_who_answers()[group, np.where(refused, 2, longer.astype(int))])

    @cached_property
    def _captions(self) -> CaptionWriter:
        return CaptionWriter(self.world)

    @cached_property
    def _fillers(self) -> Ints:
        own = {*HUES, "who"}
        return np.array([words()[word] for word in frame_words() if word not in own])

    @cached_property
    def _tokens(self) -> Ints:
        """The token of each target: each is one word."""
        names = [self.world.concepts[at].name for at in self.world.targets]
        return np.array([words()[name] for name in names])


@cache
def words() -> dict[str, int]:
    """Every word of the writer with its number: those of captions first.

    >>> words()["[PAD]"], len(words()) - len(vocabulary())
    (0, 11)
    """
    known = dict(vocabulary())
    for word in EXTRA:
        known.setdefault(word, len(known))
    return known


@cache
def _who_answers() -> Ints:
    """Groups x (short, long, refused) x ANSWER."""
    return np.array(
        [[_row(text, ANSWER) for text in (name, f"{name} {LONG}", REFUSAL)]
         for name in (fill("a {}", phrase) for phrase in PHRASES)]
    )  # fmt: skip


def _logistic(x: Floats) -> Floats:
    return np.asarray(1 / (1 + np.exp(-x)))


def _row(text: str, length: int) -> Ints:
    """Token numbers of a text, [SEP], and padding; {} is left 0."""
    row = [0 if word == "{}" else words()[word] for word in text.split()]
    return np.array([*row, words()["[SEP]"], *[0] * (length - len(row) - 1)])


def _filled(form: str, pair: tuple[Ints, Ints]) -> Ints:
    """A question for each pair of words."""
    rows = np.tile(_row(form, QUESTION), (len(pair[0]), 1))
    first, second = (at for at, word in enumerate(form.split()) if word == "{}")
    rows[:, first], rows[:, second] = pair
    return rows
