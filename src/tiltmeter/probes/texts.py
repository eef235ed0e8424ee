"""The texts that probes show to a model: words and neutral words, classes, word sets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tiltmeter import stimuli
from tiltmeter.errors import InputError
from tiltmeter.io.tables import read_table
from tiltmeter.types import Faces, Prompt, planted_world

#: Human stereotypes of activities: of CounterBias's 19, the one that the paper's text names.
HUMAN_LABELS = {"skating": "female"}
#: Placebo lists that ship, by the part of speech that they stand for.
PLACEBOS = {"noun": "placebo-nouns", "adjective": "placebo-adjectives"}


def harm_prompts(classes: str | None, faces: Faces) -> list[Prompt]:
    """Classes to choose from; for figures of the testbed its own phrases stand for people."""
    prompts = stimuli.prompts(stimuli.load(classes or "harms"))
    if classes or planted_world(faces) is None or set(faces.groups) != {"shape", "hue"}:
        return prompts
    from tiltmeter.testbed.language import PHRASES

    own = [stimuli.Word(phrase, "noun", "person") for phrase in PHRASES]
    harmful = [prompt for prompt in prompts if prompt.category != "person"]
    return [*stimuli.prompts(own), *harmful]


def association_tests(probe: str, model: Any = None) -> dict[str, Any]:
    """The sets of words of the list `weat`; its tests are for words, iEAT has its own.

    A model of the testbed, whose vocabulary is closed, gets the tests of its world.
    """
    if probe == "eat" and (world := planted_world(model)):
        from tiltmeter.testbed.association import planted_tests
        from tiltmeter.testbed.world import World

        return {
            **vars(planted_tests(World.plant(world.strength, seed=world.seed))),
            "sentences": (),
        }
    tests = stimuli.load("weat").tests
    words = {one.name: one.words for test in tests for one in (test.X, test.Y, test.A, test.B)}
    named = [(test.name, test.X.name, test.Y.name, test.A.name, test.B.name) for test in tests]
    return {"words": words, "tests": named if probe == "eat" else None}


def unknown_texts(model: Any, texts: Iterable[str]) -> list[str]:
    """Texts that the model has no tokens for; one that does not say so knows all."""
    knows = getattr(model, "knows", None)
    return [] if knows is None else [text for text in texts if not knows(text)]


def lists(words: str) -> list[stimuli.Stimuli]:
    """The lists that are named: one, or several as in `sobit+sobit-extra`."""
    if Path(words).exists():  # a file's name may hold a plus
        return [stimuli.load(words)]
    return [stimuli.load(name) for name in words.split("+")]


def neutral_lists(listed: Sequence[stimuli.Stimuli], placebo: str | None) -> list[stimuli.Stimuli]:
    """The named list of neutral words, or the built-in ones of the words' parts of speech."""
    if placebo is not None:
        return [stimuli.load(placebo)]
    kinds = {word.pos for one in listed for word in one.words}
    return [stimuli.load(name) for pos, name in PLACEBOS.items() if pos in kinds]


def audit_lists(
    model: Any,
    words: str | None = None,
    placebo: str | None = None,
    templates: Sequence[str] | None = None,
    articles: str | None = None,
) -> tuple[list[stimuli.Stimuli], list[stimuli.Stimuli]]:
    """Lists of words and of neutral words; none if the model's own table of texts is shown."""
    own = getattr(model, "prompts", None)
    if own is not None and all(x is None for x in (words, placebo, templates, articles)):
        return [], []
    listed = lists(words or stimuli.DEFAULT)
    return listed, neutral_lists(listed, placebo)


