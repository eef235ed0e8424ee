"""What holds for every dataset that is registered."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tiltmeter as tm
from tests.conftest import write_csv
from tests.datasets.making import photos
from tests.refusing import refused
from tiltmeter.datasets import DATASETS
from tiltmeter.datasets.found_images import describe
from tiltmeter.datasets.roles import ROLES, Lexicon
from tiltmeter.errors import InputError

BUILT_IN = {"testbed"}
BROUGHT = sorted(set(DATASETS) - BUILT_IN)


@pytest.mark.parametrize("name", BROUGHT)
def test_says_its_role_where_it_is_from_and_the_terms(name: str) -> None:
    line = DATASETS.summary(name)
    told = re.fullmatch(r"(\w+): .+ \(([^;()]+); ([^()]+)\)\.", line)
    assert told, line
    assert told[1].lower() in ROLES
    assert "." in told[2] or told[2] == "your own files"


def test_the_built_in_ones_say_so() -> None:
    assert all("built-in" in DATASETS.summary(name) for name in BUILT_IN)


@pytest.mark.parametrize("name", BROUGHT)
@pytest.mark.parametrize("place", ["/no/such/place", ""])
def test_a_missing_place_is_refused(name: str, place: str) -> None:
    with pytest.raises(InputError):
        tm.load_data(f"{name}:{place}")


@pytest.mark.parametrize("name", sorted(DATASETS))
def test_an_unknown_option_is_refused(name: str) -> None:
    with refused("unknown-name", name, "'nonsense'"):
        tm.load_data(f"{name}:/no/such/place?nonsense=1")


@pytest.mark.parametrize(
    "name", ["cfd", "fairface", "folder", "imagefolder", "oasis", "pairs", "utkface", "vlbias"]
)
def test_a_folder_without_anything_in_it_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError):
        tm.load_data(f"{name}:{tmp_path}")


def test_a_role_can_be_asked_for(tmp_path: Path) -> None:
    words = tmp_path / "words.csv"
    write_csv(words, [{"word": "joy", "valence": 0.9}])
    assert isinstance(tm.load_data(f"lexicon:{words}", role="lexicon"), Lexicon)
    with refused("bad-input", "lexicon", "faces"):
        tm.load_data(f"lexicon:{words}", role="faces")
    with refused("unknown-name", suggests="faces"):
        tm.load_data(f"lexicon:{words}", role="face")
    assert tm.load_data("testbed:?images=28", role="faces").name == "testbed"


def test_options_of_yes_or_no(tmp_path: Path) -> None:
    photos(tmp_path, "a/1.png", "b/1.png")
    with refused("unknown-name", "strict", "'maybe'"):
        tm.load_data(f"folder:{tmp_path}?strict=maybe")


def test_the_list_of_the_command_line_has_them_all() -> None:
    from tiltmeter.catalogue import entries

    assert set(entries("datasets")) == {f"{name}:" for name in DATASETS}


def test_vectors_say_what_was_found_too(embeddings: Path) -> None:
    first, *groups = describe(tm.load_data(f"embeddings:{embeddings}"))
    assert first == "240 rows"
    assert groups[0] == "gender: man 120, woman 120"
