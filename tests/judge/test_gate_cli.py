"""`tiltmeter compare` from end to end, its Markdown, and the plugin for pytest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import tiltmeter as tm
from tests.conftest import brought_embeddings
from tiltmeter.cli.app import app
from tiltmeter.errors import InputError, TiltmeterError, UnknownNameError

pytest_plugins = ["pytester"]
RUNNER = CliRunner()
FEW = ["--swaps", "199", "--bootstraps", "99"]


def call(*given: str, code: int = 0) -> str:
    result = RUNNER.invoke(app, list(given), env={"COLUMNS": "100"})
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Two saved audits; the second leans more to women for the first word."""
    root = tmp_path_factory.mktemp("runs")
    for name, lean in (("before", 0.3), ("after", 2.5)):
        spec = f"embeddings:{brought_embeddings(root / name / 'vectors', lean=lean)}"
        tm.audit(spec, k=[20], permutations=0, bootstraps=0).save(root / f"run-{name}")
    return str(root / "run-before"), str(root / "run-after")


def test_exit_codes(places: tuple[str, str]) -> None:
    before, after = places
    said = call("compare", before, after, *FEW)  # tells, and judges nothing
    assert "paired image by image" in said
    assert "gender*age" in said
    assert "Failed" not in said
    said = call("compare", before, after, "--fail-on", "worse", *FEW, code=1)
    assert "gender is worse" in said
    assert "thing 0" in said
    assert "Passed." in call("compare", after, before, "--fail-on", "worse", *FEW)
    said = call("compare", after, before, "--max", "max_skew@20[gender] < 0.001", *FEW, code=1)
    assert "max_skew@20[gender] < 0.001: it is" in said
    assert "Passed." in call("compare", before, after, "--margin", "9", "--fail-on", "worse", *FEW)


def test_wrong_questions(places: tuple[str, str]) -> None:
    """All of these are exit code 2, which `main` makes of a TiltmeterError."""
    for given, error in (
        (["--max", "max_skew < "], InputError),
        (["--max", "max_skw@20[gender] < 1"], UnknownNameError),
        (["--fail-on", "wurst"], UnknownNameError),
        (["--margin", "-1"], InputError),
        (["--swaps", "2"], InputError),
    ):
        with pytest.raises(error):
            call("compare", *places, *given)
    with pytest.raises(TiltmeterError, match="is not a run"):
        call("compare", places[0], "nowhere")


def test_json(places: tuple[str, str]) -> None:
    told = json.loads(call("compare", *places, "--fail-on", "worse", "--json", *FEW, code=1))
    assert told["paired"] is True
    assert told["passed"] is False
    assert told["reasons"][0].startswith("gender is worse")
    assert told["counts"]["worse"] >= len(told["worse"]) > 0
    assert sum(told["counts"].values()) == told["tests"]


def test_markdown(places: tuple[str, str], tmp_path: Path) -> None:
    page = call("compare", *places, "--fail-on", "worse", "--markdown", "-", *FEW, code=1)
    assert page.startswith("### Tiltmeter: ")
    assert "**Failed:**" in page
    assert "gender\\*age" in page  # a star is no emphasis
    tables = [line for line in page.splitlines() if line.startswith("|")]
    columns = 0
    for line in tables:  # every row of a table has as many cells as its head
        cells = line.replace("\\|", "").count("|")
        if columns and "---" not in line and cells != columns:
            assert line.startswith(("| over", "| single", "| by")), line
        columns = cells
    assert "**worse**" in page
    assert page.count("<details>") == page.count("</details>") >= 1
    said = call("compare", *places, "--markdown", str(tmp_path / "page.md"), *FEW)
    assert "over all words" in said
    assert "| over all words |" in (tmp_path / "page.md").read_text()


def test_leace_on_shape_is_caught_at_hue(tmp_path: Path) -> None:
    """The correction does what it promises for shape, and the gate sees what it did to hue."""
    pytest.importorskip("torch")
    fair, data = str(tmp_path / "fair"), "testbed:?images={}&seed={}"
    call("debias", "leace", "testbed:dual", "--attribute", "shape", "--out", fair,
         "--images", data.format(1000, 1), "--device", "cpu")  # fmt: skip
    neutral = tmp_path / "neutral.csv"  # a few are enough here
    neutral.write_text("word,pos,category\ncubic,adjective,x\nconical,adjective,x\n")
    for name, model in (("before", "testbed:dual"), ("after", fair)):
        call("audit", model, "--images", data.format(1000, 0), "--probe", "ranking", "--out",
             str(tmp_path / name), "--k", "50", "--k", "200", "--placebo", str(neutral),
             "--permutations", "0", "--bootstraps", "0", "--device", "cpu")  # fmt: skip
    runs = str(tmp_path / "before"), str(tmp_path / "after")
    told = json.loads(call("compare", *runs, "--fail-on", "worse", "--json", *FEW, code=1))
    overall = {row["attribute"]: row for row in told["overall"]
               if row["metric"] == "mean_abs_c_asc" and "group" not in row}  # fmt: skip
    assert set(overall) == {"shape", "hue", "shape*hue"}  # the crossing although nobody asked
    assert overall["shape"]["before"] > 0.8  # it was there
    assert overall["shape"]["after"] < 0.15
    assert overall["shape"]["verdict"] == "better"
    assert overall["hue"]["before"] == pytest.approx(0.74, abs=0.03)
    assert overall["hue"]["after"] == pytest.approx(0.90, abs=0.03)
    assert overall["hue"]["verdict"] == "worse"
    assert any(reason.startswith("hue is worse: mean |C-ASC|") for reason in told["reasons"])


PLUGIN = "tiltmeter.pytest_plugin"


def test_the_plugin_tells_why(pytester: pytest.Pytester, places: tuple[str, str]) -> None:
    before, after = places
    pytester.makepyfile(
        f"""
        FEW = {{"swaps": 199, "bootstraps": 99}}

        def test_worse(tiltmeter_run):
            assert tiltmeter_run({after!r}).gate({before!r}, **FEW)

        def test_better(tiltmeter_run):
            assert tiltmeter_run({before!r}).gate({after!r}, **FEW)

        def test_limit(tiltmeter_run):
            assert tiltmeter_run({after!r}).gate(max=["max_skew@20[gender] < 0.001"])

        def test_shut_gates_that_are_expected_tell_nothing(tiltmeter_run):
            assert not tiltmeter_run({after!r}).gate({before!r}, **FEW)

        def test_other():
            assert False
        """
    )
    installed = _installed()
    result = pytester.runpytest_inprocess(*([] if installed else ["-p", PLUGIN]))
    result.assert_outcomes(passed=2, failed=3)
    said = result.stdout.str()
    assert said.count("tiltmeter gate") == 2  # once for each gate that failed its test
    result.stdout.fnmatch_lines(["*gender is worse: *thing 0*"])
    result.stdout.fnmatch_lines(["*over all words*"])
    result.stdout.fnmatch_lines(["*max_skew@20[[]gender[]] < 0.001: it is *"])


def _installed() -> bool:
    """Whether the entry point is known; an older editable install has it not."""
    from importlib.metadata import entry_points

    return any(one.value == PLUGIN for one in entry_points(group="pytest11"))
