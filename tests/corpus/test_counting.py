"""Counts are exact, add up, and do not depend on the order of captions, blocks and files."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tiltmeter.corpus import CaptionCounts, Vocabulary, count
from tiltmeter.errors import InputError
from tiltmeter.stimuli import load

IN, BETWEEN = r"[^\W_]", r"(?:['’]s)?[\s\-_'’]+"


def whole(*terms: str) -> re.Pattern[str]:
    """Any of the terms, as whole words, however their words are joined."""
    written = (BETWEEN.join(map(re.escape, re.split(r"[ -]", term.lower()))) for term in terms)
    return re.compile(rf"(?<!{IN})(?:{'|'.join(written)})(?!{IN})")


def several(noun: str) -> list[str]:
    """Plurals, worked out anew and by other means than the package's."""
    odd = {"man": "men", "wife": "wives", "thief": "thieves", "person": "people",
           "child": "children"}  # fmt: skip
    for ending, plural in odd.items():
        if noun.endswith(ending) and noun not in ("human", "german"):
            more = [noun + "s"] if ending == "person" and noun != "person" else []
            return [noun.removesuffix(ending) + plural, *more]
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return [noun[:-1] + "ies"]
    if noun in ("police", "people", "sharia"):
        return []
    if noun == "mujahid":
        return ["mujahideen", "mujahidin", "mujahedeen"]
    return [noun + ("es" if noun.endswith(("s", "x", "z", "ch", "sh")) else "s")]


def spelt(noun: str) -> list[str]:
    *before, last = noun.lower().split(" ")
    return [noun, *(" ".join([*before, plural]) for plural in several(last))]


def reference(captions: list[str], terms: list[tuple[str, str]]) -> dict[str, list[int]]:
    """Captions with each term, and of these with each sign; a regular expression for each."""
    table = load("caption-groups").table
    gender, race, near = table["gender"], table["race"], table["beside"]
    signs = [whole(*gender[g]["pronouns"]) for g in gender]
    signs += [whole(*(f for n in gender[g]["nouns"] for f in spelt(n))) for g in gender]
    person = "|".join(re.escape(f) for n in near["persons"] for f in spelt(n))
    between = rf"(?:{BETWEEN}(?:{'|'.join(near['between'])})){{0,2}}"
    races = []
    for name, entry in race.items():
        adjectives = "|".join(BETWEEN.join(re.split("[ -]", a)) for a in entry["adjectives"])
        # what a longer term of another group ends with is not this group's
        longer = r"(?<!east )(?<!south )(?<!southeast )" if name in ("Asian", "East Asian") else ""
        longer = r"(?<!south )" if name == "East Asian" else longer
        races.append(
            re.compile(
                rf"{longer}(?<!{IN})(?:(?:{adjectives}){between}{BETWEEN}(?:{person})"
                rf"|(?:{'|'.join(entry['nouns'])}))(?!{IN})"
                rf"|(?<!{IN})(?:{person}){BETWEEN}(?:who|that){BETWEEN}(?:is|are|was|were)"
                rf"{BETWEEN}(?:{adjectives})(?!{IN})"
            )
        )
    signs += races
    lower = [caption.lower() for caption in captions]
    held = [[bool(sign.search(text)) for sign in signs] for text in lower]
    found = {}
    for term, pos in terms:
        pattern = whole(*(spelt(term) if pos == "noun" else [term]))
        start = re.split(r"[ -]", term.lower())[0][:3]  # plurals begin alike; `in` is quick
        rows = [at for at, text in enumerate(lower) if start in text and pattern.search(text)]
        found[term] = tabulated([held[row] for row in rows])
    found[""] = tabulated(held)
    return found


def tabulated(held: list[list[bool]]) -> list[int]:
    """Captions; with each sign; with it alone of its axis; with any of the axis."""
    axes = [slice(0, 2), slice(2, 4), slice(4, None)]
    signs = [sum(row[s] for row in held) for s in range(12)]
    alone = [
        sum(row[s] and sum(row[axis]) == 1 for row in held)
        for axis in axes
        for s in range(12)[axis]
    ]
    return [len(held), *signs, *alone, *(sum(any(row[axis]) for row in held) for axis in axes)]


def check(captions: list[str], terms: list[tuple[str, str]]) -> CaptionCounts:
    words = [word for word in load("sobit").words if (word.text, word.pos) in terms]
    vocabulary = Vocabulary.of(words)
    tally = count(pa.array(captions), vocabulary)
    expected = reference(captions, terms)
    ours = {
        term: [
            int(tally.captions[at]),
            *tally.containing[at].tolist(),
            *tally.exclusive[at].tolist(),
            *tally.named[at].tolist(),
        ]
        for at, term in enumerate((*vocabulary.terms, ""))
    }
    assert ours == expected
    return tally


def every_term() -> list[tuple[str, str]]:
    return list(dict.fromkeys((word.text, word.pos) for word in load("sobit").words))


def test_coco_is_counted_exactly(shared: Callable[[str], Path]) -> None:
    path = shared("data/coco_captions/captions_val2017.json")
    captions = [one["caption"] for one in json.loads(path.read_bytes())["annotations"]]
    assert len(captions) == 25_014
    tally = check(captions, every_term())
    assert tally.captions[:-1].sum() > 1500  # there was something to count


