"""Estimates from counts, worked out by hand."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tiltmeter.corpus import audit_captions
from tiltmeter.results import Run
from tiltmeter.stats.intervals import wilson
from tiltmeter.stimuli import load

NURSES = [
    *["a nurse and her cat"] * 6, *["a nurse and his dog"] * 2, "he, she and a nurse",
    *["a woman, a nurse"] * 3, "a man, a nurse", *["a pilot and his plane"] * 5,
    *["a boy"] * 4, *["a girl"] * 4, *["a delivery man"] * 3, "a house",
]  # fmt: skip


def table(path: Path, captions: list[str]) -> Path:
    pq.write_table(pa.table({"caption": captions}), path)
    return path


def only(run: Run, **equal: object) -> dict[str, object]:
    [row] = run.where(**equal)
    return row


@pytest.fixture
def nurses(tmp_path: Path) -> Path:
    return table(tmp_path / "nurses.parquet", NURSES)


def test_figures_worked_out_by_hand(nurses: Path) -> None:
    run = audit_captions(nurses, words=["nurse", "pilot", "delivery man", "geologist"])
    n = only(run, concept="nurse", metric="frequency")
    assert (n["n"], n["n_group"], n["value"]) == (30, 13, 13 / 30)

    both = only(run, concept="nurse", experiment="pronoun both", group="female")
    assert (both["n_group"], both["n"], both["value"]) == (7, 10, 0.7)
    low, high = wilson(np.array(7), np.array(10))
    assert (both["ci_low"], both["ci_high"]) == pytest.approx((float(low), float(high)))
    assert both["null_mean"] == pytest.approx(7 / 15)  # of all captions: 7 she, 8 he
    alone = only(run, concept="nurse", experiment="pronoun exclusive", group="female")
    assert (alone["n_group"], alone["n"], alone["value"]) == (6, 8, 0.75)
    named = only(run, concept="nurse", metric="named", experiment="pronoun")
    assert (named["n_group"], named["n"]) == (9, 13)

    pmi = only(run, concept="nurse", metric="pmi", experiment="pronoun", group="female")
    assert pmi["value"] == pytest.approx(math.log((7 / 30) / (13 / 30 * 7 / 30)))
    lift = {row["group"]: row for row in run.where(concept="nurse", metric="lift",
                                                   experiment="noun")}  # fmt: skip
    assert lift["female"]["value"] == pytest.approx(math.log(3.5 / 1.5) - math.log(7.5 / 8.5))
    assert lift["male"]["value"] == pytest.approx(-lift["female"]["value"])
    assert (lift["male"]["n"], lift["male"]["n_group"]) == (4, 1)
    assert run.meta["neutral"] == {"pronoun": 0, "noun": 0, "race": 0}  # so all captions instead


def test_what_is_undefined_says_why(nurses: Path) -> None:
    run = audit_captions(nurses, words=["nurse", "pilot", "delivery man", "geologist"])
    for row in run.table.to_pylist():
        assert (row["value"] is None) == (row["note"] is not None)
    man = only(run, concept="delivery man", metric="lift", experiment="noun", group="male")
    assert "itself names a group" in str(man["note"])
    never = only(run, concept="geologist", metric="named", experiment="noun")
    assert never["note"] == "no caption contains the word"
    assert only(run, concept="geologist", metric="frequency")["value"] == 0


def test_swapped_genders_swap_the_figures(tmp_path: Path, nurses: Path) -> None:
    swap = {"her": "his", "his": "her", "he,": "she,", "she": "he", "woman,": "man,",
            "man,": "woman,", "boy": "girl", "girl": "boy"}  # fmt: skip
    swapped = [" ".join(swap.get(word, word) for word in one.split()) for one in NURSES]
    words = ["nurse", "pilot"]
    one = audit_captions(nurses, words=words)
    other = audit_captions(table(tmp_path / "swapped.parquet", swapped), words=words)
    pair = [
        only(run, concept="nurse", experiment="pronoun both", group=group)["value"]
        for run, group in ((one, "female"), (other, "male"))
    ]
    assert pair[0] == pair[1] == 0.7


def test_captions_about_neutral_words_are_the_reference(tmp_path: Path) -> None:
    """All captions are half about women, those of neutral words are a quarter."""
    lists = (load(name).words for name in ("placebo-nouns", "placebo-adjectives"))
    neutral = [word.text for words in lists for word in words][:25]
    captions = [f"a {who} and the {word}" for word in neutral
                for who in ("man", "man", "man", "woman") for _ in range(8)]  # fmt: skip
    captions += ["a woman"] * 400
    captions += [f"a {who} and the nurse" for who in ("man", "woman") for _ in range(60)]
    run = audit_captions(table(tmp_path / "c.parquet", captions), words=["nurse"])
    assert run.meta["neutral"]["noun"] == 25
    row = only(run, concept="nurse", metric="lift", experiment="noun", group="female")
    assert row["value"] == pytest.approx(math.log(24.5 / 8.5))
    assert {row["concept"] for row in run.table.to_pylist()} == {"nurse"}
    assert set(run.instances["captions"]["concept"].to_pylist()) == {"nurse"}
