"""`tiltmeter debias`: from the command line to a directory that is a model."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

from typer.testing import CliRunner

import tiltmeter as tm
from tests.refusing import refused
from tiltmeter.cli.app import app
from tiltmeter.errors import Code, InputError

RUNNER = CliRunner()


def debias(*given: str) -> str:
    result = RUNNER.invoke(app, ["debias", *given, "--device", "cpu"])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_a_vector_map(tmp_path: Path, embeddings: Path) -> None:
    spec, place = f"embeddings:{embeddings}", str(tmp_path / "fair")
    given = ["leace", spec, "--images", spec, "-a", "gender", "--share", "0.5", "--out", place]
    said = debias(*given)
    assert "+leace: fitted on 120 images" in said
    model = tm.load_model(place)
    assert model.debiaser.kind == "vectors"
    assert len(model.fitted_on(tm.load_data(spec))) == 120
    with refused("bad-input", "--force"):
        debias(*given)
    told = json.loads(debias(*given, "--force", "--json", "--option", "towers=both"))
    assert told["settings"] == {"towers": "both", "shrink": 0.0, "tolerance": 1e-10}
    assert told["attribute"] == "gender"
    assert told["fitted"]["count"] == 120


def test_an_edited_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiltmeter.debiasers.fitting.DEFAULT_CAPTIONS", 200)
    place = tmp_path / "fair"
    options = ["steps=2", "batch=8", "attack_steps=1", "epsilon=32/255", "variant=vision"]
    said = debias(
        "fairvlp",
        "testbed:fusion",
        "--out",
        str(place),
        *(x for o in options for x in ("--option", o)),
    )
    assert "fitted on 180 images" in said
    assert "masked accuracy" in said
    assert "recall@1, text to image" in said
    assert not Path(f"{place}.training").exists()
    model = tm.load_model(str(place))
    assert model.debiaser.epsilon == 32 / 255
    assert len(model.debiaser.log_) == 2
    told = json.loads((place / "debiased.json").read_text())
    assert {one["metric"] for one in told["record"]["utility_cost"]} >= {"masked accuracy"}
    assert told["record"]["utility_cost"][0]["n"] == 20


TRAIN = """
import sys, tiltmeter.debiasers.fitting as d
d.DEFAULT_CAPTIONS = 200
options = {"steps": 12, "batch": 8, "attack_steps": 2, "checkpoint": 1}
d.debias("fairvlp", "testbed:fusion", settings=options, out=sys.argv[1], device="cpu")
"""


@pytest.mark.slow
def test_a_training_that_is_killed_goes_on_to_the_same_weights(tmp_path: Path) -> None:
    def start(name: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", TRAIN, str(tmp_path / name)])

    assert start("whole").wait() == 0
    victim = start("killed")
    checkpoint = tmp_path / "killed.training" / "checkpoint.pt"
    while not checkpoint.exists():
        assert victim.poll() is None
        time.sleep(0.01)
    victim.kill()
    victim.wait()
    assert not (tmp_path / "killed").exists()
    assert checkpoint.exists()
    assert start("killed").wait() == 0
    whole, again = ((tmp_path / name / "model.safetensors").read_bytes()
                    for name in ("whole", "killed"))  # fmt: skip
    assert whole == again


@pytest.mark.parametrize(
    ("given", "add"),
    [
        (["--images", "SPEC"], "add --attribute A (label columns of"),
        (["--attribute", "gender"], "add --images SPEC"),
        ([], "add --images SPEC --attribute A"),
    ],
)
def test_only_what_is_missing_is_asked_for(
    given: list[str], add: str, tmp_path: Path, embeddings: Path
) -> None:
    spec = f"embeddings:{embeddings}"
    typed = [spec if part == "SPEC" else part for part in given]
    with pytest.raises(InputError) as caught:
        debias("leace", spec, *typed, "--out", str(tmp_path / "x"))
    said = str(caught.value)
    assert add in said
    assert ("gender" in said) == ("--images" in given)
    for option in ("--images", "--attribute"):
        assert (option in said) == (option not in given)


@pytest.mark.parametrize(
    ("given", "code", "value"),
    [
        (["leac", "testbed:fusion"], "unknown-name", "'leace'"),
        (["leace", "testbed:fusion"], "bad-input", "--attribute"),
        (["leace", "testbed:fusion", "--option", "towers"], "bad-option", "'towers'"),
        (["leace", "testbed:fusion", "--data", "faces=x:y"], "unknown-name", "captions"),
        (["fairvlp", "testbed:fusion", "--option", "pairs=ball"], "bad-input", "man:woman"),
        (["fairvlp", "testbed:fusion", "--option", "variant=edited", "--edited", "nowhere"],
         "bad-input", "nowhere"),
    ],
)  # fmt: skip
def test_what_it_refuses(given: list[str], code: Code, value: str, tmp_path: Path) -> None:
    with refused(code, value):
        debias(*given, "--out", str(tmp_path / "x"))
    assert not (tmp_path / "x").exists()
