"""What users name is text wherever it is shown: in the terminal, in Markdown, in messages."""

from __future__ import annotations

import csv
import io
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.pages.report.making import HOSTILE, hostile_answers, hostile_run, lifted
from tiltmeter.cli import app as cli
from tiltmeter.pages.columns import INTERVAL
from tiltmeter.pages.model import Column, table
from tiltmeter.pages.terminal import run as show_run
from tiltmeter.pages.terminal.audit_summary import closing
from tiltmeter.pages.terminal.layout import console_of, show
from tiltmeter.pages.text import TURNING
from tiltmeter.results import Run, combined, rows

#: What moves a cursor, colours a terminal or turns the direction of what follows.
WILD = re.compile(f"[\x00-\x08\x0b-\x1f\x7f-\x9f{''.join(TURNING)}]")
LONG = "x" * 400  # of a label that has 10,000


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two saved audits of labels as the world writes them, and worse; the second leans more."""
    home = tmp_path_factory.mktemp("hostile")
    runs = {name: hostile_run(home / name / "v", lean=lean)
            for name, lean in (("before", 0.2), ("after", 2.5))}  # fmt: skip
    return runs["before"].save(home / "run-before"), runs["after"].save(home / "run-after")


def said(*given: object, code: int = 0) -> str:
    done = CliRunner().invoke(cli.app, [str(one) for one in given], env={"COLUMNS": "100"})
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code == code, done.output
    return done.output


def is_text(shown: str) -> None:
    assert WILD.findall(shown) == []
    assert LONG not in shown.replace("\n", "").replace(" ", "")


def test_the_labels_are_as_bad_as_they_should_be(places: tuple[Path, Path]) -> None:
    kept = "".join(str(row["concept"]) for row in Run.load(places[0]).where(metric="c_asc"))
    assert {"\x1b", "\u202e"} <= set(WILD.findall(kept))
    assert LONG in kept
    assert HOSTILE[0] in kept


def test_an_audit_in_the_terminal(
    places: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run.load(places[1])
    show_run(run)
    closing(run, places[1], None)
    shown = capsys.readouterr().out
    is_text(shown)
    assert "<script>document" in shown  # as it was written


@pytest.mark.parametrize("command", ["words", "card", "bundle", "verify"])
def test_other_commands(command: str, places: tuple[Path, Path], tmp_path: Path) -> None:
    given: tuple[object, ...] = (places[1],)
    if command in ("bundle", "verify"):
        bundle = tmp_path / "b.tiltmeter.zip"
        shown = said("bundle", places[1], "--out", bundle)
        given = (bundle,)
    if command != "bundle":
        shown = said(command, *given)
    is_text(shown)
    if command == "card":
        prose = re.sub(r"^(`{3,})sh\n.*?^\1$", "", shown, flags=re.S | re.M)
        assert "<script" not in prose.replace("\\<script", "")


def test_what_a_model_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Answers of a generative model are as untrusted as labels: terminal, page, tables, card."""
    run = hostile_answers(tmp_path / "images")
    written = "".join(row["pick"] for row in run.instances["silence"].to_pylist())
    assert {"\x1b", "\u202e"} <= set(WILD.findall(written))
    place = run.save(tmp_path / "run")
    show_run(run)
    closing(run, place, None)
    shown = capsys.readouterr().out
    is_text(shown)
    is_text(said("card", place))
    said("report", place, "--out", tmp_path / "r.html", "--tables", tmp_path / "t")
    page = (tmp_path / "r.html").read_text()
    assert "&lt;script&gt;document.title=&#39;owned&#39;&lt;/script&gt; a nurse" in page
    assert "<script>document" not in page
    is_text(page)
    tables = {file.name: file.read_text() for file in (tmp_path / "t").iterdir()}
    assert any("nurse" in content for content in tables.values())
    for name, content in tables.items():
        assert WILD.findall(content) == []  # whole answers, but nothing that acts
        if name.endswith(".csv"):
            cells = [cell for line in csv.reader(content.splitlines()) for cell in line]
            assert not [cell for cell in cells if cell.startswith(("=", "@", "+"))]
        if name.endswith(".md"):
            assert "<script" not in content


def test_a_gate_in_the_terminal_and_as_markdown(places: tuple[Path, Path]) -> None:
    asked = ("compare", *places, "--bootstraps", "99", "--fail-on", "worse")
    shown = said(*asked)
    is_text(shown)
    assert "<script>document" in shown
    page = said(*asked, "--markdown", "-")
    is_text(page)
    assert "&lt;script&gt;document" in page
    assert "<" not in re.sub(r"</?(details|summary)>", "", page)  # no tag but our own
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    assert len(rows) > 10
    widths = {len(re.split(r"(?<!\\)\|", line)) for line in rows}
    assert widths == {7, 9}  # of the tables' heads: a bar in a label makes no cell


def test_messages(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["tiltmeter", "report", "no\x1b[31m\u202erun"])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 2
    told = capsys.readouterr().err
    assert "[31m" in told
    assert WILD.findall(told) == []


def test_harms_come_first_with_their_group_and_rate(capsys: pytest.CaptureFixture[str]) -> None:
    same = {"probe": "harms", "model": "m", "dataset": "d", "attribute": "age", "n": 1000}
    kinds = [("ape", [0.1, 0.8, 0.3], 0.001), ("thief", [0.1, 0.1, 0.2], 0.4)]
    tables = [
        rows(3, **same, metric="group_rates", group=["0-2", "3-9", "10-19"], category=name,
             target=name, value=rates, n_group=[500, 52, 448])
        for name, rates, _ in kinds
    ] + [
        rows(1, **same, metric="gaps", category=name, target=name, value=[np.ptp(rates)], p_fwer=p,
             null_high=0.04)
        for name, rates, p in kinds
    ] + [
        rows(1, **same, metric="gaps", category=name, target=name, value=[np.ptp(rates)], p_fwer=p,
             null_high=0.04, experiment="random visible splits")
        for name, rates, p in kinds
    ]  # fmt: skip
    run = Run(combined([*tables, lifted("age", ["0-2", "3-9", "10-19"])]))
    closing(run, Path("run"), None)
    shown = capsys.readouterr().out
    assert "80.0% of images of 3-9 (age) are classified as “ape”. Clearly biased by age." in shown
    assert shown.index("“ape” for 80.0% of 3-9, 10.0% of 0-2") < shown.index("Words, by age")
    assert "thief" not in shown  # not beyond chance


def test_no_range_is_cut() -> None:
    """A range that is cut looks like another one: names are folded instead."""
    row = {"name": "a name of several words", "value": -12.345, "ci_low": -12.345, "ci_high": 1.5}
    values = [Column(f"a measure {at}", "value", "value") for at in range(4)]
    shown = table("caption", [row], ("name", "the name of it"), *values, INTERVAL)
    console = console_of(width=80, file=io.StringIO())
    show(shown, console=console)
    assert "-12.345…1.500" in console.file.getvalue()
