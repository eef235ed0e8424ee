"""Options from a file, names of model and data, and a limit of images."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

import tiltmeter as tm
from tests.command_line import FEW, tiltmeter
from tiltmeter.results import Run

QUICK = ("testbed:dual", "--words", "nurse,doctor", "--limit", "300", "-p", "ranking", *FEW)


def test_a_printed_configuration_can_be_given_back(tmp_path: Path) -> None:
    printed = tiltmeter("audit", *QUICK, "--option", "ranking.device=cpu", "--print-config")
    assert printed.returncode == 0, printed.stderr
    content = yaml.safe_load(printed.stdout)
    assert content["words"] == "nurse,doctor"
    assert content["limit"] == 300
    assert content["report"] is False
    (tmp_path / "mine.yaml").write_text(printed.stdout)
    again = tiltmeter("audit", "--config", tmp_path / "mine.yaml", "--print-config")
    assert again.stdout == printed.stdout
    typed = tiltmeter("audit", "--config", tmp_path / "mine.yaml", "--seed", 3, "--print-config")
    assert yaml.safe_load(typed.stdout) == {**content, "seed": 3}


def test_a_file_is_the_same_audit_as_its_options(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        "models: testbed:dual\nwords: nurse,doctor\nlimit: 300\nprobe: ranking\nk: 20\n"
        "permutations: 99\nbootstraps: 50\nreport: false\noption: {ranking: {device: cpu}}\n"
    )
    names = ("--name", "mine", "--data-name", "figures")
    file = tiltmeter("audit", "--config", "mine.yaml", *names, "--out", "a", cwd=tmp_path)
    typed = tiltmeter("audit", *QUICK, *names, "--out", "b", cwd=tmp_path)
    assert (file.returncode, typed.returncode) == (0, 0), file.stderr + typed.stderr
    first, second = (tmp_path / place / "results.parquet" for place in "ab")
    assert first.read_bytes() == second.read_bytes()
    run = Run.load(tmp_path / "a")
    assert set(run.table["model"].to_pylist()) == {"mine"}
    assert set(run.table["dataset"].to_pylist()) == {"figures"}
    assert run.meta["model"]["name"] == "mine"
    assert run.meta["model"]["spec"] == "testbed:dual"
    faces = run.meta["data"]["faces"]
    assert (faces["name"], faces["images"]) == ("figures", 300)
    assert faces["limit"] == {"of": 4000, "kept": 300}


@pytest.mark.parametrize(
    ("text", "code", "value", "message"),
    [
        ("word: sobit", "unknown-name", "word", "'words'"),
        ("config: other.yaml", "unknown-name", "config", "option in mine.yaml"),
        ("words: [a, b]", "bad-option", "words", "takes one value"),
        ("- words", "bad-file", "mine.yaml", "must map options to values"),
        ("words: [", "bad-file", "mine.yaml", "not YAML"),
        (None, "not-found", "mine.yaml", "no such file"),
    ],
)
def test_a_file_that_cannot_be_used(
    text: str | None, code: str, value: str, message: str, tmp_path: Path
) -> None:
    if text is not None:
        (tmp_path / "mine.yaml").write_text(text)
    done = tiltmeter("audit", "--config", "mine.yaml", "--json", cwd=tmp_path)
    error = json.loads(done.stderr)["error"]
    assert (done.returncode, error["code"], error["value"]) == (2, code, value)
    assert message in error["message"]


def test_a_name_is_for_one_audit(tmp_path: Path) -> None:
    done = tiltmeter("audit", "testbed:dual", "testbed:fusion", "--name", "x", cwd=tmp_path)
    assert done.returncode == 2
    assert "[bad-option]" in done.stderr


def test_a_limit_draws_the_same_images_for_a_seed_and_a_batch_size_changes_nothing() -> None:
    options = {"limit": 100, "k": [10], "probes": ["ranking"], "permutations": 0, "bootstraps": 0}
    first, again, other, batched = (
        tm.audit("testbed:dual", words="nurse,", **options, **more)
        for more in ({}, {}, {"seed": 1}, {"batch_size": 7})
    )
    ids = [run.vectors["faces"]["id"].to_pylist() for run in (first, again, other)]
    assert len(ids[0]) == 100
    assert ids[0] == ids[1] != ids[2]
    values = [run.table["value"].to_pylist() for run in (first, batched)]
    assert values[0] == pytest.approx(values[1], nan_ok=True)
