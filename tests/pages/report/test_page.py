"""The page: complete, self-contained, the same each time, and labels stay labels."""

from __future__ import annotations

import csv
import io
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

import tiltmeter as tm
from tests.conftest import brought_embeddings
from tests.pages.report.making import HOSTILE, hostile_run
from tiltmeter.errors import MissingError
from tiltmeter.metrics.convention import get_convention
from tiltmeter.pages import text
from tiltmeter.pages.html import page, page_of, write
from tiltmeter.pages.model import Plot
from tiltmeter.pages.plots import drawing
from tiltmeter.pages.sections import SECTIONS
from tiltmeter.papers.published import published
from tiltmeter.probes import PROBES
from tiltmeter.results import RESULTS, Run, combined, rows
from tiltmeter.stats.power import smallest_effect

#: Elements that end by themselves.
VOID = {"meta", "link", "input", "br", "img", "path", "line", "rect"}


class Reader(HTMLParser):
    """What a browser would make of the page: elements, ids, and whether tags close in order."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(content)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One word of six leans to women, by construction; the others to nobody."""
    place = brought_embeddings(tmp_path_factory.mktemp("report") / "brought")
    return tm.audit(
        f"embeddings:{place}", k=[20], cross=["gender*age"], permutations=199, bootstraps=50
    )


@pytest.fixture(scope="module")
def content(run: Run) -> str:
    return page.html(page_of(run))


def test_the_page_is_well_made(content: str) -> None:
    read = Reader(content)
    assert read.open == []
    ids = [a["id"] for _, a in read.elements if "id" in a]
    assert len(ids) == len(set(ids))
    targets = [a["href"] for a in read.of("a")]
    assert targets
    assert all(str(target).removeprefix("#") in ids for target in targets)
    for _, attributes in read.elements:
        for name in ("aria-labelledby", "aria-describedby"):
            if name in attributes:
                assert attributes[name] in ids


def test_nothing_is_asked_of_any_host(content: str) -> None:
    read = Reader(content)
    for tag, attributes in read.elements:
        assert tag not in ("iframe", "object", "embed", "img", "audio", "video")
        assert not attributes.get("src")
        for name in ("href", "xlink:href"):
            assert not (attributes.get(name) or "").startswith(("http", "//"))
    assert "@import" not in content
    assert not re.search(r"url\((?!#)", content)
    policy = next(a for a in read.of("meta") if a.get("http-equiv"))
    assert "default-src 'none'" in str(policy["content"])


def test_every_figure_of_the_run_is_drawn_and_described(run: Run, content: str) -> None:
    made = page_of(run)
    assert {one.name for one in made.figures} >= {
        "figure-associations-gender", "figure-categories-gender", "figure-top-gender",
        "figure-intersection-gender-age", "figure-associations-age",
    }  # fmt: skip
    drawn = [a for a in Reader(content).of("svg")
             if a.get("role") == "img" and a.get("class") != "narrow"]  # fmt: skip
    assert len(drawn) == len(made.figures)
    for figure in made.figures:
        assert len(figure.description) > 30
        assert figure.caption


def test_without_a_scale_no_word_is_judged_and_the_reason_is_said(run: Run) -> None:
    """C-ASC finds what was planted; its table has it with its p-values, and no verdict."""
    made = page_of(run)
    assert made.summary.tested == []
    assert all("states no scale" in one.numbers for one in made.summary.lift)
    assert "Words were not judged by gender" in text.plain(made.summary.sentence)
    table = next(one for one in made.tables if one.name == "table-c-asc-gender")
    first = table.rows[0]
    assert (first["concept"], first["group"], first["p_fwer"] < 0.05) == ("thing 0", "woman", True)
    assert first["n_group"] == 120


def test_what_could_be_seen_is_what_the_theory_says(run: Run) -> None:
    """The smallest effect, from the sizes of the groups and the number of words."""
    table = page_of(run).summary.power
    assert table is not None
    mine = {row["group"]: row for row in table.rows if row["attribute"] == "gender"}
    assert {name: row["n"] for name, row in mine.items()} == {"man": 120, "woman": 120}
    assert mine["man"]["one"] == pytest.approx(smallest_effect([120, 120])[0])
    assert mine["man"]["many"] == pytest.approx(smallest_effect([120, 120], tests=6)[0])


