"""A store loses nothing and serves nothing stale."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import tiltmeter as tm
from tiltmeter.errors import DamagedError, InputError
from tiltmeter.store import Store, StoredEmbeddings, identity


class Model:
    """All that a store asks of a model."""

    def __init__(self, weights: str = "w", **preprocessing: object) -> None:
        self.name = "model"
        self.fingerprint = weights
        self.preprocessing = preprocessing


def vectors(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, 4)).astype(np.float32)


def items(n: int, start: int = 0) -> list[str]:
    return [f"{at:064x}" for at in range(start, start + n)]


@pytest.fixture
def space(tmp_path: Path) -> StoredEmbeddings:
    return Store(tmp_path / "store").space(Model())


def test_what_was_put_in_comes_out(space: StoredEmbeddings) -> None:
    first, second = vectors(5), vectors(3, seed=1)
    space.add(items(5), first)
    space.add(items(3, 5), second)
    assert len(space) == 8
    asked = [items(8)[at] for at in (6, 0, 7, 0)]
    assert np.array_equal(space.vectors(asked), np.concatenate([first, second])[[6, 0, 7, 0]])
    assert items(1)[0] in space
    assert items(1, 99)[0] not in space
    with pytest.raises(InputError, match="1 of 2 images are not in"):
        space.vectors([items(1)[0], "other"])
    assert space.vectors([]).shape == (0, 0)


def test_a_colon_in_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To pyarrow a path such as `a:b/c` is one on a file system called a."""
    monkeypatch.chdir(tmp_path)
    space = Store(Path("clip:b32")).space(Model())
    shard = space.add(items(2), vectors(2))
    assert np.array_equal(StoredEmbeddings(space.path).vectors(items(2)), vectors(2))
    assert list(space.problems()) == []
    assert next((tmp_path / "clip:b32").glob(f"*/{shard}.parquet"))


def test_numpy_and_pyarrow_alone_can_read_it(space: StoredEmbeddings) -> None:
    shard = space.add(items(2), vectors(2))
    assert np.array_equal(np.load(space.path / f"{shard}.npy"), vectors(2))
    assert pq.read_table(space.path / f"{shard}.parquet")["item"].to_pylist() == items(2)


def test_other_weights_or_preprocessing_are_another_space(tmp_path: Path) -> None:
    store = Store(tmp_path)
    paths = {store.space(model).path for model in
             (Model("a"), Model("b"), Model("a", size=224), Model("a", size=336))}  # fmt: skip
    assert len(paths) == 4
    assert store.space(Model("a")).path in paths


def test_two_writers_of_the_same_pictures_agree(space: StoredEmbeddings) -> None:
    names = {StoredEmbeddings(space.path).add(items(4), vectors(4)) for _ in range(2)}
    assert len(names) == 1
    StoredEmbeddings(space.path).add(
        items(2), vectors(2, seed=9)
    )  # another cut of the same pictures
    assert len(StoredEmbeddings(space.path)) == 4


def test_damage_is_found(space: StoredEmbeddings) -> None:
    shards = [space.add(items(2, start), vectors(2, start)) for start in (0, 2, 4)]
    assert list(space.problems()) == []
    with (space.path / f"{shards[0]}.npy").open("r+b") as file:
        file.seek(-3, 2)
        file.write(b"x")
    (space.path / f"{shards[1]}.npy").unlink()
    (space.path / f"{shards[2]}.parquet").write_bytes(b"no table")
    problems = sorted(what for _, what in space.problems())
    assert len(problems) == 3
    assert sum("checksum differs" in problem for problem in problems) == 1
    assert sum("is missing" in problem for problem in problems) == 1
    assert sum("cannot be read" in problem for problem in problems) == 1
    with pytest.raises(InputError, match="tiltmeter store verify"):
        len(StoredEmbeddings(space.path))
    for shard in shards:
        space.remove(shard)
    assert len(StoredEmbeddings(space.path)) == 0
    shard = space.add(items(2), vectors(2))
    (space.path / f"{shard}.npy").write_bytes(b"x")
    with pytest.raises(DamagedError, match="cannot be read"):
        space.vectors(items(2))


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


