"""Association tests of words and pictures: the metrics' numbers, exact p-values, planted order."""

from __future__ import annotations

import itertools
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.stats import binom, spearmanr

import tiltmeter as tm
from tiltmeter import metrics
from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.pages.html import page_of
from tiltmeter.probes.eat import SENTENCES, eat, ieat
from tiltmeter.probes.probe import CannotRunError
from tiltmeter.probes.texts import association_tests
from tiltmeter.results import Run
from tiltmeter.stats.permutation import weat_test
from tiltmeter.stats.resampling import Resampling
from tiltmeter.testbed.language import GROUPS
from tiltmeter.testbed.oracle import Oracle
from tiltmeter.testbed.render import render
from tiltmeter.testbed.world import World
from tiltmeter.types import Groups

QUICK = Resampling(199, 99)
WORDS = {"X": ["x1", "x2", "x3", "x4"], "Y": ["y1", "y2", "y3", "y4"],
         "A": ["a1", "a2", "a3"], "B": ["b1", "b2", "b3"]}  # fmt: skip
TEST = [("test", "X", "Y", "A", "B")]


class Leaning:
    """Vectors made of the text; words of X lean to those of A by `lean`."""

    name = "leaning"

    def __init__(self, lean: float = 0.0, seed: int = 0) -> None:
        self.lean, self.seed = lean, seed

    def one(self, text: str) -> np.ndarray:
        vector = np.random.default_rng([self.seed, zlib.crc32(text.encode())]).normal(size=12)
        word = next((w for some in WORDS.values() for w in some if w in text), "")
        vector[0] += self.lean * (word[:1] in "xa") if word else 0
        return vector

    def encode_texts(self, texts) -> np.ndarray:
        return np.stack([self.one(text) for text in texts])


def measured(model, *, words=WORDS, tests=TEST, resampling=QUICK, **given) -> Run:
    return Run(eat(model, words=words, tests=tests, resampling=resampling, **given)[0])


@pytest.mark.parametrize("ddof", ["caliskan", "wefe"])
def test_weat_is_that_of_the_metrics(ddof: str) -> None:
    model = Leaning(1.0)
    run = measured(model, ddof=ddof)
    sets = [model.encode_texts(WORDS[name]) for name in "XYAB"]
    [row] = run.where(experiment=f"WEAT text-text, {ddof}")
    assert row["value"] == pytest.approx(float(metrics.weat(*sets, ddof=ddof)))
    assert row["p"] == pytest.approx(float(weat_test(*sets).p))
    assert (row["n"], row["n_group"], row["p_side"], row["ideal"]) == (14, 4, "greater", 0)
    single = run.where(metric="sc_eat")
    expected = metrics.sc_eat(np.concatenate(sets[:2]), *sets[2:], ddof=ddof)
    assert [one["value"] for one in single] == pytest.approx(expected.tolist())
    assert [(one["concept"], one["group"]) for one in single] == [
        (word, None) for word in WORDS["X"] + WORDS["Y"]
    ]
    assert {one["n"] for one in single} == {6}


def test_the_report_names_the_word_of_every_single_target() -> None:
    listed = next(table for table in page_of(measured(Leaning(1.0))).tables if "SC-EAT" in
                  table.caption)  # fmt: skip
    word = [column.head for column in listed.columns].index("word")
    assert {cells[word] for cells in listed.cells()} == {*WORDS["X"], *WORDS["Y"]}


def test_exact_p_by_brute_force() -> None:
    model = Leaning(0.5, seed=3)
    run = measured(model)
    x, y, a, b = (model.encode_texts(WORDS[name]) for name in "XYAB")
    unit = [v / np.linalg.norm(v, axis=1, keepdims=True) for v in (np.concatenate([x, y]), a, b)]
    s = (unit[0] @ unit[1].T).mean(1) - (unit[0] @ unit[2].T).mean(1)
    gaps = [s[list(chosen)].sum() for chosen in itertools.combinations(range(8), 4)]
    seen = s[:4].sum()
    [row] = run.where(experiment="WEAT text-text, caliskan")
    assert row["p"] == pytest.approx(np.mean([gap >= seen - 1e-12 for gap in gaps]))
    assert row["note"] == "p over all 70 partitions"
    # the single word x1: two-sided, over the partitions of its 6 cosines
    cosines = unit[0][0] @ np.concatenate(unit[1:]).T
    sums = np.array([cosines[list(one)].sum() for one in itertools.combinations(range(6), 3)])
    here = cosines[:3].sum()
    tails = np.mean(sums >= here - 1e-12), np.mean(sums <= here + 1e-12)
    [single] = run.where(metric="sc_eat", concept="x1")
    assert single["p"] == pytest.approx(min(1, 2 * min(tails)))


