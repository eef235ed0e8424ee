"""WEAT of words and faces: both readings, against the formula, and on a known world."""

from __future__ import annotations

import numpy as np
import pytest

import tiltmeter as tm
from tiltmeter import stimuli
from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.probes.face_eat import face_eat
from tiltmeter.stats.resampling import Resampling
from tiltmeter.types import Faces, Groups

QUICK = Resampling(99, 50, 0)


class Table:
    """A model whose texts have random embeddings, the same for the same text."""

    name = "table"

    def encode_texts(self, texts):
        return np.stack(
            [np.random.default_rng(sum(map(ord, text))).normal(size=8) for text in texts]
        )


@pytest.fixture(scope="module")
def faces() -> Faces:
    rng = np.random.default_rng(0)
    return Faces(tuple(map(str, range(60))), {
        "gender": Groups.from_labels(["Female", "Male"] * 30, attribute="gender"),
        "race": Groups.from_labels(["a", "b", "c"] * 20, attribute="race"),
    }, vectors=rng.normal(size=(60, 8)))  # fmt: skip


def by_hand(reading: str, faces: Faces, template: str) -> float:
    words = stimuli.load("berg-weat")
    unit = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (
        Table().encode_texts([template.replace("{}", good) for good, _ in words.pairs]),
        Table().encode_texts([template.replace("{}", bad) for _, bad in words.pairs]),
        faces.vectors,
    )]  # fmt: skip
    women = faces.groups["gender"].codes == 0
    cosines = [side @ unit[2].T for side in unit[:2]]  # words x faces
    if reading == "images":  # as the authors' eval_weat: one number per face
        s = cosines[0].mean(axis=0) - cosines[1].mean(axis=0)
        return (s[women].mean() - s[~women].mean()) / s.std(ddof=1)
    s = [c[:, women].mean(axis=1) - c[:, ~women].mean(axis=1) for c in cosines]
    return (s[0].mean() - s[1].mean()) / np.concatenate(s).std(ddof=1)


@pytest.mark.parametrize("reading", ["texts", "images"])
def test_every_sentence_against_the_formula(reading: str, faces: Faces) -> None:
    table, _ = face_eat(Table(), faces, attributes=["gender"], reading=reading, resampling=QUICK)
    rows = table.to_pylist()
    templates = stimuli.load("berg-weat").templates["adjective"]
    assert [row["template"] for row in rows] == [None, *templates]
    for row in rows[1:]:
        assert row["value"] == pytest.approx(by_hand(reading, faces, row["template"]))
        assert row["group"] == "Female against Male"
        assert row["ci_low"] <= row["value"] <= row["ci_high"]
        assert row["n"] == 60 + 18


def test_several_groups_each_against_the_rest(faces: Faces) -> None:
    table, _ = face_eat(Table(), faces, attributes=["race"], resampling=QUICK)
    whole = [row for row in table.to_pylist() if row["template"] is None]
    assert [row["group"] for row in whole] == [
        "a against not a",
        "b against not b",
        "c against not c",
    ]


def test_the_biased_model_and_its_fair_twin() -> None:
    """Berg's words lean by shape in the planted world, and not in its fair twin."""
    found = {}
    for name in ("testbed:dual", "testbed:dual?twin=fair"):
        run = tm.audit(name, "testbed:?images=560&seed=5", probes=["face_eat"],
                       attributes=["shape"], permutations=99, bootstraps=50,
                       options={"face_eat": {"reading": "images"}})  # fmt: skip
        [row] = [row for row in run.where(probe="face_eat") if row["template"] is None]
        found[name] = row
    assert found["testbed:dual"]["p"] < 0.01
    assert abs(found["testbed:dual"]["value"]) > 3 * abs(found["testbed:dual?twin=fair"]["value"])


def test_what_it_refuses(faces: Faces) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'images'"):
        face_eat(Table(), faces, attributes=["gender"], reading="image")
    with pytest.raises(InputError, match="no pairs or no templates"):
        face_eat(Table(), faces, attributes=["gender"], words=stimuli.load("berg"))
