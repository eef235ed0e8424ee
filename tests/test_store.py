"""A store loses nothing and serves nothing stale."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from tiltmeter.errors import InputError
from tiltmeter.store import Space, Store, fingerprint


class Model:
    """All that a store asks of a model."""

    def __init__(self, weights: str = "w", **preprocessing: object) -> None:
        self.name = "model"
        self.provenance = {"weights": weights}
        self.preprocessing = preprocessing


def vectors(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, 4)).astype(np.float32)


def items(n: int, start: int = 0) -> list[str]:
    return [f"{at:064x}" for at in range(start, start + n)]


@pytest.fixture
def space(tmp_path: Path) -> Space:
    return Store(tmp_path / "store").space(Model())


def test_what_was_put_in_comes_out(space: Space) -> None:
    first, second = vectors(5), vectors(3, seed=1)
    space.add(items(5), first)
    space.add(items(3, 5), second)
    assert len(space) == 8
    asked = [items(8)[at] for at in (6, 0, 7, 0)]
    assert np.array_equal(space.vectors(asked), np.concatenate([first, second])[[6, 0, 7, 0]])
    assert items(1)[0] in space
    assert items(1, 99)[0] not in space
    with pytest.raises(InputError, match="1 of 2 pictures are not in"):
        space.vectors([items(1)[0], "other"])
    assert space.vectors([]).shape == (0, 0)


def test_numpy_and_pyarrow_alone_can_read_it(space: Space) -> None:
    shard = space.add(items(2), vectors(2))
    assert np.array_equal(np.load(space.path / f"{shard}.npy"), vectors(2))
    assert pq.read_table(space.path / f"{shard}.parquet")["item"].to_pylist() == items(2)


def test_other_weights_or_preprocessing_are_another_space(tmp_path: Path) -> None:
    store = Store(tmp_path)
    paths = {store.space(model).path for model in
             (Model("a"), Model("b"), Model("a", size=224), Model("a", size=336))}  # fmt: skip
    assert len(paths) == 4
    assert store.space(Model("a")).path in paths


def test_two_writers_of_the_same_pictures_agree(space: Space) -> None:
    names = {Space(space.path).add(items(4), vectors(4)) for _ in range(2)}
    assert len(names) == 1
    Space(space.path).add(items(2), vectors(2, seed=9))  # another cut of the same pictures
    assert len(Space(space.path)) == 4


def test_damage_is_found(space: Space) -> None:
    shards = [space.add(items(2, start), vectors(2, start)) for start in (0, 2, 4)]
    assert list(space.problems()) == []
    with (space.path / f"{shards[0]}.npy").open("r+b") as file:
        file.seek(-3, 2)
        file.write(b"x")
    (space.path / f"{shards[1]}.npy").unlink()
    (space.path / f"{shards[2]}.parquet").write_bytes(b"no table")
    problems = sorted(space.problems())
    assert len(problems) == 3
    assert sum("checksum differs" in problem for problem in problems) == 1
    assert sum("is missing" in problem for problem in problems) == 1
    assert sum("cannot be read" in problem for problem in problems) == 1
    with pytest.raises(InputError, match="tiltmeter store verify"):
        len(Space(space.path))


def test_merge_takes_what_is_new_and_refuses_what_is_damaged(tmp_path: Path) -> None:
    mine, theirs = Store(tmp_path / "mine"), Store(tmp_path / "theirs")
    mine.space(Model()).add(items(3), vectors(3))
    theirs.space(Model()).add(items(3), vectors(3))
    theirs.space(Model()).add(items(3, 3), vectors(3, 1))
    theirs.space(Model("other")).add(items(1), vectors(1))
    assert mine.merge(theirs) == 2
    assert mine.merge(theirs) == 0
    assert sorted(len(space) for space in mine.spaces()) == [1, 6]
    broken = theirs.space(Model())
    (broken.path / f"{broken.shards()[0]}.npy").write_bytes(b"")
    with pytest.raises(InputError, match="nothing was merged"):
        Store(tmp_path / "third").merge(theirs)


def test_gc_removes_leftovers_and_covered_shards_only(space: Space) -> None:
    whole = space.add(items(4), vectors(4))
    part = space.add(items(2), vectors(2, seed=5))
    (space.path / ".x.npy.abc.part").write_bytes(b"half")
    (space.path / "orphan.npy").write_bytes(b"no parquet beside it")
    young = {path.name for path in Store(space.path.parent).gc()}  # perhaps of a writer at work
    assert young == {f"{part}.npy", f"{part}.parquet"}
    removed = young | {path.name for path in Store(space.path.parent).gc(older=0)}
    assert removed == {f"{part}.npy", f"{part}.parquet", ".x.npy.abc.part", "orphan.npy"}
    assert Space(space.path).shards() == [whole]
    assert Store(space.path.parent).gc(older=0) == []


def test_fingerprints() -> None:
    torch = pytest.importorskip("torch")

    class Theirs:
        def __init__(self, value: float) -> None:
            self.tower = torch.nn.Linear(2, 2)
            torch.nn.init.constant_(self.tower.weight, value)
            torch.nn.init.zeros_(self.tower.bias)

    assert fingerprint(Theirs(1.0)) == fingerprint(Theirs(1.0)) != fingerprint(Theirs(2.0))
    with pytest.raises(InputError, match="does not tell which weights"):
        fingerprint(object.__new__(type("Bare", (), {"name": "bare"})))


def test_no_store_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no store at"):
        Store(tmp_path / "nothing").spaces()
