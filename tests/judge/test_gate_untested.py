"""A gate never passes on nothing: where no test could be made, it says so and stays shut."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import tiltmeter as tm
from tests.conftest import brought_embeddings
from tests.judge.test_gate_cli import FEW, PLUGIN, _installed, call
from tiltmeter.judge.gate import Comparison, compare, gate
from tiltmeter.pages.sections.change import change
from tiltmeter.results import RESULTS, Run, rows

pytest_plugins = ["pytester"]
UNTESTED = "only results of counterfactual"


@pytest.fixture(scope="module")
def untestable(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Two saved audits by the probe counterfactual alone, which compare does not judge."""
    pytest.importorskip("torch")
    root = tmp_path_factory.mktemp("counterfactual")
    options = {"images": 14, "templates": "The {g} is [MASK]", "softmax": "candidates"}
    for name in ("before", "after"):
        tm.audit("testbed:fusion", "testbed:?images=28", probes=["counterfactual"],
                 options={"counterfactual": options}, permutations=0, bootstraps=20,
                 ).save(root / name)  # fmt: skip
    return str(root / "before"), str(root / "after")


@pytest.mark.parametrize("asked", [[], ["--fail-on", "worse"]])
def test_nothing_tested_is_exit_code_3(untestable: tuple[str, str], asked: list[str]) -> None:
    said = " ".join(call("compare", *untestable, *asked, code=3).split())
    assert (
        f"Nothing was tested: the two runs share no result that compare can test, {UNTESTED}"
        in said
    )
    assert "(--probe ranking)" in said  # what to do
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
    kept, broken = ["--max", "flip_rate <= 1"], ["--max", "flip_rate < 0.5"]
    assert "Passed by its limits alone." in call("compare", *untestable, *kept)
    call("compare", *untestable, *kept, "--fail-on", "worse", code=3)
    said = call("compare", *untestable, *broken, "--fail-on", "worse", code=1)
    assert "flip_rate < 0.5: it is 1.000" in said
    assert "  nothing was tested: " in said


def test_in_python(untestable: tuple[str, str]) -> None:
    before, after = map(Run.load, untestable)
    found = compare(before, after)
    assert found.table.num_rows > 100  # there is much to compare, and nothing to test
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


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same images; the words of the second have other names."""
    root = tmp_path_factory.mktemp("words")
    first, second = (brought_embeddings(root / name / "d") for name in ("first", "second"))
    texts = second / "texts.csv"
    texts.write_text(texts.read_text().replace("thing ", "item "))
    return first, second


@pytest.fixture(scope="module")
def runs(places: tuple[Path, Path]) -> tuple[Run, Run]:
    first, second = (
        tm.audit(f"embeddings:{place}", k=[20], permutations=0, bootstraps=50) for place in places
    )
    return first, second


def bare(run: Run, **columns: float | None) -> Run:
    """A run without vectors, some columns of numbers overwritten."""
    table = run.table
    for name, value in columns.items():
        at = RESULTS.get_field_index(name)
        table = table.set_column(at, RESULTS.field(name), pa.array([value] * len(table), "double"))
    return Run(table, run.meta)


def test_no_words_in_common(runs: tuple[Run, Run]) -> None:
    """Means over other words are other figures, with intervals or without."""
    assert "share no words" in shut(*runs)
    assert "share no words" in shut(*map(bare, runs))
    # with some words in common those are tested, and no means
    first, second = map(bare, runs)
    words = pa.concat_tables([second.table, pa.Table.from_pylist(
        first.where(concept="thing 0"), schema=RESULTS)])  # fmt: skip
    found = compare(first, Run(words, second.meta))
    assert set(found.tests["concept"].to_pylist()) == {"thing 0"}
    # and with the same words both
    assert set(compare(first, first).tests["concept"].to_pylist()) > {"thing 0", None}


def test_no_intervals(runs: tuple[Run, Run]) -> None:
    without = bare(runs[0], ci_low=None, ci_high=None)
    said = shut(without, without)
    assert "no confidence intervals" in said
    assert "it has no embeddings" in said
    assert "--bootstraps 400" in said


def test_too_few_images_in_common(runs: tuple[Run, Run]) -> None:
    run = runs[0]
    faces = run.vectors["faces"]
    rows_of = [faces["label gender"].to_pylist().index(name) for name in ("man", "woman")]
    few = {**run.vectors, "faces": faces.take(rows_of)}
    assert "no attribute has two groups of at least 2 images" in shut(
        run, Run(run.table, run.meta, {}, few)
    )


def test_undefined_results() -> None:
    """All values null with a note, or all NaN in a table that was not made by an audit."""

    def one(value: float, note: str | None = None) -> pa.Table:
        return rows(2, probe="zero_shot", metric="accuracy", dataset=["d", "e"], k=1, ideal=1.0,
                    value=[value] * 2, note=note, ci_low=0.4, ci_high=0.6, n=9)  # fmt: skip

    undefined = Run(one(float("nan"), "one class"))
    assert shut(Run(one(0.5)), undefined) == (
        "all 2 results that compare tests are undefined in one of the runs (one class)"
    )
    at = RESULTS.get_field_index("value")
    nan = Run(one(0.5).set_column(at, RESULTS.field("value"), pa.array(np.full(2, np.nan))))
    assert shut(Run(one(0.5)), nan) == "all 2 tests are undefined"


def shut(before: Run, after: Run) -> str:
    """Why nothing was tested, as the gate says too."""
    found = compare(before, after, swaps=19, bootstraps=39)
    decided = gate(after, found)
    assert not decided.passed
    assert found.tested == 0
    assert found.untested is not None
    assert decided.reasons == (f"nothing was tested: {found.untested}",)
    return found.untested


def test_probes_that_were_not_tested_are_named(runs: tuple[Run, Run], tmp_path: Path) -> None:
    other = rows(1, probe="eat", metric="weat", value=[0.5], ideal=0.0)
    both = Run(pa.concat_tables([runs[0].table, other]), runs[0].meta)
    assert compare(both, both).skipped == ["eat"]
    saved = str(both.save(tmp_path / "run"))
    assert "Not tested: results of eat." in call("compare", saved, saved)
    assert json.loads(call("compare", saved, saved, "--json"))["skipped"] == ["eat"]


# --- no evidence is not the same -----------------------------------------------------------------


def test_all_tests_that_cannot_tell_pass_and_say_so(
    places: tuple[Path, Path], tmp_path: Path
) -> None:
    saved = str(
        tm.audit(f"embeddings:{places[0]}", k=[20], permutations=0, bootstraps=0)
        .save(tmp_path / "run")
    )  # fmt: skip
    said = " ".join(call("compare", saved, saved, "--fail-on", "worse", *FEW).split())
    assert "tests cannot tell: none finds a change, and none rules one out." in said
    assert said.endswith("Passed.")
    told = json.loads(call("compare", saved, saved, "--json", *FEW))
    assert told["tests"] == told["counts"]["no evidence"] > 0
    assert told["untested"] is None
    assert told["passed"] is None  # nobody asked
    said = call("compare", saved, saved, "--margin", "1", *FEW)
    assert "cannot tell: none" not in said  # now they rule it out
