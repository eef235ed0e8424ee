"""Damaged files of a store are named and made again, or refused; no number comes of them."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tiltmeter as tm
from tests.command_line import tiltmeter
from tests.engine.test_embedding import Beside, Colours, album, embedded
from tests.store.test_store import Model, items, vectors
from tiltmeter import errors
from tiltmeter.engine.embedding.loader import LoaderConfig
from tiltmeter.engine.vectors import StoreVectors
from tiltmeter.store import Store, StoredEmbeddings
from tiltmeter.types import Faces

CONFIG = LoaderConfig(batch=8, workers=0, chunk=20, precision="float32")
WORDS = {"k": [5], "permutations": 99, "bootstraps": 50, "words": "berg"}


class Speaking(Colours):
    """It also has texts, so that it can be audited."""

    def encode_texts(self, texts: list[str]) -> np.ndarray:
        rng = np.random.default_rng([len(texts[0]), len(texts)])
        return rng.normal(size=(len(texts), 27)).astype(np.float32)


def flip_every_fourth(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[128::4] = bytes(byte ^ 0x40 for byte in data[128::4])  # after the header
    path.write_bytes(data)


def flip(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


@pytest.fixture
def faces(tmp_path: Path) -> Faces:
    return album(tmp_path / "album", 40)


@pytest.fixture
def store(tmp_path: Path, faces: Faces) -> Store:
    found = Store(tmp_path / "store")
    embedded(Speaking(), faces, store=found, config=CONFIG)
    return found


def shard(store: Store, suffix: str = ".npy") -> Path:
    return min(store.root.glob(f"*/*{suffix}"))


def test_an_audit_embeds_a_damaged_shard_again(store: Store, faces: Faces) -> None:
    before = tm.audit(Speaking(), faces, store=store.root, probes=["ranking"], **WORDS)
    flip_every_fourth(shard(store))
    with pytest.warns(UserWarning, match=f"{shard(store).name}.* made again"):
        after = tm.audit(Speaking(), faces, store=store.root, probes=["ranking"], **WORDS)
    assert after.table.equals(before.table)
    assert list(store.spaces()[0].problems()) == []


def test_an_audit_by_parts_embeds_a_damaged_shard_again(store: Store, faces: Faces) -> None:
    before = tm.audit(Speaking(), faces, store=store.root, engine="parts", **WORDS)
    flip_every_fourth(shard(store))
    with pytest.warns(UserWarning, match=f"{shard(store).name}.* made again"):
        after = tm.audit(Speaking(), faces, store=store.root, engine="parts", **WORDS)
    assert after.table.equals(before.table)
    assert after.meta["data"]["faces"]["parts_not_read"] == {}


@pytest.mark.parametrize("gpus", [0, 1])  # with one, several chunks are a part
def test_a_worker_embeds_a_damaged_shard_again(store: Store, faces: Faces, gpus: int) -> None:
    whole = {path: path.read_bytes() for path in store.root.rglob("*.*")}
    flip_every_fourth(shard(store))
    with pytest.warns(UserWarning, match="made again"):
        done = embedded(Speaking(), faces, store=store, config=CONFIG, engine=Beside(gpus=gpus),
                        load=Speaking, read=False)  # fmt: skip
    assert done.new == 20
    assert whole == {path: path.read_bytes() for path in store.root.rglob("*.*")}


def test_without_the_model_damage_is_refused(store: Store, faces: Faces, tmp_path: Path) -> None:
    for name in ("before", "after"):
        run = tm.audit(Speaking(), faces, store=store.root, probes=["ranking"], **WORDS)
        run.save(tmp_path / name)
    flip_every_fourth(shard(store))
    for command in (("compare", "before", "after"), ("store", "info", "store")):
        done = tiltmeter(*command, cwd=tmp_path)
        said = " ".join(done.stderr.split())
        assert done.returncode == 2, done.stdout
        assert str(shard(store)) in said
        assert f"tiltmeter store verify {store.root} --remove" in said


def saved(array: np.ndarray) -> Callable[[Path], object]:
    return lambda path: np.save(path, array)


def swap(suffixes: tuple[str, ...]) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        for suffix in suffixes:
            first, second = sorted(path.parent.glob(f"*{suffix}"))[:2]
            first.rename(path.parent / "other")
            second.rename(first)
            (path.parent / "other").rename(second)

    return change


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


WIDE = 27
DAMAGE: dict[str, Callable[[Path], object]] = {
    "flipped": flip_every_fourth,
    "one wide": saved(np.ones((20, 1), np.float32)),
    "int8": saved(np.ones((20, WIDE), np.int8)),
    "float64": saved(np.ones((20, WIDE))),
    "flat": saved(np.ones(20 * WIDE, np.float32)),
    "too few rows": saved(np.ones((19, WIDE), np.float32)),
    "too many rows": saved(np.ones((21, WIDE), np.float32)),
    "other vectors": saved(np.ones((20, WIDE), np.float32)),
    "objects": saved(np.array([["x"]], object)),
    "cut": cut,
    "empty": lambda path: path.write_bytes(b""),
    "zeroed": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "gone": Path.unlink,
    "swapped vectors": swap((".npy",)),
    "swapped items": swap((".parquet",)),
    "swapped names": swap((".npy", ".parquet")),
    "item table cut": lambda path: cut(path.with_suffix(".parquet")),
    "item table zeroed": lambda path: path.with_suffix(".parquet").write_bytes(bytes(999)),
    "item table of others": lambda path: pq.write_table(
        pa.table({"item": items(20)}), path.with_suffix(".parquet")
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_seen_refused_and_mended(store: Store, faces: Faces, damage: str) -> None:
    space = store.spaces()[0]
    names = [faces.images.hash(at) for at in range(40)]
    whole, lazy = space.vectors(names), StoreVectors.of(space, names)  # read once, in this process
    DAMAGE[damage](shard(store))
    assert list(space.problems())
    for read in (lambda: StoredEmbeddings(space.path).vectors(names), lazy.read):
        with pytest.raises(errors.DamagedError, match=f"verify {store.root} --remove"):
            read()
    with pytest.warns(UserWarning, match="made again"):
        done = embedded(Speaking(), faces, store=store, config=CONFIG)
    assert np.array_equal(done.vectors, whole)
    assert done.new in (20, 40)
    assert list(space.problems()) == []


def older(path: Path) -> None:
    """An item table as the first release wrote it: without its own hash."""
    table = pq.read_table(path)
    told = {b"vectors": table.schema.metadata[b"vectors"]}
    pq.write_table(table.replace_schema_metadata(told), path)


@pytest.mark.parametrize("version", ["new", "older"])
def test_flipped_bits_change_no_result(store: Store, faces: Faces, version: str) -> None:
    space = store.spaces()[0]
    names = [faces.images.hash(at) for at in range(40)]
    whole = space.vectors(names)
    if version == "older":
        for path in space.path.glob("*.parquet"):
            older(path)
        assert np.array_equal(StoredEmbeddings(space.path).vectors(names), whole)
        assert list(space.problems()) == []
    sound = store.root.with_name("sound")
    shutil.copytree(store.root, sound)
    dice, refused = random.Random(0), 0
    for turn in range(300):
        path = dice.choice(sorted(space.path.glob(("*.npy", "*.parquet", "*.json")[turn % 3])))
        bit = dice.randrange(8 * path.stat().st_size)
        flip(path, bit)
        seen = list(space.problems())
        try:
            found = StoredEmbeddings(space.path).vectors(names)
        except errors.TiltmeterError:
            refused += 1
            assert seen, (path.suffix, bit)
        else:
            assert np.array_equal(found, whole), (path.suffix, bit)
        if version == "new":  # every byte has a hash, also where no reader looks
            assert seen, (path.suffix, bit)
            with pytest.warns(UserWarning, match="made again"):
                done = embedded(Speaking(), faces, store=store, config=CONFIG)
            assert np.array_equal(done.vectors, whole), (path.suffix, bit)
        shutil.rmtree(store.root)
        shutil.copytree(sound, store.root)
    assert refused > 100


def test_shards_of_two_widths_are_refused(tmp_path: Path) -> None:
    """Both are sound; NumPy would repeat the single column."""
    space = Store(tmp_path).space(Model())
    space.add(items(2), vectors(2))
    space.add(items(2, 2), vectors(2)[:, :1])
    for read in (lambda: space.vectors(items(4)), StoreVectors.of(space, items(4)).read):
        with pytest.raises(errors.InputError, match="of different models"):
            read()


def test_a_damaged_record_is_written_again(store: Store) -> None:
    path = shard(store, ".json")
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"colours", b"colors!"))
    assert "space.json was changed" in next(iter(store.spaces()[0].problems()))[1]
    with pytest.raises(errors.DamagedError):
        store.spaces()[0].info()
    with pytest.warns(UserWarning, match="made again"):
        store.space(Speaking())
    assert path.read_bytes() == whole
    about = {key: value for key, value in json.loads(whole).items() if "sha256" not in key}
    path.write_text(json.dumps(about))  # as an older version wrote it
    assert list(store.spaces()[0].problems()) == []
