"""Collections in shards: the same results as in one piece, and no row in the driver."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiltmeter as tm
from tests.datasets.test_webdataset import shard
from tests.engine.collections_in_shards import SPEAKS, Letters, clip_retrieval, scaled_model
from tests.engine.test_embedding import MODEL
from tiltmeter.auditing.audit import audit
from tiltmeter.datasets import list_shards
from tiltmeter.datasets.shards import ShardedFaces
from tiltmeter.debiasers import fit_on_shards
from tiltmeter.engine.embedding.embed_images import Workers, embed
from tiltmeter.engine.embedding.loader import LoaderConfig
from tiltmeter.engine.embedding.shards import embed_shards
from tiltmeter.engine.engines import PartsEngine
from tiltmeter.engine.indexing import index_shards, rows_as_faces
from tiltmeter.engine.parts import ImageParts, leaf_size
from tiltmeter.engine.vectors import ShardVectors
from tiltmeter.errors import InputError
from tiltmeter.models import load_model
from tiltmeter.probes.harm_splits import EXPERIMENT
from tiltmeter.results import Run
from tiltmeter.store import Store

ASKED: dict[str, Any] = {
    "probes": ["ranking", "lift"], "cross": ["gender*age"], "k": [10, 100], "permutations": 50,
    "bootstraps": 20,
}  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return clip_retrieval(tmp_path_factory.mktemp("laion"))


def indexed(place: Path) -> ShardedFaces:
    found = list_shards(f"embeddings:{place}")
    assert found is not None
    return index_shards(found, PartsEngine(), lambda what, share: None)


def test_a_collection_knows_names_sizes_and_counts_but_no_row(place: Path) -> None:
    faces, whole = indexed(place), tm.load_data(f"embeddings:{place}")
    assert len(faces) == len(whole) == 2000
    for name in ("gender", "age", "gender*age"):
        assert faces.attribute(name).names == whole.attribute(name).names
        assert faces.attribute(name).counts.tolist() == whole.attribute(name).counts.tolist()
    for rows in (lambda: faces.ids, lambda: faces.groups["age"].codes, lambda: faces.select([0])):
        with pytest.raises(InputError, match="--engine local") as error:
            rows()
        assert error.value.code == "bad-option"


def test_rows_are_found_by_number_across_shards(place: Path) -> None:
    faces, whole = indexed(place), tm.load_data(f"embeddings:{place}")
    assert faces.table is not None
    vectors = ShardVectors.of(faces.table, None)
    np.testing.assert_array_equal(vectors.part(650, 1700).read(), whole.vectors[650:1700])
    rows = np.array([3, 699, 700, 701, 1999])
    some = rows_as_faces(faces, rows, PartsEngine())
    assert some.ids == whole.select(rows.tolist()).ids
    for name in ("gender", "age"):
        own = some.groups[name]
        expected = whole.groups[name]
        assert [own.names[code] for code in own.codes] == [
            expected.names[expected.codes[row]] for row in rows
        ]


def test_an_audit_in_shards_is_that_of_the_rows_in_memory(place: Path) -> None:
    """The same bytes: leaves and blocks are rows by number, wherever shards begin."""
    spec, model = f"embeddings:{place}", scaled_model(place)
    shards = audit(model, spec, engine="parts:size=300", **ASKED)
    rows = audit(model, tm.load_data(spec), engine="parts:size=300", **ASKED)
    assert shards.table.equals(rows.table)
    assert shards.table.num_rows > 1000
    ids = [run.instances["ranking"]["id"].to_pylist() for run in (shards, rows)]
    assert ids[0] == ids[1]
    assert shards.instances["ranking"].equals(rows.instances["ranking"])
    assert shards.meta["data"]["faces"]["images"] == 2000
    assert "faces" in rows.vectors
    assert "faces" not in shards.vectors


def test_an_audit_in_shards_is_that_of_the_local_engine(place: Path) -> None:
    spec, model = f"embeddings:{place}", scaled_model(place)
    options = {**ASKED, "permutations": 0, "bootstraps": 0}
    check_same(audit(model, spec, engine="parts", **options), audit(model, spec, **options), 2e-6)


def test_a_shard_that_cannot_be_read_is_named_and_all_others_count(tmp_path: Path) -> None:
    place = clip_retrieval(tmp_path / "laion")
    cut = place / "img_emb" / "img_emb_0.npy"
    cut.write_bytes(cut.read_bytes()[:5000])
    run = audit(f"embeddings:{place}", engine="parts", **ASKED)
    faces = run.meta["data"]["faces"]
    assert faces["images"] == 1300
    assert faces["shards_not_read"]["count"] == 1
    assert "img_emb_0.npy" in faces["shards_not_read"]["first"][0]
    with pytest.raises(InputError, match=r"img_emb_0\.npy") as error:
        audit(f"embeddings:{place}", engine="parts", strict=True, **ASKED)
    assert error.value.code == "bad-file"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"limit": 100}, "--limit"),
        ({"convention": "berg2022"}, "berg2022"),
        ({"probes": ["strength"]}, "strength"),
        ({"probes": ["eat"]}, "eat"),
        ({"options": {"ranking": {"device": "cuda"}}}, "ranking.device=cuda"),
        ({"options": {"lift": {"scores": "matching"}}}, "lift.scores=matching"),
    ],
)
def test_what_needs_all_rows_is_refused_by_name_before_any_work(
    place: Path, options: dict[str, Any], named: str
) -> None:
    told: list[str] = []
    with pytest.raises(InputError, match=named):
        audit(f"embeddings:{place}", f"embeddings:{place}", engine="parts",
              progress=lambda what, share: told.append(what), **{**ASKED, **options})  # fmt: skip
    assert not told  # before any work


def test_every_worker_gets_four_parts_whatever_the_size() -> None:
    class Rows:
        def __init__(self, count: int) -> None:
            self.count = count

        def __len__(self) -> int:
            return self.count

        def part(self, start: int, stop: int) -> Any:
            return range(start, min(stop, self.count))

    for count in (524_288, 10**6, 10**7):
        cells = np.zeros(count, np.int8)
        cut = ImageParts.of(Rows(count), cells, PartsEngine(slots=8))  # type: ignore[arg-type]
        parts: Any = cut.parts(PartsEngine(slots=8))
        assert len(parts) >= 4 * 8
        assert sum(len(part.codes) for part in parts) == count
        assert all(part.first % cut.leaf == 0 for part in parts)
    for workers in (1, 2, 8, 15, 64, 300, 1023):  # of 65,536 images each, or more
        for each in (65_536, 90_000, 10**6, 10**7):
            leaves = workers * each / leaf_size(workers * each)
            assert leaves > 4 * workers - 1, (workers, each)


def test_harms_are_counted_by_workers(place: Path) -> None:
    """The same rows as of the local engine, to the last digit of the products."""
    model, spec = Letters(), f"embeddings:{place}"
    asked: dict[str, Any] = {"probes": ["harms"], "cross": ["gender*age"], "permutations": 100,
                             "bootstraps": 50}  # fmt: skip
    shards = audit(model, spec, engine="parts:size=170", **asked)
    local = audit(model, spec, **asked)
    assert shards.table.num_rows == local.table.num_rows > 100
    assert len(shards.where(experiment=EXPERIMENT)) == 2 * 3  # categories by attributes
    for mine, theirs in zip(shards.table.to_pylist(), local.table.to_pylist(), strict=True):
        for name in ("value", "p", "null_low", "ci_low", "ci_high"):
            assert mine[name] == pytest.approx(theirs[name], abs=1e-12, nan_ok=True), name
        assert mine["n_group"] == theirs["n_group"]
    rates = shards.where(metric="group_rates")
    assert max(row["value"] for row in rates) > 0.05  # something was classified as harmful


def test_zero_shot_and_retrieval_are_those_of_the_local_engine() -> None:
    data = {"utility": "testbed:utility?images=300", "captions": "testbed:captions?images=300"}
    asked: dict[str, Any] = {"probes": ["zero_shot", "retrieval"], "data": data}
    parts = tm.audit("testbed:dual", engine="parts:size=64", **asked)
    local = tm.audit("testbed:dual", **asked)
    assert parts.table.equals(local.table)
    assert parts.instances["retrieval"].equals(local.instances["retrieval"])
    assert max(row["value"] for row in local.where(metric="recall")) > 0.2


def test_leace_is_fitted_on_moments_and_refuses_its_own_rows(tmp_path: Path) -> None:
    place = clip_retrieval(tmp_path / "laion")
    spec, model = f"embeddings:{place}", scaled_model(place)
    whole = tm.debias("leace", model, spec, attribute="gender")
    parts = tm.debias("leace", model, spec, attribute="gender", engine="parts:size=170")
    x = np.random.default_rng(0).normal(size=(50, 16))
    before = np.abs(x - whole.debiaser.erase(x)).max()
    assert before > 0.1  # it does something
    np.testing.assert_allclose(parts.debiaser.erase(x), whole.debiaser.erase(x), atol=1e-9)
    assert sorted(parts.debiaser.rows_.keys) == sorted(whole.debiaser.rows_.keys)
    for fitted in (whole, parts):
        with pytest.raises(InputError, match="2,000 of the 2,000 rows"):
            audit(fitted, spec, engine="parts", **ASKED)
        with pytest.raises(InputError, match="fitted on"):
            audit(fitted, tm.load_data(spec), **ASKED)
    others = clip_retrieval(tmp_path / "others", (500, 300), lean=1.0)
    found = audit(parts, f"embeddings:{others}", engine="parts", **ASKED)
    lean = found.where(metric="c_asc", attribute="gender", group="woman", concept="thing 0")
    bare = audit(model, f"embeddings:{others}", engine="parts", **ASKED)
    biased = bare.where(metric="c_asc", attribute="gender", group="woman", concept="thing 0")
    assert biased[0]["value"] > 0.3
    assert abs(lean[0]["value"]) < 0.2


def test_a_whole_shard_is_recorded_where_rows_are_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fit_on_shards, "MOST_ROWS", 1000)
    place = clip_retrieval(tmp_path / "laion")
    spec, model = f"embeddings:{place}", scaled_model(place)
    fitted = tm.debias("leace", model, spec, attribute="gender", engine="parts")
    assert len(fitted.debiaser.rows_) == 4
    with pytest.raises(InputError, match="2,000 of the 2,000 rows"):
        audit(fitted, spec, engine="parts", **ASKED)


@pytest.mark.parametrize("method", ["clip-clip", "sfid", "transport", "inlp", "mpr"])
def test_methods_that_need_all_embeddings_are_refused_by_name(place: Path, method: str) -> None:
    model = scaled_model(place)
    with pytest.raises(InputError, match=method) as error:
        tm.debias(method, model, f"embeddings:{place}", attribute="gender", engine="parts")
    assert error.value.code == "bad-option"


def test_pbm_re_ranks_the_best_of_all_shards(place: Path, tmp_path: Path) -> None:
    spec = f"embeddings:{place}"
    fitted = tm.debias("pbm", scaled_model(place), spec, attribute="gender", engine="parts")
    fitted.debiaser.rows_ = None  # it learned no more than names
    asked = {**ASKED, "probes": ["ranking"]}
    shards = audit(fitted, spec, engine="parts:size=300", **asked)
    rows = audit(fitted, tm.load_data(spec), engine="parts:size=300", **asked)
    assert shards.table.equals(rows.table)
    assert shards.instances["ranking"].equals(rows.instances["ranking"])
    skew = [row["value"] for row in shards.where(metric="max_skew", attribute="gender", k=100)]
    assert max(abs(value) for value in skew if value is not None) < 0.05


@pytest.fixture(scope="module")
def tars(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four tar files; one ends early, and an image of another is damaged."""
    place = tmp_path_factory.mktemp("tars")
    for at in range(4):
        shard(place / f"{at:05d}.tar", 40, at)
    cut = place / "00003.tar"
    cut.write_bytes(cut.read_bytes()[:60_000])
    spoil_first_image(place / "00000.tar")
    return place


