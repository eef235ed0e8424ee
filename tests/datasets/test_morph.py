"""Morphs: within groups, seeded, and read back as a folder."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np

import tiltmeter as tm
from tests.datasets.making import photo
from tests.refusing import refused
from tiltmeter.datasets.morph import morphs, parents_of, save
from tiltmeter.types import Faces

SHADES = {"black_man": 0, "black_woman": 60, "white_man": 120, "white_woman": 180}


def faces(place: Path, each: int = 5) -> Faces:
    for group, shade in SHADES.items():
        for at in range(each):
            photo(place / group / f"{at}.png", (shade + 10 * at, 0, 0))
    data: Faces = tm.load_data(f"folder:{place}?parts=race_gender")
    return data


def made(data: Faces, each: int = 4, seed: int = 0, attribute: str = "race*gender") -> Faces:
    return morphs(data, attribute, each=each, rng=np.random.default_rng(seed), size=6)


def test_never_across_groups(tmp_path: Path) -> None:
    found = made(faces(tmp_path))
    assert len(found) == 16
    crossed = found.attribute("race*gender")
    assert crossed.counts.tolist() == [4, 4, 4, 4]
    for row, (code, name) in enumerate(zip(crossed.codes, found.ids, strict=True)):
        first, second = name.split("@")[0].split("+")
        assert first != second
        group = crossed.names[code].replace(" | ", "_")
        assert first.split("/")[0] == second.split("/")[0] == group
        image = found.images[row]
        assert image.size == (6, 6)
        assert SHADES[group] <= image.getpixel((3, 3))[0] <= SHADES[group] + 40


def test_a_morph_lies_between_its_parents(tmp_path: Path) -> None:
    data = faces(tmp_path)
    shade = {name: image.getpixel((0, 0))[0] for name, image in zip(data.ids, data.images,
                                                                        strict=True)}  # fmt: skip
    found = made(data)
    for name, image in zip(found.ids, found.images, strict=True):
        parents, _, share = name.partition("@")
        first, second = (shade[parent] for parent in parents.split("+"))
        expected = first + float(share) * (second - first)
        assert abs(image.getpixel((0, 0))[0] - expected) <= 1.5


def test_the_same_seed_makes_the_same(tmp_path: Path) -> None:
    data = faces(tmp_path)
    assert made(data).ids == made(data).ids != made(data, seed=1).ids
    pairs = {name.partition("@")[0] for name in made(data, each=10).ids}
    assert len(pairs) == 40  # each once
    with refused("bad-input", "5 images", "10", "11"):
        made(data, each=11)


def test_one_person_is_not_joined_with_herself(tmp_path: Path) -> None:
    data = faces(tmp_path)
    persons = [name.partition("/")[0] + str(int(name[-5]) // 2) for name in data.ids]
    person = dict(zip(data.ids, persons, strict=True))
    rng = np.random.default_rng(0)
    found = morphs(data, "gender", each=20, rng=rng, same=persons)
    assert list(found.groups) == ["gender"]
    for name in found.ids:
        first, second = name.split("@")[0].split("+")
        assert person[first] != person[second]


def test_saved_and_read_back(tmp_path: Path) -> None:
    found = made(faces(tmp_path / "faces"))
    save(found, "race*gender", tmp_path / "morphs")
    again = tm.load_data(f"folder:{tmp_path / 'morphs'}?parts=race_gender&strict=yes&check=yes")
    assert again.attribute("race*gender").counts.tolist() == [4, 4, 4, 4]
    assert {tuple(np.asarray(p)[0, 0]) for p in again.images} == {
        tuple(np.asarray(p)[0, 0]) for p in found.images
    }
    with refused("exists"):
        save(found, "race*gender", tmp_path / "morphs")


def test_without_images_there_is_nothing_to_morph(embeddings: Path) -> None:
    with refused("no-images"):
        made(tm.load_data(f"embeddings:{embeddings}"), attribute="gender")


def test_on_real_images(shared: Callable[[str], Path]) -> None:
    data = tm.load_data(f"pairs:{shared('data/pairs')}")
    found = morphs(data, "race*gender", each=2, rng=np.random.default_rng(0))
    assert [image.size for image in found.images] == [(224, 224)] * 8


def test_it_can_travel_to_another_process(tmp_path: Path) -> None:
    found = made(faces(tmp_path))
    again = pickle.loads(pickle.dumps(found.images))
    assert np.array_equal(again[3], found.images[3])


def test_a_morph_is_named_after_its_parents_in_memory_and_on_disk(tmp_path: Path) -> None:
    found = morphs(
        faces(tmp_path / "faces"), "race*gender", each=4, rng=np.random.default_rng(0), share=0.5,
        size=6,
    )  # fmt: skip
    save(found, "race*gender", tmp_path / "morphs")
    again = tm.load_data(f"folder:{tmp_path / 'morphs'}?parts=race_gender")
    assert sorted(parents_of(found.ids)) == sorted(parents_of(again.ids))
    assert all(name.endswith("@0.50.png") for name in again.ids)
    assert all(len(set(parents)) == 2 for parents in parents_of(again.ids))
    assert parents_of(faces(tmp_path / "faces").ids) == ()
    with refused("bad-option"):
        made_at(tmp_path, share=1.0)


def made_at(place: Path, share: float) -> Faces:
    data = tm.load_data(f"folder:{place / 'faces'}?parts=race_gender")
    return morphs(data, "race*gender", each=1, rng=np.random.default_rng(0), share=share)


def test_the_command_writes_what_the_probe_reads(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from tiltmeter.cli.app import app

    faces(tmp_path / "faces")
    source = f"folder:{tmp_path / 'faces'}?parts=race_gender"
    asked = ["morph", "--images", source, "--each", "3", "--share", "0.25", "--size", "8"]
    result = CliRunner().invoke(app, [*asked, "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert "12 morphs" in result.output
    again = tm.load_data(f"folder:{tmp_path / 'out'}?parts=race_gender")
    assert all(name.endswith("@0.25.png") for name in again.ids)
    assert len(again) == 12
