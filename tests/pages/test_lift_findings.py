"""Lift in words: each verdict has its sentence, and no other measure uses its words."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml

from tests.pages.report.making import HOSTILE, lifted
from tiltmeter.pages import text
from tiltmeter.pages.html import page, page_of
from tiltmeter.pages.lift_findings import chance, finding, lift_classes
from tiltmeter.pages.plots.drawing import inline
from tiltmeter.pages.terminal.audit_summary import closing
from tiltmeter.results import Run, combined, rows
from tiltmeter.sharing.card import card
from tiltmeter.sharing.trackers import metrics

GENDER, RACE = ["Female", "Male"], ["Black", "Indian", "White"]


def said(table: object) -> list[tuple[str, str]]:
    found = [finding(one) for one in lift_classes(Run(table).table.to_pylist())]
    return [(text.plain(one.text), one.numbers) for one in found]


@pytest.mark.parametrize(
    ("verdict", "words", "sentence"),
    [
        ("clear", ["associated"] * 2, "gender (nouns): clear: 2 of 2 nouns are associated "
         "(false discoveries: at most 10%), more than random visible differences "
         "between these images give; size 1.49x (1.22x to 1.82x)."),
        ("weak", ["cannot tell", "associated"], "gender (nouns): weak: 1 of 2 nouns is associated "
         "(false discoveries: at most 10%), but no more than other visible differences "
         "between these images; size 1.49x (1.22x to 1.82x)."),
        ("none found", ["no larger"] * 2, "gender (nouns): none found: 2 of 2 nouns are no larger "
         "than 1.25x."),
        ("cannot tell", ["no larger", "cannot tell"], "gender (nouns): cannot tell: none of 2 "
         "nouns is associated, and 1 of 2 nouns is no larger than 1.25x."),
    ],
)  # fmt: skip
def test_the_sentence_of_each_verdict(verdict: str, words: list[str], sentence: str) -> None:
    [(told, basis)] = said(lifted("gender", GENDER, experiment="noun", verdict=verdict, of=words))
    assert told == sentence
    assert (
        "Largest: scores carpenter 0.36x as high with Female as with Male (neutral person nouns "
        "0.60x to 1.70x)." in basis
    )
    assert "Random visible splits of these images: up to 1.11x in 95% of them." in basis


def test_more_groups_protocols_and_classes() -> None:
    [(told, basis)] = said(lifted("race", RACE, experiment="contrastive: adjective"))
    assert told.startswith("race (adjectives): clear")
    assert "as high with Black as with the other groups (neutral adjectives" in basis
    [(told, basis)] = said(lifted("gender", GENDER, experiment="masked: activity"))
    assert told.startswith("gender (masked activities): clear")
    assert "finds carpenter 0.36x as likely with Female as with Male (neutral activities" in basis


def test_what_was_not_judged_says_why() -> None:
    why = "no neutral words of this part of speech in these templates"
    table = rows(1, probe="lift", metric="lift", model="m", dataset="d", experiment="verb",
                 attribute="gender", note=why)  # fmt: skip
    assert said(table) == [("gender: not judged.", f"{why.capitalize()}.")]
    [one] = lift_classes(table.to_pylist())
    assert why in chance(one)
    made = page_of(Run(table))
    assert text.plain(made.summary.sentence) == "Words were not judged by gender."
    assert why in page.html(made)


def test_chance_is_beside_the_count() -> None:
    [one] = lift_classes(lifted("gender", GENDER, experiment="noun").to_pylist())
    assert chance(one) == (
        "gender (nouns): 2 of 2 nouns have p < .05 among neutral person nouns; 0.1 are expected "
        "by chance (judged by 400 neutral words)."
    )


def test_two_models_are_told_apart() -> None:
    tables = [lifted("gender", GENDER, model=name) for name in ("one", "other")]
    names = [one.name for one in lift_classes(combined(tables).to_pylist())]
    assert names == ["one: gender", "other: gender"]


def test_lift_leads_and_only_it_says_associated() -> None:
    word = rows(2, probe="ranking", metric="c_asc", model="m", dataset="d", attribute="gender",
                group=GENDER, concept="nurse", value=[2.2, -2.2], ideal=0.0, ci_low=[2.0, -2.4],
                ci_high=[2.4, -2.0], null_low=-0.1, null_high=0.1, p=0.002, p_fwer=0.002,
                p_placebo=0.007, verdict="beyond neutral words", n=100, n_group=50)  # fmt: skip
    skew = rows(1, probe="ranking", metric="max_skew", model="m", dataset="d", attribute="gender",
                k=100, value=[1.0], ideal=0.0, null_mean=0.1, null_low=0.0, null_high=0.2,
                ci_low=0.8, ci_high=1.2, p=0.001, p_fwer=0.001, n=100)  # fmt: skip
    made = page_of(Run(combined([word, skew])))
    assert made.summary.lift == made.summary.tested == []
    assert made.summary.verdicts == {}
    assert all("verdict" not in [column.head for column in one.columns] for one in made.tables)
    fair = lifted("gender", GENDER, verdict="none found", of=["no larger"] * 2)
    made = page_of(Run(combined([word, skew, fair])))
    assert made.sections[0].name == "section-lift"
    assert text.plain(made.summary.sentence) == "No bias above 1.25x found by gender."
    assert made.summary.tested == []
    assert made.summary.verdicts == {"associated": 0, "cannot tell": 0, "no larger": 2}


def test_the_plot_is_in_ratios_and_never_zooms_into_noise() -> None:
    [figure] = page_of(Run(lifted("gender", GENDER))).figures
    assert "carpenter 0.36x, associated" in figure.description
    spec = figure.chart().to_dict()
    low, high = spec["layer"][0]["encoding"]["x"]["scale"]["domain"]
    assert low < 0.36
    assert high > 2
    assert ">1x<" in str(inline(figure))


def test_a_card_and_a_tracker_have_lift_first() -> None:
    run = Run(lifted("gender", GENDER, experiment="noun"))
    shown = card(run)
    assert "### Words and groups" in shown
    assert "2 of 2 nouns are associated" in shown
    [entry] = yaml.safe_load(shown.split("---")[1])["model-index"]
    [size, *_] = entry["results"][0]["metrics"]
    assert (size["type"], size["name"]) == ("lift_size", "lift size (nats), gender, noun")
    assert size["args"]["ratio"] == f"{np.exp(size['value']):.2f}x"  # as all other output has it
    assert next(iter(metrics(run))) == "d/gender/lift_size_noun"


@pytest.mark.parametrize("nats", [800.0, -800.0])
def test_a_ratio_of_any_size(nats: float) -> None:
    assert text.ratio(nats).endswith("x")


def test_labels_stay_labels(capsys: pytest.CaptureFixture[str]) -> None:
    run = Run(lifted(HOSTILE[0], [HOSTILE[1], HOSTILE[3]]))
    assert "<script>document" not in page.html(page_of(run))
    closing(run, Path("run"), None)
    shown = capsys.readouterr().out
    assert "<script>document" in shown  # as it was written
    assert not set(shown) & {"\x1b", "\u202e"}
