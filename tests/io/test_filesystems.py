"""Files elsewhere give what the same files here do: by S3's protocol, file:// and fsspec."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import tiltmeter as tm
from tests import s3_server
from tests.datasets.test_webdataset import shard
from tests.engine.test_embedding import Colours, album
from tests.refusing import refused
from tiltmeter.cli.app import app
from tiltmeter.corpus import audit_captions
from tiltmeter.datasets import list_shards
from tiltmeter.engine.embedding.embed_images import Workers, embed
from tiltmeter.engine.embedding.loader import LoaderConfig
from tiltmeter.engine.embedding.shards import embed_shards
from tiltmeter.engine.engines import PartsEngine
from tiltmeter.engine.indexing import rows_as_faces
from tiltmeter.errors import InputError
from tiltmeter.io import filesystems as sources
from tiltmeter.store import Store


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder that is s3://bucket too: tar shards, captions, images and their labels."""
    root = tmp_path_factory.mktemp("buckets")
    place = root / "bucket"
    for name in ("shards", "captions/more", "photos"):
        (place / name).mkdir(parents=True)
    shard(place / "shards" / "00000.tar", 6, 0)
    shard(place / "shards" / "00001.tar", 5, 1)
    cut = place / "shards" / "00001.tar"
    cut.write_bytes(cut.read_bytes()[:7000])
    rng = np.random.default_rng(0)
    words = ["a", "nurse", "doctor", "his", "her", "man", "woman", "photo"]
    rows = [" ".join(rng.choice(words, 8)) for _ in range(600)]
    pq.write_table(pa.table({"caption": rows[:300]}), place / "captions" / "0.parquet")
    with pa.CompressedOutputStream(str(place / "captions" / "more" / "1.csv.gz"), "gzip") as file:
        file.write("\n".join(["caption", *rows[300:]]).encode())
    (place / "captions" / "0_stats.json").write_text('{"count": 300}')
    faces = album(place / "photos", 8)
    pq.write_table(
        pa.table({"file": faces.ids, "side": ["left", "right"] * 4}), place / "photos" / "t.parquet"
    )
    (place / "photos" / "t.csv").write_text(
        "file,side\n" + "".join(f"{name},{'lr'[at % 2]}\n" for at, name in enumerate(faces.ids))
    )
    with s3_server.served(root) as environment, pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        yield place


@pytest.fixture(params=["s3", "file", "fsspec"])
def url(request: pytest.FixtureRequest, bucket: Path) -> str:
    if request.param == "fsspec":
        pytest.importorskip("fsspec")
    return {"s3": "s3://bucket", "file": bucket.as_uri(), "fsspec": f"local://{bucket}"}[
        request.param
    ]


def test_shards(bucket: Path, url: str) -> None:
    here = tm.load_data(f"webdataset:{bucket}/shards")
    names = ("", "/", "/0*.tar", "/{00000..00001}.tar")
    for spec in (f"{url}/shards{name}" for name in names):
        there = tm.load_data(f"webdataset:{spec}")
        assert there.ids == here.ids
        assert there.groups["gender"].counts.tolist() == here.groups["gender"].counts.tolist()
    assert 6 < len(there) < 11
    assert there.provenance["found"]["malformed"]["first"] == [f"{url}/shards/00001.tar"]
    hashes = [there.images.hash(at) for at in range(len(there))]
    assert hashes == [here.images.hash(at) for at in range(len(here))]


def test_a_range_of_shards_on_a_web_server(bucket: Path, tmp_path: Path) -> None:
    """It lists no directories; a shard that it does not have is named."""
    pytest.importorskip("aiohttp")
    url = f"{os.environ['AWS_ENDPOINT_URL']}/bucket/shards"
    here = tm.load_data(f"webdataset:{bucket}/shards")
    found = list_shards(f"webdataset:{url}/{{00000..00002}}.tar")
    assert found is not None
    done = embed_shards(Colours(), found, Store(tmp_path), Workers(PartsEngine(), Colours),
                        LoaderConfig(batch=4))  # fmt: skip
    assert rows_as_faces(done.faces, np.arange(len(here)), PartsEngine()).ids == here.ids
    missed = done.faces.provenance["shards_not_read"]["first"]
    assert [name.split(": ")[0] for name in missed] == [f"{url}/00002.tar", f"{url}/00001.tar"]
    local = embed(Colours(), here.images, here.ids, config=LoaderConfig(batch=4, workers=0))
    np.testing.assert_array_equal(done.faces.table.vectors(0, len(here)), local.vectors)


