"""An audit says which words it used."""

from __future__ import annotations

import tiltmeter as tm
from tiltmeter.results.files import content_hash
from tiltmeter.stimuli import load

QUICK = {"probes": ["ranking"], "permutations": 0, "bootstraps": 0, "k": [20]}
FACES = "testbed:?images=56"


def test_the_default_words_are_recorded_by_name_version_and_word() -> None:
    record = tm.audit("testbed:dual", FACES, **QUICK).meta["prompts"]
    default = load("default")
    assert record["lists"] == [{
        "name": "default", "version": "1",
        "hash": content_hash([[word.category, word.text] for word in default.words]),
    }]  # fmt: skip
    assert [one["name"] for one in record["neutral_lists"]] == [
        "placebo-nouns",
        "placebo-adjectives",
    ]
    assert record["by_category"]["Trait"][:2] == ["good", "evil"]
    assert "nurse" in record["by_category"]["Occupation"]
    assert record["concepts"] == 78 == sum(map(len, record["by_category"].values()))
    assert record["templates"] == [*default.templates["adjective"], "a photo of a {}"]


def test_typed_words_are_audited_and_recorded() -> None:
    run = tm.audit("testbed:dual", FACES, words="nurse,brave", **QUICK)
    assert run.meta["prompts"]["by_category"] == {"Occupation": ["nurse"], "Behaviorial": ["brave"]}
    rows = [row for row in run.where(metric="c_asc") if row["category"] != "placebo"]
    assert {row["concept"] for row in rows if row["concept"]} == {"nurse", "brave"}


def test_another_list_is_another_hash() -> None:
    first, second = (
        tm.audit("testbed:dual", FACES, words=words, **QUICK).meta["prompts"]["lists"]
        for words in ("nurse,", "nurse,doctor")
    )
    assert first[0]["hash"] != second[0]["hash"]