def audit_prompts(
    model: Any,
    words: str | None = None,
    placebo: str | None = None,
    templates: Sequence[str] | None = None,
    articles: str | None = None,
) -> list[Prompt]:
    """The texts to show: the model's own table, or words and neutral words in templates.

    Neutral words have the articles of the words.
    """
    listed, neutral = audit_lists(model, words, placebo, templates, articles)
    if not listed:
        return list(model.prompts)
    prompts = [
        prompt
        for one in listed
        for prompt in stimuli.prompts(one, templates=templates, role="word", articles=articles)
    ]
    articles = articles or stimuli.articles_of(listed[0])
    shown: dict[str, dict[str, None]] = {}  # templates by part of speech, in order
    for prompt in prompts:
        shown.setdefault(prompt.pos, {})[prompt.template] = None
    for source in neutral:
        for pos in dict.fromkeys(word.pos for word in source.words):
            same = [word for word in source.words if word.pos == pos]
            if pos in shown:
                prompts += stimuli.prompts(
                    same, templates=list(shown[pos]), role="placebo", articles=articles
                )
    if placebo is not None and not any(prompt.role == "placebo" for prompt in prompts):
        known = ", ".join(sorted(pos or "none given" for pos in shown))
        raise InputError(
            f"no neutral word of {placebo} has the part of speech of a word: words are "
            f"{known}; neutral words need the same"
        )
    return prompts


def neutral_captions(triplets: Any, table: str | None = None) -> list[tuple[str, str] | None]:
    """The stereotypical and the other caption of each triplet without their target term.

    None where no neutral form of the target is known, or where neither caption names it. `table` is
    a file of terms and their neutral forms (columns `term` and `neutral`; empty removes the term),
    which come before the shipped ones. The groups of the testbed become its neutral noun.
    """
    own = {} if table is None else _neutral_table(table)
    if planted_world(triplets):
        from tiltmeter.testbed.language import NEUTRAL_NOUN, PHRASES, SHAPE_NOUNS

        own = {**dict.fromkeys((*SHAPE_NOUNS, *PHRASES), NEUTRAL_NOUN), **own}
    found: list[tuple[str, str] | None] = []
    for first, second, target in zip(
        triplets.stereotypical, triplets.anti, triplets.targets, strict=True
    ):
        attributes = {*re.findall(r"[\w']+", first)} ^ {*re.findall(r"[\w']+", second)}
        try:
            pair = tuple(
                stimuli.neutralise(text, target, extra=own, keep=attributes)
                for text in (first, second)
            )
        except InputError:  # no neutral form is known
            pair = (first, second)
        found.append(None if pair == (first, second) else (pair[0], pair[1]))
    return found


def _neutral_table(path: str) -> dict[str, str | None]:
    read = read_table(Path(path))
    if lacking := {"term", "neutral"} - set(read.column_names):
        raise InputError(f"{path} lacks the columns {', '.join(sorted(lacking))}: term, neutral")
    terms, words = ([str(cell or "") for cell in read[name].to_pylist()]
                    for name in ("term", "neutral"))  # fmt: skip
    return {term: word or None for term, word in zip(terms, words, strict=True)}


@dataclass(frozen=True, eq=False)
class Sentences:
    """Words in templates: `texts[t][w]` is word w in template t."""

    words: tuple[str, ...]
    texts: list[list[str]]
    labels: dict[str, list[str]]  # groups that the words name, by attribute
    clusters: tuple[tuple[str, ...], ...] = ()  # the parts of phrases that others share


def propagation_sentences(
    words: Sequence[str] | None = None, *, planted: bool = False
) -> Sentences:
    """The group phrases, or the words of a lexicon, in the sentences of the propagation study.

    In a planted world, whose vocabulary is closed: figures at their activities (`red ball reading`)
    in the captions that it has for both, and each of its concepts in the caption that it has.
    """
    if planted:
        from tiltmeter.testbed.valence import concept_captions, figure_captions

        if words is not None:
            caption = concept_captions()
            return Sentences(tuple(words), [[caption.get(word, word) for word in words]], {})
        pairs, texts, groups = figure_captions()
        shared = tuple(
            (hue or "no hue", activity)
            for hue, (_, activity) in zip(groups["hue"], pairs, strict=True)
        )
        return Sentences(tuple(" ".join(pair) for pair in pairs), texts, groups, shared)
    templates = stimuli.load("propagation").templates["sentence"]
    labels: dict[str, list[str]] = {}
    parts: tuple[tuple[str, ...], ...] = ()
    if words is None:
        phrases = stimuli.group_phrases()
        words = [phrase.text for phrase in phrases]
        labels = {"race": [one.race for one in phrases], "gender": [one.gender for one in phrases]}
        parts = tuple(tuple(word.rsplit(" ", 1)) for word in words)
    texts = [[template.replace("{}", word) for word in words] for template in templates]
    return Sentences(tuple(words), texts, labels, parts)


