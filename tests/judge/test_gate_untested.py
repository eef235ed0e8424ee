"""A gate never passes on nothing: where no test could be made, it says so and stays shut."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import tiltmeter as tm
from tests.judge.making import audited
from tests.judge.test_gate_cli import PLUGIN, _installed, call
from tiltmeter.judge.gate import Comparison, compare, gate
from tiltmeter.pages.sections.change import change
from tiltmeter.results import RESULTS, Run, rows

pytest_plugins = ["pytester"]
UNTESTED = "association: the run before did not measure lift"


@pytest.fixture(scope="module")
def untestable(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Two saved audits by the probe eat alone, which compare does not judge."""
    pytest.importorskip("torch")
    root = tmp_path_factory.mktemp("eat")
    for name in ("before", "after"):
        tm.audit("testbed:dual", "testbed:?images=28", probes=["eat"], permutations=0,
                 bootstraps=20).save(root / name)  # fmt: skip
    return str(root / "before"), str(root / "after")


@pytest.mark.parametrize("asked", [[], ["--fail-on", "worse"]])
def test_nothing_tested_is_exit_code_3(untestable: tuple[str, str], asked: list[str]) -> None:
    said = " ".join(call("compare", *untestable, *asked, code=3).split())
    assert f"Nothing was tested: {UNTESTED}" in said
    assert "retrieval: not measured in both runs (--probe ranking)" in said  # what to do
    assert said.endswith("Not passed: nothing was tested.")
    assert "0 tests" not in said
    page = call("compare", *untestable, *asked, "--markdown", "-", code=3)
    assert "**Not passed: nothing was tested.**" in page
    assert UNTESTED in page
    told = json.loads(call("compare", *untestable, *asked, "--json", code=3))
    assert (told["tests"], told["passed"]) == (0, False)
    assert UNTESTED in told["untested"]
    assert told["reasons"] == [f"nothing was tested: {told['untested']}"]


def test_limits_where_nothing_else_is_tested(untestable: tuple[str, str]) -> None:
    """Limits are tested on their own; they do not stand in for a comparison that was asked for."""
    kept, broken = ["--max", "weat <= 2"], ["--max", "weat < 0.5"]
    assert "Passed by its limits alone." in call("compare", *untestable, *kept)
    call("compare", *untestable, *kept, "--fail-on", "worse", code=3)
    said = call("compare", *untestable, *broken, "--fail-on", "worse", code=1)
    assert "weat < 0.5: it is 1." in said
    assert "  nothing was tested: " in said


def test_in_python(untestable: tuple[str, str]) -> None:
    before, after = map(Run.load, untestable)
    found = compare(before, after)
    assert found.table.num_rows > 20  # there is much to compare, and nothing to test
    assert found.tested == 0
    for how in ({}, {"fail_on": "never"}):
        shut = after.gate(before, **how)
        assert not shut.passed
        assert shut.untested
        assert shut.reasons == (f"nothing was tested: {found.untested}",)
    assert not gate(after, Comparison(found.table))  # made by hand
    [note] = change(before, after).notes
    assert f"Nothing was tested: {found.untested}"[:200] == note[:200]


def test_the_plugin_fails_a_test_that_tested_nothing(
    pytester: pytest.Pytester, untestable: tuple[str, str]
) -> None:
    before, after = untestable
    pytester.makepyfile(
        f"""
        def test_gate(tiltmeter_run):
            assert tiltmeter_run({after!r}).gate({before!r})
        """
    )
    result = pytester.runpytest_inprocess(*([] if _installed() else ["-p", PLUGIN]))
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*tiltmeter gate*", "Nothing was tested: *", "Not passed: *"])


# --- why -----------------------------------------------------------------------------------------


def renamed(run: Run) -> Run:
    """The same run with other words."""

    def other(table: pa.Table) -> pa.Table:
        columns = {}
        for name in table.column_names:
            column = table[name]
            if name in ("text", "concept"):
                column = pa.array([x and x.replace("thing", "item") for x in column.to_pylist()])
            columns[name] = column
        return pa.table(columns, schema=table.schema)

    vectors = {name: other(table) for name, table in run.vectors.items()}
    return Run(other(run.table), run.meta, {}, vectors)


def bare(run: Run, **columns: float | None) -> Run:
    """A run without embeddings, some columns of numbers overwritten."""
    table = run.table
    for name, value in columns.items():
        at = RESULTS.get_field_index(name)
        table = table.set_column(at, RESULTS.field(name), pa.array([value] * len(table), "double"))
    return Run(table, run.meta)