@pytest.mark.parametrize("name", ["{00000..00001}", "{00001..00000}.tar"])
def test_a_range_without_files_is_an_error(bucket: Path, name: str) -> None:
    with refused("not-found", name):
        tm.load_data(f"webdataset:{bucket}/shards/{name}")


def test_captions(bucket: Path, url: str) -> None:
    here = audit_captions(bucket / "captions")
    there = audit_captions(f"{url}/captions")
    names = {"dataset"}
    same = [name for name in here.table.column_names if name not in names]
    assert there.table.select(same).equals(here.table.select(same))
    told = [run.meta["data"]["captions"] for run in (here, there)]
    assert told[0]["captions"] == told[1]["captions"] == 600
    assert told[0]["bytes"] == told[1]["bytes"] > 0
    assert told[1]["broken"] == {}  # img2dataset's statistics are no captions
    one = audit_captions(f"{url}/captions/*.parquet")
    assert one.meta["data"]["captions"]["captions"] == 300


@pytest.mark.parametrize("table", ["t.parquet", "t.csv"])
def test_tables_with_images(bucket: Path, url: str, table: str, tmp_path: Path) -> None:
    here, there = (
        tm.load_data(f"table:{place}/photos/{table}?path=file&attributes=side")
        for place in (bucket, url)
    )
    assert there.ids == here.ids
    assert there.groups["side"].names == here.groups["side"].names
    assert there.provenance["labels"] == here.provenance["labels"]
    config = LoaderConfig(batch=4, chunk=4, workers=1)  # decoded by a process that was forked
    ours, theirs = (
        embed(Colours(), one.images, one.ids, store=Store(tmp_path / str(at)), config=config)
        for at, one in enumerate((here, there))
    )
    np.testing.assert_array_equal(ours.vectors, theirs.vectors)
    assert ours.items == theirs.items


def test_a_image_that_is_not_there_is_named_and_the_rest_goes_on(
    bucket: Path, url: str, tmp_path: Path
) -> None:
    table = tmp_path / "t.csv"
    table.write_text("file,side\n0000.png,l\ngone.png,r\n0002.png,l\n")
    data = tm.load_data(f"table:{table}?path=file&attributes=side&root={url}/photos")
    done = embed(Colours(), data.images, data.ids, config=LoaderConfig(workers=0))
    assert done.rows == [0, 2]
    assert list(done.unreadable) == ["gone.png"]
    assert f"{url}/photos/gone.png cannot be read" in done.unreadable["gone.png"]


def test_no_name_leads_out_of_its_root(url: str, tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    for name in ("../captions/0.parquet", "/etc/passwd", "s3://other/x.png"):
        table.write_text(f"file,side\n{name},l\n0000.png,r\n")
        with refused("unsafe-path"):
            tm.load_data(f"table:{table}?path=file&attributes=side&root={url}/photos")


def test_a_source_that_cannot_be_reached_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        for name, value in s3_server.environment(taken.getsockname()[1]).items():
            monkeypatch.setenv(name, value)
        sources._system.cache_clear()
        with refused("not-found", "s3://elsewhere/x"):
            tm.load_data("webdataset:s3://elsewhere/x")
        sources._system.cache_clear()
    for place in (f"{tmp_path.as_uri()}/not.parquet", "nowhere://bucket/not.parquet"):
        with refused("not-found"):
            audit_captions(place)
        with pytest.raises(InputError, match="cannot be re"):
            tm.load_data(f"table:{place}")


def test_the_command_ends_with_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tiltmeter.cli.app import main

    monkeypatch.setattr(sys, "argv", ["tiltmeter", "captions", "nowhere://bucket/x.parquet"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    told = CliRunner().invoke(app, ["captions", f"{tmp_path.as_uri()}/not"])
    assert isinstance(told.exception, InputError)
    assert "cannot be reached" in str(told.exception)
