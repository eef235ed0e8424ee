"""VLStereoSet balanced as its paper says: as many images with the stereotype as against it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tiltmeter as tm
from tests.datasets.making import photos
from tests.refusing import refused
from tiltmeter.datasets.vlstereo import balanced
from tiltmeter.errors import Code
from tiltmeter.io.tables import read_table


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("01")), max_size=60))
def test_each_category_has_both_alike_and_as_many_as_can_be(rows: list[tuple[str, str]]) -> None:
    counts = Counter(rows)
    most = {name: min(counts[name, "0"], counts[name, "1"]) for name in "abc"}
    if not any(most.values()):
        with refused("no-images"):
            balanced([c for c, _ in rows], [label for _, label in rows], 0)
        return
    kept = balanced([c for c, _ in rows], [label for _, label in rows], 0)
    assert kept == sorted(set(kept))
    found = Counter(rows[at] for at in kept)
    assert all(found[name, label] == most[name] for name in "abc" for label in "01")


def test_the_papers_counts(shared: Callable[[str], Path]) -> None:
    path = shared("data/vlstereoset/VLStereoSet.csv")
    whole = tm.load_data(f"vlstereo:{path}")
    first, again, other = (
        tm.load_data(f"vlstereo:{path}?balanced=yes&seed={seed}") for seed in (0, 0, 1)
    )
    assert (len(whole), len(first)) == (1_958, 1_028)
    assert first.provenance["found"]["groups"]["category"] == {
        "gender": 206, "profession": 322, "race": 486, "religion": 14
    }  # fmt: skip
    assert first.against.sum() == 514
    assert first.ids == again.ids
    assert first.ids != other.ids
    row = {name: at for at, name in enumerate(whole.ids)}
    for at, name in enumerate(first.ids):  # rows keep what belongs to them
        assert first.stereotypical[at] == whole.stereotypical[row[name]]
        assert first.against[at] == whole.against[row[name]]


def test_among_the_images_that_are_there(shared: Callable[[str], Path], tmp_path: Path) -> None:
    path = shared("data/vlstereoset/VLStereoSet.csv")
    whole = tm.load_data(f"vlstereo:{path}")
    anti = [at for at in range(1_958) if whole.against[at]][:5]
    fits = [at for at in range(1_958) if not whole.against[at]][:9]
    photos(tmp_path, *(f"{at + 1}.jpg" for at in (*anti, *fits)))
    some = tm.load_data(f"vlstereo:{path}?images={tmp_path}&balanced=yes")
    assert (len(some), some.against.sum()) == (10, 5)
    assert [file.stem for file in some.images.paths] == list(some.ids)
    assert some.provenance["found"]["balanced"] == {"rows": 10, "seed": 0}


@pytest.mark.parametrize(
    ("options", "code", "value"),
    [
        ("balanced=maybe", "unknown-name", "'maybe'"),
        ("balanced=yes&seed=x", "bad-option", "'x'"),
        ("seed=3", "bad-option", "?balanced=yes"),
    ],
)
def test_refused(options: str, code: Code, value: str, tmp_path: Path) -> None:
    with refused(code, value):
        tm.load_data(f"vlstereo:{tmp_path / 'none.csv'}?{options}")


def test_what_the_label_means_shows_in_the_urls(shared: Callable[[str], Path]) -> None:
    """Images of label 1 were found by words of the anti-stereotype: 29 of 32."""
    rows = read_table(shared("data/vlstereoset/VLStereoSet.csv")).to_pylist()
    found: Counter[str] = Counter()
    for row in rows:
        url, first, second = (
            {*re.findall("[a-z]+", (row[name] or "").lower())}
            for name in ("Imaeg URL", "stereotype", "anti-stereotype")
        )
        sides = [name for name, words in (("stereotype", first - second), ("anti", second - first))
                 if words & url]  # fmt: skip
        if len(sides) == 1 and row["label"] == "1":
            found[sides[0]] += 1
    assert found == {"anti": 29, "stereotype": 3}
