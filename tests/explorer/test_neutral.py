"""Neutral words: what stands out against chance need not stand out against them."""

from __future__ import annotations

import numpy as np
import pytest

from tiltmeter.errors import UnknownNameError
from tiltmeter.explorer.gather import ExplorerData
from tiltmeter.explorer.neutral import FEWEST, MOST_WORDS, chosen, neutral
from tiltmeter.explorer.queries import QueryRunner
from tiltmeter.explorer.ranking import answer
from tiltmeter.metrics.arrays import unit
from tiltmeter.metrics.convention import get_convention
from tiltmeter.metrics.group_lift import lift
from tiltmeter.types import Groups, Prompt

HOUSE = get_convention("tiltmeter")


def test_against_one_word_at_a_time(scene: ExplorerData) -> None:
    """The same figures, from an answer to each neutral word by itself."""
    tower, groups = scene.models[0], scene.groups["shape"]
    texts = ["a photo of a lamp", "a photo of a spoon"] * FEWEST
    rng = np.random.default_rng(0)
    said = {text: rng.normal(size=(1, tower.vectors.shape[1])) for text in texts}

    def encode(asked: list[str]) -> np.ndarray:
        return np.concatenate([said[text] for text in asked])

    found = neutral(encode, tower.vectors, {"shape": groups}, texts, 20.0)
    assert found is not None
    prompt = rng.normal(size=tower.vectors.shape[1]).astype(np.float32)
    mine = answer(tower.vectors @ prompt, groups, k=30, convention=HOUSE)
    singly = []
    for text in texts:
        vector = (said[text][0] / np.linalg.norm(said[text][0])).astype(np.float32)
        singly.append(answer(tower.vectors @ vector, groups, k=30, convention=HOUSE))
    told = found.compare(mine, groups, HOUSE)
    assert told["words"] == len(texts)
    scores = [20.0 * tower.vectors @ one for one in (prompt, *(unit(said[t])[0] for t in texts))]
    expected = lift(scores[:1], groups, neutral=scores[1:])[0]
    assert [one["ratio"] for one in told["lift"]] == pytest.approx(np.exp(expected), rel=1e-4)
    assert all(one["low"] < 1 < one["high"] for one in told["lift"])
    assert neutral(encode, tower.vectors, {"shape": groups}, texts).lift(mine, groups) is None
    assert told["max_skew"]["as_far"] == sum(
        one.max_skew.value >= mine.max_skew.value - 1e-9 for one in singly
    )
    assert told["c_asc_as_far"][0] == sum(
        abs(one.groups[0].c_asc) >= abs(mine.groups[0].c_asc) for one in singly
    )


def test_a_planted_tilt_stands_out_and_a_neutral_word_does_not(scene: ExplorerData) -> None:
    asker, groups = QueryRunner(scene), scene.groups["shape"]
    known = scene.models[0].neutral
    assert known is not None
    assert len(known) == MOST_WORDS

    def beyond(word: str) -> bool:
        told = known.compare(asker.ask(f"a photo of a {word}", by="shape", k=100), groups, HOUSE)
        return any(not one["low"] <= one["ratio"] <= one["high"] for one in told["lift"])

    assert all(beyond(word) for word in ("nurse", "doctor", "homemaker"))
    assert not any(beyond(word) for word in ("chair", "table", "lamp"))


def test_words_are_taken_evenly_and_once() -> None:
    prompts = [
        Prompt(f"{template} {at}", str(at), template, role="placebo" if at % 2 else "word")
        for template in ("a", "b")
        for at in range(400)
    ]
    texts = chosen(prompts)
    assert len(texts) == MOST_WORDS == len(set(texts))
    assert texts[0] == "a 1"
    assert texts[-1] == "a 399"
    assert chosen(prompts[:1]) == []


def test_too_few_words_or_unknown_ones_are_none() -> None:
    groups = {"half": Groups(np.arange(10) % 2, ("a", "b"), "half")}
    vectors = np.eye(10, dtype=np.float32)
    assert neutral(lambda texts: np.ones((len(texts), 10)), vectors, groups, ["one"]) is None

    def unknown(texts: list[str]) -> None:
        raise UnknownNameError("text", texts[0], ())

    assert neutral(unknown, vectors, groups, ["one"] * FEWEST) is None
