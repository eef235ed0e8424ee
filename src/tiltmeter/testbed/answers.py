"""`testbed:oracle`: a generative model that answers exactly as the planted formulas say.

It is no network: probabilities of answers come straight from the world and its dials, so every
probe of generative models has a truth without any training. Options: `twin` (`fair` has no bias),
`noise` (nats by which its log-probabilities differ from image to image, .3).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.special import ndtri

from tiltmeter.errors import InputError
from tiltmeter.io.specs import Spec
from tiltmeter.stimuli import fill
from tiltmeter.testbed.captions import BY_NONE, BY_PHRASE, BY_SHAPE, KINDS, NAMES, SHARES
from tiltmeter.testbed.dialogue import LETTERS, LONG, REFUSAL, WHO, Dialogue, Dials
from tiltmeter.testbed.language import (
    GROUP_TEMPLATES,
    GROUPS,
    HUES,
    NEUTRAL_NOUN,
    PHRASES,
    SHAPE_NOUNS,
    TARGET_TEMPLATES,
)
from tiltmeter.testbed.oracle import Oracle, figure_mask, shape_mask
from tiltmeter.testbed.render import Scenes
from tiltmeter.testbed.world import WORD_OF_ITS_OWN, World, draw_columns
from tiltmeter.types import Continuations, Floats, Ints, WrittenText

UNKNOWN = "unknown"
#: Share of the probability that answers have which nobody asked for.
OTHER = 0.02
#: Log-probability of a text that cannot be an answer.
IMPOSSIBLE = -30.0


@dataclass(frozen=True, eq=False)
class _Seen:
    """What is known of some images: P(group), noise keys, and the scenes, if there are any."""

    figure: Floats  # images x 14
    keys: Ints | None = None  # of images; None: without noise
    scenes: Scenes | None = None  # with icons
    shown: bool = True  # whether there is a figure at all

    def __len__(self) -> int:
        return len(self.figure)


class OracleAnswers:
    """A `Continuer` and `Writer` with the probabilities that a world and its dials plant.

    Parameters
    ----------
    world : World
        The planted world.
    noise : float
        Standard deviation, in nats, of what an image adds to the score of a word. It depends on
        image and word alone.
    dials : Dials, optional
        Preferences of letters, unknown answers, refusals and length; those of the world by default.
    first_name : float
        Nats that the name of the first shape gains where a text names a figure, whatever is shown.

    Examples
    --------
    >>> model = OracleAnswers(World.plant(), noise=0.0)
    >>> answer = model.continuations(None, "which (A) nurse (B) chef", ["(A)", "(B)"])
    >>> float(np.exp(answer.logprobs).sum().round(2))
    0.98
    """

    def __init__(
        self,
        world: World,
        *,
        noise: float = 0.3,
        dials: Dials | None = None,
        first_name: float = 0.0,
    ) -> None:
        self.world, self.noise, self.first_name = world, noise, first_name
        self.dialogue, self.oracle = Dialogue(world), Oracle(world)
        self.dials = dials or self.dialogue.dials
        self.name = "testbed:oracle" if world.strength else "testbed:oracle-fair"
        self.provenance = {"strength": world.strength, "noise": noise, "weights": None}

    def continuations(
        self, images: Any | None, prompt: str, texts: Sequence[str], *, stem: str = ""
    ) -> Continuations:
        """Log-likelihoods of answers; see `tiltmeter.types.Continuer`."""
        seen = self._see(images)
        options = _options(prompt)
        if stem:
            logprobs = self.names(seen, texts)
        elif prompt == WHO:
            logprobs = np.stack([self._who(seen, text) for text in texts], axis=1)
        elif options is not None:
            by_letter = prompt.startswith(f"which {LETTERS[0]}")
            p = self.choice(seen, options, by_letter=by_letter)
            answers = list(LETTERS[: len(options)] if by_letter else options)
            logprobs = np.full((len(seen), len(texts)), IMPOSSIBLE)
            for column, text in enumerate(texts):
                if text in answers:
                    logprobs[:, column] = np.log(p[:, answers.index(text)] * (1 - OTHER))
        else:
            posterior = self._posterior(seen)
            logprobs = np.stack([self._caption(seen, posterior, text) for text in texts], axis=1)
        tokens = np.array([len(text.split()) for text in texts])
        return Continuations(logprobs, tokens, np.ones(logprobs.shape, dtype=bool))

    def write(
        self,
        images: Any | None,
        prompt: str,
        *,
        samples: int = 1,
        temperature: float = 0.0,
        limit: int = 128,
        seed: int = 0,
    ) -> list[list[WrittenText]]:
        """Answers drawn from the planted probabilities; see `tiltmeter.types.Writer`.

        There is no most likely text to take at temperature 0: it draws as at 1.
        """
        del temperature
        seen = self._see(images)
        rng = np.random.default_rng([seed, _hash(prompt) % 2**32])
        say = self._say_who if prompt == WHO else self._describe
        written = [say(seen, rng) for _ in range(samples)]
        return [[_cut(texts[row], limit) for texts in written] for row in range(len(seen))]

    def choice(self, seen: _Seen, options: Sequence[str], *, by_letter: bool) -> Floats:
        """Probability of each option in this order, images x options."""
        real = [at for at, option in enumerate(options) if option != UNKNOWN]
        odds = np.stack([self._information(seen, options[at]) for at in real])  # options x n x 14
        odds = odds + np.stack([self._noise(seen, options[at]) for at in real])[..., None]
        gain = self.dials.first_letter * by_letter  # of whatever has the first letter
        odds[0] += gain * (options[0] != UNKNOWN)
        p = np.exp(odds - odds.max(axis=0))
        p = p / p.sum(axis=0)
        rest = np.ones(len(GROUPS))
        if UNKNOWN in options:
            rate = np.repeat(np.asarray(self.dials.unknown), len(HUES))
            rest = 1 - _logistic(np.log(rate / (1 - rate)) + gain * (options[0] == UNKNOWN))
        found = np.empty((len(seen), len(options)))
        found[:, real] = np.einsum("ong,ng,g->no", p, seen.figure, rest)
        if UNKNOWN in options:
            found[:, options.index(UNKNOWN)] = seen.figure @ (1 - rest)
        return found

    def _information(self, seen: _Seen, word: str) -> Floats:
        """PMI of a target with each group, images x 14."""
        row = self._target_rows.get(word)
        if row is None:
            raise InputError(f"the testbed asks about activities and occupations; got {word!r}")
        return np.broadcast_to(self.dialogue.information[row], (len(seen), len(GROUPS)))

    def _who(self, seen: _Seen, text: str) -> Floats:
        """ln P(text) as an answer to who it is: a figure in few words or many, or a refusal."""
        refusal, longer = (np.repeat(np.asarray(chance), len(HUES))
                           for chance in (self.dials.refusal, self.dials.long))  # fmt: skip
        p = refusal * (text == REFUSAL)
        for group, phrase in enumerate(PHRASES):
            own = (1 - refusal[group]) * np.eye(len(GROUPS))[group]
            name = fill("a {}", phrase)
            p = p + own * ((text == name) * (1 - longer[group])
                           + (text == f"{name} {LONG}") * longer[group])  # fmt: skip
        with np.errstate(divide="ignore"):
            return np.asarray(np.maximum(np.log(seen.figure @ p), IMPOSSIBLE))

    def names(self, seen: _Seen, texts: Sequence[str]) -> Floats:
        """ln P of names after `the`: of captions that begin with it, how each names its figure."""
        world = self.world
        is_target = np.isin(np.arange(len(world.concepts)), world.targets)
        both = is_target * SHARES[KINDS.index("both")] / 2  # two templates of four
        begins = SHARES[KINDS.index("group")] / len(GROUP_TEMPLATES) + both
        posterior = self._posterior(seen) * begins
        total = posterior.sum(axis=1)
        named = np.full((len(seen), len(texts)), IMPOSSIBLE)
        weights = {NEUTRAL_NOUN: BY_NONE}
        for code, noun in enumerate(SHAPE_NOUNS):
            share = self._named(seen, np.tile(shape_mask(np.array([code])), (len(seen), 1)))
            weights[noun] = BY_SHAPE * (posterior * share).sum(axis=1) / total
        for column, text in enumerate(texts):
            if text in weights:
                named[:, column] = np.log(weights[text]) + self._noise(seen, text)
                named[:, column] += self.first_name * (text == SHAPE_NOUNS[0])
        return named

    def _caption(self, seen: _Seen, posterior: Floats, text: str) -> Floats:
        """ln P(text) as a description, images."""
        p = np.zeros(len(seen))
        concept = -1
        for concept, templates in self._concept_captions.get(text.lower(), ()):
            target = concept in self._target_rows_of_concepts
            kind = SHARES[0] + SHARES[2] * (not target)
            p = p + posterior[:, concept] * kind / templates
        for concept, name in self._target_captions.get(text.lower(), ()):
            share, mask = self._name_share(len(seen), name)
            named = 1.0 if mask is None else self._named(seen, mask)[:, concept]
            p = p + posterior[:, concept] * SHARES[2] / len(TARGET_TEMPLATES) * share * named
        word = "" if concept < 0 else self.world.concepts[concept].name
        with np.errstate(divide="ignore"):
            return np.asarray(np.maximum(np.log(p), IMPOSSIBLE) + self._noise(seen, word))

    def _posterior(self, seen: _Seen) -> Floats:
        """P(concept | image)."""
        if not seen.shown:
            return np.tile(self.world.prior, (len(seen), 1))
        return self.oracle.posterior(image=seen.figure, scenes=seen.scenes)

    def _named(self, seen: _Seen, mask: Floats) -> Floats:
        """P(a caption names a group of the mask | image, concept), images x concepts."""
        words = mask @ self.world.word_given_concept.T
        if not seen.shown:
            own = mask @ self.world.given_concept.T
        else:
            own = (seen.figure * mask).sum(axis=1, keepdims=True)
        return np.asarray((1 - WORD_OF_ITS_OWN) * own + WORD_OF_ITS_OWN * words)

    def _name_share(self, n: int, name: int) -> tuple[float, Floats | None]:
        """How often captions use this kind of name, and the groups that it names."""
        if name < len(SHAPE_NOUNS):
            return BY_SHAPE, np.tile(shape_mask(np.array([name])), (n, 1))
        if NAMES[name] == NEUTRAL_NOUN:
            return BY_NONE, None
        return BY_PHRASE, np.tile(np.eye(len(GROUPS))[name - len(SHAPE_NOUNS)], (n, 1))

    def _describe(self, seen: _Seen, rng: np.random.Generator) -> list[str]:
        """A caption of each image, as captions of the world are drawn."""
        concept = draw_columns(self._posterior(seen), rng)
        figure = draw_columns(seen.figure, rng)
        word = self.world.draw_words(concept, figure, rng)
        said = self.dialogue._captions.say(concept, word, rng).tokens
        return [" ".join(self._words[token] for token in row if token in self._words)
                for row in said.tolist()]  # fmt: skip

    def _say_who(self, seen: _Seen, rng: np.random.Generator) -> list[str]:
        figure = draw_columns(seen.figure, rng)
        refused, longer = (
            rng.uniform(size=len(seen)) < np.array(chance)[figure // len(HUES)]
            for chance in (self.dials.refusal, self.dials.long)
        )
        return [
            REFUSAL if no else fill("a {}", PHRASES[group]) + f" {LONG}" * bool(more)
            for group, no, more in zip(figure, refused, longer, strict=True)
        ]

    def _see(self, images: Any | None) -> _Seen:
        """Scenes have a group; no image, and one that is no scene, may show any."""
        if isinstance(images, Scenes):
            fields = [np.asarray(x).reshape(len(images), -1) for x in vars(images).values()]
            keys = np.zeros(len(images), np.uint64)
            with np.errstate(over="ignore"):
                for column in np.concatenate(fields, axis=1).astype(np.uint64).T:
                    keys = (keys ^ column) * np.uint64(0x100000001B3)
            return _Seen(figure_mask(images), keys, images)
        count = 1 if images is None else len(images)
        marginal = self.world.prior @ self.world.given_concept
        return _Seen(np.tile(marginal, (count, 1)), shown=False)

    def _noise(self, seen: _Seen, word: str) -> Floats:
        if not self.noise or seen.keys is None:
            return np.zeros(len(seen))
        with np.errstate(over="ignore"):  # splitmix64
            h = seen.keys ^ np.uint64(_hash(word))
            for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
                h = (h ^ (h >> np.uint64(shift))) * np.uint64(factor)
            h = h ^ (h >> np.uint64(31))
        uniform = ((h >> np.uint64(11)).astype(float) + 0.5) / 2**53
        return np.asarray(self.noise * ndtri(uniform))

    @cached_property
    def _target_rows(self) -> dict[str, int]:
        return {self.world.concepts[at].name: row for row, at in enumerate(self.world.targets)}

    @cached_property
    def _target_rows_of_concepts(self) -> set[int]:
        return {int(at) for at in self.world.targets}

    @cached_property
    def _concept_captions(self) -> dict[str, list[tuple[int, int]]]:
        """Concepts of each caption that names no group, with the number of their templates."""
        found: dict[str, list[tuple[int, int]]] = {}
        for at, concept in enumerate(self.world.concepts):
            for template in concept.templates:
                caption = fill(template, concept.name).lower()
                found.setdefault(caption, []).append((at, len(concept.templates)))
        return found

    @cached_property
    def _target_captions(self) -> dict[str, list[tuple[int, int]]]:
        """Concept and name of each caption that names both."""
        return {
            fill(template.replace("{}", self.world.concepts[at].name).replace("{g}", "{}"),
                 name).lower(): [(int(at), number)]
            for at in self.world.targets
            for number, name in enumerate(NAMES)
            for template in TARGET_TEMPLATES
        }  # fmt: skip

    @cached_property
    def _words(self) -> dict[int, str]:
        """Words by number, without special tokens."""
        from tiltmeter.testbed.language import SPECIAL, vocabulary

        return {number: word for word, number in vocabulary().items() if word not in SPECIAL}


def load(spec: Spec) -> OracleAnswers:
    """The oracle of a biased or fair world, as a model.

    Raises
    ------
    InputError
        The noise is no number, or negative.
    """
    spec.check_options("twin", "noise")
    try:
        noise = float(spec.options.get("noise", 0.3))
    except ValueError:
        noise = -1.0
    if not 0 <= noise < 10:
        raise InputError(
            f"testbed:oracle?noise must be a number from 0 to 10; got {spec.options['noise']!r}",
            code="bad-option",
            value=spec.options["noise"],
        )
    return OracleAnswers(World.plant(float(spec.options.get("twin") != "fair")), noise=noise)


def _options(prompt: str) -> list[str] | None:
    """The options of a question, in its order; None where the prompt is no such question."""
    if not prompt.startswith("which "):
        return None
    asked = prompt.removeprefix("which ")
    if asked.startswith(LETTERS[0]):
        return list(_lettered(asked))
    return asked.split(" or ")


def _lettered(asked: str) -> Iterator[str]:
    parts = re.split(r"\([A-Z]\)", asked)
    yield from (part.strip() for part in parts[1:])


def _cut(text: str, limit: int) -> WrittenText:
    words = text.split()
    if len(words) <= limit:
        return WrittenText(text, "stop", len(words))
    return WrittenText(" ".join(words[:limit]), "length", limit)


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


@dataclass(frozen=True, eq=False)
class PlantedAnswers:
    """What is planted in the answers about a figure of each of the 14 groups.

    Examples
    --------
    >>> planted = PlantedAnswers(World.plant())
    >>> planted.refusal[[0, 7]].round(6).tolist()
    [0.05, 0.2]
    """

    world: World

    @cached_property
    def _dialogue(self) -> Dialogue:
        return Dialogue(self.world)

    @property
    def refusal(self) -> Floats:
        """Probability of a refusal when asked who it is."""
        return self._by_shape(self._dialogue.dials.refusal)

    @property
    def long(self) -> Floats:
        """Probability of a long answer when asked who it is, if it is no refusal."""
        return self._by_shape(self._dialogue.dials.long)

    @property
    def words(self) -> Floats:
        """Mean number of words when asked who it is, if it is no refusal."""
        short = len(fill("a {}", PHRASES[0]).split())
        return np.asarray(short + len(LONG.split()) * self.long)

    @property
    def unknown(self) -> Floats:
        """Probability of `unknown` over all orders of three letters: a third have it first."""
        rate = self._by_shape(self._dialogue.dials.unknown)
        first = _logistic(np.log(rate / (1 - rate)) + self._dialogue.dials.first_letter)
        return np.asarray((first + 2 * rate) / 3)

    def odds(self, first: str, second: str) -> Floats:
        """Log-odds of the first of two targets."""
        numbers = {self.world.concepts[at].name: row for row, at in enumerate(self.world.targets)}
        information = self._dialogue.information
        return np.asarray(information[numbers[first]] - information[numbers[second]])

    @property
    def naming(self) -> Floats:
        """Log-odds of the first shape's name against the second's, after `the`."""
        oracle = OracleAnswers(self.world, noise=0.0)
        names = oracle.names(_Seen(np.eye(len(GROUPS))), SHAPE_NOUNS)
        return np.asarray(names[:, 0] - names[:, 1])

    def mentions(self, names: Sequence[str]) -> Floats:
        """Probability that a description mentions one of these concepts."""
        known = {concept.name: at for at, concept in enumerate(self.world.concepts)}
        posterior = Oracle(self.world).posterior(image=np.eye(len(GROUPS)))
        rows = [known[name] for name in names if name in known]
        return np.asarray((1 - SHARES[KINDS.index("group")]) * posterior[:, rows].sum(axis=1))

    @staticmethod
    def _by_shape(pair: tuple[float, float]) -> Floats:
        return np.repeat(np.asarray(pair), len(HUES))


def _logistic(x: Floats) -> Floats:
    return np.asarray(1 / (1 + np.exp(-x)))
