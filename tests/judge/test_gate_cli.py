"""`tiltmeter compare` from end to end, its Markdown, and the plugin for pytest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.command_line import tiltmeter
from tests.judge.making import audited
from tiltmeter.cli.app import app

pytest_plugins = ["pytester"]
RUNNER = CliRunner()
FEW = ["--bootstraps", "39"]


def call(*given: str, code: int = 0) -> str:
    result = RUNNER.invoke(app, list(given), env={"COLUMNS": "80"})
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Two saved audits; the second scores words more by gender."""
    root = tmp_path_factory.mktemp("runs")
    before, after = (audited(lean=lean).save(root / name)
                     for name, lean in (("before", 0.4), ("after", 2.0)))  # fmt: skip
    return str(before), str(after)


def test_exit_codes(places: tuple[str, str]) -> None:
    before, after = places
    said = call("compare", before, after, *FEW)  # tells, and judges nothing
    assert "240 images, paired." in said
    assert "gender*age" in said
    assert "Failed" not in said
    said = call("compare", before, after, "--fail-on", "worse", *FEW, code=1)
    assert "association by gender is worse: words" in said
    assert "retrieval by gender is worse: MaxSkew@20" in said
    assert "harms: nothing tested" in said
    said = call("compare", before, after, "--fail-on", "association", *FEW, code=1)
    assert "retrieval by gender is worse" not in said
    said = call("compare", before, after, "--fail-on", "harms", *FEW, code=3)
    assert said.endswith(
        "Not passed: harms was not tested: not measured in both runs (--probe harms).\n"
    )
    assert "Passed." in call("compare", after, before, "--fail-on", "worse", *FEW)
    assert "Passed." in call("compare", before, after, "--margin", "9", "--fail-on", "worse", *FEW)


def test_limits_on_lift_are_ratios(places: tuple[str, str]) -> None:
    before, after = places
    said = call("compare", after, before, "--max", "max_skew@20[gender] < 0.001", *FEW, code=1)
    assert "max_skew@20[gender] < 0.001: it is" in said
    assert "Passed." in call("compare", after, before, "--max", "lift[gender] < 3", *FEW)
    said = call("compare", before, after, "--max", "lift[gender] < 1.25", *FEW, code=1)
    [line] = [line for line in said.splitlines() if "lift[gender] < 1.25: it is" in line]
    assert "x for gender, " in line


def test_lines_fit_the_terminal(places: tuple[str, str]) -> None:
    """Reasons may be longer: they are not wrapped, so that they can be searched for."""
    said = tiltmeter("compare", *places, "--fail-on", "worse", *FEW).stdout
    body, _, _ = said.partition("Failed:")
    assert max(map(len, body.splitlines())) <= 80


def test_usage_errors(places: tuple[str, str]) -> None:
    for given, code in (
        (["--max", "max_skew < "], "bad-input"),
        (["--max", "lift[gender] < 0.9"], "bad-option"),
        (["--max", "max_skw@20[gender] < 1"], "unknown-name"),
        (["--fail-on", "wurst"], "unknown-name"),
        (["--margin", "-1"], "bad-option"),
        (["--bootstraps", "2"], "bad-option"),
    ):
        shown = tiltmeter("compare", *places, *given)
        assert shown.returncode == 2
        assert code in shown.stderr
    shown = tiltmeter("compare", places[0], "nowhere")
    assert (shown.returncode, "not a run" in shown.stderr) == (2, True)


def test_json(places: tuple[str, str]) -> None:
    told = json.loads(call("compare", *places, "--fail-on", "worse", "--json", *FEW, code=1))
    assert told["paired"] is True
    assert told["passed"] is False
    assert told["reasons"][0].startswith("association by gender is worse")
    questions = told["questions"]
    assert list(questions) == [
        "association", "retrieval", "harms", "utility", "stereotypes", "propagation",
        "refusals", "pronouns", "descriptions"]  # fmt: skip
    assert questions["association"]["verdict"] == questions["retrieval"]["verdict"] == "worse"
    assert questions["utility"]["verdict"] is None
    assert "not measured" in questions["utility"]["untested"]
    counted = [sum(one["counts"].values()) for one in questions.values()]
    assert sum(counted) == told["tests"]
    assert {"thing 0"} <= {row["concept"] for row in told["words"]}


