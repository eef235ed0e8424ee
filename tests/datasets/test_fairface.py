"""FairFace: labels against images, prefixes and paddings as they occur."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import tiltmeter as tm
from tests.datasets.making import photos, text
from tests.refusing import refused
from tiltmeter.datasets.found_images import describe

HEADER = "file,age,gender,race,service_test"
ROWS = [
    "1.jpg,3-9,Male,East Asian,False",
    "2.jpg,50-59,Female,East Asian,True",
    "3.jpg,20-29,Female,White,True",
    "4.jpg,20-29,Male,Black,False",
]


def labels(place: Path, split: str = "val", prefix: str = "fairface/val/") -> None:
    text(place / f"fairface_label_{split}.csv", HEADER, *(prefix + row for row in ROWS))


@pytest.mark.parametrize("prefix", ["fairface/val/", "val/", "", "./val/"])
def test_prefixes_as_they_occur(tmp_path: Path, prefix: str) -> None:
    labels(tmp_path, prefix=prefix)
    photos(tmp_path, *(f"val/{n}.jpg" for n in (1, 2, 3, 4)))
    faces = tm.load_data(f"fairface:{tmp_path}?strict=yes")
    assert faces.ids == ("val/1.jpg", "val/2.jpg", "val/3.jpg", "val/4.jpg")
    assert list(faces.groups) == ["gender", "race", "age"]
    assert [faces.groups["race"].names[c] for c in faces.groups["race"].codes] == [
        "East Asian", "East Asian", "White", "Black",
    ]  # fmt: skip
    assert faces.images[2].size == (8, 8)


def test_missing_images_are_counted_and_left_out(tmp_path: Path) -> None:
    labels(tmp_path)
    photos(tmp_path, "val/1.jpg", "val/3.jpg")
    faces = tm.load_data(f"fairface:{tmp_path}")
    assert faces.ids == ("val/1.jpg", "val/3.jpg")
    assert faces.groups["gender"].names == ("Female", "Male")
    assert faces.groups["race"].names == ("East Asian", "White")
    found = faces.provenance["found"]
    assert (found["rows"], found["images"]) == (4, 2)
    assert found["missing"] == {"count": 2, "first": ["val/2.jpg", "val/4.jpg"]}
    assert found["unreadable"] is None  # nobody looked
    assert found["groups"]["gender"] == {"Female": 1, "Male": 1}
    with refused("incomplete", "2 missing: val/2.jpg, val/4.jpg"):
        tm.load_data(f"fairface:{tmp_path}?strict=yes")


def test_unreadable_images_are_found_when_asked_for(tmp_path: Path) -> None:
    labels(tmp_path)
    photos(tmp_path, *(f"val/{n}.jpg" for n in (1, 2, 3, 4)))
    (tmp_path / "val/2.jpg").write_bytes(b"no image")
    assert len(tm.load_data(f"fairface:{tmp_path}")) == 4
    faces = tm.load_data(f"fairface:{tmp_path}?check=yes")
    assert faces.ids == ("val/1.jpg", "val/3.jpg", "val/4.jpg")
    assert describe(faces)[:2] == ["4 rows, 3 images, all decoded", "1 unreadable: val/2.jpg"]
    with refused("incomplete", "1 unreadable: val/2.jpg"):
        tm.load_data(f"fairface:{tmp_path}?check=yes&strict=yes")


def test_paddings(tmp_path: Path) -> None:
    labels(tmp_path)
    near, far = "fairface-img-margin025-trainval/val", "fairface-img-margin125-trainval/val"
    photos(tmp_path, f"{near}/1.jpg", f"{near}/2.jpg")
    assert len(tm.load_data(f"fairface:{tmp_path}")) == 2
    photos(tmp_path, f"{far}/3.jpg")
    with refused("bad-option"):
        tm.load_data(f"fairface:{tmp_path}")
    assert tm.load_data(f"fairface:{tmp_path}?padding=025").ids == ("val/1.jpg", "val/2.jpg")
    assert tm.load_data(f"fairface:{tmp_path}?padding=125").ids == ("val/3.jpg",)
    with refused("unknown-name"):
        tm.load_data(f"fairface:{tmp_path}?padding=025&split=test")
    with refused("unknown-name"):
        tm.load_data(f"fairface:{tmp_path}?padding=99")


def test_a_padding_that_is_not_there(tmp_path: Path) -> None:
    labels(tmp_path)
    photos(tmp_path, "val/1.jpg")
    with refused("not-found", "125"):
        tm.load_data(f"fairface:{tmp_path}?padding=125")


@pytest.mark.parametrize("name", ["../secret/val/1.jpg", "/etc/val/1.jpg", "../1.jpg"])
def test_names_that_lead_out(tmp_path: Path, name: str) -> None:
    labels(tmp_path / "data")
    photos(tmp_path, "data/val/1.jpg", "secret/val/1.jpg", "1.jpg")
    table = tmp_path / "data/fairface_label_val.csv"
    table.write_text(table.read_text().replace("fairface/val/2.jpg", name))
    with refused("unsafe-path"):
        tm.load_data(f"fairface:{tmp_path / 'data'}")


def test_linked_images_are_named_with_the_directory_to_pass(tmp_path: Path) -> None:
    photos(tmp_path, "big/val/1.jpg", "big/val/2.jpg", "big/val/3.jpg")
    labels(tmp_path / "data")
    (tmp_path / "data/val").symlink_to(tmp_path / "big/val")
    with refused("unsafe-path", f"'val' in {tmp_path / 'data'}", "that they are in"):
        tm.load_data(f"fairface:{tmp_path / 'data'}")
    labels(tmp_path / "big")  # with its table the linked directory is complete
    with refused("unsafe-path", f"fairface:{tmp_path / 'big'}?split=val"):
        tm.load_data(f"fairface:{tmp_path / 'data'}?split=val")


def test_a_table_of_another_split_finds_no_images(tmp_path: Path) -> None:
    labels(tmp_path, prefix="train/")
    photos(tmp_path, "val/1.jpg")
    with refused("no-images", "train/1.jpg"):
        tm.load_data(f"fairface:{tmp_path}")


def test_a_image_listed_twice(tmp_path: Path) -> None:
    text(tmp_path / "fairface_label_val.csv", HEADER, *(f"val/{row}" for row in [*ROWS, ROWS[2]]))
    photos(tmp_path, "val/1.jpg", "val/3.jpg")
    with refused("bad-labels", "'val/3.jpg'"):
        tm.load_data(f"fairface:{tmp_path}")


def test_other_attributes_when_asked_for(tmp_path: Path) -> None:
    labels(tmp_path)
    photos(tmp_path, *(f"val/{n}.jpg" for n in (1, 2, 3, 4)))
    asked = tm.load_data(f"fairface:{tmp_path}?attributes=service_test", cross=["race*gender"])
    assert list(asked.groups) == ["service_test", "race", "gender"]
    with refused("unknown-name", suggests="gender"):
        tm.load_data(f"fairface:{tmp_path}?attributes=gendre")


def test_the_real_images(shared: Callable[[str], Path]) -> None:
    place = shared("data/fairface")
    faces = tm.load_data(f"fairface:{place}?split=val")
    found = faces.provenance["found"]
    assert (found["rows"], found["images"], found["missing"]["count"]) == (10_954, 5_000, 5_954)
    assert found["groups"]["gender"] == {"Female": 2_367, "Male": 2_633}
    assert found["groups"]["race"] == {
        "Black": 726, "East Asian": 725, "Indian": 681, "Latino_Hispanic": 715,
        "Middle Eastern": 527, "Southeast Asian": 664, "White": 962,
    }  # fmt: skip
    assert len(faces.groups["age"].names) == 9
    assert faces.images[4_999].size == (224, 224)
    again = tm.load_data(f"fairface:{place}")
    assert again.provenance == faces.provenance
    with refused("incomplete", "5,954 missing: val/5001.jpg"):
        tm.load_data(f"fairface:{place}?strict=yes")


def test_the_same_rows_as_the_embeddings_of_the_same_images(
    shared: Callable[[str], Path],
) -> None:
    files = tm.load_data(f"table:{shared('models/minilit/fairface_val5000_files.csv')}")
    faces = tm.load_data(f"fairface:{shared('data/fairface')}")
    assert faces.ids == files.ids
    for attribute in ("age", "gender", "race"):
        assert np.array_equal(faces.groups[attribute].codes, files.groups[attribute].codes)


def test_the_real_table_of_the_other_split(shared: Callable[[str], Path], tmp_path: Path) -> None:
    table = shared("data/fairface/fairface_label_train.csv")
    (tmp_path / table.name).symlink_to(table)
    photos(tmp_path, "train/1.jpg", "train/86744.jpg")
    faces = tm.load_data(f"fairface:{tmp_path}?split=train")
    assert faces.ids == ("train/1.jpg", "train/86744.jpg")
    assert faces.provenance["found"]["rows"] == 86_744
