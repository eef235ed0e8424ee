"""What lift cannot judge: a reason and no verdict, never 0."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tiltmeter as tm
from tests.refusing import refused
from tiltmeter.models.embeddings import StoredTexts
from tiltmeter.pages import text
from tiltmeter.pages.terminal.verdict import parts
from tiltmeter.pages.verdict import answers
from tiltmeter.results import Run
from tiltmeter.types import Faces, Groups, Prompt


def audited(
    neutral: int, *, constant: bool = False, pos: str = "noun", word_pos: str = "noun",
    adjectives: int = 0,
) -> Run:  # fmt: skip
    """Three nouns and adjectives, and neutral words of another number or part of speech."""
    rng = np.random.default_rng(0)
    group = np.arange(80) % 2
    images = rng.normal(size=(80, 8)) + group[:, None] * np.eye(8)[0]
    faces = Faces(tuple(map(str, range(80))), {"kind": Groups(group, ("a", "b"))}, images)
    names = [f"word {i}" for i in range(3)] + [f"neutral {i}" for i in range(neutral)]
    prompts = [Prompt(name, name, "{}", role="word" if i < 3 else "placebo",
                      pos=word_pos if i < 3 else pos) for i, name in enumerate(names)]  # fmt: skip
    prompts += [Prompt(f"adjective {i}", f"adjective {i}", "{}", pos="adjective")
                for i in range(adjectives)]  # fmt: skip
    texts = np.ones((len(prompts), 8)) if constant else rng.normal(size=(len(prompts), 8))
    model = StoredTexts("table", prompts, texts)
    model.logit_scale = 10.0
    return tm.audit(model, faces, probes=["lift"], bootstraps=5,
                    options={"lift": {"splits": 5}})  # fmt: skip


def test_fewer_neutral_words_than_a_verdict_needs() -> None:
    run = audited(40)
    reason = "40 neutral words are too few to call a word associated (300 are needed)"
    assert reason in str(run.summary())
    rows = [row for row in run.where(metric="lift") if row["concept"]]
    assert len(rows) == 6
    for row in rows:
        assert row["value"] not in (None, 0)
        assert row["verdict"] != "associated"
        assert reason in row["note"]


def test_one_neutral_word_is_a_matter_of_its_number() -> None:
    (row,) = audited(1).where(metric="lift")
    assert row["value"] is row["verdict"] is None
    assert "1 neutral word; a spread needs at least 2" in row["note"]
    assert "scores" not in row["note"]


def test_no_neutral_words_of_the_class() -> None:
    with refused("bad-input", "neutral words of the same part of speech"):
        audited(0)
    with refused("bad-input", "neutral words of the same part of speech"):
        audited(40, pos="adjective")


@pytest.mark.parametrize("count", [1, 2])
def test_words_of_a_class_that_is_not_judged_are_counted(count: int) -> None:
    run = audited(310, adjectives=count)
    [answer] = answers(run)
    words = f"{count} adjective{'s' * (count > 1)} not judged: no neutral adjectives"
    for said in (answer.found, answer.brief, "\n".join(map(str, parts(run)))):
        assert words in " ".join(text.plain(said).split())
        assert f"of {3 + count} words" in text.plain(said)


def test_words_without_a_part_of_speech() -> None:
    with refused("bad-input", "'word 0', 'word 1', 'word 2'", "column pos", "activity"):
        audited(310, word_pos="")


@pytest.mark.filterwarnings("error")
def test_scores_that_do_not_differ() -> None:
    (row,) = audited(310, constant=True).where(metric="lift")
    assert row["value"] is row["verdict"] is None
    assert "their scores do not differ" in row["note"]


def test_a_model_of_the_testbed_has_no_texts_for_other_groups() -> None:
    figures = tm.load_data("testbed:?images=140")
    labels = Groups(np.arange(140) % 2, ("Male", "Female"), "gender")
    faces = replace(figures, groups={"gender": labels}, world=None)
    run = tm.audit("testbed:dual", faces, probes=["lift"], bootstraps=0)
    [row] = run.where(metric="visibility", attribute="gender")
    assert row["value"] is None
    assert "unknown group of the testbed 'Male'" in row["note"]
    assert run.where(metric="lift_size", attribute="gender")[0]["value"] is not None