def test_by_hand() -> None:
    """s is 1 for x1, 0 for x2, 0 for y1 and -1 for y2: d = 1 / sd(1, 0, 0, -1)."""
    table = {"x1": [1, 0, 0], "x2": [0, 0, 1], "y1": [0, 0, 1], "y2": [0, 1, 0],
             "a1": [1, 0, 0], "a2": [1, 0, 0], "b1": [0, 1, 0], "b2": [0, 1, 0]}  # fmt: skip

    class Table:
        def encode_texts(self, texts) -> np.ndarray:
            return np.array([table[text] for text in texts], float)

    words = {one: [f"{one.lower()}1", f"{one.lower()}2"] for one in "XYAB"}
    for ddof, less in (("caliskan", 1), ("wefe", 0)):
        run = measured(Table(), words=words, sentences=(), ddof=ddof)
        [row] = run.where(metric="weat")
        assert row["value"] == pytest.approx(1 / np.sqrt(2 / (4 - less)))
        # of 6 partitions, {1, 0} with either 0 has the largest sum
        assert row["p"] == pytest.approx(2 / 6)
        [near] = run.where(metric="sc_eat", concept="x1")
        assert near["value"] == pytest.approx(1 / np.array([1, 1, 0, 0]).std(ddof=less))
        [neither] = run.where(metric="sc_eat", concept="x2")
        assert neither["value"] is None
        assert neither["note"] == "undefined: the target is equally close to all of A and B"


def test_swapping_sets_turns_the_sign() -> None:
    model = Leaning(1.0)
    swapped = [("test", "Y", "X", "A", "B"), ("test", "X", "Y", "B", "A"),
               ("test", "Y", "X", "B", "A")]  # fmt: skip
    value = measured(model).where(metric="weat")[0]["value"]
    others = [measured(model, tests=[one]).where(metric="weat")[0]["value"] for one in swapped]
    assert others == pytest.approx([-value, -value, value])


def test_sentences_of_a_word_stay_together() -> None:
    """SEAT's effect is over all sentences, its p over words."""
    model = Leaning(1.0)
    run = measured(model)
    flat = {
        name: model.encode_texts([s.replace("{}", w) for w in some for s in SENTENCES])
        for name, some in WORDS.items()
    }
    [row] = run.where(experiment="SEAT text-text, caliskan")
    assert row["value"] == pytest.approx(float(metrics.weat(*(flat[one] for one in "XYAB"))))
    assert row["note"] == "p over all 70 partitions"  # of 8 words, not of 48 sentences
    assert not measured(model, sentences=()).where(experiment="SEAT text-text, caliskan")


def test_a_planted_lean_is_found_and_none_is_not() -> None:
    planted = [measured(Leaning(8.0, seed)).where(metric="weat")[0] for seed in range(10)]
    assert all(row["value"] > 1 and row["p"] < 0.05 for row in planted)
    assert all(row["value"] > row["null_high"] for row in planted)
    below = 0
    for seed in range(200):
        table = eat(
            Leaning(0.0, seed), words=WORDS, tests=TEST, sentences=(), resampling=Resampling(0, 0)
        )
        below += table[0]["p"].to_pylist()[0] <= 0.05
    assert binom.ppf(0.001, 200, 3 / 70) <= below <= binom.ppf(0.999, 200, 0.05)


