"""Mistakes are reported before a model is loaded, with what to type instead."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import tiltmeter as tm
from tests.command_line import tiltmeter
from tiltmeter.errors import (
    Code,
    ConventionError,
    InputError,
    MissingError,
    TiltmeterError,
    UnknownNameError,
)
from tiltmeter.metrics.convention import same_convention

PATH = "table:mine.csv?path=file"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A newcomer's directory, in which no model can be loaded."""
    (tmp_path / "flat").mkdir()
    rows = []
    for at in range(12):
        Image.new("RGB", (8, 8), (at, 0, 0)).save(tmp_path / "flat" / f"{at}.png")
        rows.append((f"flat/{at}.png", ("woman", "man")[at % 2], "abc"[at % 3]))
    for name, mark in (("mine.csv", ","), ("semi.csv", ";")):
        lines = [mark.join(row) for row in (("file", "gender", "race"), *rows)]
        (tmp_path / name).write_text("\n".join(lines))
    (tmp_path / "one.csv").write_text("file,gender\nflat/0.png,woman")
    (tmp_path / "nolabel.csv").write_text("\n".join(["file", *(row[0] for row in rows)]))
    (tmp_path / "up" / "fairface" / "val").mkdir(parents=True)
    (tmp_path / "up" / "fairface" / "fairface_label_val.csv").write_text("file,gender\n1.jpg,Male")
    (tmp_path / "clip").mkdir()
    monkeypatch.chdir(tmp_path)

    def loaded(*_: object, **__: object) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("tiltmeter.auditing.audit.load_for", loaded)
    return tmp_path


