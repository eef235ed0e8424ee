"""A run that was damaged or forged is refused, and the error names the file."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from tiltmeter.errors import InputError, TiltmeterError
from tiltmeter.results import INSTANCES, Run, rows


@pytest.fixture
def place(tmp_path: Path) -> Path:
    table = rows(20, metric="ndkl", probe="ranking", value=[i / 7 for i in range(20)])
    meta = {"model": {"name": "m"}, "seed": 3, "environment": {"time": "2026-01-01T00:00:00Z"}}
    run = Run(table, meta, {"ranking": INSTANCES.empty_table()}, {"texts": table})
    return run.save(tmp_path / "run")


def change(place: Path, edit: Any) -> None:
    record = json.loads((place / "run.json").read_text())
    edit(record)
    (place / "run.json").write_text(json.dumps(record))


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        (lambda r: r.update(format=99), "later version of tiltmeter \\(format 99"),
        (lambda r: r.update(format=1), "earlier version of tiltmeter \\(format 1.*audit"),
        (lambda r: r.pop("format"), "not the record of a run"),
        (lambda r: r.pop("files"), "names no files"),
        (lambda r: r["files"].pop("results.parquet"), "names no files"),
        (lambda r: r["files"].update({"../x.parquet": "0"}), "or others than a run has"),
        (lambda r: r.update(seed=4), "its hash differs"),
        (lambda r: r.pop("hash"), "its hash differs"),
        (lambda r: r["environment"].update(time="2027"), "time or place"),
    ],
)
def test_a_record_that_was_changed(place: Path, edit: Any, told: str) -> None:
    change(place, edit)
    with pytest.raises(InputError, match=told) as caught:
        Run.load(place)
    assert caught.value.code in ("damaged-file", "bad-file")


@pytest.mark.parametrize("text", ["[]", "1", '"run"', "[" * 100_000, "{", "\xff", '{"format": 2}'])
def test_a_record_that_is_none(place: Path, text: str) -> None:
    (place / "run.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match="run.json"):
        Run.load(place)


def test_files_that_were_changed_removed_or_added(place: Path) -> None:
    table = place / "results.parquet"
    content = table.read_bytes()
    table.write_bytes(content[:-1] + b"\0")
    with pytest.raises(InputError, match="results.parquet was changed") as caught:
        Run.load(place)
    assert caught.value.code == "damaged-file"
    table.unlink()
    with pytest.raises(InputError, match="results.parquet is missing"):
        Run.load(place)
    table.write_bytes(content)
    (place / "vectors/faces.parquet").write_bytes(content)
    with pytest.raises(InputError, match="vectors/faces.parquet is not part of the run"):
        Run.load(place)


def flip(path: Path, rng: random.Random) -> bytes:
    """Flips one bit of a file; returns what was there."""
    before = path.read_bytes()
    at, data = rng.randrange(len(before)), bytearray(before)
    data[at] ^= 1 << rng.randrange(8)
    path.write_bytes(data)
    return before


def test_every_flipped_bit_is_found(place: Path) -> None:
    """Of 300 flips none gives other numbers; white space in run.json may change unseen."""
    rng, sound, seen = random.Random(0), Run.load(place), 0
    files = [path for path in place.rglob("*") if path.is_file()]
    for _ in range(300):
        path = rng.choice(files)
        before = flip(path, rng)
        try:
            found = Run.load(place)
        except TiltmeterError as error:
            seen += path.name in str(error)
        else:
            assert path.name == "run.json"
            assert found.meta == sound.meta
            assert found.table == sound.table
        path.write_bytes(before)
    assert seen > 280


def test_what_a_killed_writer_left(place: Path) -> None:
    """A crash between two moves: the run is put back; other leftovers are removed."""
    sound = Run.load(place)
    place.rename(place.with_name(".run.abc123.old"))
    place.with_name(".run.def456.part").mkdir()
    other = place.with_name(".run.v2.abc123.old")  # of the run "run.v2"
    other.mkdir()
    assert Run.load(place).table == sound.table
    assert sorted(path.name for path in place.parent.iterdir()) == [other.name, "run"]
