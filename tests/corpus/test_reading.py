"""Every kind of file gives the same captions; a broken one is named, and never half counted."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.corpus.test_counting import made_up, shown
from tiltmeter.corpus import Vocabulary, audit_captions, count, count_files, reading
from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.stimuli import load

CAPTIONS = [*made_up(300), 'a "nurse", and\nher cat', "naïve café, a nurse’s", "\ta nurse"]
IMAGES = [f"{at}.jpg" for at in range(5000)]
WORDS = Vocabulary.of(load("sobit").words)


def write(path: Path, captions: list[str] = CAPTIONS) -> Path:
    """Captions in the format that the name says."""
    kind = path.name.partition(".")[2]
    images = IMAGES[: len(captions)]
    if kind == "parquet":
        pq.write_table(pa.table({"url": images, "TEXT": captions}), path, row_group_size=100)
    elif kind in ("csv", "tsv"):
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, delimiter="," if kind == "csv" else "\t")
            writer.writerows([("image_url", "caption"), *zip(images, captions, strict=True)])
    elif kind in ("jsonl", "jsonl.gz"):
        lines = "".join(json.dumps({"key": 1, "text": one, "file_name": image}) + "\n"
                        for one, image in zip(captions, images, strict=True))  # fmt: skip
        packed = kind.endswith("gz")
        path.write_bytes(gzip.compress(lines.encode()) if packed else lines.encode())
    else:
        notes = [{"caption": one, "image_id": at} for at, one in enumerate(captions)]
        names = [{"id": at, "file_name": image} for at, image in enumerate(images)]
        path.write_text(json.dumps({"annotations": notes, "images": names}))
    return path


def broken(path: Path, captions: list[str]) -> Path:
    """A Parquet file whose first row groups are fine and whose later ones are spoilt."""
    write(path, captions)
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 400] = bytes(400)
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("name", ["a.parquet", "a.csv", "a.tsv", "a.jsonl", "a.jsonl.gz", "a.json"])
def test_every_format_gives_the_same_counts(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "BLOCK", 64)
    monkeypatch.setattr(reading, "CHUNK", 5000)
    tally, left_out = count_files([write(tmp_path / name)], WORDS)
    assert not left_out
    images = pa.array(IMAGES[: len(CAPTIONS)])
    assert shown(tally) == shown(count(pa.array(CAPTIONS), WORDS, images=images))


@pytest.mark.parametrize(
    "column",
    [
        pa.array(CAPTIONS, pa.large_string()),
        pa.array(CAPTIONS).dictionary_encode(),
        pa.array([CAPTIONS[:100], None, CAPTIONS[100:]]),
    ],
    ids=["large", "dictionary", "lists"],
)
def test_text_of_any_arrow_type(column: pa.Array, tmp_path: Path) -> None:
    pq.write_table(pa.table({"caption": column}), tmp_path / "a.parquet")
    tally, _ = count_files([tmp_path / "a.parquet"], WORDS)
    assert shown(tally) == shown(count(pa.array(CAPTIONS), WORDS))


def test_files_folders_and_patterns_are_found_once(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    one, two = write(tmp_path / "in/a.csv"), write(tmp_path / "b.json")
    (tmp_path / "in/readme.txt").write_text("no captions")
    found = reading.find_files([tmp_path, one, str(tmp_path / "*.json"), f"{tmp_path}/**/*.csv"])
    assert sorted(found) == sorted([one, two])


def test_a_broken_file_is_named_and_leaves_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "BLOCK", 8)  # many blocks are counted before the spoilt one
    good = [write(tmp_path / "a.parquet", made_up(40, seed=1))]
    nurses = [f"a nurse and her cat {at}" for at in range(400)]
    good.append(write(tmp_path / "z.csv", nurses[50:100]))  # the broken file has them too
    alone, _ = count_files(good, WORDS)
    bad = [broken(tmp_path / "m.parquet", nurses), tmp_path / "n.parquet"]
    bad[1].write_bytes(b"PAR1 nothing PAR1")
    both, left_out = count_files(reading.find_files([tmp_path]), WORDS)
    assert set(left_out) == set(map(str, bad))
    assert all(name in reason for name, reason in left_out.items())
    assert shown(both) == shown(alone)
    with pytest.raises(InputError, match=r"m\.parquet cannot be read"):
        count_files(reading.find_files([tmp_path]), WORDS, strict=True)


def test_nothing_depends_on_the_order_of_files_or_on_threads(tmp_path: Path) -> None:
    files = [write(tmp_path / f"{at}.csv", CAPTIONS[at::4]) for at in range(4)]
    one, _ = count_files(files, WORDS, threads=1)
    other, _ = count_files(files[::-1], WORDS, threads=3)
    assert shown(one) == shown(other)


def test_the_same_run_is_the_same_bytes(tmp_path: Path) -> None:
    write(tmp_path / "a.csv")
    for name in ("x", "y"):
        audit_captions(tmp_path / "a.csv", seed=5).save(tmp_path / name)
    for file in ("results.parquet", "instances/captions.parquet"):
        assert (tmp_path / "x" / file).read_bytes() == (tmp_path / "y" / file).read_bytes()


def test_a_wrong_column_is_an_error_at_once(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv")
    with pytest.raises(UnknownNameError, match="did you mean 'caption'"):
        audit_captions(path, column="captoin")
    (tmp_path / "b.csv").write_text("x,y\n1,2\n")
    with pytest.raises(InputError, match="no known caption column among x, y: pass --column"):
        audit_captions(tmp_path / "b.csv")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"caption\n\xff\xfe\n", "a.csv cannot be read"),
        ("a.csv", b"", "a.csv cannot be read"),
        ("a.csv", b"caption,x\na,b\na\n", "a.csv cannot be read"),
        ("a.jsonl", b'{"caption": "a"}\n{"caption": \n', "a.jsonl cannot be read"),
        ("a.jsonl", b'{"caption": "a"}\n{"caption": 7}\n', "a.jsonl cannot be read"),
        ("a.json", b"{}", "not a COCO file"),
        ("a.json", b"[", "is not JSON"),
        ("a.parquet", b"", "a.parquet cannot be read"),
        ("a.csv", b"caption\n", "no caption could be read"),
    ],
)
def test_spoilt_files(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        audit_captions(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_numbers_are_no_captions(tmp_path: Path) -> None:
    pq.write_table(pa.table({"caption": [1, 2]}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match="int64; expected text"):
        audit_captions(tmp_path / "a.parquet")


def test_places_without_captions(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    for place in (tmp_path, tmp_path / "a.txt", tmp_path / "b.csv", "none*.csv"):
        with pytest.raises(InputError):
            reading.find_files([place])
