"""Figures in a tracker: written by the tracker's own code to a place of this machine, read back."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tiltmeter.cli.app import app
from tiltmeter.errors import MissingError
from tiltmeter.results import Run, rows
from tiltmeter.sharing import trackers as logging_to

META = {"model": {"name": "m", "spec": "hf:m"}, "data": {"faces": {"name": "d"}}, "seed": 1,
        "arguments": {"given": {"cross": ["a*b"]}, "defaulted": {"seed": 1}}}  # fmt: skip


@pytest.fixture
def run() -> Run:
    table = rows(2, probe="ranking", metric="max_skew", model="m", dataset="d", k=10, n=50,
                 attribute=["race*gender", "race&gender"], value=[0.5, 0.75], ci_low=[0.4, 0.6],
                 ci_high=[0.6, 0.9], null_high=[0.2, 0.25], p=[0.01, 0.02])  # fmt: skip
    return Run(table, META)


def needs(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"needs the package {package} (pip install {package})")


def test_names_that_would_collide_do_not(run: Run) -> None:
    found = logging_to.metrics(run)
    assert found["d/race_gender/max_skew_10"] == 0.5
    assert found["d/race_gender/max_skew_10_2"] == 0.75
    assert found["d/race_gender/max_skew_10_2.null_high"] == 0.25
    assert logging_to.settings(run)["cross"] == "['a*b']"


@pytest.mark.parametrize("package", ["mlflow", "wandb"])
def test_what_is_not_installed_is_named(
    run: Run, package: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    place = run.save(tmp_path / "run")
    with pytest.raises(MissingError, match=f"pip install {package}"):
        CliRunner().invoke(app, ["card", str(place), f"--{package}"], catch_exceptions=False)


def test_mlflow_has_it(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("mlflow")
    import mlflow

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri(f"file:{tmp_path / 'runs'}")
    place = run.save(tmp_path / "run")
    done = CliRunner().invoke(app, ["card", str(place), "--mlflow"])
    assert done.exit_code == 0, done.output
    kept = mlflow.get_run(done.output.rpartition("run ")[2].strip())
    assert kept.data.metrics == pytest.approx(logging_to.metrics(run))
    assert kept.data.params["model"] == "m"
    assert kept.info.status == "FINISHED"
    (text,) = (tmp_path / "runs").rglob(logging_to.CARD)
    assert "## Social bias audit" in text.read_text()
    with mlflow.start_run() as active:  # a run that is open is logged into
        assert logging_to.to_mlflow(run) == active.info.run_id


def test_wandb_has_it(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("wandb")
    import wandb

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_SILENT", "true")
    name = logging_to.to_wandb(run)
    wandb.teardown()  # its other process writes what is left
    (table,) = tmp_path.rglob("*.table.json")
    kept = json.loads(table.read_text())
    assert [row[kept["columns"].index("value")] for row in kept["data"]] == [0.5, 0.75]
    (written,) = tmp_path.rglob(f"run-{name}.wandb")
    assert b"d/race_gender/max_skew_10" in written.read_bytes()