def test_markdown(places: tuple[str, str], tmp_path: Path) -> None:
    page = call("compare", *places, "--fail-on", "worse", "--markdown", "-", *FEW, code=1)
    assert page.startswith("### Tiltmeter: ")
    assert "**Failed:**" in page
    assert "gender\\*age" in page  # a star is no emphasis
    assert "association: do words score higher with a group?" in page
    assert "harms: nothing tested" in page
    assert "**worse**" in page
    assert page.count("<details>") == page.count("</details>") == 4
    tables = [part.splitlines() for part in page.split("\n\n") if part.startswith("|")]
    for lines in tables:  # every row of a table has as many cells as its head
        assert len({line.replace("\\|", "").count("|") for line in lines}) == 1
    said = call("compare", *places, "--markdown", str(tmp_path / "page.md"), *FEW)
    assert "association: do words" in said
    assert "association: do words" in (tmp_path / "page.md").read_text()


def test_leace_on_shape(tmp_path: Path) -> None:
    """What hue is associated with stays; what is left of every ranking is hue: both are said."""
    pytest.importorskip("torch")
    fair, data = str(tmp_path / "fair"), "testbed:?images={}&seed={}"
    call("debias", "leace", "testbed:dual", "--attribute", "shape", "--out", fair,
         "--images", data.format(1000, 1), "--device", "cpu")  # fmt: skip
    neutral = tmp_path / "neutral.csv"  # a few are enough here
    neutral.write_text("word,pos,category\ncubic,adjective,x\nconical,adjective,x\n")
    for name, model in (("before", "testbed:dual"), ("after", fair)):
        call("audit", model, "--images", data.format(840, 0), "--probe", "ranking", "--probe",
             "lift", "--out", str(tmp_path / name), "--k", "210", "--placebo", str(neutral),
             "--option", "lift.splits=0", "--permutations", "0", "--bootstraps", "0",
             "--device", "cpu", "--no-report")  # fmt: skip
    runs = str(tmp_path / "before"), str(tmp_path / "after")
    told = json.loads(tiltmeter("compare", *runs, "--fail-on", "worse", "--json", *FEW).stdout)
    assert told["passed"] is False
    lift = {(row["attribute"], row.get("category")): row
            for row in told["questions"]["association"]["tests"]}  # fmt: skip
    assert lift["shape", None]["before"] > 0.5  # it was there
    assert lift["shape", None]["after"] < 0.1
    assert lift["shape", None]["verdict"] == "better"
    assert lift["hue", None]["verdict"] == lift["hue", "placebo"]["verdict"] == "no worse"
    skew = {row["attribute"]: row["verdict"] for row in told["questions"]["retrieval"]["tests"]}
    assert set(skew) == {"shape", "hue", "shape*hue"}  # the intersection although nobody asked
    assert (skew["shape"], skew["hue"]) == ("better", "worse")
    assert [line.partition(":")[0] for line in told["reasons"]] == ["retrieval by hue is worse"]


PLUGIN = "tiltmeter.pytest_plugin"


def test_the_plugin_tells_why(pytester: pytest.Pytester, places: tuple[str, str]) -> None:
    before, after = places
    pytester.makepyfile(
        f"""
        FEW = {{"bootstraps": 39}}

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
    result.stdout.fnmatch_lines(["*association by gender is worse: words *"])
    result.stdout.fnmatch_lines(["*retrieval: are groups over-represented*"])
    result.stdout.fnmatch_lines(["*max_skew@20[[]gender[]] < 0.001: it is *"])


def _installed() -> bool:
    """Whether the entry point is known; an older editable install has it not."""
    from importlib.metadata import entry_points

    return any(one.value == PLUGIN for one in entry_points(group="pytest11"))