def test_every_row_of_a_table_has_its_interval_null_and_n(run: Run) -> None:
    table = next(t for t in page_of(run).tables if t.name == "table-c-asc-gender")
    heads = [column.head for column in table.columns]
    assert {"value", "95% interval", "by chance", "n", "p adjusted"} <= set(heads)
    for cells in table.cells():
        shown = dict(zip(heads, cells, strict=True))
        assert text.NONE not in (shown["95% interval"], shown["by chance"], shown["n"])


def test_the_same_run_gives_the_same_bytes(run: Run, content: str) -> None:
    assert page.html(page_of(run)) == content


def test_another_process_gives_the_same_bytes(run: Run, tmp_path: Path) -> None:
    """What was drawn before leaves no trace: one process draws the page twice."""
    run.save(tmp_path / "run")
    code = (
        "import sys; from tiltmeter.results import Run; from tiltmeter.pages.html import write;"
        "run = Run.load(sys.argv[1]); write(run, sys.argv[2] + '/a.html');"
        "write(run, sys.argv[2] + '/b.html')"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path / "run", tmp_path], check=True)
    write(run, tmp_path / "c.html")
    a, b, c = ((tmp_path / f"{name}.html").read_bytes() for name in "abc")
    assert a == b == c


def test_figures_and_tables_as_files(run: Run, tmp_path: Path) -> None:
    write(run, tmp_path / "r.html", figures=tmp_path / "f", tables=tmp_path / "t")
    made = page_of(run)
    for figure in made.figures:
        drawn = ElementTree.fromstring((tmp_path / f"f/{figure.name}.svg").read_text())
        assert drawn.tag.endswith("svg")
        assert (tmp_path / f"f/{figure.name}.png").read_bytes().startswith(b"\x89PNG")
    for table in made.tables:
        listed = list(csv.DictReader(io.StringIO((tmp_path / f"t/{table.name}.csv").read_text())))
        assert len(listed) == len(table.rows)
        for row, told in zip(table.rows, listed, strict=True):
            if told.get("value"):
                assert float(told["value"]) == row["value"]  # all digits
        lines = (tmp_path / f"t/{table.name}.md").read_text().splitlines()
        assert len(lines) == len(table.rows) + 4
        assert {line.count(" | ") for line in lines[2:]} == {len(table.columns) - 1}


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return hostile_run(tmp_path_factory.mktemp("hostile") / "vectors")


def test_hostile_labels_are_text(hostile: Run, tmp_path: Path) -> None:
    labels = {row["group"] for row in hostile.where(metric="c_asc")}
    assert any("<script>" in str(label) for label in labels)  # they came as far as the results
    write(hostile, tmp_path / "r.html", tables=tmp_path / "t")
    content = (tmp_path / "r.html").read_text()
    read = Reader(content)
    assert read.open == []
    assert len(read.of("script")) == 1
    assert not read.of("img")
    assert not read.of("b")
    assert not any(name.startswith("on") for _, a in read.elements for name in a)
    told = "".join(read.texts)
    assert "<script>document.title='owned'</script>" in told
    assert "{{7*7}}" in told
    assert "👩🏽‍🚀" in told
    assert "שלום" in told
    assert "\u202e" not in content
    assert "\x1b" not in content
    assert "x" * 1000 not in content
    for figure in page_of(hostile).figures:
        drawn = ElementTree.fromstring(drawing.svg(figure))
        assert not [one for one in drawn.iter() if one.tag.rpartition("}")[2] in ("script", "b")]
    for file in (tmp_path / "t").glob("*.csv"):
        for cells in csv.reader(io.StringIO(file.read_text())):
            assert not [c for c in cells if c.startswith(("=", "@"))]
    for file in (tmp_path / "t").glob("*.md"):
        assert "<script" not in file.read_text()


