"""Classes of words, and the neutral words that each is judged by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tiltmeter import stimuli
from tiltmeter.probes.texts import PLACEBOS
from tiltmeter.types import Prompt, planted_world

#: Lists of neutral words that lift adds, by part of speech: nouns are judged by words about people.
NEUTRAL = {"noun": "neutral-people", "activity": "neutral-activities"}
#: In a planted world all concepts are icons, so nouns and adjectives are of one class.
CONCEPT = "concept"
UNKNOWN = "no part of speech"

#: A word and its category.
Word = tuple[str, str]


@dataclass(frozen=True, eq=False)
class PromptClass:
    """Prompts of the words and of the neutral words of one class, by word."""

    words: dict[Word, list[Prompt]] = field(default_factory=dict)
    neutral: dict[Word, list[Prompt]] = field(default_factory=dict)


def prompt_classes(prompts: Sequence[Prompt], model: object) -> dict[str, PromptClass]:
    """Prompts by class: the part of speech, or one class of all concepts of a planted world.

    Words without a part of speech have no neutral words.
    """
    one_class = CONCEPT if planted_world(model) else None
    classes: dict[str, PromptClass] = {}
    for prompt in prompts:
        pos = one_class or prompt.pos
        if pos or prompt.role == "word":
            known = classes.setdefault(pos or UNKNOWN, PromptClass())
            by_word = known.words if prompt.role == "word" else known.neutral
            by_word.setdefault((prompt.concept, prompt.category or ""), []).append(prompt)
    return {pos: found for pos, found in sorted(classes.items()) if found.words}


def lift_prompts(
    prompts: Sequence[Prompt], model: object, *, own_neutral: bool = False
) -> list[Prompt]:
    """Prompts of an audit with the neutral words that lift is judged by.

    Nouns get neutral words about people, activities neutral activities, unless the audit was given
    neutral words of its own (`own_neutral`) of that part of speech. A model of a planted world
    knows only that world's own neutral words, and gets all of them by default; one that is known by
    a table of texts has those of the table.
    """
    if getattr(model, "prompts", None) is not None or (own_neutral and planted_world(model)):
        return list(prompts)
    known = {prompt.text for prompt in prompts}
    if planted_world(model):
        own = [p for name in PLACEBOS.values() for p in stimuli.prompts(stimuli.load(name))]
        return [*prompts, *(prompt for prompt in own if prompt.text not in known)]
    kept = list(prompts)
    for pos, name in NEUTRAL.items():
        words = [p for p in prompts if p.role == "word" and p.pos == pos]
        given = {p.concept for p in prompts if p.role == "placebo" and p.pos == pos}
        # a file of built-in words is still the user's choice, and so is not replaced
        if words and given <= (set() if own_neutral else _shipped(pos)):
            templates = list(dict.fromkeys(prompt.template for prompt in words))
            listed = stimuli.prompts(stimuli.load(name).words, templates=templates, role="placebo")
            kept = [p for p in kept if not (p.role == "placebo" and p.pos == pos)] + listed
    return kept


def _shipped(pos: str) -> set[str]:
    """Neutral words of a part of speech that an audit has if it is given none."""
    return {word.text for word in stimuli.load(PLACEBOS[pos]).words} if pos in PLACEBOS else set()
