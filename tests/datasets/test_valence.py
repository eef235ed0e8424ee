"""Images and words with a valence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tiltmeter as tm
from tests.datasets.making import photos, text
from tests.refusing import refused
from tiltmeter.datasets.roles import Lexicon, ValenceImages

HEADER = (
    ",Theme,Category,Source,Valence_mean,Valence_SD,Valence_N,Arousal_mean,Arousal_SD,Arousal_N"
)
OASIS = (
    HEADER,
    "I1,Acorns 1,Object,Pixabay,4.0,1.2,101,2.3,1.3,103",
    "I2,Acorns 2,Object,Pixabay,7,1.2,101,2.3,1.3,103",
    "I3,Zebra 1 ,Animal,Pixabay,1,1.2,101,2.3,1.3,103",
    "I4,Yarn 1,Object,Pixabay,,1.2,101,2.3,1.3,103",
    "I5,Lake 12,Scenery,Pixabay,5.5,1.2,101,2.3,1.3,103",
)


@pytest.mark.parametrize("end", ["\r", "\n", "\r\n"])
def test_oasis(tmp_path: Path, end: str) -> None:
    text(tmp_path / "OASIS.csv", *OASIS, end=end)
    photos(tmp_path / "Images", "Acorns 1.jpg", "acorns 2.jpg", "Zebra 1.jpg")
    found = tm.load_data(f"oasis:{tmp_path}")
    assert isinstance(found, ValenceImages)
    assert found.ids == ("Acorns 1", "Acorns 2", "Zebra 1")
    assert found.valence.tolist() == [0.5, 1.0, 0.0]
    assert found.categories == ("Object", "Object", "Animal")
    assert len(found.images) == 3
    assert found.provenance["found"]["missing"] == {"count": 1, "first": ["Lake 12.jpg"]}
    assert found.provenance["found"]["malformed"] == {"count": 1, "first": ["Yarn 1"]}
    with refused("incomplete", "1 missing: Lake 12.jpg; 1 malformed: Yarn 1"):
        tm.load_data(f"oasis:{tmp_path}?strict=yes")


def test_oasis_of_another_make(tmp_path: Path) -> None:
    text(tmp_path / "OASIS.csv", "a,b", "1,2")
    with refused("bad-file", "Category, Theme, Valence_mean"):
        tm.load_data(f"oasis:{tmp_path}")


NRC = ("aardvark\t0.427\t0.490\t0.437", "abandon\t0.052\t0.519\t0.245", "nan\t0.5\t0.5\t0.5")


@pytest.mark.parametrize("header", [(), ("Word\tValence\tArousal\tDominance",)])
def test_nrc_vad_with_and_without_names(tmp_path: Path, header: tuple[str, ...]) -> None:
    path = text(tmp_path / "NRC-VAD-Lexicon.txt", *header, *NRC, end="\r\n")
    lexicon = tm.load_data(f"lexicon:{path}?strict=yes")
    assert isinstance(lexicon, Lexicon)
    assert lexicon.words == ("aardvark", "abandon", "nan")
    assert lexicon.valence.tolist() == [0.427, 0.052, 0.5]
    assert lexicon.provenance["scale"] == [0, 1]


def test_nrc_vad_2_is_from_minus_one_to_one(tmp_path: Path) -> None:
    lines = ("term\tvalence\tarousal\tdominance", "abandon\t-1.0\t0\t0", 'a "bit\t0.5\t0\t0')
    lexicon = tm.load_data(f"lexicon:{text(tmp_path / 'v2.txt', *lines)}")
    assert lexicon.words == ("abandon", 'a "bit')
    assert lexicon.valence.tolist() == [0, 0.75]


def test_warriner(tmp_path: Path) -> None:
    lines = (",Word,V.Mean.Sum,V.SD.Sum,A.Mean.Sum", "1,aardvark,6.26,2.21,2.41", "2,joy,9,1,5",
             "3,woe,1,1,5")  # fmt: skip
    lexicon = tm.load_data(f"lexicon:{text(tmp_path / 'BRM.csv', *lines)}")
    assert lexicon.words == ("aardvark", "joy", "woe")
    assert np.allclose(lexicon.valence, [5.26 / 8, 1, 0])


def test_any_table(tmp_path: Path) -> None:
    path = text(tmp_path / "mine.csv", "\ufefflemma,pleasure", "joy,90", "woe,10")
    lexicon = tm.load_data(f"lexicon:{path}?word=lemma&valence=pleasure&scale=0,100")
    assert (lexicon.words, lexicon.valence.tolist()) == (("joy", "woe"), [0.9, 0.1])
    with refused("bad-file", "?scale=LOW,HIGH"):
        tm.load_data(f"lexicon:{path}?word=lemma&valence=pleasure")
    with refused("bad-file", "0 to 50"):
        tm.load_data(f"lexicon:{path}?word=lemma&valence=pleasure&scale=0,50")
    with refused("bad-file", "word or term"):
        tm.load_data(f"lexicon:{path}")
    with refused("unknown-name", suggests="lemma"):
        tm.load_data(f"lexicon:{path}?word=lema&valence=pleasure")
    for scale in ("1", "9,1", "a,b"):
        with refused("bad-option", "LOW,HIGH"):
            tm.load_data(f"lexicon:{path}?word=lemma&valence=pleasure&scale={scale}")


def test_rows_that_are_no_words_are_named(tmp_path: Path) -> None:
    path = text(tmp_path / "w.csv", "word,valence", "joy,0.9", "joy,0.8", "woe,", ",0.2", "calm")
    lexicon = tm.load_data(f"lexicon:{path}")
    assert lexicon.words == ("joy",)
    assert lexicon.provenance["found"] == {
        "rows": 5,
        "malformed": {
            "count": 4, "first": ["line 3: 'joy' again", "line 4: 'woe'", "line 5: ''",
                                  "line 6: 'calm'"],
        },
    }  # fmt: skip
    with refused("incomplete", "4 malformed"):
        tm.load_data(f"lexicon:{path}?strict=yes")
    with refused("bad-file"):
        tm.load_data(f"lexicon:{text(tmp_path / 'none.csv', 'word,valence', 'a,b')}")
    with refused("bad-file"):
        tm.load_data(f"lexicon:{text(tmp_path / 'empty.csv', '')}")
