"""Tar shards as img2dataset writes them: found, read in place, cut off, elsewhere."""

from __future__ import annotations

import io
import json
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

import tiltmeter as tm
from tests.refusing import refused
from tiltmeter.datasets.found_images import describe
from tiltmeter.io.image_files import ImageFiles


def shard(path: Path, count: int, seed: int, loose: Path | None = None) -> None:
    rng = np.random.default_rng(seed)
    with tarfile.open(path, "w") as tar:
        for at in range(count):
            file = io.BytesIO()
            Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(file, "PNG")
            told = {"gender": ("man", "woman")[at % 2], "width": 16, "exif": {"a": 1}}
            inside = {
                "png": file.getvalue(),
                "json": json.dumps(told).encode(),
                "txt": b"a photo",
            }
            for ending, data in inside.items():
                member = tarfile.TarInfo(f"{at:05d}.{ending}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
            if loose is not None:
                (loose / f"{at}.png").write_bytes(inside["png"])


def test_images_and_labels_are_those_of_the_files(tmp_path: Path) -> None:
    (tmp_path / "loose").mkdir()
    shard(tmp_path / "00000.tar", 6, 0, tmp_path / "loose")
    shard(tmp_path / "00001.tar", 4, 1)
    for spec in (f"{tmp_path}", f"{tmp_path}/0*.tar", tmp_path.as_uri()):
        found = tm.load_data(f"webdataset:{spec}")
        assert len(found) == 10
        assert found.ids[0] == "00000/00000"
        assert found.groups["gender"].counts.tolist() == [5, 5]
        assert set(found.groups) == {"gender"}
    paths = tuple(tmp_path / "loose" / f"{at}.png" for at in range(6))
    files = ImageFiles(paths, tmp_path / "loose")
    images = pickle.loads(pickle.dumps(found.images))  # as it travels to a worker
    for at in range(6):
        assert images.hash(at) == files.hash(at)
        np.testing.assert_array_equal(np.asarray(images[at]), np.asarray(files[at]))
    assert images[2:4].hash(1) == files.hash(3)
    assert found.select([5, 0]).images.hash(0) == files.hash(5)


def test_a_shard_that_is_cut_off_is_named_and_the_rest_is_read(tmp_path: Path) -> None:
    shard(tmp_path / "00000.tar", 6, 0)
    shard(tmp_path / "00001.tar", 6, 1)
    cut = tmp_path / "00000.tar"
    cut.write_bytes(cut.read_bytes()[:6200])
    found = tm.load_data(f"webdataset:{tmp_path}")
    assert 6 < len(found) < 12
    assert any("malformed" in line and "00000.tar" in line for line in describe(found))
    for at in range(len(found)):
        assert found.images[at].size == (16, 16)
    with refused("incomplete", "malformed"):
        tm.load_data(f"webdataset:{tmp_path}?strict=yes")
    # an image whose labels were to follow is not complete
    shard(cut, 6, 0)
    _, first, size = tm.load_data(f"webdataset:{cut}").images.rows[3]
    cut.write_bytes(cut.read_bytes()[: first + size + 512])
    found = tm.load_data(f"webdataset:{tmp_path}")
    assert len(found) == 3 + 6
    assert found.groups["gender"].counts.sum() == 9


def test_what_img2dataset_writes_is_read_whole(tmp_path: Path) -> None:
    """A Parquet file beside each shard has the fields by key, also of images it did not get."""
    shard(tmp_path / "00000.tar", 6, 0)
    shard(tmp_path / "00001.tar", 4, 1)
    keys = [f"{at:05d}" for at in range(7)]  # the last one could not be downloaded
    pq.write_table(
        pa.table({
            "key": keys, "url": [f"http://x/{key}" for key in keys], "caption": ["a face"] * 7,
            "status": ["success"] * 6 + ["failed_to_download"],
            "age": ["old", "young", "old", "young", "old", "old", "young"],
        }),
        tmp_path / "00000.parquet",
    )  # fmt: skip
    (tmp_path / "00000_stats.json").write_text('{"count": 7, "successes": 6}')
    ages = ["young", "old", "young", "young"]
    pq.write_table(pa.table({"key": keys[:4], "age": ages}), tmp_path / "00001.parquet")
    for spec in (f"{tmp_path}", f"{tmp_path}/*.tar"):
        found = tm.load_data(f"webdataset:{spec}", attributes=["gender", "age"])
        assert len(found) == 10
        assert found.groups["gender"].counts.tolist() == [5, 5]
        age = found.groups["age"]
        told = [age.names[code] for code in age.codes]
        assert told == ["old", "young", "old", "young", "old", "old", *ages]
    (tmp_path / "00001.parquet").write_bytes(b"PAR1 and then nothing")
    found = tm.load_data(f"webdataset:{tmp_path}", attributes=["gender"])
    assert len(found) == 10
    malformed = found.provenance["found"]["malformed"]["first"]
    assert [Path(name).name for name in malformed] == ["00001.parquet"]


def test_a_shard_that_cannot_be_read_at_all_is_named(tmp_path: Path) -> None:
    shard(tmp_path / "00000.tar", 3, 0)
    (tmp_path / "00001.tar").write_bytes(b"no tar at all" * 100)
    (tmp_path / "00002.tar").write_bytes(b"")
    found = tm.load_data(f"webdataset:{tmp_path}")
    assert len(found) == 3
    malformed = found.provenance["found"]["malformed"]["first"]
    assert [Path(name).name for name in malformed] == ["00001.tar", "00002.tar"]


def test_places_that_cannot_be_reached_are_said(tmp_path: Path) -> None:
    with refused("not-found", ".tar"):
        tm.load_data(f"webdataset:{tmp_path}")
    with refused("not-found"):
        tm.load_data(f"webdataset:{tmp_path}/not/there")
    with refused("not-found"):
        tm.load_data("webdataset:nowhere://bucket/shards")


def test_without_labels_images_can_still_be_embedded(tmp_path: Path) -> None:
    shard(tmp_path / "00000.tar", 1, 0)
    found = tm.load_data(f"webdataset:{tmp_path}")
    assert (len(found), found.groups) == (1, {})
