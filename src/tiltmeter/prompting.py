"""The texts that probes show to a model: words beside placebos, classes, sets of words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tiltmeter import stimuli
from tiltmeter.errors import InputError
from tiltmeter.types import Faces, Prompt

#: Placebo lists that ship, by the part of speech that they stand for.
PLACEBOS = {"noun": "placebo-nouns", "adjective": "placebo-adjectives"}


def harm_prompts(classes: str | None, faces: Faces) -> list[Prompt]:
    """Classes to choose from; for figures of the testbed its own phrases stand for people."""
    prompts = stimuli.prompts(stimuli.load(classes or "harms"))
    if classes or faces.name != "testbed" or set(faces.groups) != {"shape", "hue"}:
        return prompts
    from tiltmeter.testbed.language import PHRASES

    own = [stimuli.Word(phrase, "noun", "person") for phrase in PHRASES]
    harmful = [prompt for prompt in prompts if prompt.category != "person"]
    return [*stimuli.prompts(own), *harmful]


def association_tests(probe: str) -> dict[str, Any]:
    """The sets of words of the list `weat`; its tests are for words, iEAT has its own."""
    tests = stimuli.load("weat").tests
    words = {one.name: one.words for test in tests for one in (test.X, test.Y, test.A, test.B)}
    named = [(test.name, test.X.name, test.Y.name, test.A.name, test.B.name) for test in tests]
    return {"words": words, "tests": named if probe == "eat" else None}


def audit_prompts(
    model: Any,
    words: str | None = None,
    placebo: str | None = None,
    templates: Sequence[str] | None = None,
) -> list[Prompt]:
    """The texts to show: the model's own table, or words in templates beside their placebos."""
    own = getattr(model, "prompts", None)
    if own is not None and words is None and placebo is None and templates is None:
        return list(own)
    listed = stimuli.load(words or "berg")
    prompts = stimuli.prompts(listed, templates=templates, role="word")
    if placebo is not None:
        neutral = [stimuli.load(placebo)]
    else:
        kinds = {prompt.pos for prompt in prompts}
        neutral = [stimuli.load(name) for pos, name in PLACEBOS.items() if pos in kinds]
    shown: dict[str, dict[str, None]] = {}  # templates by part of speech, in order
    for prompt in prompts:
        shown.setdefault(prompt.pos, {})[prompt.template] = None
    for source in neutral:
        for pos in dict.fromkeys(word.pos for word in source.words):
            same = [word for word in source.words if word.pos == pos]
            if pos in shown:
                prompts += stimuli.prompts(same, templates=list(shown[pos]), role="placebo")
    if placebo is not None and not any(prompt.role == "placebo" for prompt in prompts):
        known = ", ".join(sorted(pos or "none given" for pos in shown))
        raise InputError(
            f"no placebo of {placebo} can stand beside a word: the words' parts of speech are "
            f"{known}, and placebos must have the same"
        )
    return prompts
