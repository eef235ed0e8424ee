"""Captions of images, and three captions each."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import tiltmeter as tm
from tests.datasets.making import photos, text
from tests.refusing import refused
from tiltmeter.datasets.found_images import describe
from tiltmeter.datasets.roles import Captions, Triplets

COCO = {
    "images": [{"id": 7, "file_name": "7.jpg"}, {"id": 3, "file_name": "3.jpg"}],
    "annotations": [
        {"id": 1, "image_id": 3, "caption": "A dog. "},
        {"id": 2, "image_id": 7, "caption": "A man cooks."},
        {"id": 3, "image_id": 3, "caption": "A brown dog."},
        {"id": 4, "image_id": 99, "caption": "Of no image."},
    ],
}


def as_json(path: Path, content: object) -> Path:
    path.write_text(json.dumps(content))
    return path


def test_coco(tmp_path: Path) -> None:
    path = as_json(tmp_path / "captions.json", COCO)
    captions = tm.load_data(f"coco:{path}")
    assert isinstance(captions, Captions)
    assert captions.texts == ("A dog.", "A man cooks.", "A brown dog.")
    assert [captions.ids[at] for at in captions.of] == ["3.jpg", "7.jpg", "3.jpg"]
    assert captions.images is None
    assert captions.provenance["found"]["malformed"]["first"] == ["99: 'Of no image.'"]
    photos(tmp_path / "val", "3.jpg")
    pictured = tm.load_data(f"coco:{path}?images={tmp_path / 'val'}")
    assert (pictured.ids, pictured.texts) == (("3.jpg",), ("A dog.", "A brown dog."))
    assert pictured.of.tolist() == [0, 0]
    assert len(pictured.images) == 1
    assert describe(pictured) == [
        "3 rows, 1 images, 2 texts", "1 missing: 7.jpg", "1 malformed: 99: 'Of no image.'"
    ]  # fmt: skip


@pytest.mark.parametrize("content", ["[]", "{", '{"images": [], "annotations": []}', '{"a": 1}'])
def test_json_that_is_not_cocos(tmp_path: Path, content: str) -> None:
    with refused("bad-file"):
        tm.load_data(f"coco:{text(tmp_path / 'c.json', content)}")


def test_coco_names_that_lead_out(tmp_path: Path) -> None:
    spoilt = {**COCO, "images": [{"id": 3, "file_name": "../3.jpg"}]}
    photos(tmp_path, "3.jpg", "val/7.jpg")
    path = as_json(tmp_path / "c.json", spoilt)
    with refused("unsafe-path"):
        tm.load_data(f"coco:{path}?images={tmp_path / 'val'}")


def test_the_real_captions(shared: Callable[[str], Path]) -> None:
    path = shared("data/coco_captions/captions_val2017.json")
    captions = tm.load_data(f"coco:{path}?strict=yes")
    assert (len(captions.ids), len(captions.texts)) == (5_000, 25_014)
    assert np.bincount(captions.of).min() >= 5
    assert captions.texts[0] == "A black Honda motorcycle parked in front of a garage."


FLICKR = {
    "results_20130124.token": ("1.jpg#0\tA dog .", "1.jpg#1\tA | brown dog .", "2.jpg#0\tA man ."),
    "results.csv": (
        "image_name| comment_number| comment",
        "1.jpg| 0| A dog .", "1.jpg| 1| A | brown dog .", "2.jpg| 0| A man .",
    ),
    "captions.txt": ("image,caption", "1.jpg,A dog .", '1.jpg,"A | brown dog ."', "2.jpg,A man ."),
}  # fmt: skip
KARPATHY = {
    "images": [
        {"filename": "1.jpg", "split": "train",
         "sentences": [{"raw": "A dog ."}, {"raw": "A | brown dog ."}]},
        {"filename": "2.jpg", "split": "test", "sentences": [{"raw": "A man ."}]},
    ]
}  # fmt: skip


@pytest.mark.parametrize("name", [*FLICKR, "dataset_flickr30k.json"])
def test_flickr30k(tmp_path: Path, name: str) -> None:
    if name in FLICKR:
        text(tmp_path / name, *FLICKR[name])
    else:
        as_json(tmp_path / name, KARPATHY)
    photos(tmp_path / "flickr30k-images", "1.jpg", "2.jpg")
    captions = tm.load_data(f"flickr30k:{tmp_path}?strict=yes")
    assert captions.texts == ("A dog .", "A | brown dog .", "A man .")
    assert captions.of.tolist() == [0, 0, 1]
    assert len(captions.images) == 2
    assert tm.load_data(f"flickr30k:{tmp_path}?images=no").images is None


def test_flickr30k_splits(tmp_path: Path) -> None:
    text(tmp_path / "results.csv", *FLICKR["results.csv"])
    photos(tmp_path / "images", "1.jpg", "2.jpg")
    with refused("not-found", "dataset_flickr30k.json"):
        tm.load_data(f"flickr30k:{tmp_path}?split=test")
    as_json(tmp_path / "dataset_flickr30k.json", KARPATHY)
    captions = tm.load_data(f"flickr30k:{tmp_path}?split=test")
    assert (captions.name, captions.texts) == ("flickr30k-test", ("A man .",))


def test_flickr8k_as_released(tmp_path: Path) -> None:
    """One file of captions, a list of images per split; a caption of no file is in the original."""
    lines = "1.jpg#0\tA man .\n2.jpg#0\tA dog .\n2.jpg.1#0\tA dog .\n"
    (tmp_path / "Flickr8k.token.txt").write_text(lines)
    (tmp_path / "Flickr_8k.devImages.txt").write_text("2.jpg\n")
    photos(tmp_path / "images", "1.jpg", "2.jpg")
    captions = tm.load_data(f"flickr30k:{tmp_path}?split=val")
    assert (captions.name, captions.ids, captions.texts) == (
        "flickr8k-val",
        ("2.jpg",),
        ("A dog .",),
    )
    assert tm.load_data(f"flickr30k:{tmp_path}?images=no").ids == ("1.jpg", "2.jpg", "2.jpg.1")
    with refused("not-found", "Flickr_8k.testImages.txt"):
        tm.load_data(f"flickr30k:{tmp_path}?split=test")


def test_flickr30k_lines_without_a_text(tmp_path: Path) -> None:
    lines = ("image_name| comment_number| comment", "1.jpg| 0| A dog .", "2.jpg| 0 A man .")
    text(tmp_path / "results.csv", *lines)  # the release has such a line
    captions = tm.load_data(f"flickr30k:{tmp_path}?images=no")
    assert captions.texts == ("A dog .",)
    assert captions.provenance["found"]["malformed"]["first"] == ["2.jpg| 0 A man ."]


STEREO = (
    "\ufeffbias_type,target,context,stereotype,anti-stereotype,unrelated,label,Imaeg URL,",
    "race,Ethiopian,They are,They are thin,They are fat,They are floating,1,http://a/1.jpg,",
    'gender,sister,"My, sister",My sister cooks,My sister fights,My sister tables,0,http://a/2.jpg,',
    "race,Ethiopian,They are,They are thin,They are fat,They are floating,0,http://a/3.jpg,",
)


def test_vlstereo_without_images(tmp_path: Path) -> None:
    triplets = tm.load_data(f"vlstereo:{text(tmp_path / 's.csv', *STEREO, end=chr(13) + chr(10))}")
    assert isinstance(triplets, Triplets)
    assert triplets.ids == ("1", "2", "3")
    assert triplets.stereotypical[1] == "My sister cooks"
    assert (triplets.anti[1], triplets.irrelevant[1]) == ("My sister fights", "My sister tables")
    assert triplets.categories.names == ("gender", "race")
    assert triplets.targets == ("Ethiopian", "sister", "Ethiopian")
    assert triplets.contexts[1] == "My, sister"
    assert triplets.against is not None
    assert triplets.against.tolist() == [True, False, False]
    assert triplets.images is None


def test_vlstereo_images_by_row_and_by_hash(tmp_path: Path) -> None:
    path = text(tmp_path / "s.csv", *STEREO)
    by_hash = hashlib.sha256(b"http://a/3.jpg").hexdigest()
    photos(tmp_path / "images", "0001.jpg", f"{by_hash}.png")
    triplets = tm.load_data(f"vlstereo:{path}?images={tmp_path / 'images'}")
    assert triplets.ids == ("1", "3")
    assert [p.name for p in triplets.images.paths] == ["0001.jpg", f"{by_hash}.png"]
    assert triplets.provenance["found"]["missing"] == {"count": 1, "first": ["2.jpg"]}
    assert triplets.against.tolist() == [True, False]


def test_vlstereo_rows_counted_from_nought_must_be_told(tmp_path: Path) -> None:
    path = text(tmp_path / "s.csv", *STEREO)
    photos(tmp_path / "images", "0.jpg", "2.jpg")
    spec = f"vlstereo:{path}?images={tmp_path / 'images'}"
    with refused("bad-option", "0 to 2", "1 to 3", "?first=0"):
        tm.load_data(spec)
    assert tm.load_data(f"{spec}&first=0").ids == ("1", "3")
    photos(tmp_path / "images", "3.jpg")
    with refused("bad-option", "?first=1"):
        tm.load_data(f"{spec}&first=0")


def test_vlstereo_of_another_make(tmp_path: Path) -> None:
    with refused("bad-file", "bias_type, target"):
        tm.load_data(f"vlstereo:{text(tmp_path / 's.csv', 'a,b', '1,2')}")
    odd = [line.replace(",1,http", ",2,http") for line in STEREO]
    with refused("bad-labels", "2"):
        tm.load_data(f"vlstereo:{text(tmp_path / 's.csv', *odd)}")


def test_the_real_table(shared: Callable[[str], Path], tmp_path: Path) -> None:
    path = shared("data/vlstereoset/VLStereoSet.csv")
    triplets = tm.load_data(f"vlstereo:{path}")
    assert len(triplets) == 1_958
    assert triplets.provenance["found"]["groups"]["category"] == {
        "gender": 323, "profession": 631, "race": 960, "religion": 44
    }  # fmt: skip
    assert triplets.against.sum() == 631
    # balanced within each category, these are the paper's counts
    against = np.bincount(triplets.categories.codes, weights=triplets.against).astype(int)
    fewer = np.minimum(against, triplets.categories.counts - against)
    assert dict(zip(triplets.categories.names, (2 * fewer).tolist(), strict=True)) == {
        "gender": 206, "profession": 322, "race": 486, "religion": 14
    }  # fmt: skip
    photos(tmp_path, "1.jpg", "1958.jpg")
    some = tm.load_data(f"vlstereo:{path}?images={tmp_path}")
    assert some.provenance["found"]["missing"]["count"] == 1_956


def stereoset(**changes: object) -> dict[str, object]:
    sentences = [
        {"id": "x", "sentence": "They are thin.", "labels": [], "gold_label": "stereotype"},
        {"id": "y", "sentence": "They are fat.", "labels": [], "gold_label": "anti-stereotype"},
        {"id": "z", "sentence": "They are tables.", "labels": [], "gold_label": "unrelated"},
    ]
    entry = {"id": "e1", "target": "Ethiopian", "bias_type": "race", "context": "They are BLANK.",
             "sentences": sentences}  # fmt: skip
    return {"version": "1.1", "data": {"intrasentence": [entry, {**entry, "id": "e2", **changes}]}}


def test_stereoset(tmp_path: Path) -> None:
    triplets = tm.load_data(f"stereoset:{as_json(tmp_path / 'dev.json', stereoset())}")
    assert triplets.ids == ("e1", "e2")
    assert (triplets.stereotypical[0], triplets.anti[0]) == ("They are thin.", "They are fat.")
    assert (triplets.irrelevant[0], triplets.contexts[0]) == ("They are tables.", "They are BLANK.")
    assert triplets.images is None
    assert triplets.against is None
    with refused("bad-file", "data.intersentence"):
        tm.load_data(f"stereoset:{tmp_path / 'dev.json'}?part=intersentence")
    path = as_json(tmp_path / "odd.json", stereoset(sentences=[]))
    assert tm.load_data(f"stereoset:{path}").provenance["found"]["malformed"]["first"] == ["e2"]
    with refused("incomplete", "1 malformed: e2"):
        tm.load_data(f"stereoset:{path}?strict=yes")
