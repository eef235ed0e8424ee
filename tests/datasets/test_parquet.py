"""Parquet files that hold images, as img2dataset and the Hub have them: whole, broken, far."""

from __future__ import annotations

import hashlib
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tiltmeter as tm
from tests import s3_server
from tests.engine.test_embedding import Colours, album
from tests.refusing import refused
from tiltmeter.datasets.found_images import describe
from tiltmeter.engine.embedding.embed_images import embed
from tiltmeter.engine.embedding.loader import LoaderConfig
from tiltmeter.store import Store


def file_of(path: Path, photos: list[bytes | None], **more: Any) -> None:
    side = ["left", "right"] * (len(photos) // 2)
    table = pa.table({"key": [f"{at:09d}" for at in range(len(photos))], "jpg": photos,
                      "side": side, **more})  # fmt: skip
    pq.write_table(table, path, row_group_size=4)


@pytest.fixture
def photos(tmp_path: Path) -> list[bytes]:
    faces = album(tmp_path / "album", 20)
    return [faces.images.read(at) for at in range(20)]


def test_images_are_those_of_the_files(tmp_path: Path, photos: list[bytes]) -> None:
    place = tmp_path / "made"
    (place / "deep").mkdir(parents=True)
    file_of(place / "00000.parquet", photos[:10])
    file_of(place / "deep" / "00001.parquet", photos[10:])
    for spec in (str(place), place.as_uri()):
        found = tm.load_data(f"parquet:{spec}")
        assert len(found) == 20
        assert found.groups["side"].counts.tolist() == [10, 10]
        images = pickle.loads(pickle.dumps(found.images))  # as it travels to a worker
        hashes = [hashlib.sha256(one).hexdigest() for one in photos]
        assert [images.hash(at) for at in range(20)] == hashes
        assert images[7:9].hash(1) == hashes[8]
        assert found.select([15, 3]).images.hash(0) == hashes[15]
        with ThreadPoolExecutor(4) as pool:  # out of order, several at a time
            assert list(pool.map(images.hash, range(19, -1, -1))) == hashes[::-1]
    assert found.ids[11] == "00001/1"
    alone = tm.load_data(f"parquet:{place}/00000.parquet")
    assert len(alone) == 10


def test_the_hubs_columns_are_read(tmp_path: Path, photos: list[bytes]) -> None:
    image = [{"bytes": one, "path": f"{at}.png"} for at, one in enumerate(photos)]
    table = pa.table({"image": image, "gender": ["man", "woman"] * 10, "mask": photos})
    pq.write_table(table, tmp_path / "train.parquet")
    with refused("unknown-name", "image, mask"):
        tm.load_data(f"parquet:{tmp_path}/train.parquet")
    found = tm.load_data(f"parquet:{tmp_path}/train.parquet?image=image")
    assert found.images.read(3) == photos[3]
    assert set(found.groups) == {"gender"}


def test_what_cannot_be_read_is_named_and_the_rest_goes_on(
    tmp_path: Path, photos: list[bytes]
) -> None:
    place = tmp_path / "made"
    place.mkdir()
    file_of(place / "0.parquet", [*photos[:3], None, b"no image", *photos[5:10]])
    file_of(place / "1.parquet", photos[10:])
    cut = place / "1.parquet"
    cut.write_bytes(cut.read_bytes()[:-100])
    found = tm.load_data(f"parquet:{place}")
    assert any("malformed" in line and "1.parquet" in line for line in describe(found))
    done = embed(
        Colours(),
        found.images,
        found.ids,
        store=Store(tmp_path / "s"),
        config=LoaderConfig(batch=4),
    )
    assert len(done.rows) == 8
    assert list(done.unreadable) == ["0/3", "0/4"]
    assert "at row 3: an empty cell" in done.unreadable["0/3"]
    assert "at row 4: " in done.unreadable["0/4"]
    with refused("incomplete", "malformed"):
        tm.load_data(f"parquet:{place}?strict=yes")


def test_elsewhere(tmp_path: Path, photos: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bucket" / "made").mkdir(parents=True)
    file_of(tmp_path / "bucket" / "made" / "0.parquet", photos)
    here = tm.load_data(f"parquet:{tmp_path}/bucket/made")
    with s3_server.served(tmp_path) as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        there = tm.load_data("parquet:s3://bucket/made")
        assert [there.images.read(at) for at in range(20)] == photos
        np.testing.assert_array_equal(there.groups["side"].codes, here.groups["side"].codes)
        with refused("not-found"):
            tm.load_data("parquet:s3://bucket/nothing")


def test_no_images(tmp_path: Path) -> None:
    pq.write_table(pa.table({"caption": ["a", "b"]}), tmp_path / "0.parquet")
    with refused("unknown-name"):
        tm.load_data(f"parquet:{tmp_path}")
    (tmp_path / "0.parquet").write_bytes(b"")
    with refused("no-images", "1 cannot be read", "0.parquet"):
        tm.load_data(f"parquet:{tmp_path}")
    with refused("bad-option", "parquet:DIR"):
        tm.load_data("parquet:")