def counterfactual_words(faces: Faces | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """The bias words of CounterBias, its target words by category, its templates, human labels.

    The two groups are those of `faces` that known words stand for: man and woman, male and female,
    ...; of the testbed, round and square. Labels are 1 for the first group, -1 for the second.
    """
    listed = stimuli.load("counterbias")
    names = tuple({pair[side] for pair in listed.pairs} for side in (0, 1))
    words, prompt = listed.pairs[0], listed.templates["bias"][0]
    groups, attribute = tuple(words), "gender"
    if faces is not None:
        if planted_world(faces) and "shape" in faces.groups:
            from tiltmeter.testbed.language import SHAPE_NOUNS, SHAPES

            names, words = ({SHAPES[0], SHAPE_NOUNS[0]}, {SHAPES[1], SHAPE_NOUNS[1]}), SHAPE_NOUNS
        wanted = tuple(options["groups"].split(",")) if options["groups"] else None
        found = [
            (attribute, wanted or (one, other))
            for attribute in ([options["attribute"]] if options["attribute"] else faces.groups)
            for one in faces.attribute(attribute).names
            for other in faces.attribute(attribute).names
            if (one, other) == wanted
            or (not wanted and one.lower() in names[0] and other.lower() in names[1])
        ]
        if not found:
            labels = "; ".join(f"{n}: {', '.join(g.names)}" for n, g in faces.groups.items())
            raise InputError(
                f"no two groups of {faces.name} have bias words of their own ({labels}): name "
                "them by the options attribute, groups (two of them) and words"
            )
        attribute, groups = found[0]
    if options["words"]:
        words = tuple(options["words"].split(","))
        if len(words) != 2:
            raise InputError(f"two bias words are needed, such as man,woman; got {len(words)}")
    templates = tuple(options["templates"].split("|")) if options["templates"] else ()
    if options["templates"] == "script":  # of the public scripts
        templates = tuple(listed.templates["script"])
    labels_of: Mapping[str, str] = {}
    if options["labels"]:
        table = read_table(Path(options["labels"]))
        if not {"target", "label"} <= set(table.column_names):
            raise InputError(
                f"{options['labels']} has the columns {', '.join(table.column_names)}; expected "
                "target and label (male, female, neutral)"
            )
        labels_of = dict(zip(*(table[c].to_pylist() for c in ("target", "label")), strict=True))
    elif words == tuple(listed.pairs[0]):
        labels_of = HUMAN_LABELS
    sides = [{*names[side], words[side], groups[side].lower()} for side in (0, 1)]
    return {
        "attribute": attribute,
        "groups": groups,
        "words": words,
        "prompt": options["prompt"] or prompt,
        "targets": target_words(options["targets"]),
        "templates": templates or tuple(listed.templates["target"]),
        "labels": {
            target: 1 if label.lower() in sides[0] else -1
            for target, label in labels_of.items()
            if label.lower() in sides[0] | sides[1]
        },
    }


def target_words(lists: str) -> dict[str, str]:
    """The words of lists or files, parted by commas, each with its category."""
    return {
        word.text: word.category or name
        for name in lists.split(",")
        for word in stimuli.load(name).words
    }


def opposite_words() -> tuple[tuple[str, str], ...]:
    """Pairs of a favourable word and its opposite, of the list `iat`."""
    return stimuli.load("iat").pairs