def spoil_first_image(tar: Path) -> None:
    file, offset, _ = tm.load_data(f"webdataset:{tar}").images.rows[0]
    with Path(file).open("rb+") as first:
        first.seek(offset)
        first.write(bytes(16))


def embedded(spec: str, store: Path, file: Path) -> Any:
    found = list_shards(spec)
    assert found is not None
    load = partial(load_model, f"python:{file}:Colours")
    return embed_shards(
        load(), found, Store(store), Workers(PartsEngine(), load), LoaderConfig(batch=8, chunk=16)
    )


def test_tar_files_are_embedded_one_by_one(tars: Path, tmp_path: Path) -> None:
    """The same images, ids and labels as of one list of all; and nothing is made twice."""
    file = tmp_path / "colours.py"
    file.write_text(MODEL + SPEAKS)
    model: Any = load_model(f"python:{file}:Colours")
    whole = tm.load_data(f"webdataset:{tars}")
    listed = embed(model, whole.images, whole.ids, config=LoaderConfig(batch=8, chunk=16))
    done = embedded(f"webdataset:{tars}", tmp_path / "store", file)
    table = done.faces.table
    assert done.new == len(table.vectors(0, len(done.faces))) == len(listed.rows)
    assert done.unreadable == 1
    assert "00000.tar" in done.first_unreadable[0]
    assert "00003.tar" in done.faces.provenance["shards_not_read"]["first"][0]
    np.testing.assert_array_equal(table.vectors(0, len(done.faces)), listed.vectors)
    found = rows_as_faces(done.faces, np.arange(len(done.faces)), PartsEngine())
    assert found.ids == tuple(whole.ids[row] for row in listed.rows)
    own, expected = found.groups["gender"], whole.groups["gender"]
    assert own.names == expected.names
    assert own.codes.tolist() == expected.codes[listed.rows].tolist()

    def written() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in (tmp_path / "store").rglob("*.*")}

    before = written()
    again = embedded(f"webdataset:{tars}", tmp_path / "store", file)
    assert again.new == 0
    assert written() == before
    # what could not be read is still said, by whoever finds the shards finished
    assert (again.unreadable, again.first_unreadable) == (1, done.first_unreadable)
    assert again.faces.provenance["shards_not_read"] == done.faces.provenance["shards_not_read"]
    # another label column is read from the shards, and nothing is embedded for it
    more = embedded(f"webdataset:{tars}?attributes=gender,width", tmp_path / "store", file)
    assert (more.new, more.unreadable) == (0, 1)
    assert more.faces.groups["width"].counts.tolist() == [len(listed.rows)]


