"""Any table of labels, with or without images."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import tiltmeter as tm
from tests.datasets.making import photos, text
from tests.refusing import refused
from tiltmeter.errors import InputError, UnknownNameError

ROWS = [
    {"name": "a/1.png", "gender": "woman", "rating": 1},
    {"name": "a/2.png", "gender": "man", "rating": 2},
    {"name": "b/1.png", "gender": "man", "rating": 3},
]


def write(path: Path, rows: list[dict[str, object]] = ROWS) -> Path:
    table = pa.Table.from_pylist(rows)
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        options = pa.csv.WriteOptions(delimiter="\t" if path.suffix == ".tsv" else ",")
        pa.csv.write_csv(table, path, options)
    return path


@pytest.mark.parametrize("ending", ["csv", "tsv", "parquet", "jsonl"])
def test_a_path_column_gives_images(tmp_path: Path, ending: str) -> None:
    photos(tmp_path, "a/1.png", "b/1.png")
    table = write(tmp_path / f"labels.{ending}")
    faces = tm.load_data(f"table:{table}?path=name")
    assert list(faces.groups) == ["gender"]
    assert faces.groups["gender"].codes.tolist() == [1, 0]
    assert faces.ids == ("0", "2")
    assert [path.name for path in faces.images.paths] == ["1.png", "1.png"]
    assert faces.provenance["found"]["missing"] == {"count": 1, "first": ["a/2.png"]}
    with refused("incomplete", "1 missing: a/2.png"):
        tm.load_data(f"table:{table}?path=name&strict=yes")


def test_paths_are_not_suggested_as_labels(tmp_path: Path) -> None:
    photos(tmp_path, "a/1.png", "a/2.png", "b/1.png")
    table = write(tmp_path / "labels.csv")
    with pytest.raises(UnknownNameError) as caught:
        tm.load_data(f"table:{table}?path=name", attributes=["colour"])
    assert (caught.value.value, caught.value.suggestions) == ("colour", [])
    assert "known: gender, rating" in str(caught.value)


def test_another_root(tmp_path: Path) -> None:
    photos(tmp_path / "images", "a/1.png", "a/2.png", "b/1.png")
    table = write(tmp_path / "labels.csv")
    faces = tm.load_data(f"table:{table}?path=name&root={tmp_path / 'images'}&strict=yes")
    assert len(faces.images) == 3
    for root in ("/no/such", ""):
        with refused("not-found"):
            tm.load_data(f"table:{table}?path=name&root={root}")


def test_labels_alone_as_before(tmp_path: Path) -> None:
    table = write(tmp_path / "labels.csv")
    faces = tm.load_data(f"table:{table}")
    assert faces.images is None
    assert faces.provenance["found"] == {"rows": 3, "groups": {"gender": {"man": 2, "woman": 1}}}
    with refused("bad-option", "?path="):
        tm.load_data(f"table:{table}?root={tmp_path}")
    with refused("unknown-name"):
        tm.load_data(f"table:{table}?path=nmae")


@pytest.mark.parametrize("name", ["../out.png", "/etc/passwd", "link/1.png", "link.png"])
def test_what_leads_out_is_refused(tmp_path: Path, name: str) -> None:
    root = photos(tmp_path / "root", "a/1.png", "a/2.png")
    photos(tmp_path, "out.png", "out/1.png")
    (root / "link").symlink_to(tmp_path / "out")
    (root / "link.png").symlink_to(tmp_path / "out.png")
    table = write(root / "labels.csv", [*ROWS[:2], {**ROWS[2], "name": name}])
    with refused("unsafe-path"):
        tm.load_data(f"table:{table}?path=name")


def test_a_linked_folder_of_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photos(tmp_path / "big", "a/1.png", "a/2.png", "b/1.png")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    write(Path("labels.csv"))
    Path("b").symlink_to(tmp_path / "big/b")
    Path("a").symlink_to(tmp_path / "big/a")
    spec = f"table:labels.csv?path=name&root={tmp_path / 'big'}"
    with refused("unsafe-path", "'a' in .", f"'{spec}'"):
        tm.load_data("table:labels.csv?path=name")
    assert len(tm.load_data(spec)) == 3
    Path("b").unlink()  # an image that is here only: no other root has all of them
    photos(Path(), "b/1.png")
    (tmp_path / "big/b/1.png").unlink()
    with pytest.raises(InputError) as caught:
        tm.load_data("table:labels.csv?path=name")
    assert (caught.value.code, caught.value.value) == ("unsafe-path", "a")
    assert "root=" not in str(caught.value)


def test_a_row_without_a_path_is_missing(tmp_path: Path) -> None:
    photos(tmp_path, "a/1.png", "a/2.png")
    table = write(tmp_path / "labels.csv", [*ROWS[:2], {**ROWS[2], "name": None}])
    faces = tm.load_data(f"table:{table}?path=name")
    assert (len(faces), faces.provenance["found"]["missing"]["count"]) == (2, 1)


@pytest.mark.parametrize(
    ("lines", "where"),
    [
        (("{", "{}"), "line 1"),
        (("[1]",), "line 1"),
        (('{"a": 1}', '{"a": "x"}'), "labels.jsonl"),
        (("",), "labels.jsonl"),
    ],
)
def test_json_lines_that_are_none(tmp_path: Path, lines: tuple[str, ...], where: str) -> None:
    with refused("bad-file", where):
        tm.load_data(f"table:{text(tmp_path / 'labels.jsonl', *lines)}")


def test_json_lines_may_leave_out_names(tmp_path: Path) -> None:
    lines = ('{"id": "a", "gender": "man"}', "", '{"id": "b", "gender": "woman", "x": 1}',
             '{"id": "c", "gender": "man"}')  # fmt: skip
    faces = tm.load_data(f"table:{text(tmp_path / 'labels.jsonl', *lines)}")
    assert faces.ids == ("a", "b", "c")


def test_the_real_table_of_fairface(shared: Callable[[str], Path]) -> None:
    data = shared("data/fairface").parent
    spec = f"table:{data}/fairface/fairface_label_val.csv?path=file&root={data}"
    faces = tm.load_data(spec)
    assert faces.provenance["found"]["rows"] == 10_954
    assert len(faces) == len(faces.images) == 5_000


def test_labels_that_differ_by_white_space_are_one_group(tmp_path: Path) -> None:
    place = text(tmp_path / "t.csv", "id,gender", "a,F", "b,F ", "c,M", "d, M")
    with pytest.warns(UserWarning, match="'gender' differ only by white space"):
        faces = tm.load_data(f"table:{place}")
    assert faces.groups["gender"].names == ("F", "M")
    assert faces.groups["gender"].counts.tolist() == [2, 2]


def test_ids_of_bytes_are_refused(tmp_path: Path) -> None:
    """They became row numbers."""
    table = pa.table({"id": [b"a", b"b", b"c"], "gender": ["F", "M", "F"]})
    pq.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(tm.errors.InputError, match="ids of bytes in column 'id'"):
        tm.load_data(f"table:{tmp_path / 't.parquet'}")