def test_every_number_comes_with_its_noise() -> None:
    for row in measured(Leaning(1.0)).table.to_pylist():
        assert row["null_low"] <= row["null_mean"] <= row["null_high"]
        assert row["ci_low"] <= row["ci_high"]
        assert row["ci_method"] == "bootstrap over stimuli"
        assert row["p"] <= row["p_bh"] <= row["p_fwer"] <= 1
        assert (row["concept"] is None) == (row["metric"] == "weat")
    bare = measured(Leaning(1.0), resampling=Resampling(0, 0)).table.to_pylist()
    assert {row["ci_low"] for row in bare} == {row["null_low"] for row in bare} == {None}


def test_intervals_cover() -> None:
    """Of 16 + 16 words drawn from a world whose effect is known, most intervals hold it."""
    words = {name: [f"{name}{i}" for i in range(16)] for name in "XYAB"}

    def drawn(seed: int, size: int) -> list[np.ndarray]:
        rng = np.random.default_rng(seed)
        lean = {"X": 1.0, "Y": 0.0, "A": 2.0, "B": 0.0}
        return [rng.normal(size=(size, 6)) + lean[one] * np.eye(6)[0] for one in "XYAB"]

    truth = float(metrics.weat(*drawn(10**6, 4000)))
    held = []
    for seed in range(100):
        vectors = np.concatenate(drawn(seed, 16))
        names = [word for one in "XYAB" for word in words[one]]

        class Drawn:
            def encode_texts(self, texts, names=names, vectors=vectors) -> np.ndarray:
                return vectors[[names.index(text) for text in texts]]

        run = measured(Drawn(), words=words, sentences=(), resampling=Resampling(0, 199), seed=seed)
        [row] = run.where(metric="weat")
        held.append(row["ci_low"] <= truth <= row["ci_high"])
    assert np.mean(held) >= 0.88


def test_sets_that_are_too_small_or_all_alike() -> None:
    few = measured(Leaning(), words={**WORDS, "A": ["a1"]})
    assert {row["value"] for row in few.table.to_pylist()} == {None}
    assert {row["p"] for row in few.table.to_pylist()} == {None}
    assert "A (A) has 1" in few.table["note"].to_pylist()[0]

    class Blind:
        def encode_texts(self, texts) -> np.ndarray:
            return np.ones((len(texts), 4))

    notes = set(measured(Blind()).table["note"].to_pylist())
    assert notes == {
        "undefined: all targets are equally close to A and B",
        "undefined: the target is equally close to all of A and B",
    }


def test_names_that_are_not_there() -> None:
    with pytest.raises(UnknownNameError, match="unknown word set 'Z'"):
        measured(Leaning(), tests=[("test", "Z", "Y", "A", "B")])
    with pytest.raises(UnknownNameError, match="unknown ddof 'sample'"):
        measured(Leaning(), ddof="sample")


def test_the_ten_tests_run_without_any_data() -> None:
    run = tm.audit(Leaning(), probes=["eat"], permutations=99, bootstraps=99)
    rows = run.where(experiment="WEAT text-text, caliskan")
    assert [row["category"] for row in rows] == [f"weat{i}" for i in range(1, 11)]
    assert rows[5]["note"] == "p over all 12,870 partitions"
    assert rows[0]["note"] == "p over 10,000 random partitions"
    assert {row["convention"] for row in rows} == {"tiltmeter"}
    again = tm.audit(Leaning(), probes=["eat"], permutations=99, bootstraps=99)
    assert run.table.equals(again.table)


def test_words_that_a_model_does_not_know() -> None:
    model, tests = tm.load_model("testbed:dual"), association_tests("eat")
    with pytest.raises(CannotRunError, match="unknown word of the testbed's closed vocabulary"):
        eat(model, **tests)


@pytest.mark.parametrize(("twin", "planted"), [("biased", True), ("fair", False)])
def test_the_tests_of_the_testbed_find_what_was_planted(twin: str, planted: bool) -> None:
    run = tm.audit(f"testbed:dual?twin={twin}", probes=["eat"], permutations=99, bootstraps=0)
    effects = run.where(metric="weat")
    assert len(effects) == 2
    for row in effects:
        assert (row["truth"] > 1) is planted
        assert (row["p_fwer"] < 0.05) is planted
        assert not planted or row["value"] == pytest.approx(row["truth"], abs=0.15)