def test_label_columns_are_those_of_the_first_tar_file_with_images(
    tars: Path, tmp_path: Path
) -> None:
    shutil.copytree(tars, tmp_path / "tars")
    (tmp_path / "tars" / "00000.tar").write_bytes(b"")
    found = list_shards(f"webdataset:{tmp_path / 'tars'}")
    assert found is not None
    assert found.columns.names
    assert "gender" in found.columns.names
    for tar in (tmp_path / "tars").iterdir():
        tar.write_bytes(b"")
    with pytest.raises(InputError) as error:
        list_shards(f"webdataset:{tmp_path / 'tars'}")
    assert error.value.code == "no-images"


def test_a_changed_tar_file_and_damaged_embeddings_are_made_again(
    tars: Path, tmp_path: Path
) -> None:
    file = tmp_path / "colours.py"
    file.write_text(MODEL + SPEAKS)
    place = tmp_path / "tars"
    shutil.copytree(tars, place)
    first = embedded(f"webdataset:{place}", tmp_path / "store", file)
    shard(place / "00001.tar", 40, 9)
    assert embedded(f"webdataset:{place}", tmp_path / "store", file).new == 40
    for array in (tmp_path / "store").glob("*/*.npy"):
        array.write_bytes(array.read_bytes()[:-7])
    with pytest.warns(UserWarning, match="made again"):
        repaired = embedded(f"webdataset:{place}", tmp_path / "store", file)
    assert repaired.new > 0
    assert len(repaired.faces) == len(first.faces)
    assert np.isfinite(repaired.faces.table.vectors(0, len(repaired.faces))).all()


