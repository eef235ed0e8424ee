"""`tiltmeter report`, and the page that an audit ends with."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.command_line import FEW, tiltmeter
from tests.conftest import brought_embeddings
from tiltmeter.cli.app import app
from tiltmeter.results import Run

LITTLE = [one for one in FEW if one != "--no-report"]


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run with its page, and what the terminal said."""
    home = tmp_path_factory.mktemp("audited")
    brought_embeddings(home / "brought")
    done = tiltmeter("audit", "embeddings:brought", "--out", "run", *LITTLE, cwd=home)
    assert done.returncode == 0, done.stderr
    return home, done.stdout


def test_an_audit_ends_with_what_was_judged_and_the_path_of_its_page(
    audited: tuple[Path, str],
) -> None:
    home, said = audited
    lines = said.splitlines()
    assert lines[-1] == "Report: run/report.html"
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 40
    assert any(line.startswith("not judged") for line in lines)  # the embeddings have no scale
    assert not any(line.startswith("clear") for line in lines)
    assert b"<h1>" in (home / "run/report.html").read_bytes()


def test_report_makes_the_same_page_again(audited: tuple[Path, str]) -> None:
    home, _ = audited
    first = (home / "run/report.html").read_bytes()
    done = tiltmeter("report", "run", "--out", "again.html", "--tables", "t", cwd=home)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "Report: again.html\n"
    assert (home / "again.html").read_bytes() == first
    assert (home / "t/table-c-asc-gender.csv").exists()
    assert (home / "t/table-c-asc-gender.md").exists()


def test_what_is_no_report_is_left_as_it_is(audited: tuple[Path, str], tmp_path: Path) -> None:
    home, _ = audited
    mine = tmp_path / "mine.html"
    mine.write_text("<h1>Mine</h1>")
    for place, words in ((mine, "no report of tiltmeter"), (tmp_path, "is a directory")):
        done = tiltmeter("report", "run", "--out", place, cwd=home)
        assert done.returncode == 2
        assert words in done.stderr
    assert mine.read_text() == "<h1>Mine</h1>"
    done = tiltmeter("report", home / "brought")
    assert done.returncode == 2
    assert "is not a run" in done.stderr


def test_an_audit_without_the_packages_for_figures_ends_well(audited: tuple[Path, str]) -> None:
    home, _ = audited
    code = (
        "import sys; sys.modules['altair'] = sys.modules['vl_convert'] = None;"
        "sys.argv = ['tiltmeter', *sys.argv[1:]]; from tiltmeter.cli.app import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "audit", "embeddings:brought", "-a", "gender", "--out", "bare",
         "--json", *LITTLE],
        capture_output=True, text=True, cwd=home,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["report"] == "bare/report.html"
    page = (home / "bare/report.html").read_text()
    assert "Plots are left out: they need altair and vl_convert" in page
    assert "<svg viewBox" not in page.partition('id="section-ranking"')[2]


def test_an_audit_whose_page_cannot_be_made_fails_and_keeps_its_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*given: object) -> None:
        raise ValueError("the pens are dry")

    monkeypatch.setattr("tiltmeter.pages.html.write", broken)
    place = tmp_path / "run"
    asked = ["audit", "testbed:dual", "--images", "testbed:?images=28", "--probe", "zero_shot"]
    done = CliRunner().invoke(app, [*asked, "--out", str(place), "--quiet"])
    assert str(done.exception) == (
        f"no report was written: the pens are dry (the results are kept in {place})"
    )
    assert Run.load(place).rows


def test_importing_tiltmeter_draws_nothing() -> None:
    code = (
        "import sys, tiltmeter, tiltmeter.pages.html, tiltmeter.cli.app;"
        "print([m for m in ('altair', 'vl_convert', 'jinja2') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
