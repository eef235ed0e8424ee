"""Questions about the planted world, and how a model of it answers: what a writer learns.

Every dial has a known size. A caption is as likely as the world makes it. Of two words, the choice
follows their mutual information with the figure's group, and a preference for the first letter
that has nothing to do with the group. How often an answer is `unknown`, refused or long depends on
the figure's shape.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np

from tiltmeter.stimuli import fill
from tiltmeter.testbed.captions import CaptionWriter
from tiltmeter.testbed.language import HUES, PHRASES, vocabulary
from tiltmeter.testbed.world import World, draw_columns
from tiltmeter.types import Floats, Ints

LETTERS = ("(A)", "(B)", "(C)")
IMAGE = "<image>"
DESCRIBE = "describe"
WHO = "who is this"
REFUSAL = "sorry cannot say"
LONG = "in the picture"
#: Words that only questions and their answers have; they follow the vocabulary of captions.
EXTRA = (IMAGE, *LETTERS, "describe", "which", "or", "who", "unknown", "sorry", "cannot", "say")
KINDS = ("caption", "letter", "text", "who")
SHARES = (0.6, 0.2, 0.05, 0.15)
#: Most words of a question and of an answer, each with its end.
QUESTION, ANSWER = 12, 15


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
    letters : array of shape (n, letters)
        Probability of each letter; rows are 0 where the answer is no letter.
    """

    question: Ints
    answer: Ints
    letters: Floats


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

    def choice(self, first: Ints, second: Ints, group: Ints, *, unknown: bool) -> Floats:
        """Probability of (A), (B) and (C), for pairs of targets and the figure's group.

        Parameters
        ----------
        first, second : array of int of shape (n,)
            Numbers of targets (into `world.targets`): what (A) and (B) stand for.
        group : array of int of shape (n,)
            The figure's group.
        unknown : bool
            Whether (C) is offered, for `unknown`.

        Returns
        -------
        array of shape (n, 3)
            Sums to 1 in each row.
        """
        odds = self.odds(first, second, group) + self.dials.first_letter
        p = 1 / (1 + np.exp(-odds))
        rest = 1 - (np.array(self.dials.unknown)[group // len(HUES)] if unknown else 0.0)
        return np.stack([p * rest, (1 - p) * rest, np.broadcast_to(1 - rest, p.shape)], axis=1)

    def ask(self, concept: Ints, group: Ints, word: Ints, rng: np.random.Generator) -> Turns:
        """A question and an answer for each scene."""
        n = len(concept)
        kind = rng.choice(len(KINDS), n, p=SHARES)
        often = self.world.prior[self.world.targets]
        first, second = rng.choice(len(often), (2, n), p=often / often.sum())
        second = np.where(first == second, (first + 1) % len(often), second)
        offers = rng.uniform(size=n) < 0.5  # (C) unknown
        question = np.tile(_row(DESCRIBE, QUESTION), (n, 1))
        answer = self._captions.say(concept, word, rng).tokens[:, 1 : ANSWER + 1]  # no [CLS]
        letters = np.zeros((n, len(LETTERS)))
        for name, offered in (("letter", False), ("letter", True), ("text", False), ("who", False)):
            asked = kind == KINDS.index(name)
            at = np.flatnonzero(asked & (offers == offered) if name == "letter" else asked)
            if name == "who":
                question[at], answer[at] = _row(WHO, QUESTION), self._who(group[at], rng)
                continue
            pair = self._tokens[first[at]], self._tokens[second[at]]
            if name == "letter":
                form = "which (A) {} (B) {}" + (" (C) unknown" if offered else "")
                p = self.choice(first[at], second[at], group[at], unknown=offered)
                letters[at] = p
                said = np.array([words()[letter] for letter in LETTERS])[draw_columns(p, rng)]
            else:  # the same choice without letters, and so without a preference for the first
                form = "which {} or {}"
                p = self.odds(first[at], second[at], group[at])
                said = np.where(rng.uniform(size=len(at)) < 1 / (1 + np.exp(-p)), *pair)
            question[at] = _filled(form, pair)
            answer[at] = _row("", ANSWER)
            answer[at, 0], answer[at, 1] = said, words()["[SEP]"]
        return Turns(question, answer, letters)

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
        table = np.array(
            [[_row(text, ANSWER) for text in (name, f"{name} {LONG}", REFUSAL)]
             for name in (fill("a {}", phrase) for phrase in PHRASES)]
        )  # fmt: skip
        return np.asarray(table[group, np.where(refused, 2, longer.astype(int))])

    @cached_property
    def _captions(self) -> CaptionWriter:
        return CaptionWriter(self.world)

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
