"""Data sets whose files or folders are named by their labels: UTKFace, CFD, PAIRS, VL-Bias."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

import tiltmeter as tm
from tests.datasets.making import photos, text
from tests.refusing import refused
from tiltmeter.datasets.found_images import describe
from tiltmeter.datasets.roles import Scenes
from tiltmeter.types import Faces

UTK = ("25_0_1_20170116174525125.jpg.chip.jpg", "70_1_4_20170109150557335.jpg.chip.jpg",
       "part2/2_1_2_20161219140623097.jpg")  # fmt: skip
#: These three are in the release, without a race.
UTK_ODD = ("39_1_20170116174525125.jpg.chip.jpg", "61_1_20170109142408075.jpg.chip.jpg",
           "61_1_20170109150557335.jpg.chip.jpg")  # fmt: skip
#: These two have every label, and an odd end.
UTK_ENDS = ("24_0_1_20170116220224657 .jpg.chip.jpg", "55_0_0_20170116232725357jpg.chip.jpg")


def labels(faces: Faces, attribute: str) -> list[str]:
    groups = faces.groups[attribute]
    return [groups.names[code] for code in groups.codes]


def test_utkface(tmp_path: Path) -> None:
    photos(tmp_path, *UTK, *UTK_ODD, "200000_0_1_1.jpg", "20_2_1_1.jpg", "20_0_5_1.jpg")
    text(tmp_path / "readme.txt", "no image")
    faces = tm.load_data(f"utkface:{tmp_path}")
    assert dict(zip(faces.ids, labels(faces, "age"), strict=True)) == {
        UTK[0]: "20-29", UTK[1]: "more than 70", UTK[2]: "0-2"
    }  # fmt: skip
    assert sorted(labels(faces, "gender")) == ["Female", "Female", "Male"]
    assert sorted(labels(faces, "race")) == ["Asian", "Black", "Other"]
    found = faces.provenance["found"]
    assert (found["rows"], found["malformed"]["count"]) == (9, 6)
    assert len(set(found["malformed"]["first"]) & set(UTK_ODD)) >= 2  # of six, five are named
    assert any(line.startswith("6 malformed: ") for line in describe(faces))
    with refused("incomplete", "6 malformed"):
        tm.load_data(f"utkface:{tmp_path}?strict=yes")


def test_utkface_odd_ends(tmp_path: Path) -> None:
    photos(tmp_path, *UTK_ENDS)
    faces = tm.load_data(f"utkface:{tmp_path}?strict=yes")
    assert dict(zip(faces.ids, labels(faces, "race"), strict=True)) == {
        UTK_ENDS[0]: "Black", UTK_ENDS[1]: "White"
    }  # fmt: skip
    assert labels(faces, "age") == ["20-29", "50-59"]


def test_utkface_in_other_bands(tmp_path: Path) -> None:
    photos(tmp_path, *UTK)
    faces = tm.load_data(f"utkface:{tmp_path}?bands=0,18,65")
    assert sorted(labels(faces, "age")) == ["0-17", "18-64", "65+"]
    for bands in ("18,0", "old", "", "0,0"):
        with refused("bad-option"):
            tm.load_data(f"utkface:{tmp_path}?bands={bands}")


CFD = [
    "Images/CFD/AF-200/CFD-AF-200-228-N.jpg", "Images/CFD/BM-001/CFD-BM-001-014-N.jpg",
    "Images/CFD/BM-001/CFD-BM-001-038-HO.jpg", "Images/CFD/LF-201/CFD-LF-201-010-N.jpg",
    "Images/CFD/WF-001/CFD-WF-001-003-N.jpg", "Images/CFD/WF-001/CFD-WF-001-008-HC.jpg",
    "Images/CFD-INDIA/CFD-IF-601-519-N.jpg",
]  # fmt: skip


def test_cfd_neutral_faces_of_three_races(tmp_path: Path) -> None:
    photos(tmp_path, *CFD, "Images/contact sheet.jpg")
    every = tm.load_data(f"cfd:{tmp_path}")
    assert len(every) == 7
    assert every.provenance["found"]["malformed"]["first"] == ["Images/contact sheet.jpg"]
    some = tm.load_data(f"cfd:{tmp_path}?expression=N&race=A,B,W")
    assert some.ids == (CFD[0], CFD[1], CFD[4])
    assert labels(some, "race") == ["Asian", "Black", "White"]
    assert labels(some, "gender") == ["Female", "Male", "Female"]
    assert some.attribute("race*gender").counts.tolist() == [1, 1, 1]
    assert some.provenance["race"] == "A,B,W"
    women = tm.load_data(f"cfd:{tmp_path}?gender=F")
    assert list(women.groups) == ["race"]  # they are alike in the other
    assert list(tm.load_data(f"cfd:{tmp_path}?gender=F", cross=["race*gender"]).groups) == [
        "race", "gender"
    ]  # fmt: skip
    expressions = tm.load_data(f"cfd:{tmp_path}?race=B", attributes=["expression"])
    assert labels(expressions, "expression") == ["neutral", "happy, mouth open"]
    with refused("unknown-name"):
        tm.load_data(f"cfd:{tmp_path}?race=X")


def test_cfd_with_its_norms(tmp_path: Path) -> None:
    photos(tmp_path, *CFD)
    norms = text(
        tmp_path / "norms.csv",
        "Chicago Face Database,,,",
        "Model,EthnicitySelf,GenderSelf,AgeRated",
        *(f"{m},{m[0]},{m[1]},30.5" for m in ("AF-200", "BM-001", "LF-201", "WF-001", "IF-601")),
    )
    faces = tm.load_data(f"cfd:{tmp_path}?norms={norms}", attributes=["EthnicitySelf", "gender"])
    assert labels(faces, "EthnicitySelf") == [id.rpartition("/")[2][4] for id in faces.ids]
    assert list(faces.groups) == ["EthnicitySelf", "gender"]
    norms.write_text(norms.read_text().replace("WF-001", "WF-999"))
    with refused("bad-input", "2 of 7", "EthnicitySelf"):
        tm.load_data(f"cfd:{tmp_path}?norms={norms}", attributes=["EthnicitySelf"])
    with refused("not-found"):
        tm.load_data(f"cfd:{tmp_path}?norms={tmp_path}/norms.xlsx")
    with refused("bad-file", "Model"):
        tm.load_data(f"cfd:{tmp_path}?norms={text(tmp_path / 'odd.csv', 'a,b', '1,2')}")


PAIRS = [
    f"{scene}/{race}_{gender}.png"
    for scene in ("status/phone", "occupations/desk")
    for race in ("black", "white")
    for gender in ("man", "woman")
]


def test_pairs(tmp_path: Path) -> None:
    odd = [name.replace("phone/white_man.", "phone/white_man1.") for name in PAIRS]
    photos(tmp_path, *odd, "cover.png")
    pairs = tm.load_data(f"pairs:{tmp_path}")
    assert isinstance(pairs, Scenes)
    assert pairs.groups["race"].counts.tolist() == [4, 4]
    assert pairs.groups["gender"].counts.tolist() == [4, 4]
    assert Counter(zip(pairs.kinds, pairs.scenes, strict=True)) == {
        ("status", "phone"): 4, ("occupations", "desk"): 4
    }  # fmt: skip
    assert pairs.provenance["found"]["malformed"] == {"count": 1, "first": ["cover.png"]}


def test_counterparts_differ_in_one_thing(tmp_path: Path) -> None:
    photos(tmp_path, *PAIRS)
    pairs = tm.load_data(f"pairs:{tmp_path}")
    for attribute, other in (("race", "gender"), ("gender", "race")):
        found = list(pairs.counterparts(attribute))
        assert len(found) == 4
        for first, second in found:
            assert pairs.scenes[first] == pairs.scenes[second]
            assert pairs.groups[other].codes[first] == pairs.groups[other].codes[second]
            codes = pairs.groups[attribute].codes
            assert (codes[first], codes[second]) == (0, 1)
    some = pairs.select([0, 1, 2])
    assert isinstance(some, Scenes)
    assert (len(some.scenes), len(some.kinds), len(some.images)) == (3, 3, 3)
    assert len(list(some.counterparts("race"))) == 1


def test_the_real_pairs(shared: Callable[[str], Path]) -> None:
    pairs = tm.load_data(f"pairs:{shared('data/pairs')}?strict=yes&check=yes")
    scenes = Counter(zip(pairs.kinds, pairs.scenes, strict=True))
    assert (len(pairs), len(scenes), set(scenes.values())) == (200, 50, {4})
    assert pairs.attribute("race*gender").counts.tolist() == [50, 50, 50, 50]
    assert len(list(pairs.counterparts("race"))) == 100
    assert len(list(pairs.counterparts("gender"))) == 100
    odd = pairs.ids.index("status/phone/white_man1.png")
    assert (labels(pairs, "race")[odd], labels(pairs, "gender")[odd]) == ("white", "man")
    assert {kind: len({s for k, s in scenes if k == kind}) for kind, _ in scenes} == {
        "occupations": 20, "potential_crime": 10, "status": 20
    }  # fmt: skip


def test_vlbias(tmp_path: Path) -> None:
    photos(
        tmp_path, "activities/cooking/female/1.jpg", "activities/cooking/Man/1.jpg",
        "occupations/nurse/woman/a.jpg", "stray.jpg", "activities/cooking/dog/1.jpg",
    )  # fmt: skip
    people = tm.load_data(f"vlbias:{tmp_path}")
    assert labels(people, "gender").count("female") == 2
    assert sorted(zip(people.kinds, people.scenes, strict=True)) == [
        ("activities", "cooking"), ("activities", "cooking"), ("occupations", "nurse"),
    ]  # fmt: skip
    assert people.provenance["found"]["malformed"]["count"] == 2
    flat = tm.load_data(f"vlbias:{tmp_path / 'activities'}")
    assert (set(flat.scenes), set(flat.kinds)) == ({"cooking"}, {""})


def test_folder(tmp_path: Path) -> None:
    photos(tmp_path, "black_woman/1.png", "black_woman/10.png", "black_woman/2.png",
           "east_asian_man/x/1.png", "stray.png", "white_man/._1.png", ".cache/1.png")  # fmt: skip
    faces = tm.load_data(f"folder:{tmp_path}")
    assert faces.ids[:3] == ("black_woman/1.png", "black_woman/2.png", "black_woman/10.png")
    assert faces.groups["group"].names == ("black_woman", "east_asian_man")
    assert faces.provenance["found"]["malformed"]["first"] == ["stray.png"]
    parts = tm.load_data(f"folder:{tmp_path}?parts=race_gender")
    assert labels(parts, "race") == ["black"] * 3 + ["east_asian"]
    assert labels(parts, "gender") == ["woman"] * 3 + ["man"]
    assert np.array_equal(parts.images[0], faces.images[0])
    with refused("bad-option"):
        tm.load_data(f"folder:{tmp_path}?parts=race_")


def test_a_folder_with_a_link_that_leads_out(tmp_path: Path) -> None:
    photos(tmp_path, "in/a/1.png", "out/b/1.png")
    (tmp_path / "in/b").symlink_to(tmp_path / "out/b")
    with refused("unsafe-path", "'b'"):
        tm.load_data(f"folder:{tmp_path / 'in'}")
    photos(tmp_path, "groups/a/1.png", "groups/b/1.png")
    for folder, link in ((tmp_path / "alone", "groups"), (tmp_path / "each", "groups/b")):
        folder.mkdir()
        (folder / Path(link).name).symlink_to(tmp_path / link)
    (tmp_path / "each/a").symlink_to(tmp_path / "groups/a")
    for name in ("alone", "each"):
        with refused("unsafe-path", f"that they are in: {tmp_path / 'groups'}"):
            tm.load_data(f"folder:{tmp_path / name}")
