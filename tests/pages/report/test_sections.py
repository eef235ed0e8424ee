"""What the page shows of each probe, of several models, and of two runs."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import tiltmeter as tm
from tests.conftest import brought_embeddings
from tests.pages.report.making import lifted
from tests.random_clip import random_clip
from tiltmeter.judge.panel import panel
from tiltmeter.pages.html import page, page_of
from tiltmeter.pages.measured import facts
from tiltmeter.pages.model import Plot, Section
from tiltmeter.pages.plots import charts, drawing
from tiltmeter.pages.plots import scatter as clouds
from tiltmeter.pages.plots.drawing import ON_GROUPS, PALETTE, inline
from tiltmeter.pages.sections import change as change_section
from tiltmeter.pages.selection import beats
from tiltmeter.results import INSTANCES, Run, combined, rows

FEW = {"k": [20], "permutations": 99, "bootstraps": 40}


def section(run: Run, name: str) -> Section:
    return next(one for one in page_of(run).sections if one.name == f"section-{name}")


def draw(found: Section) -> str:
    """Its figures, each drawn once."""
    return "".join(str(inline(replace(figure, folded=True))) for figure in found.figures)


@pytest.fixture(scope="module")
def audited() -> Run:
    """Hidden words, captions and harms of a model whose tilt is known."""
    return tm.audit(
        "testbed:fusion",
        "testbed:?images=56",
        data={"triplets": "testbed:triplets?images=60&cells=0"},
        probes=["stereotype", "counterfactual", "harms"],
        permutations=99,
        bootstraps=40,
        options={"counterfactual": {"images": 12}},
    )


def test_caption_choice(audited: Run) -> None:
    found = section(audited, "stereotype")
    names = [figure.name for figure in found.figures]
    assert "figure-choices-matching" in names
    assert {"figure-shifts-lmss", "figure-shifts-vlss"} <= set(names)
    [row] = audited.where(metric="vlbs", experiment="matching", category=None)
    choices = next(figure for figure in found.figures if figure.name == "figure-choices-matching")
    assert f"vlbs: the stereotype {row['value']:.1f}" in choices.description
    assert row["truth"] is not None
    assert "Cross: a perfect model" in choices.caption  # the planted truth stands beside it
    assert draw(found).count("<svg") == len(found.figures)


def test_shift_scores_are_counted_as_they_are(audited: Run) -> None:
    table = audited.instances["stereotype"].to_pylist()
    mine = [r["score"] for r in table if r["concept"] == "lmss" and r["experiment"] == "matching"]
    above = sum(score > 0 for score in mine) / len(mine)
    shown = next(f for f in section(audited, "stereotype").figures if "lmss" in f.name)
    assert f"{above:.0%} above 0, n = {len(mine):,}" in shown.description


def test_hidden_words_by_quadrant(audited: Run) -> None:
    found = section(audited, "counterfactual")
    shown = next(f for f in found.figures if f.name.startswith("figure-quadrants"))
    experiment = "redrawn, vocabulary"
    seen, named = (
        {
            row["target"]: row["value"]
            for row in audited.where(metric=name, experiment=experiment, template=None)
        }
        for name in ("bias_V", "bias_L")
    )
    alike = sum(seen[word] * named[word] > 0 for word in seen)
    assert f"{alike} of {len(seen)} words" in shown.caption
    assert draw(found)


def test_no_harm_is_said_with_its_limit(audited: Run) -> None:
    found = section(audited, "harms")
    assert not found.figures
    high = max(r["ci_high"] for r in audited.where(probe="harms", metric="group_rates",
                                                   attribute="shape", target="crime"))  # fmt: skip
    assert any(f"{100 * high:.1f}%" in note for note in found.notes)


def test_harms_that_are_there_are_drawn() -> None:
    table = rows(
        2, probe="harms", metric="group_rates", model="m", dataset="d", attribute="race",
        group=["one", "other"], category="crime", target="crime", value=[0.1, 0.02], ideal=0.0,
        null_mean=0.06, null_low=0.03, null_high=0.09, ci_low=[0.07, 0.01], ci_high=[0.14, 0.04],
        p=0.001, n=1000, n_group=[400, 600],
    )  # fmt: skip
    gap = rows(1, probe="harms", metric="gaps", model="m", dataset="d", attribute="race",
               category="crime", target="crime", value=[0.08], ideal=0.0, null_high=0.03,
               ci_low=0.05, ci_high=0.11, p=0.001, p_fwer=0.001, n=1000)  # fmt: skip
    found = section(Run(pa.concat_tables([table, gap])), "harms")
    assert "one 10.0%; other 2.0%" in found.figures[0].description
    [finding] = found.findings
    assert finding.text == (
        "<bdi>one</bdi> is classified as <bdi>“crime”</bdi> in 10.0% of images, "
        "<bdi>other</bdi> in 2.0% (by <bdi>race</bdi>)."
    )
    assert finding.numbers.endswith("n = 400 and 600")
    assert "8.0%" in finding.numbers
    assert "5.0% to 11.0%" in found.findings[0].numbers
    assert draw(found)


def propagated() -> Run:
    rng = np.random.default_rng(0)
    tables = [
        rows(3, probe="propagation", metric="rho", model="m", dataset="d", experiment="1-a",
             attribute="race", group=["a", "b", "c"], value=[0.9, 0.8, 0.7], null_low=-0.1,
             null_high=0.2, null_mean=0.0, ci_low=0.6, ci_high=0.95, p=0.01, n=200),
        rows(1, probe="propagation", metric="rho_mean", model="m", experiment="1-a", value=[0.8],
             n=3),
        rows(3, probe="propagation", metric="intrinsic_z", model="m", dataset="d",
             experiment="1-a", group=["a", "b", "c"], value=[1.2, -0.9, -0.3], n=200),
        rows(1, probe="propagation", metric="extrinsic_difference", model="m", dataset="d",
             experiment="1-a", group="a", target="b", value=[0.3], ideal=0.0, ci_low=0.2,
             ci_high=0.4, p=0.001, p_fwer=0.004, n=200),
    ]  # fmt: skip
    kept = [
        {"model": "m", "dataset": "d", "experiment": f"1-a {what}", "concept": None,
         "template": None, "id": f"q{at}", "groups": [], "rank": None,
         "score": float(rng.normal()), "pick": None}
        for what in ("intrinsic", "extrinsic@25")
        for at in range(400)
    ]  # fmt: skip
    return Run(pa.concat_tables(tables), {}, {"propagation": pa.Table.from_pylist(kept, INSTANCES)})


def test_propagation() -> None:
    found = section(propagated(), "propagation")
    names = [figure.name for figure in found.figures]
    assert names == ["figure-propagation-rho", "figure-propagation-1-a", "figure-propagation-z-1-a"]
    assert "of 400, evenly spaced" in found.figures[1].caption
    assert "extrinsic mean valence of the top 25" in found.figures[1].caption
    assert "+0.300" in found.findings[0].numbers
    drawn = draw(found)
    assert drawn.count("<svg") == 3
    assert "extrinsic: mean valence of the top 25" in drawn


def propagation_row(experiment: str, metric: str, value: float) -> pa.Table:
    return rows(1, probe="propagation", metric=metric, model="m", dataset="d", k=500,
                experiment=experiment, group="Black | male", value=[value], ideal=0.0,
                target="White | female" if metric == "extrinsic_difference" else None,
                ci_low=value - 0.01, ci_high=value + 0.01, p=0.001, p_fwer=0.004, n=50)  # fmt: skip


@pytest.mark.parametrize(
    ("experiment", "metric", "says", "unit"),
    [
        ("1-a", "extrinsic_difference", "words retrieved for images of", "mean valence of"),
        ("1-b", "extrinsic_difference", "images retrieved for phrases that", "mean valence of"),
        ("2-a (rest)", "extrinsic_lean", "Pleasant images retrieve more", "share of the group in"),
        ("2-b", "extrinsic_lean", "Pleasant words retrieve more", "share of the group in"),
    ],
)
def test_a_share_of_the_top_k_is_not_called_pleasantness(
    experiment: str, metric: str, says: str, unit: str
) -> None:
    found = section(Run(propagation_row(experiment, metric, 0.062)), "propagation")
    [finding] = found.findings
    assert says in finding.text
    assert ("more pleasant than those for" in finding.text) == experiment.startswith("1")
    assert unit in finding.numbers
    assert "the top 500: difference +0.062" in finding.numbers
    assert unit in found.tables[0].cells()[0][2]
    [turned] = section(Run(propagation_row(experiment, metric, -0.062)), "propagation").findings
    assert turned.text != finding.text


def test_a_difference_that_a_fair_model_shows_too_is_no_finding() -> None:
    run = Run(propagation_row("2-b", "extrinsic_difference", 0.117))
    assert section(run, "propagation").findings == []


def test_sizes_in_different_units_are_not_ranked_against_each_other() -> None:
    """A share of .3 does not come before a valence of .02; of one unit the larger comes first."""
    lean, difference = "extrinsic_lean", "extrinsic_difference"
    given = [("2-b", lean, 0.3), ("2-b", lean, 0.4), ("1-a", difference, 0.02),
             ("1-b", difference, 0.01)]  # fmt: skip
    run = Run(pa.concat_tables([propagation_row(*one) for one in given]))
    for findings in (section(run, "propagation").findings, page_of(run).summary.tested):
        sizes = [finding.numbers.partition("difference ")[2][:6] for finding in findings]
        assert sizes == ["+0.400", "+0.020", "+0.300", "+0.010"]


def test_all_experiments_of_all_models_are_one_section_with_one_chart() -> None:
    table = pa.concat_tables(
        rows(1, probe="propagation", metric="rho", model=model, dataset=data, experiment=name,
             value=[0.5], n=9, k=5)
        for model in ("m", "o")
        for name, data in (("1*-a", "oasis+words"), ("2*-a", "faces"), ("1-a", "faces+words"))
    )  # fmt: skip
    found = [one for one in page_of(Run(table)).sections if "propagation" in one.name]
    [together] = found
    [chart] = together.figures
    assert chart.title == "Rho in 6 analyses"
    assert "2*-a · o: mean +0.50 of 1" in chart.description
    assert [len(one.rows) for one in together.tables] == [6, 6]
    assert draw(together)


def test_the_report_tells_how_often_labels_were_permuted() -> None:
    made = propagated()
    meta = {"arguments": {"given": {"permutations": 719}, "defaulted": {"bootstraps": 400}}}
    found = section(Run(made.table, meta, made.instances), "propagation")
    assert "permuted 719 times" in found.figures[0].caption
    assert ("permutations", "719 of the labels, 400 bootstrap resamples") in facts(
        Run(made.table, meta)
    )


def test_association_tests() -> None:
    table = rows(2, probe="eat", metric="weat", model="m", experiment="WEAT text-text, caliskan",
                 category=["flowers", "names"], group="roses against <ants>",
                 target="nice against nasty", value=[1.2, float("nan")], null_low=-0.5,
                 null_high=0.5, ci_low=[0.8, None],
                 ci_high=[1.6, None], p=0.001, p_fwer=[0.002, None], n=50,
                 note=[None, "too few"])  # fmt: skip
    found = section(Run(table), "eat")
    assert "flowers: roses against <ants> +1.20" in found.figures[0].description
    [finding] = found.findings
    assert "<bdi>Roses</bdi> are nearer to <bdi>nice</bdi>, <bdi>&lt;ants&gt;</bdi>" in finding.text
    away = rows(1, **{**table.to_pylist()[0], "value": [-1.2]})
    [turned] = section(Run(away), "eat").findings
    assert "<bdi>Roses</bdi> are nearer to <bdi>nasty</bdi>" in turned.text
    assert found.tables[0].cells()[1][-1] == "too few"
    assert draw(found)


def runs(home: Path, lean: float = 1.5) -> Run:
    place = brought_embeddings(home, lean=lean)
    return tm.audit(f"embeddings:{place}", probes=["ranking"], **FEW)  # type: ignore[arg-type]


def test_before_and_after() -> None:
    """A biased model and its fair twin: the page says what became better, and the way back."""
    few: dict[str, Any] = {"bootstraps": 9, "options": {"lift": {"splits": 5}}}
    biased, fair = (
        tm.audit(f"testbed:dual{twin}", "testbed:?images=280", probes=["lift"], **few)
        for twin in ("", "?twin=fair")
    )
    found = page_of(fair, before=biased)
    change = found.sections[0]
    assert change.title == "Before and after"
    assert all("nothing tested" in note for note in change.notes)  # images are paired
    [better] = [one.text for one in found.summary.changed if "Association" in one.text]
    assert better == "Association: better by shape, by hue and by shape*hue."
    assert "figure-arrows-shape" in [figure.name for figure in change.figures]
    assert draw(change)
    back = page_of(biased, before=fair)
    [worse] = [one.text for one in back.summary.changed if "Association" in one.text]
    assert "worse" in worse.replace("no worse", ""), worse


def test_arrows_show_each_word_once_the_largest_change_first() -> None:
    changes = [("nurse", "a", 0.9), ("nurse", "b", 0.8), ("cook", "c", 0.1), ("judge", "a", 0.5),
               ("judge", "b", 0.01)]  # fmt: skip
    words = [{"concept": word, "group": group, "before": 1.0, "after": 1.0 - by, "difference": -by,
              "excess": -by} for word, group, by in changes]  # fmt: skip
    plot = change_section._arrows("hue", words)
    assert plot.description == (
        "Lift before and after: nurse · a from 2.72x to 1.11x; judge · a from 2.72x to 1.65x; "
        "cook · c from 2.72x to 2.46x."
    )
    assert not plot.folded
    assert change_section._arrows("hue", words[-1:]).folded  # nothing changed by 1.1x


def test_the_front_joins_what_nothing_beats() -> None:
    points = [{"x": 0.5, "y": 0.1, "text": "a"}, {"x": 0.7, "y": 0.2, "text": "b"},
              {"x": 0.6, "y": 0.4, "text": "beaten"}]  # fmt: skip
    chart = clouds.front(points, "recall", "MaxSkew")
    joined = [tuple(one.values()) for one in chart.layer[0].data.values]
    assert joined == [(0.7, 0.2), (0.5, 0.1)]


@given(st.lists(st.tuples(st.integers(-7, 6), st.integers(6, 24), st.text("ailmw+-", min_size=3,
                max_size=16)), min_size=2, max_size=14))  # fmt: skip
@settings(max_examples=12)
def test_names_along_the_front_do_not_meet(drawn: list[tuple[int, int, str]]) -> None:
    """In the drawing, read back: neither each other, nor a point that is not theirs."""
    points = [{"x": x, "y": y / 100, "text": name} for x, y, name in drawn]
    svg = drawing.svg(Plot("f", "", "", "", partial(clouds.front, points, "lost", "bias")))
    place = r'transform="translate\(([-\d.]+),([-\d.]+)\)"'
    front = svg[svg.index("mark-symbol") :]  # axes are drawn before
    dots = [(float(x), float(y)) for x, y in re.findall(rf"<path {place}", front)]
    assert len(dots) == len(points)
    names = re.findall(rf'<text text-anchor="(\w+)" {place}[^>]*>([^<]+)<', front)
    assert names
    # the baseline is 4 pixels below the middle of a letter; thin letters take 2.7, others 6
    sizes = [sum(2.7 if one in "il" else 4 if one == "-" else 6 for one in name)
             for *_, name in names]  # fmt: skip
    start = {"start": 0, "middle": 0.5, "end": 1}
    boxes = [(float(x) - start[side] * wide, float(y) - 9, wide, 10)
             for (side, x, y, _), wide in zip(names, sizes, strict=True)]  # fmt: skip
    boxes += [(x - 5, y - 5, 10, 10) for x, y in set(dots)]
    for at, (x, y, wide, high) in enumerate(boxes[: len(names)]):
        for other in boxes[at + 1 :]:
            apart = x + wide <= other[0] or other[0] + other[2] <= x
            assert apart or y + high <= other[1] or other[1] + other[3] <= y, (names, dots)


def test_the_front_of_many_corrections() -> None:
    names = ["none", "leace", "clip-clip keep=400"]
    tables = [
        rows(3, probe="frontier", model="m", dataset="d", split="test", experiment=names,
             metric="max_skew", attribute="gender", k=100, value=[0.5, 0.2, 0.3], ideal=0.0,
             ci_low=0.1, ci_high=0.6, null_low=0.05, null_high=0.1, null_mean=0.07, n=500),
        rows(3, probe="frontier", model="m", split="test", experiment=names, metric="recall@5",
             value=[0.7, 0.65, 0.6], ideal=1.0, n=500),
    ]  # fmt: skip
    other = pa.table({"method": names})  # the candidates' own table has columns of its own
    found = section(Run(pa.concat_tables(tables), {}, {"frontier": other}), "frontier")
    assert [one.name for one in found.figures] == [
        "figure-front-max-skew-d-gender", "figure-candidates-d-gender"]  # fmt: skip
    assert "leace: utility 0.650, bias 0.200" in found.figures[0].description
    assert draw(found).count("<svg") == 2


def test_several_models(tmp_path: Path) -> None:
    both = [runs(tmp_path / name, lean) for name, lean in (("one", 1.5), ("other", 0.5))]
    found = page_of(panel(both))
    titles = [one.title for one in found.sections]
    assert titles[0] == "Several models together"
    assert sum(title.startswith("Rankings and C-ASC: ") for title in titles) == 2
    assert "data-tools" in page.html(found)


def test_the_colours_can_be_told_apart() -> None:
    """By lightness too, for who sees no colours: the verdicts, and the ends of the heat map."""

    def light(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))

    def contrast(one: str, other: str) -> float:
        high, low = sorted((light(one), light(other)), reverse=True)
        return (high + 0.05) / (low + 0.05)

    for at in (0, 1):
        paper = PALETTE["paper"][at]
        for name in ("ink", "muted", "accent", "warm"):
            assert contrast(PALETTE[name][at], paper) >= 4.5, name
        for name in ("muted", "ink"):
            assert contrast(PALETTE[name][at], PALETTE["surface"][at]) >= 4.5
        for step in range(1, 10):
            on = "paper" if step in (1, 9) else "ink"
            assert contrast(PALETTE[on][at], PALETTE[f"heat-{step}"][at]) >= 4.5, step
        for step, on in enumerate(ON_GROUPS, 1):
            assert contrast(on, PALETTE[f"group-{step}"][at]) >= 4.5, step
    assert len({pair[0] for pair in PALETTE.values()}) == len(PALETTE)  # names can be put for them


def test_a_figure_that_is_shown_at_once_has_a_drawing_for_a_phone() -> None:
    rows_ = [{"value": 0.1 * at, "ci_low": 0.0, "ci_high": 0.5} for at in range(3)]
    labels = ["short", "a label that is too long for one line of a phone", '"quoted" \\ label']
    plot = charts.line_plot("f", "t", "c", rows_, labels, "an axis title as long as this", most=60)
    wide, narrow = re.findall(r"<svg.*?</svg>", str(inline(plot)), re.DOTALL)
    widths = [int(re.findall(r'viewBox="0 0 (\d+) ', one)[0]) for one in (wide, narrow)]
    assert widths[0] == drawing.WIDTH
    assert widths[1] < 0.65 * drawing.WIDTH
    assert "too long for one line of a phone<" in wide  # in two lines on the phone
    assert "too long for one line of a phone<" not in narrow
    assert "an axis title" not in narrow.partition("</desc>")[2]  # the caption has it
    assert str(inline(replace(plot, folded=True))).count("<svg") == 1


def test_a_drawing_on_the_page_has_no_colours_of_its_own() -> None:
    row = {"value": 1.0, "ci_low": 0.5, "ci_high": 1.5, "null_low": -0.1, "null_high": 0.1}
    point = charts.point({**row, "ideal": 0.0, "verdict": "associated"}, "word")
    drawn = str(inline(Plot("f", "t", "c", "d", lambda: charts.lines([point], "x"))))
    assert "var(--accent)" in drawn
    assert not re.findall(r'(?:fill|stroke)="#', drawn)
    alone = drawing.svg(Plot("f", "t", "c", "d", lambda: charts.lines([point], "x")))
    assert PALETTE["accent"][0] in alone
    assert "var(" not in alone


def test_text_is_drawn_in_pixels_whatever_fonts_a_machine_has() -> None:
    """Without a font that is there, text is not drawn at all, and nobody is told."""
    drawn = []
    for label in ("one", "a longer name of the same mark"):
        point = charts.point({"value": 1.0, "ideal": 0.0}, label)
        plot = Plot("f", "t", "c", "d", partial(charts.lines, [point], "x"))
        pixels = np.asarray(Image.open(io.BytesIO(drawing.png(plot))).convert("L"))
        drawn.append(int((pixels < 100).sum()))
        assert "sans-serif" in drawing.svg(plot)
    assert drawn[1] > drawn[0] + 200


def test_a_run_without_draws_has_a_page_and_establishes_nothing(tmp_path: Path) -> None:
    place = brought_embeddings(tmp_path / "brought")
    run = tm.audit(f"embeddings:{place}", probes=["ranking"], k=[20], permutations=0, bootstraps=0)
    made = page_of(run)
    assert made.summary.lift == made.summary.tested == []
    assert made.summary.verdicts == {}
    assert "nothing in this run was tested against chance" in made.summary.sentence
    assert draw(section(run, "ranking"))


def test_a_p_value_of_zero_is_small() -> None:
    assert beats({"p_fwer": 0.0})
    assert not beats({"p_fwer": None})
    assert not beats({"p_fwer": 0.051})


def test_utility_and_chance(tmp_path: Path) -> None:
    """A real run: pictures of a folder as classes and, with a file of COCO's form, as captions."""
    from PIL import Image

    told: dict[str, list[dict[str, object]]] = {"images": [], "annotations": []}
    (tmp_path / "all").mkdir()
    for at in range(24):
        name = ("red", "green", "blue")[at % 3]
        (tmp_path / "classes" / name).mkdir(parents=True, exist_ok=True)
        picture = Image.new("RGB", (64, 64), (10 * at, 255 - 10 * at, 128))
        picture.save(tmp_path / f"classes/{name}/{at}.png")
        picture.save(tmp_path / f"all/{at}.png")
        told["images"].append({"id": at, "file_name": f"{at}.png"})
        told["annotations"].append({"id": at, "image_id": at, "caption": f"a {name} thing"})
    (tmp_path / "captions.json").write_text(json.dumps(told))
    run = tm.audit(
        f"hf:{random_clip(tmp_path / 'clip')}",
        data={"utility": f"imagefolder:{tmp_path / 'classes'}",
              "captions": f"coco:{tmp_path / 'captions.json'}?images={tmp_path / 'all'}"},
        probes=["retrieval", "zero_shot"],
    )  # fmt: skip
    found = page_of(run)
    [utility] = found.sections  # both probes in one section
    assert utility.title == "Utility"
    assert [table.caption for table in utility.tables] == [
        "Results of retrieval", "Results of zero-shot classification"]  # fmt: skip
    assert "Tick: by chance" in found.figures[0].caption
    assert draw(utility).count("<svg") == 2
    assert "captions, 24 items" in page.html(found)


@pytest.mark.parametrize(("verdict", "folded"), [("clear", False), ("none found", True)])
def test_ranks_are_shown_first_only_where_words_are_associated(verdict: str, folded: bool) -> None:
    """A fair model fills the top with one group too: a chart of that is no first thing to see."""
    same = {"probe": "ranking", "model": "m", "dataset": "d", "attribute": "shape", "n": 200,
            "category": "Trait", "concept": "kind"}  # fmt: skip
    shares = rows(2, **same, metric="composition", group=["round", "square"], value=[1.0, 0.0],
                  n_group=100, k=100, ideal=0.5, null_low=0.4, null_high=0.6)  # fmt: skip
    words = lifted("shape", ["round", "square"], verdict=verdict)
    made = section(Run(combined([shares, words])), "ranking")
    assert [one.folded for one in made.figures] == [folded]
    assert any("however small" in note for note in made.notes) is folded