def folders(place: Path, groups: dict[str, int], images: int = 12) -> Path:
    """Figures of some groups, in iEAT's layout."""
    world, rng = World.plant(1.0), np.random.default_rng(0)
    for name, group in groups.items():
        (place / name).mkdir(parents=True)
        drawn = render(world.scenes(images, rng, group=np.full(images, group), cells=0))
        for at, pixels in enumerate(drawn):
            Image.fromarray(pixels).save(place / name / f"{at}.png")
    return place


def test_pictures_of_a_trained_model(tmp_path: Path) -> None:
    """Red balls are nearer to red blocks than blue balls are: image-image, by folders."""
    group = {name: at for at, name in enumerate(GROUPS)}
    place = folders(
        tmp_path / "experiments",
        {"age/young": group["round | red"], "age/old": group["round | blue"],
         "valence/pleasant": group["square | red"], "valence/unpleasant": group["square | blue"]},
    )  # fmt: skip
    (place / "stray.png").write_bytes(b"")
    data = tm.load_data(f"ieat:{place}", role="stimuli")
    assert (len(data), data.provenance["found"]["malformed"]["count"]) == (48, 1)
    assert data.classes.names[0] == "age/old"
    run = tm.audit("testbed:dual", data={"stimuli": f"ieat:{place}"}, probes=["ieat"])
    [seen] = run.where(experiment="iEAT image-image, caliskan")
    assert seen["value"] > 1.5
    assert seen["p"] < 0.001
    assert (seen["category"], seen["group"], seen["n"]) == ("Age", "age/young against age/old", 48)
    # its closed vocabulary lacks the words: said, not hidden
    [across] = run.where(experiment="iEAT image-text, caliskan")
    assert across["value"] is None
    assert "needs words that the model does not know" in across["note"]


def test_across_the_towers_the_planted_order_is_recovered() -> None:
    """Oracle vectors: figures of two groups against words that lean apart and words that do not."""
    world = World.plant(1.0)
    names = [one.name for one in world.concepts]
    made = Oracle(world).embeddings(560, np.random.default_rng(0), noise=0.5)
    shape = np.array(["round", "square"])[made.crossed // 7]
    sets = Groups.from_labels(shape.tolist(), attribute="set")

    class Told:
        name = "told"

        def encode_texts(self, texts) -> np.ndarray:
            return made.texts[[names.index(text) for text in texts]]

    pmi = Oracle(world).pmi("shape")
    lean = pmi[:, 0] - pmi[:, 1]
    by_lean = [int(at) for at in np.argsort(-lean)]
    assert lean[by_lean[0]] > 1  # the bias is there first
    planted, effect = [], []
    for start in range(0, 240, 30):  # ever nearer to each other
        a, b = by_lean[start : start + 30], by_lean[::-1][start : start + 30]
        words = {"near": [names[at] for at in a], "far": [names[at] for at in b]}
        test = [("test", "round", "square", "near", "far")]
        run = Run(ieat(Told(), sets, made.images, words=words, tests=test, resampling=QUICK)[0])
        [row] = run.where(metric="weat")
        planted.append(lean[a].mean() - lean[b].mean())
        effect.append(row["value"])
        if start == 0:
            assert row["experiment"] == "iEAT image-text, caliskan"
            assert row["p"] < 0.001
    assert spearmanr(planted, effect)[0] > 0.9


def test_folders_that_fit_no_test() -> None:
    sets = Groups.from_labels(["cats/black", "cats/white"] * 3, attribute="set")
    vectors = np.random.default_rng(0).normal(size=(6, 4))
    with pytest.raises(InputError, match="no test of iEAT fits these sets: cats/black"):
        ieat(Leaning(), sets, vectors, words={})
    with pytest.raises(UnknownNameError, match="unknown set of stimuli 'cats/blak'"):
        ieat(
            Leaning(),
            sets,
            vectors,
            words=WORDS,
            tests=[("t", "cats/blak", "cats/white", "A", "B")],
        )
