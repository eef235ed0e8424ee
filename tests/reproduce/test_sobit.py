"""The recipe of So-B-IT: captions as Table 3 and Figure 8, and the whole built-in world (slow)."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from tests.conftest import write_csv
from tiltmeter.corpus import audit_captions
from tiltmeter.pages.model import Plot, Table
from tiltmeter.pages.plots import drawing
from tiltmeter.reproduce.recipe import Parts
from tiltmeter.reproduce.runner import reproduce
from tiltmeter.reproduce.sobit import CAPTION_WORDS, PAPER
from tiltmeter.reproduce.study import Study


def laid_out(label: str, study: Study) -> Parts:
    [item] = [item for item in PAPER.items if item.label == label]
    assert item.layout is not None
    return item.layout(study)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Every word of Table 3 with `he` once, and `she` as often as its place."""
    rows = []
    for place, word in enumerate(CAPTION_WORDS, 1):
        pronouns = ["he", *["she"] * place]
        rows += [{"caption": f"{pronoun} is a {word} here {n}", "file_name": f"{word}-{n}.png"}
                 for n, pronoun in enumerate(pronouns)]  # fmt: skip
    write_csv(tmp_path / "captions.csv", rows)
    for row in rows:
        Image.new("RGB", (40, 60), (len(row["caption"]), 0, 0)).save(tmp_path / row["file_name"])
    return tmp_path / "captions.csv"


def study_of(corpus: Path, *, show_images: bool = False) -> Study:
    run = audit_captions(corpus)
    data = {"corpus": str(corpus)}
    return Study({"captions": {"": [run]}}, data, show_images=show_images)


def test_table_3_is_printed_whole(corpus: Path) -> None:
    table = next(part for part in laid_out("Table 3", study_of(corpus)) if isinstance(part, Table))
    assert [row["concept"] for row in table.rows] == list(CAPTION_WORDS)
    for place, row in enumerate(table.rows, 1):
        assert row["share female"] == pytest.approx(place / (place + 1))
        assert row["share male"] + row["share female"] == pytest.approx(1)
        assert row["n"] == place + 1
        assert row["p_fwer"] is not None
    assert [column.head for column in table.columns][:4] == ["word", "male", "female", "n"]


def test_images_are_shown_on_request_only(corpus: Path) -> None:
    hidden = laid_out("Figure 8", study_of(corpus))
    assert not any(isinstance(part, Plot) for part in hidden)
    assert any("--show-images" in part for part in hidden if isinstance(part, str))
    samples = next(part for part in hidden if isinstance(part, Table))
    assert all(row["image"].endswith(".png") for row in samples.rows)
    shown = laid_out("Figure 8", study_of(corpus, show_images=True))
    [sheet] = [part for part in shown if isinstance(part, Plot)]
    assert drawing.svg(sheet).count("<image") == len(samples.rows)
    for file in corpus.parent.glob("*.png"):
        file.unlink()
    absent = laid_out("Figure 8", study_of(corpus, show_images=True))
    assert any("not at hand" in part for part in absent if isinstance(part, str))


@pytest.mark.slow
def test_the_built_in_world_tells_the_twins_apart(tmp_path: Path) -> None:
    page = reproduce("sobit", out=tmp_path / "out", permutations=99, bootstraps=50)
    assert {label: made for label, made in page.made.items() if made != "yes"} == {
        "Figure 1": "Not made: a drawing: nothing is measured.",
        "Figure 2": "Not made: a drawing: nothing is measured.",
        "Figure 6": "in part (needs a training: pass --train)",
    }
    by_label = dict(zip(page.made, page.sections, strict=True))
    for label in ("Figure 3", "Figure 4"):
        rows = by_label[label].tables[0].rows
        biased, fair = (
            [row["ideal"] - row["value"] for row in rows if row["model"] == name]
            for name in ("testbed:dual", "testbed:dual-fair")
        )
        assert sum(biased) / len(biased) > 1.5 * sum(fair) / len(fair)
    biased_captions, _, fair_captions, _ = by_label["Table 3"].tables
    assert min(row["p_fwer"] for row in biased_captions.rows) < 0.01
    assert min(row["p_fwer"] for row in fair_captions.rows) > 0.01
    assert by_label["Figure 8"].figures