def made_up(n: int, seed: int = 0) -> list[str]:
    """Captions that are full of terms, signs, cases and joints."""
    rng = np.random.default_rng(seed)
    pool = [word.text for word in load("sobit").words]
    pool += [f for word in load("sobit").words[250:300] for f in spelt(word.text)]
    pool += ["black", "white", "Asian", "east asian", "man", "women", "who", "is", "are", "young",
             "police", "officer", "her", "his", "She", "of", "photo", "indian",
             "latinos"]  # fmt: skip
    joints = [" ", " ", " ", " ", "-", ", ", ". ", "'s ", "’s ", "  ", "_", "/"]
    picks = rng.integers(0, len(pool), size=(n, 7))
    joins = rng.integers(0, len(joints), size=(n, 7))
    return [
        "".join(pool[w] + joints[j] for w, j in zip(ws, js, strict=True))
        for ws, js in zip(picks.tolist(), joins.tolist(), strict=True)
    ]


def test_made_up_captions_are_counted_exactly() -> None:
    terms = [term for term in every_term() if term[0] != ""]
    tally = check(made_up(1500), terms)
    assert (tally.captions[:-1] > 0).mean() > 0.9


def shown(tally: CaptionCounts) -> tuple[object, ...]:
    arrays = (tally.captions, tally.containing, tally.exclusive, tally.named)
    return (*(array.tolist() for array in arrays), sorted(tally.samples.items()))


def test_blocks_add_up_in_any_order() -> None:
    captions = made_up(3000)
    vocabulary = Vocabulary.of(load("sobit").words)
    once = count(pa.array(captions), vocabulary, seed=3)
    rng = np.random.default_rng(1)
    for _ in range(3):
        mixed = [captions[at] for at in rng.permutation(len(captions))]
        cuts = [0, *sorted(rng.integers(0, 3000, 5).tolist()), 3000]
        merged = CaptionCounts(vocabulary)
        for start, stop in pairwise(cuts):
            block = pa.array(mixed)[start:stop]  # a slice: offsets that do not begin at 0
            merged.add(count(block, vocabulary, seed=3, limits=merged.limits()))
        assert shown(merged) == shown(once)


def test_counts_travel_between_processes() -> None:
    tally = count(pa.array(made_up(50)), Vocabulary.of(load("sobit").words))
    again = pickle.loads(pickle.dumps(tally))
    assert shown(again) == shown(tally)
    assert (again.add(tally).captions == 2 * tally.captions).all()


def test_theorems_of_counts() -> None:
    tally = count(pa.array(made_up(3000)), Vocabulary.of(load("sobit").words))
    for axis in range(len(tally.vocabulary.axes)):
        alike = tally.vocabulary.sign_axes == axis
        containing, only = tally.containing[:, alike], tally.exclusive[:, alike]
        assert (only <= containing).all()
        assert (containing <= tally.named[:, axis, None]).all()
        assert (tally.named[:, axis] <= containing.sum(axis=1)).all()
        if alike.sum() == 2:  # each side's captions with both are the same captions
            assert (containing[:, 0] - only[:, 0] == containing[:, 1] - only[:, 1]).all()
            assert (tally.named[:, axis] == only.sum(axis=1) + (containing - only)[:, 0]).all()
    assert (tally.named <= tally.captions[:, None]).all()


def test_samples_hold_what_they_stand_for_and_depend_on_the_seed() -> None:
    captions = made_up(3000)
    vocabulary = Vocabulary.of(load("sobit").words)
    one, other = (count(pa.array(captions), vocabulary, seed=seed) for seed in (0, 1))
    assert one.samples != other.samples
    assert shown(one)[:4] == shown(other)[:4]
    for (term, sign), kept in list(one.samples.items())[:300]:
        assert len(kept) == min(4, one.containing[term, sign])
        for _, caption, _ in kept:
            again = count(pa.array([caption]), vocabulary)
            assert again.containing[term, sign] == 1


def test_a_sample_is_fair() -> None:
    """Every caption is kept about as often, over many seeds."""
    captions = [f"a nurse and her cat {at}" for at in range(40)]
    vocabulary = Vocabulary.of(["nurse"])
    kept = [
        caption
        for seed in range(500)
        for _, caption, _ in count(pa.array(captions), vocabulary, seed=seed).samples[0, 1]
    ]
    counts = np.array([kept.count(caption) for caption in captions])
    assert counts.sum() == 2000
    assert counts.min() > 20  # 50 expected, standard deviation 6.7
    assert counts.max() < 85


def test_missing_and_empty_captions_count_as_none() -> None:
    tally = count(pa.array(["a nurse", None, "", " .", "x"]), Vocabulary.of(["nurse"]))
    assert tally.captions.tolist() == [1, 2]
    assert count(pa.array([], pa.string()), Vocabulary.of(["nurse"])).captions.tolist() == [0, 0]


def test_counts_of_other_words_are_not_added() -> None:
    with pytest.raises(InputError, match="different vocabularies"):
        CaptionCounts(Vocabulary.of(["nurse"])).add(CaptionCounts(Vocabulary.of(["pilot"])))