def test_gc_removes_leftovers_and_covered_shards_only(space: StoredEmbeddings) -> None:
    whole = space.add(items(4), vectors(4))
    part = space.add(items(2), vectors(2, seed=5))
    (space.path / ".x.npy.abc.part").write_bytes(b"half")
    (space.path / "orphan.npy").write_bytes(b"no parquet beside it")
    young = {path.name for path in Store(space.path.parent).gc()}  # perhaps of a writer at work
    assert young == {f"{part}.npy", f"{part}.parquet"}
    removed = young | {path.name for path in Store(space.path.parent).gc(older=0)}
    assert removed == {f"{part}.npy", f"{part}.parquet", ".x.npy.abc.part", "orphan.npy"}
    assert StoredEmbeddings(space.path).shards() == [whole]
    assert Store(space.path.parent).gc(older=0) == []


def test_a_damaged_shard_covers_nothing_and_is_replaced(tmp_path: Path) -> None:
    mine, theirs = Store(tmp_path / "mine"), Store(tmp_path / "theirs")
    whole = mine.space(Model()).add(items(4), vectors(4))
    part = mine.space(Model()).add(items(2), vectors(2, seed=5))
    theirs.space(Model()).add(items(4), vectors(4))
    space = mine.space(Model())
    (space.path / f"{whole}.npy").write_bytes(b"x")
    assert mine.gc(older=0) == []
    assert part in space.shards()
    assert mine.merge(theirs) == 1
    assert list(space.problems()) == []


class Tower:
    """A model of somebody's own, which holds its weights in one of several places."""

    def __init__(self, value: float, where: str) -> None:
        import torch

        module = torch.nn.Linear(2, 2)
        torch.nn.init.constant_(module.weight, value)
        torch.nn.init.zeros_(module.bias)
        held = {"attribute": module, "list": [module], "dictionary": {"a": {"b": module}},
                "model": module, "array": np.full(3, value),
                "tensor": torch.full((3,), value)}  # fmt: skip
        setattr(self, "model" if where == "model" else "held", held[where])


@pytest.mark.parametrize("where", ["attribute", "list", "dictionary", "model", "array", "tensor"])
def test_what_a_model_has_learned_is_found(where: str) -> None:
    pytest.importorskip("torch")
    same, again, other = (identity(Tower(value, where)) for value in (1.0, 1.0, 2.0))
    assert same == again != other


def test_a_module_itself_is_a_model() -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    assert identity(torch.nn.Linear(2, 2)) != identity(torch.nn.Linear(2, 2))


def test_a_model_without_weights_is_refused() -> None:
    with pytest.raises(InputError, match="does not say which weights"):
        identity(object.__new__(type("Bare", (), {"name": "bare"})))


def test_training_a_model_makes_it_another() -> None:
    pytest.importorskip("torch")
    model = tm.load_model("testbed:dual")
    before = identity(model)
    next(iter(model.parameters())).data.add_(0.01)
    assert identity(model) != before
    assert identity(tm.load_model("testbed:dual")) == before


def test_options_and_factories_of_one_file_are_different_models(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "class Model:\n"
        "    fingerprint = 'same'\n"
        "    def __init__(self, flip='no'): self.flip = flip\n"
        "    def encode_texts(self, texts): ...\n"
        "other = Model\n"
    )
    specs = (f"python:{file}:Model", f"python:{file}:Model?flip=yes", f"python:{file}:other")
    assert len({str(identity(tm.load_model(spec))) for spec in specs}) == 3


def test_settings_tell_checkpoints_of_equal_weights_apart(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from tests.models import tiny

    for name in ("one", "two"):
        tiny.clip(tmp_path / name)
    same = [identity(tm.load_model(f"hf:{tmp_path / name}")) for name in ("one", "two")]
    assert same[0] == same[1]  # wherever it lies
    config = json.loads((tmp_path / "two/config.json").read_text())
    config["vision_config"]["hidden_act"] = "gelu"
    (tmp_path / "two/config.json").write_text(json.dumps(config))
    assert identity(tm.load_model(f"hf:{tmp_path / 'two'}")) != same[0]


def test_no_store_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no store at"):
        Store(tmp_path / "nothing").spaces()
    with pytest.raises(InputError, match="is not a store"):
        Store(tmp_path).spaces()