def test_an_audit_of_tar_files_in_shards_is_that_of_the_local_engine(
    tars: Path, tmp_path: Path
) -> None:
    file = tmp_path / "colours.py"
    file.write_text(MODEL + SPEAKS)
    words = tmp_path / "words.csv"
    words.write_text("word,category,pos\nnurse,work,noun\ndoctor,work,noun\nbaker,work,noun\n")
    asked: dict[str, Any] = {"words": str(words), "k": [10, 50], "bootstraps": 0,
                             "permutations": 0, "probes": ["ranking", "harms"]}  # fmt: skip
    spec = f"python:{file}:Colours"
    images = f"webdataset:{tars}"
    shards = audit(spec, images, engine="parts:size=20", store=tmp_path / "store", **asked)
    local = audit(spec, images, **asked)
    assert shards.meta["data"]["faces"]["images"] == local.meta["data"]["faces"]["images"]
    assert shards.meta["data"]["faces"]["unreadable"]["count"] == 1
    check_same(shards, local, 1e-5)


def check_same(shards: Run, local: Run, rounding: float) -> None:
    """Every value of the local engine, except NDKL, which has bounds by parts."""
    key = ("probe", "metric", "attribute", "group", "concept", "category", "template", "k",
           "experiment", "target")  # fmt: skip
    mine = {tuple(row[name] for name in key): row for row in shards.table.to_pylist()}
    checked = 0
    for row in local.table.to_pylist():
        other = mine[tuple(row[name] for name in key)]
        assert (other["n"], other["n_group"]) == (row["n"], row["n_group"])
        if row["value"] is not None and row["metric"] != "ndkl":
            assert other["value"] == pytest.approx(row["value"], abs=rounding), row
            checked += 1
    assert checked > 50