@pytest.mark.parametrize("label", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_label_in_a_drawing_is_its_text(label: str) -> None:
    from tiltmeter.pages.plots import charts

    name = charts.distinct([label, label])
    assert len(set(name)) == 2
    points = [charts.point({"value": 1.0, "ci_low": 0.5, "ci_high": 1.5}, one) for one in name]
    figure = Plot("f", label, label, label, lambda: charts.lines(points, "x"))
    inline = str(drawing.inline(figure)).replace("\x00", "").replace("\x1b", "")
    drawn = ElementTree.fromstring(f"<figure>{inline}</figure>")
    texts = [one.text for one in drawn.iter() if one.tag == "text"]
    assert name[0] in texts or any(str(one).endswith("…") for one in texts)


def test_a_run_of_very_many_rows_stays_small() -> None:
    """100,000 rows; the page shows the first ones and says how many there are."""
    many = 100_000
    table = rows(
        many, probe="mine", metric="gap", model="m", dataset="d",
        concept=[f"a word that is rather long, number {at}" for at in range(many)],
        group=["one", "other"] * (many // 2), value=[at / many for at in range(many)], ideal=0.0,
        ci_low=0.1, ci_high=0.2, p=0.5, n=10, note="something to be said of each of them",
    )  # fmt: skip
    content = page.html(page_of(Run(table)))
    assert len(content.encode()) < 5_000_000
    assert f"of {many:,} rows; all are in results.parquet" in content


def test_a_page_that_would_be_too_large_shows_fewer_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = [rows(300, probe=f"mine {at}", metric="gap", concept=[f"w{i}" for i in range(300)],
                   value=[0.5] * 300, note="x" * 100) for at in range(8)]  # fmt: skip
    run = Run(combined(tables))
    whole = page.html(page_of(run))
    assert "of 300 rows" not in whole
    monkeypatch.setattr(page, "LARGEST", len(whole.encode()) // 3)
    less = page.html(page_of(run))
    assert len(less.encode()) <= len(whole.encode()) // 3
    assert re.search(r"The first \d+ of 300 rows", less)


def test_undefined_is_a_dash_with_its_reason() -> None:
    table = rows(1, probe="mine", metric="gap", value=[float("nan")], note="one group only")
    content = page.html(page_of(Run(table)))
    assert "one group only" in content
    assert f'<td class="n">{text.NONE}</td>' in content


def test_an_empty_run_has_a_page_too() -> None:
    content = page.html(page_of(Run(RESULTS.empty_table())))
    assert "No verdict: nothing in this run was tested against chance." in content


def test_without_the_packages_for_figures_the_tables_are_there(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drawing, "missing", lambda: ["altair"])
    monkeypatch.setitem(sys.modules, "altair", None)
    content = page.html(page_of(run))
    assert "Plots are left out: they need altair" in content
    assert content.count("<table") >= 5
    with pytest.raises(MissingError, match="altair"):
        write(run, tmp_path / "x.html", figures=tmp_path / "f")
    assert not (tmp_path / "f").exists()


def test_every_probe_has_a_section() -> None:
    assert set(PROBES) <= set(SECTIONS)
    for name in SECTIONS:
        assert callable(SECTIONS[name])


def test_the_page_has_no_date_but_the_runs_own(run: Run, content: str) -> None:
    time = run.meta["environment"]["time"]
    assert f'<time datetime="{time[:10]}">' in content
    assert re.findall(r"<time[^>]*>", content) == [f'<time datetime="{time[:10]}">']


def test_the_page_says_that_labels_are_perceived(content: str) -> None:
    assert "perceived labels" in content


def test_a_published_figure_of_the_same_model_and_data_stands_beside() -> None:
    [printed] = [
        one for one in published("berg2022")
        if (one.table, one.model, one.metric) == ("2", "clip-vit-b16", "max_skew")
    ]  # fmt: skip
    table = rows(
        1, probe="ranking", metric="max_skew", model="openai/clip-vit-base-patch16",
        dataset="fairface-val", attribute=printed.attribute, k=printed.k, value=[0.231], ideal=0.0,
        ci_low=0.2, ci_high=0.26, n=10324, convention=printed.convention,
    )  # fmt: skip
    name = "openai/clip-vit-base-patch16"
    meta = {"model": {"name": name, "spec": f"hf:{name}"},
            "data": {"faces": {"name": "fairface-val", "images": 10954}},
            "convention": get_convention("berg2022").as_dict(),
            "arguments": {"given": {"words": "berg"}}}  # fmt: skip
    made = page_of(Run(table, meta))
    assert any("Table 2): published .233, measured .231" in line for line in made.published)
    assert "Published results" in page.html(made)
    [shown] = [one for one in made.tables if one.name.startswith("table-rankings")]
    assert "published" in [column.head for column in shown.columns]
    other = page_of(Run(table, {**meta, "model": {"name": name, "spec": "hf:mine"}}))
    assert other.published == []
    assert not any("published" in [c.head for c in one.columns] for one in other.tables)
