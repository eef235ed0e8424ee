"""What the library `datasets` reads: saved data, and folders of images."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import tiltmeter as tm
from tests.datasets.making import photo, photos, text
from tests.refusing import refused


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    found = pytest.importorskip("datasets", reason="needs `pip install datasets`")
    monkeypatch.setattr(found.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return found


def saved(library: Any, place: Path, *, splits: bool = False) -> Path:
    features = library.Features(
        {
            "image": library.Image(),
            "gender": library.ClassLabel(names=["Male", "Female"]),
            "race": library.Value("string"),
            "age": library.Value("int64"),
        }
    )
    images = [Image.new("RGB", (4, 4), (10 * row, 0, 0)) for row in range(4)]
    rows = {
        "image": images,
        "gender": [0, 1, 1, 0],
        "race": ["Black", "White", "Black", "White"],
        "age": [1, 2, 3, 4],
    }
    data = library.Dataset.from_dict(rows, features=features)
    both = library.DatasetDict({"train": data, "test": data.select([0, 1])}) if splits else data
    both.save_to_disk(str(place))
    return place


def test_saved_to_disk(library: Any, tmp_path: Path) -> None:
    place = saved(library, tmp_path / "faces")
    faces = tm.load_data(f"hfds:{place}?check=yes")
    assert faces.ids == ("0", "1", "2", "3")
    assert list(faces.groups) == ["gender", "race"]
    assert faces.groups["gender"].names == ("Female", "Male")
    assert faces.groups["gender"].codes.tolist() == [1, 0, 0, 1]
    assert [image.getpixel((0, 0))[0] for image in faces.images] == [0, 10, 20, 30]
    assert np.asarray(faces.images[1:3][1])[0, 0, 0] == 20
    assert faces.provenance["found"]["rows"] == 4
    assert list(tm.load_data(f"hfds:{place}?groups=race").groups) == ["race"]
    assert list(tm.load_data(f"hfds:{place}?groups=race", attributes=["age"]).groups) == ["age"]
    with refused("unknown-name", "image column"):
        tm.load_data(f"hfds:{place}?image=race")
    with refused("bad-option", "?split"):
        tm.load_data(f"hfds:{place}?split=test")


def test_splits(library: Any, tmp_path: Path) -> None:
    place = saved(library, tmp_path / "faces", splits=True)
    assert len(tm.load_data(f"hfds:{place}?split=test&groups=race")) == 2
    with refused("unknown-name", "test, train"):
        tm.load_data(f"hfds:{place}")


def test_a_class_that_was_not_given_is_missing(library: Any, tmp_path: Path) -> None:
    features = {"image": library.Image(), "gender": library.ClassLabel(names=["Male", "Female"])}
    rows = {"image": [Image.new("RGB", (4, 4))] * 3, "gender": [0, 1, -1]}
    data = library.Dataset.from_dict(rows, features=library.Features(features))
    data.save_to_disk(str(tmp_path / "faces"))
    with refused("bad-input", "1 of 3", "gender"):
        tm.load_data(f"hfds:{tmp_path / 'faces'}?groups=gender")


def test_a_folder_of_images(library: Any, tmp_path: Path) -> None:
    photos(tmp_path / "faces", "a/1.png", "a/2.png", "b/1.png")
    (tmp_path / "faces/b/2.png").write_bytes(b"no image")
    place = f"hfds:{tmp_path / 'faces'}?groups=label"
    assert tm.load_data(place).groups["label"].counts.tolist() == [2, 2]
    faces = tm.load_data(f"{place}&check=yes")
    assert faces.groups["label"].counts.tolist() == [2, 1]
    assert faces.provenance["found"]["unreadable"]["count"] == 1
    assert faces.images[0].size == (8, 8)
    with refused("incomplete", "1 unreadable"):
        tm.load_data(f"{place}&check=yes&strict=yes")


def test_a_folder_with_metadata(library: Any, tmp_path: Path) -> None:
    photo(tmp_path / "faces/1.png")
    photo(tmp_path / "faces/2.png")
    rows = ("file_name,gender", "1.png,woman", "2.png,man")
    text(tmp_path / "faces/metadata.csv", *rows)
    faces = tm.load_data(f"hfds:{tmp_path / 'faces'}?groups=gender")
    assert faces.groups["gender"].names == ("man", "woman")


def test_nothing_is_fetched_unasked() -> None:
    with refused("not-found", "?download=yes"):
        tm.load_data("hfds:nobody/nothing")


def test_without_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with refused("missing-package", "pip install 'tiltmeter[datasets]'"):
        tm.load_data(f"hfds:{tmp_path}")
