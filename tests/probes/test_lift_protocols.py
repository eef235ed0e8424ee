"""Lift of masked heads and matchers: the planted truth, captions that name a group, engines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tiltmeter as tm
from tests.refusing import refused
from tiltmeter.probes.lift.masked import check_caption
from tiltmeter.probes.lift.pairs import answer_logprobs
from tiltmeter.probes.lift.scored import rows_per_cell
from tiltmeter.probes.probe import CannotRunError
from tiltmeter.results import Run
from tiltmeter.types import Continuations, Faces, Groups

pytest.importorskip("torch")
FEW = {"bootstraps": 10, "attributes": ["shape"]}


def audited(spec: str, words: str, faces: str = "testbed:?images=280", **options: object) -> Run:
    return tm.audit(spec, faces, probes=["lift"], words=words, **FEW,
                    options={"lift": {"splits": 10, **options}})  # fmt: skip


@pytest.fixture(scope="module")
def masked() -> dict[str, Run]:
    """Stream has no embeddings, so that masked words are its default."""
    return {
        twin: audited(f"testbed:stream?twin={twin}", "sobit", masked_images=40)
        for twin in ("biased", "fair")
    }


def test_masked_words_follow_the_planted_truth(masked: dict[str, Run]) -> None:
    biased = [
        row for row in masked["biased"].where(metric="lift", experiment="masked: concept")
        if row["concept"] and row["truth"] is not None
    ]  # fmt: skip
    truth, value = (np.array([row[name] for row in biased]) for name in ("truth", "value"))
    assert 0.85 < np.polyfit(truth, value, 1)[0] < 1.1
    assert np.corrcoef(truth, value)[0, 1] > 0.97
    assert "a sample of 80 images" in biased[0]["note"]
    sizes = [run.where(metric="lift_size", experiment="masked: concept")[0]
             for run in masked.values()]  # fmt: skip
    assert [size["verdict"] for size in sizes] == ["clear", "none found"]
    assert "directions of their scores" in sizes[0]["note"]


def test_words_that_begin_with_a_vowel_get_their_own_caption(masked: dict[str, Run]) -> None:
    """In "a photo of a [MASK]" an artist is out of place, and the score would be noise."""
    fair = {row["concept"]: row["value"] for row in masked["fair"].where(metric="lift")}
    assert abs(fair["artist"]) < 0.2


class PlantedMatcher:
    """Scores nurse 1 nat higher with group b; what an image gives to all texts is no lift."""

    name = "matcher"

    def match(self, images: np.ndarray, texts: list[str]) -> np.ndarray:
        group, brightness = images.T
        word = np.array([sum(map(ord, text)) % 97 / 97 for text in texts])
        nurse = np.array(["nurse" in text for text in texts])
        return 3 * brightness + word + group * (nurse + 0.1 * (word - 0.5))


class PlantedContinuer:
    """The same as a generative model: likelihoods of texts as answers to a question."""

    name = "continuer"

    def continuations(
        self, images: np.ndarray, prompt: str, texts: list[str], *, stem: str = ""
    ) -> Continuations:
        assert prompt == "Who is this?"
        scores = np.stack([PlantedMatcher().match(images, [text]) for text in texts], axis=1) - 20
        return Continuations(scores, np.ones(len(texts), int), np.ones(scores.shape, bool))


@pytest.mark.parametrize("model", [PlantedMatcher(), PlantedContinuer()])
def test_models_without_embeddings(model: PlantedMatcher | PlantedContinuer) -> None:
    group = np.arange(60) % 2
    images = np.stack([group, np.random.default_rng(0).normal(size=60)], axis=1)
    faces = Faces(tuple(map(str, range(60))), {"kind": Groups(group, ("a", "b"))}, images=images)
    options = {"splits": 5, "matched_images": 25, "question": "Who is this?"}
    done: list[float] = []
    run = tm.audit(model, faces, probes=["lift"], words="sobit", bootstraps=10,
                   options={"lift": options},
                   progress=lambda what, share: done.append(share))  # fmt: skip
    assert done == sorted(done)  # nouns, then adjectives
    assert 0.3 < done[-2] < 0.7
    (nurse,) = run.where(metric="lift", concept="nurse", group="b")
    protocol = "matching" if isinstance(model, PlantedMatcher) else "answers"
    assert nurse["experiment"] == f"{protocol}: noun"
    assert nurse["value"] == pytest.approx(1, abs=0.12)
    assert nurse["n_group"] == 25
    assert "a sample of 50 images" in nurse["note"]
    (other,) = run.where(metric="lift", concept="lawyer", group="a")
    assert abs(other["value"]) < 0.12


@pytest.mark.parametrize(
    "caption", ["The ball is [MASK]", "The woman is [MASK]", "she is [MASK]", "a RED thing: [MASK]"]
)
def test_a_caption_that_names_a_group(caption: str) -> None:
    with refused("bad-option", caption, "names a group"):
        tm.audit("testbed:fusion", "testbed:?images=280", probes=["lift"],
                 options={"lift": {"scores": "masked", "captions": caption}})  # fmt: skip


def test_a_template_of_the_user_that_names_a_group() -> None:
    with refused("bad-option", "a photo of a man who is [MASK]"):
        tm.audit("testbed:fusion", "testbed:?images=280", probes=["lift"], words="sobit",
                 templates=["a photo of a man who is {}"],
                 options={"lift": {"scores": "masked"}})  # fmt: skip


def test_labels_of_the_data_are_group_words() -> None:
    faces = Faces(("1", "2"), {"role": Groups.from_labels(["night_owl", "lark"])})
    check_caption("a photo of a [MASK]", faces)
    with refused("bad-option", "night owl"):
        check_caption("a night owl who is [MASK]", faces)


def test_what_a_model_or_an_engine_cannot_do() -> None:
    faces = tm.load_data("testbed:?images=42")
    with refused("unknown-name", "rank"):
        audited("testbed:dual", "sobit", scores="rank")
    with refused("bad-option", "masked"):
        audited("testbed:dual", "sobit", scores="masked")
    with refused("bad-option", "matching", "--engine local"):
        tm.audit("testbed:fusion", faces, probes=["lift"], engine="parts:size=100",
                 options={"lift": {"scores": "matching"}})  # fmt: skip
    with refused("bad-input", "by parts"):
        tm.audit("testbed:stream", faces, probes=["lift"], engine="parts:size=100")


def test_rows_per_cell() -> None:
    cells = Groups(np.array([0, 1, 0, 0, 1, 0]), ("a", "b"))
    assert rows_per_cell(cells, 2).tolist() == [0, 1, 4, 5]
    assert rows_per_cell(cells, 9).tolist() == list(range(6))


def test_a_server_that_gives_only_bounds_has_no_lift() -> None:
    class Censored(PlantedContinuer):
        def continuations(self, *args: Any, **options: Any) -> Continuations:
            found = super().continuations(*args, **options)
            return replace(found, exact=found.exact & False)

    faces = Faces(("1", "2"), {"kind": Groups.from_labels("ab")}, images=np.zeros((2, 2)))
    with pytest.raises(CannotRunError, match="prompt_logprobs"):
        answer_logprobs(Censored(), "Who is this?")(faces.images, ["a nurse"])