def reasons(before: Run, after: Run) -> dict[str, str]:
    """Why nothing was tested, as the gate says too."""
    found = compare(before, after, bootstraps=39)
    decided = gate(after, found)
    assert not decided.passed
    assert found.tested == 0
    assert decided.reasons == (f"nothing was tested: {found.untested}",)
    return dict(found.untested_questions)


def test_no_words_in_common() -> None:
    """Means over other words are other results, with intervals or without."""
    run = audited(bootstraps=39)
    why = reasons(run, renamed(run))
    assert "share no words" in why["association"]
    assert "share no words" in why["retrieval"]
    assert "share no words" in reasons(bare(run), bare(renamed(run)))["retrieval"]


def test_no_intervals() -> None:
    without = bare(audited(), ci_low=None, ci_high=None)
    why = reasons(without, without)
    assert "no confidence intervals" in why["retrieval"]
    assert "it has no embeddings" in why["retrieval"]
    assert "--bootstraps 400" in why["retrieval"]
    assert "--no-vectors" in why["association"]


def test_too_few_images_in_common() -> None:
    run = audited()
    faces = run.vectors["faces"]
    few = {**run.vectors, "faces": faces.take([0, 1])}
    why = reasons(run, Run(run.table, run.meta, {}, few))
    assert "no attribute has two groups" in why["association"]
    assert "no attribute has two groups of at least 2 images" in why["retrieval"]


def test_undefined_results() -> None:
    """All values null with a note, or all NaN in a table that was not made by an audit."""

    def one(value: float, note: str | None = None) -> pa.Table:
        return rows(2, probe="zero_shot", metric="accuracy", dataset=["d", "e"], k=1, ideal=1.0,
                    value=[value] * 2, note=note, ci_low=0.4, ci_high=0.6, n=9)  # fmt: skip

    undefined = Run(one(float("nan"), "one class"))
    assert reasons(Run(one(0.5)), undefined)["utility"] == (
        "all 2 results are undefined in one of the runs (one class)"
    )
    at = RESULTS.get_field_index("value")
    nan = Run(one(0.5).set_column(at, RESULTS.field("value"), pa.array(np.full(2, np.nan))))
    assert "utility" not in reasons(Run(one(0.5)), nan)  # tested, and undefined


def test_probes_that_were_not_tested_are_named(tmp_path: Path) -> None:
    other = rows(1, probe="eat", metric="weat", value=[0.5], ideal=0.0)
    run = audited()
    both = Run(pa.concat_tables([run.table, other]), run.meta, {}, run.vectors)
    assert compare(both, both).skipped == ["eat"]
    saved = str(both.save(tmp_path / "run"))
    assert "Not tested: eat (no test of compare applies)." in call("compare", saved, saved)
    assert json.loads(call("compare", saved, saved, "--json"))["skipped"] == ["eat"]


# --- no evidence is not the same -----------------------------------------------------------------


def test_all_tests_that_cannot_tell_pass_and_say_so(tmp_path: Path) -> None:
    place, few = str(audited().save(tmp_path / "run")), ("--bootstraps", "39")
    noisy = str(audited(size=8.0).save(tmp_path / "noisy"))
    said = call("compare", noisy, noisy, "--fail-on", "worse", "--margin", "0", *few)
    said = " ".join(said.split())
    assert "tests cannot tell: none finds a change, and none rules one out." in said
    assert said.endswith("Passed.")
    told = json.loads(call("compare", place, place, "--json", *few))
    counts = [told["questions"][name]["counts"] for name in ("association", "retrieval")]
    assert sum(one["no worse"] for one in counts) == told["tests"] > 0
    assert told["untested"] is None
    assert told["passed"] is None  # nobody asked


def test_words_of_one_run_alone_are_counted(tmp_path: Path) -> None:
    options = {"probes": ["ranking"], "k": [20], "permutations": 0, "bootstraps": 0}
    first, second = (
        tm.audit("testbed:dual", "testbed:?images=280", words=words, **options)
        for words in ("doctor,nurse", "doctor,pilot,chef")
    )
    found = compare(first, second)
    assert (found.words_in_both, found.words_left_out) == (1, 3)
    places = [str(run.save(tmp_path / name)) for name, run in (("a", first), ("b", second))]
    said = "Words compared: 1. Left out, since only one of the runs has them: 3."
    assert said in " ".join(call("compare", *places).split())
    assert "Words compared" not in call("compare", places[0], places[0])
