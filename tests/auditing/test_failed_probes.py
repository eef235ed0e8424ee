"""A probe that fails costs its own results, and no others."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import tiltmeter as tm
from tests.command_line import tiltmeter
from tests.conftest import brought_embeddings
from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.judge.bundle.pack import bundle
from tiltmeter.pages.html import write
from tiltmeter.probes import PROBES
from tiltmeter.probes.probe import CannotRunError
from tiltmeter.results import ProbeFailedError, Run
from tiltmeter.sharing.card import card

FEW = {"permutations": 20, "bootstraps": 20, "k": [20]}
DRAWS = ["--permutations", "20", "--bootstraps", "20", "--k", "20"]
TWO = ["--probe", "ranking", "--probe", "eat", *DRAWS]
WHY = "needs words that the model does not know"
#: A probe with a bug, and the command line that knows it.
BROKEN = """
import sys
from tiltmeter.cli.app import main
from tiltmeter.probes import PROBES
from tiltmeter.probes.probe import Probe

def run(model, data, setting):
    return 1 / 0

PROBE = Probe("Is broken.", run)

if __name__ == "__main__":
    PROBES.paths["broken"] = "broken:PROBE"
    main()
"""


@pytest.fixture(scope="module")
def brought(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"embeddings:{brought_embeddings(tmp_path_factory.mktemp('brought') / 'it')}"


def failed(spec: str, probes: Sequence[str]) -> ProbeFailedError:
    with pytest.raises(ProbeFailedError) as caught:
        tm.audit(spec, probes=probes, **FEW)
    return caught.value


@pytest.fixture(scope="module")
def partial(brought: str) -> Run:
    return failed(brought, ["ranking", "eat"]).run


def test_the_error_has_the_results_of_the_others(brought: str) -> None:
    error = failed(brought, ["ranking", "eat"])
    assert str(error).startswith(f"the probe eat failed: {WHY}")
    assert isinstance(error.__cause__, CannotRunError)
    assert list(error.run.meta["failed"]) == ["eat"]
    whole = tm.audit(brought, probes=["ranking"], **FEW)
    assert error.run.table.equals(whole.table)
    assert error.run.instances.keys() == whole.instances.keys() == {"ranking"}
    assert error.run.vectors.keys() == whole.vectors.keys()
    assert "failed" not in whole.meta


@pytest.mark.parametrize("probes", [["eat"], ["eat", "ranking"]])
def test_where_nothing_finished_the_error_is_the_probes_own(
    brought: str, probes: list[str]
) -> None:
    with pytest.raises(CannotRunError, match=WHY):
        tm.audit(brought, probes=probes, **FEW)


def test_a_mistyped_option_is_found_before_any_probe_runs(brought: str) -> None:
    """Ranking alone would fail: there are fewer images than k."""
    asked = {"probes": ["ranking", "harms"], "k": [5000]}
    with pytest.raises(InputError, match="k is 5,000"):
        tm.audit(brought, **asked)
    with pytest.raises(UnknownNameError, match="option of the probe harms 'nothing'"):
        tm.audit(brought, options={"harms": {"nothing": 1}}, **asked)


def test_a_bug_costs_no_results_either(
    brought: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(PROBES.paths, "broken", "broken:PROBE")
    error = failed(brought, ["ranking", "broken", "eat"])
    assert isinstance(error.__cause__, ZeroDivisionError)
    assert error.run.meta["failed"]["broken"] == "ZeroDivisionError: division by zero"
    assert error.run.meta["failed"]["eat"].startswith(WHY)  # it had its turn
    command = [sys.executable, "broken.py", "audit", brought, *TWO, "--probe", "broken"]
    done = subprocess.run([*command, "--out", "run"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "return 1 / 0" in done.stderr  # where it happened
    assert Run.load(tmp_path / "run").where(probe="ranking")


@pytest.mark.parametrize("as_json", [False, True])
def test_the_command_saves_and_names_what_failed(
    brought: str, tmp_path: Path, as_json: bool
) -> None:
    options = ["--json"] if as_json else []
    done = tiltmeter("audit", brought, *TWO, "--out", "run", *options, cwd=tmp_path)
    assert done.returncode == 2
    assert f"eat failed: {WHY}" in done.stderr
    assert "kept in run" in done.stderr
    assert "Traceback" not in done.stderr
    run = Run.load(tmp_path / "run")
    assert run.where(probe="ranking")
    assert run.meta["failed"]["eat"].startswith(WHY)
    assert (tmp_path / "run" / "report.html").is_file()
    if as_json:
        assert json.loads(done.stdout)["failed"] == run.meta["failed"]
    else:
        assert f"Failed: eat: {WHY}" in done.stdout


def test_a_model_that_fails_costs_no_results_of_another(brought: str, tmp_path: Path) -> None:
    """The second brings texts of another size, which only the ranking finds out."""
    other = brought_embeddings(tmp_path / "other")
    np.save(other / "texts.npy", np.load(other / "texts.npy")[:, :8])
    models = [brought, f"embeddings:{other}"]
    done = tiltmeter("audit", *models, "--images", brought, *DRAWS, "--out", "run", cwd=tmp_path)
    assert done.returncode == 2
    assert f"the audit of embeddings:{other} on {brought} failed" in done.stderr
    run = Run.load(tmp_path / "run")
    assert run.where(probe="ranking")
    assert len(run.meta["failed"]) == 1


def test_a_panel_names_the_model_whose_probe_failed(brought: str, tmp_path: Path) -> None:
    other = brought_embeddings(tmp_path / "other")
    done = tiltmeter("audit", brought, f"embeddings:{other}", *TWO, "--out", "run", cwd=tmp_path)
    assert done.returncode == 2
    run = Run.load(tmp_path / "run")
    assert set(run.meta["failed"]) == {"eat of it", "eat of other"}
    assert run.where(probe="panel")


def test_report_card_and_bundle_name_it(partial: Run, tmp_path: Path) -> None:
    saved = partial.save(tmp_path / "run")
    again = Run.load(saved)
    page = write(again, tmp_path / "report.html").read_text()
    assert f"<dt>eat</dt><dd>failed: {WHY}" in page
    assert "Not measured: eat" in card(again)
    bundle(saved, tmp_path / "run.tiltmeter.zip")


def test_no_gate_opens_for_a_run_with_a_failed_probe(brought: str, partial: Run) -> None:
    whole = tm.audit(brought, probes=["ranking"], **FEW)
    assert whole.gate(whole, bootstraps=39)
    shut = partial.gate(whole, bootstraps=39)
    assert not shut
    assert [reason.partition(":")[0] for reason in shut.reasons] == ["eat failed"]
    assert not shut.comparison.worse.num_rows
