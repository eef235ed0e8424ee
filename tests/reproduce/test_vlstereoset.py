"""The recipe of VLStereoSet in the built-in world: its sentences tell the biased model apart."""

from __future__ import annotations

from pathlib import Path

from tiltmeter.papers.published import published
from tiltmeter.reproduce.runner import reproduce


def test_every_sentence_tells_the_biased_model_from_its_fair_twin(tmp_path: Path) -> None:
    page = reproduce(
        "vlstereoset", out=tmp_path / "page", permutations=199, bootstraps=50,
        data={"triplets": "testbed:triplets?images=120&cells=0"},
    )  # fmt: skip
    sections = {section.title.partition(".")[0]: section for section in page.sections}
    verdicts = [note for note in sections["Table 3"].notes if "vlbs excess" in note]
    assert len(verdicts) == 4  # two models by two readings
    for note in verdicts:
        fair = note.startswith("testbed:fusion-fair")
        assert ("no sign that the stereotype" in note) == fair, note
    scores = sections["Table 3"].tables[0]
    assert scores.rows[0]["model"] == "IDM"
    assert {row["model"] for row in scores.rows} >= {"BIM", "RAM", "testbed:fusion"}
    assert {row["category"] for row in sections["Table 4"].tables[0].rows} == {"shape", "shape*hue"}
    [words, image] = sections["Figure 4"].figures
    assert "shape, selected" in words.title
    assert "picked it (selected" in image.caption
    [images, *_] = sections["Table 1"].tables
    assert {row["category"]: row["n"] for row in images.rows}["all"] == 120


def test_all_printed_scores_are_there() -> None:
    values = published("zhou2022")
    assert len(values) == 18 + 72
    for one in values:  # ivlas is the harmonic mean of the printed vlrs and 100 - vlbs
        if one.metric == "ivlas":
            same = {
                v.metric: v.value
                for v in values
                if (v.model, v.table, v.category) == (one.model, one.table, one.category)
            }
            vlrs, other = same["vlrs"], 100 - same["vlbs"]
            assert abs(2 * vlrs * other / (vlrs + other) - one.value) < 0.02