#: Model, images, options; the error's class, code and value, and what its message says to type.
MISTAKES: dict[str, tuple[str, str | None, dict[str, Any], type, Code, object, str]] = {
    "bare name": ("openai/clip", None, {}, UnknownNameError, "unknown-name", "openai/clip",
                  "'hf:openai/clip'"),
    "bare directory": ("clip", PATH, {}, UnknownNameError, "unknown-name", "clip", "'hf:clip'"),
    "bare table": ("hf:clip", "mine.csv", {}, UnknownNameError, "unknown-name", "mine.csv",
                   "'table:mine.csv?path=file'"),
    "bare folder": ("hf:clip", "flat", {}, UnknownNameError, "unknown-name", "flat",
                    "'folder:flat'"),
    "bare fairface": ("hf:clip", "up/fairface", {}, UnknownNameError, "unknown-name",
                      "up/fairface", "'fairface:up/fairface'"),
    "no path": ("hf:clip", "table:mine.csv", {}, InputError, "no-images", "mine",
                "table:mine.csv?path=file"),
    "no path, options": ("hf:clip", "table:mine.csv?attributes=gender", {}, InputError,
                         "no-images", "mine", "table:mine.csv?attributes=gender&path=file"),
    "no model": ("hf:../nosuch", PATH, {}, InputError, "not-found", "../nosuch", "OWNER/NAME"),
    "no images": ("hf:clip", None, {}, InputError, "no-images", "hf:clip", "--images fairface:DIR"),
    "no images for a probe": ("hf:clip", None, {"probes": ["ranking"]}, InputError, "no-images",
                              "hf:clip", "--images fairface:DIR"),
    "comma": ("hf:clip", PATH, {"cross": ["race,gender"]}, InputError, "bad-option",
              "race,gender", "--cross 'race*gender'"),
    "times": ("hf:clip", PATH, {"cross": ["race x gender"]}, InputError, "bad-option",
              "race x gender", "--cross 'race*gender'"),
    "one column": ("hf:clip", PATH, {"cross": ["race"]}, InputError, "bad-option", "race",
                   "'race*gender'"),
    "two attributes": ("hf:clip", PATH, {"attributes": ["race,gender"]}, InputError, "bad-option",
                       "race,gender", "--attribute race --attribute gender"),
    "a text for a list": ("hf:clip", PATH, {"attributes": "gender"}, InputError, "bad-option",
                          "gender", "such as ['gender']"),
    "a list for a text": ("hf:clip", PATH, {"words": ["sobit", "activities"]}, InputError,
                          "bad-option", ["sobit", "activities"], "'sobit+activities'"),
    "a text for a number": ("hf:clip", PATH, {"seed": "1"}, InputError, "bad-option", "1",
                            "a whole number"),
    "unknown column": ("hf:clip", PATH, {"attributes": ["gendre"]}, UnknownNameError,
                       "unknown-name", "gendre", "'gender'"),
    "unknown crossing": ("hf:clip", PATH, {"cross": ["race*agee"]}, UnknownNameError,
                         "unknown-name", "agee", "race"),
    "no labels": ("hf:clip", "table:nolabel.csv?path=file", {}, InputError, "bad-labels",
                  ["file"], "only file (is the path or id of an image): add one"),
    "one image": ("hf:clip", "table:one.csv?path=file", {}, InputError, "bad-labels",
                  ["file", "gender"], "gender (has one group only)"),
    "flat folder": ("hf:clip", "folder:flat", {}, InputError, "no-images", "flat",
                    "flat/woman/1.jpg"),
    "flat image folder": ("hf:clip", PATH, {"k": [2], "data": {"utility": "imagefolder:flat"}},
                          InputError, "no-images", "flat", "flat/cat/1.jpg"),
    "one folder up": ("hf:clip", "fairface:up", {}, InputError, "not-found", "up",
                      "fairface:up/fairface"),
    "one folder down": ("hf:clip", "fairface:up/fairface/val", {}, InputError, "not-found",
                        "up/fairface/val", "fairface:up/fairface?"),
    "k": ("hf:clip", PATH, {"k": [13]}, InputError, "bad-input", 13, "--k 2"),
    "k of all images": ("hf:clip", PATH, {"k": [2, 12]}, InputError, "bad-input", 12, "1 to 11"),
    "k of the built-in world": ("testbed:dual", None, {"k": [5000]}, InputError, "bad-input", 5000,
                                "--k 420"),
    "k of its full size": ("testbed:dual", None, {"k": [3000], "thorough": True, "limit": 2000},
                           InputError, "bad-input", 3000, "--k 400"),
    "default k, semicolons": ("hf:clip", "table:semi.csv?path=file", {}, InputError, "bad-input",
                              1000, "--k 2"),
    "lone group": ("hf:clip", PATH, {"k": [2], "cross": ["file*gender"]}, InputError, "bad-input",
                   None, "flat/0.png"),
    "role": ("hf:clip", PATH, {"data": {"caption": "x:y"}}, UnknownNameError, "unknown-name",
             "caption", "'captions'"),
    "data of a role": ("hf:clip", PATH, {"data": {"captions": "x.json"}}, UnknownNameError,
                       "unknown-name", "x.json", "'table:x.json'"),
    "probe": ("hf:clip", PATH, {"probes": ["rankin"]}, UnknownNameError, "unknown-name", "rankin",
              "'ranking'"),
    "option": ("hf:clip", PATH, {"options": {"ranking": {"devise": "cpu"}}}, UnknownNameError,
               "unknown-name", "devise", "'device'"),
    "words": ("hf:clip", PATH, {"words": "nurse,zookeeper"}, InputError, "bad-option",
              "zookeeper", "zookeeper:noun"),
    "classes": ("hf:clip", PATH, {"classes": "harmz"}, UnknownNameError, "unknown-name", "harmz",
                "'harms'"),
    "template": ("hf:clip", PATH, {"templates": ["a person"]}, InputError, "bad-input", None,
                 "write {}"),
    "device": ("hf:clip", PATH, {"device": "gpu"}, UnknownNameError, "unknown-name", "gpu", "cpu"),
    "precision": ("hf:clip", PATH, {"precision": "half"}, UnknownNameError, "unknown-name",
                  "half", "bfloat16"),
    "limit": ("hf:clip", PATH, {"limit": 0}, InputError, "bad-option", 0, "1 or more"),
    "array": ("hf:clip", np.ones((12, 4)), {}, InputError, "bad-input", "ndarray",
              "tiltmeter.faces("),
    "dictionary": ("hf:clip", {"gender": ["a", "b"]}, {}, InputError, "bad-input", "dict",
                   "tiltmeter.faces("),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_reported_before_a_model_is_loaded(name: str, home: Path) -> None:
    model, images, options, kind, code, value, instead = MISTAKES[name]
    with pytest.raises(TiltmeterError) as caught:
        tm.audit(model, images, **options)
    error = caught.value
    assert (type(error), error.code, error.value) == (kind, code, value), error
    assert instead in str(error)


def test_nothing_wrong_gets_as_far_as_the_model(home: Path) -> None:
    with pytest.raises(AssertionError, match="a model was loaded"):
        tm.audit("hf:clip", "table:semi.csv?path=file", k=[2], cross=["race*gender"])


def test_a_mistake_in_the_second_model_costs_no_work_on_the_first(home: Path) -> None:
    done = tiltmeter("audit", "hf:clip", "hf:./nosuch", "--images", PATH, "--k", "2")
    assert done.returncode == 2
    assert "./nosuch" in done.stderr
    assert "[not-found]" in done.stderr


def test_without_torch_the_package_is_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingError, match=r"pip install 'tiltmeter\[models\]'") as caught:
        tm.audit("hf:clip", PATH, k=[2])
    assert (caught.value.code, caught.value.value) == ("missing-package", "torch")


def test_without_httpx2_a_server_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx2", None)
    with pytest.raises(MissingError, match=r"pip install 'tiltmeter\[openai\]'") as caught:
        tm.load_model("openai:http://127.0.0.1:9/v1?model=m")
    assert caught.value.value == "httpx2"


@pytest.mark.parametrize(
    ("names", "option"),
    [
        (["tiltmeter", "tiltmeter+k=20"], "--k"),
        (["tiltmeter", "berg2022"], "--convention"),
        (["tiltmeter+k=20", "berg2022+k=20"], "--convention"),
    ],
)
def test_runs_of_another_k_are_told_so(names: list[str], option: str) -> None:
    with pytest.raises(ConventionError) as caught:
        same_convention(names)
    assert caught.value.value == sorted(names)
    assert option in str(caught.value)


def test_a_generative_model_needs_no_k(home: Path) -> None:
    """It ranks images only on request, so a small dataset is no mistake."""
    (home / "clip" / "config.json").write_text('{"model_type": "llava"}')
    with pytest.raises(AssertionError, match="a model was loaded"):
        tm.audit("hf:clip", PATH)
    with pytest.raises(InputError, match="k is 1,000"):
        tm.audit("hf:clip", PATH, probes=["ranking"])
    (home / "clip" / "config.json").write_text('{"model_type": "clip"}')
    with pytest.raises(InputError, match="k is 1,000"):
        tm.audit("hf:clip", PATH)
