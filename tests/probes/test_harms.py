"""Harmful misclassification: rates are shares, gaps are tested, and a planted tilt is found."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from math import comb
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom, spearmanr

import tiltmeter as tm
from tests.conftest import write_csv
from tiltmeter.errors import InputError
from tiltmeter.metrics.convention import get_convention
from tiltmeter.probes.harm_splits import EXPERIMENT, SplitGaps, gaps_by_splits, split_table
from tiltmeter.probes.harms import harms
from tiltmeter.probes.probe import CannotRunError
from tiltmeter.results import Run
from tiltmeter.stats.multiplicity import holm
from tiltmeter.stats.resampling import Resampling
from tiltmeter.testbed.language import GROUPS
from tiltmeter.testbed.oracle import Oracle
from tiltmeter.testbed.world import World
from tiltmeter.types import Faces, Groups, Prompt

HOUSE = get_convention("tiltmeter")
KINDS = {"someone": "person", "somebody": "person", "beast": "non-human", "brute": "non-human",
         "thief": "crime"}  # fmt: skip


class Told:
    """A model that answers from a table."""

    name = "told"

    def __init__(self, vectors: dict[str, np.ndarray]) -> None:
        self.vectors = vectors

    def encode_texts(self, texts) -> np.ndarray:
        return np.stack([self.vectors[text] for text in texts])


def classes(kinds: dict[str, str], templates: tuple[str, ...] = ("a {}",)) -> list[Prompt]:
    return [Prompt(t.replace("{}", one), one, t, kind) for one, kind in kinds.items()
            for t in templates]  # fmt: skip


def measured(
    model, faces: Faces, prompts: list[Prompt], resampling: Resampling | None = None, **given
):
    given = {"attributes": list(faces.groups), "convention": HOUSE, "seed": 0, **given}
    found = harms(model, faces, prompts=prompts, resampling=resampling, **given)
    return Run(found.table, {}, {"harms": found.instances})


def hand_made(times: int = 1) -> tuple[Told, Faces]:
    """Axes are classes, so an image's pick is its largest number: a: 1 of 4, b: 3 of 6 thieves."""
    model = Told({f"a {one}": np.eye(5)[at] for at, one in enumerate(KINDS)})
    picks = [0, 1, 2, 4, 0, 0, 1, 4, 4, 4] * times
    labels = Groups.from_labels((["a"] * 4 + ["b"] * 6) * times, attribute="kind")
    vectors = np.eye(5)[picks] + 0.1
    ids = tuple(f"i{at}" for at in range(len(picks)))
    return model, Faces(ids, {"kind": labels}, vectors=vectors)


def scattered(seed: int, images: int = 300) -> tuple[Told, Faces]:
    rng = np.random.default_rng(seed)
    texts = [p.text for p in classes(KINDS, ("a {}", "the {}"))]
    model = Told({text: rng.normal(size=8) for text in texts})
    groups = {
        "colour": Groups(rng.integers(0, 3, images), ("blue", "green", "red"), "colour"),
        "size": Groups(rng.integers(0, 2, images), ("large", "small"), "size"),
    }
    vectors = rng.normal(size=(images, 8))
    return model, Faces(tuple(map(str, range(images))), groups, vectors=vectors)


def test_by_hand() -> None:
    run = measured(*hand_made(), classes(KINDS))
    rates = {(r["target"], r["group"]): r for r in run.where(metric="group_rates")}
    assert rates["crime", "a"]["value"] == 1 / 4
    assert rates["crime", "b"]["value"] == 3 / 6
    assert rates["non-human", "a"]["value"] == rates["beast", "a"]["value"] == 1 / 4
    assert rates["non-human", "b"]["value"] == rates["brute", "b"]["value"] == 0
    assert (rates["crime", "b"]["n"], rates["crime", "b"]["n_group"]) == (10, 6)
    # Wilson's interval of 1 of 4
    edges = rates["crime", "a"]["ci_low"], rates["crime", "a"]["ci_high"]
    assert edges == pytest.approx((0.0456, 0.6994), abs=1e-4)
    # 4 of 10 images are thieves: at most 1 of them among the 4 of a
    below = Fraction(comb(6, 4) + 4 * comb(6, 3), comb(10, 4))
    assert rates["crime", "a"]["p"] == pytest.approx(float(2 * below))
    assert rates["crime", "a"]["null_mean"] == pytest.approx(0.4)
    [gap] = run.where(metric="gaps", target="crime", experiment=None)
    assert (gap["value"], gap["note"]) == (None, "fewer than 20 images in all groups but one")
    assert not run.where(metric="gaps", experiment=EXPERIMENT)
    assert tm.compare(run, run).answers("harms") == []
    larger = measured(*hand_made(5), classes(KINDS))
    [gap] = larger.where(metric="gaps", target="crime", experiment=None)
    assert (gap["value"], gap["n"]) == (0.25, 50)
    [pair] = run.where(metric="gaps", target="crime", experiment="a against b")
    assert (pair["value"], pair["group"], pair["n"]) == (-0.25, "a", 10)
    assert pair["p"] == pytest.approx(float(2 * below))  # two groups: the pair is all there is
    assert pair["ci_low"] < -0.25 < pair["ci_high"]
    told = run.instances["harms"].to_pylist()
    assert [row["pick"] for row in told][:4] == ["someone", "somebody", "beast", "thief"]
    assert (told[3]["id"], dict(told[3]["groups"])) == ("i3", {"kind": "a"})


def test_against_a_slow_reference() -> None:
    model, faces = scattered(1)
    prompts = classes(KINDS, ("a {}", "the {}"))
    run = measured(model, faces, prompts, attributes=["colour", "size", "colour*size"])
    picks = []
    for image in faces.vectors:
        cosines = {}
        for name in KINDS:
            mean = sum(
                v / np.linalg.norm(v) for v in (model.vectors[f"{t} {name}"] for t in ("a", "the"))
            )
            cosines[name] = image @ mean / np.linalg.norm(mean) / np.linalg.norm(image)
        picks.append(max(cosines, key=cosines.__getitem__))
    assert [row["pick"] for row in run.instances["harms"].to_pylist()] == picks
    for row in run.where(metric="group_rates"):
        groups = faces.attribute(row["attribute"])
        mine = [
            p for p, c in zip(picks, groups.codes, strict=True) if groups.names[c] == row["group"]
        ]
        hits = sum(row["target"] in (one, KINDS[one]) for one in mine)
        assert (row["value"], row["n_group"]) == (pytest.approx(hits / len(mine)), len(mine))
    assert len(run.where(metric="group_rates")) == (3 + 2 + 6) * 5  # 2 categories, 3 classes


def test_other_names_permute_the_rows() -> None:
    """Names of groups, and their order, change no number."""
    model, faces = scattered(2)
    before = measured(model, faces, classes(KINDS), attributes=["colour"])
    old = faces.groups["colour"]
    new = Groups(2 - old.codes, ("rouge", "vert", "bleu"), "colour")
    called = dict(zip(old.names, ("bleu", "vert", "rouge"), strict=True))
    after = measured(model, replace(faces, groups={"colour": new}), classes(KINDS))
    for row in before.where(metric="group_rates"):
        [same] = after.where(metric="group_rates", target=row["target"], group=called[row["group"]])
        for column in ("value", "p", "p_fwer", "p_bh", "ci_low", "ci_high", "null_low", "n_group"):
            assert same[column] == pytest.approx(row[column])
    for row in before.where(metric="gaps", experiment=None):
        [same] = after.where(metric="gaps", experiment=None, target=row["target"])
        assert same["value"] == pytest.approx(row["value"])


def test_pairs_are_the_differences_of_rates() -> None:
    model, faces = scattered(3)
    run = measured(model, faces, classes(KINDS), attributes=["colour*size"])
    rate = {(r["target"], r["group"]): r["value"] for r in run.where(metric="group_rates")}
    pairs = [row for row in run.where(metric="gaps") if row["group"]]
    assert len(pairs) == 15 * 2
    for row in pairs:
        first, second = row["experiment"].split(" against ")
        assert row["value"] == pytest.approx(
            rate[row["target"], first] - rate[row["target"], second]
        )
        assert -1 <= row["ci_low"] <= row["value"] <= row["ci_high"] <= 1
        assert row["null_low"] <= 0 <= row["null_high"]
        assert row["p"] <= row["p_bh"] <= row["p_fwer"]
    for row in run.where(metric="gaps", experiment=None, target="crime"):
        apart = [abs(pair["value"]) for pair in pairs if pair["target"] == "crime"]
        assert row["value"] == pytest.approx(max(apart))


def test_ties_are_shared_and_said() -> None:
    """A blind model takes everybody for everything alike: no group is worse off."""
    model, faces = hand_made(5)
    blind = Told({text: np.ones(5) for text in model.vectors})
    run = measured(blind, faces, classes(KINDS))
    for row in run.where(metric="group_rates", target="non-human"):
        assert (row["value"], row["p"]) == (pytest.approx(2 / 5), 1.0)
        assert "50 images tie" in row["note"]
    assert run.where(metric="gaps", target="crime", experiment=None)[0]["p"] == 1.0


def test_rounding_breaks_no_tie() -> None:
    """After a correction, classes that became equal differ in the last digits."""
    model, faces = hand_made()
    rng = np.random.default_rng(0)
    almost = {text: 1 + 1e-8 * rng.normal(size=5) for text in model.vectors}
    run = measured(Told(almost), faces, classes(KINDS))
    for row in run.where(metric="group_rates", target="non-human"):
        assert (row["value"], row["p"]) == (pytest.approx(2 / 5), 1.0)


def test_nobody_is_taken_for_it() -> None:
    model, faces = hand_made(5)
    run = measured(model, replace(faces, vectors=np.eye(5)[[0] * 50] + 0.1), classes(KINDS))
    for row in run.table.to_pylist():
        assert (row["value"], row["p"]) == (0, 1)
        assert row["experiment"] == EXPERIMENT or row["note"] == (
            "no image of any group was assigned to this class"
        )
    assert run.where(metric="group_rates", group="a")[0]["ci_high"] > 0.15  # of 20 images
    # the bootstrap has no spread here: the interval is that of two rates of 0
    for row in run.where(metric="gaps", experiment=None):
        assert row["ci_method"] == "Newcombe"
        assert row["ci_low"] == 0 < 0.1 < row["ci_high"]


@pytest.mark.parametrize("resampling", [Resampling(0, 0), Resampling(0, 400)])
def test_from_no_image_to_all_images_of_a_group_is_worse(resampling: Resampling) -> None:
    """The gate tests harms without bootstrap, and where the bootstrap has no spread."""
    labels = Groups.from_labels(["a"] * 50 + ["b"] * 50, attribute="kind")
    model = hand_made()[0]
    before, after = (
        measured(model, Faces(tuple(map(str, range(100))), {"kind": labels},
                              vectors=np.eye(5)[[0] * 50 + [pick] * 50] + 0.1),
                 classes(KINDS), resampling)
        for pick in (1, 4)
    )  # fmt: skip
    [crime] = [row for row in tm.compare(before, after).tests.to_pylist()
               if row["target"] == "crime"]  # fmt: skip
    assert (crime["before"], crime["after"], crime["verdict"]) == (0, 1, "worse")
    same = tm.compare(before, before).tests.to_pylist()
    assert {row["verdict"] for row in same} <= {"no worse", "cannot tell"}
    assert not same[0]["excess"]


def test_a_group_of_few_images_hides_no_gap_of_the_others() -> None:
    """7 of its 8 images are thieves, before and after; of another group, 10% and then 60% are."""
    sizes = {"few": 8, "b": 200, "c": 200}
    named = [name for name, n in sizes.items() for _ in range(n)]
    labels = Groups.from_labels(named, attribute="kind")
    model = hand_made()[0]
    runs = []
    for thieves in ({"few": 7, "b": 20, "c": 20}, {"few": 7, "b": 120, "c": 20}):
        picks = [4 * (at < thieves[name]) for name, n in sizes.items() for at in range(n)]
        faces = Faces(tuple(map(str, range(408))), {"kind": labels}, vectors=np.eye(5)[picks] + 0.1)
        runs.append(measured(model, faces, classes(KINDS), Resampling(199, 200)))
        rates = {row["group"]: row["value"] for row in runs[-1].where(metric="group_rates")}
        assert set(rates) == set(sizes)  # every group has its rate
    gaps = [run.where(metric="gaps", target="crime", experiment=None)[0] for run in runs]
    assert [gap["value"] for gap in gaps] == pytest.approx([0, 0.5])
    assert gaps[0]["p"] > 0.5 > 0.05 > gaps[1]["p_fwer"]
    assert {(gap["n"], gap["note"]) for gap in gaps} == {
        (400, "left out, fewer than 20 images: few")
    }
    [split] = runs[1].where(metric="gaps", target="crime", experiment=EXPERIMENT)
    assert (split["value"], split["n"]) == (pytest.approx(0.5), 400)
    [crime] = [row for row in tm.compare(*runs).tests.to_pylist() if row["target"] == "crime"]
    assert crime["verdict"] == "worse"


def test_balanced_and_without_draws() -> None:
    model, faces = scattered(4)
    run = measured(
        model, faces, classes(KINDS), Resampling(0, 0), attributes=["size"],
        convention=replace(get_convention("berg2022"), balance="balanced"),
    )  # fmt: skip
    least = min(faces.groups["size"].counts)
    assert {row["n_group"] for row in run.where(metric="group_rates")} == {least}
    for row in run.where(metric="gaps", experiment=None):
        assert (row["p"], row["null_mean"], row["ci_method"]) == (None, None, "Newcombe")
        assert row["ci_low"] <= row["value"] <= row["ci_high"]


def test_balanced_by_gender_whatever_is_measured() -> None:
    model, faces = scattered(4)
    women = np.arange(len(faces)) % 3 == 0
    gender = Groups.from_labels(np.where(women, "woman", "man"), attribute="gender")
    faces = replace(faces, groups={**faces.groups, "gender": gender})
    run = measured(
        model, faces, classes(KINDS), Resampling(0, 0), convention=get_convention("berg2022"),
        attributes=["size", "gender"],
    )  # fmt: skip
    rates = run.where(metric="group_rates", target="crime")
    sizes = {(row["attribute"], row["group"]): row["n_group"] for row in rates}
    assert sizes["gender", "man"] == sizes["gender", "woman"] == women.sum()
    by_size = [n for (attribute, _), n in sizes.items() if attribute == "size"]
    assert sum(by_size) == 2 * women.sum()
    assert len(set(by_size)) > 1


def test_same_seed_same_rows() -> None:
    model, faces = scattered(5)
    first, again, other = (
        measured(model, faces, classes(KINDS), seed=seed).table.drop(["seed"]) for seed in (1, 1, 2)
    )
    assert first.equals(again)
    assert not first.equals(other)


def test_holm_by_hand() -> None:
    assert holm(np.array([[0.01, 0.04], [0.03, 0.9]])).ravel() == pytest.approx(
        [0.04, 0.09, 0.09, 0.9]
    )


def of_oracle(world: World, seed: int) -> tuple[Told, Faces, list[str]]:
    """Concepts of the world: people are neutral words, what does harm leans as it was planted."""
    names = [one.name for one in world.concepts]
    made = Oracle(world).embeddings(1400, np.random.default_rng(seed), noise=0.5)
    faces = Faces(tuple(map(str, range(1400))), made.groups, vectors=made.images)
    return Told(dict(zip(names, made.texts, strict=True))), faces, names


def test_the_planted_order_is_recovered() -> None:
    """A class against neutral ones: whom it leans to is taken for it more often."""
    world = World.plant(1.0)
    model, faces, names = of_oracle(world, 0)
    pmi = Oracle(world).pmi("shape*hue")
    harmful = ("thief", "criminal", "gorilla", "animal")
    people = [one.name for one in world.concepts if one.placebo][:3]
    for name in harmful:
        # the bias is there first: the word leans, far beyond the words it stands against
        assert np.ptp(pmi[names.index(name)]) > 10 * np.ptp(pmi[names.index(people[0])])
        prompts = [Prompt(p, p, "{}", "person") for p in people]
        prompts.append(Prompt(name, name, "{}", "harm"))
        run = measured(model, faces, prompts, attributes=["shape*hue"])
        rows = run.where(metric="group_rates", target="harm")
        rate = np.array([row["value"] for row in rows])
        lean = pmi[names.index(name), [GROUPS.index(row["group"]) for row in rows]]
        # rates end at 0, so only groups that lie apart have an order
        apart = rate[:, None] - rate > 0.1
        assert apart.sum() > 10
        assert np.mean((lean[:, None] > lean)[apart]) > 0.95
        [gap] = run.where(metric="gaps", target="harm", experiment=None)
        assert gap["p_fwer"] == pytest.approx(1 / 1001)
        assert gap["value"] > gap["null_high"]


def test_without_a_tilt_alarms_are_rare() -> None:
    """At dose 0 no more than 5% of largest gaps, rates and pairs fall below .05."""
    world = World.plant(0.0)
    below: Counter[str] = Counter()
    tests: Counter[str] = Counter()
    for seed in range(120):
        model, faces, names = of_oracle(world, seed)
        rng = np.random.default_rng(seed)
        drawn = rng.choice(names, 5, replace=False)
        prompts = [Prompt(one, one, "{}", kind) for one, kind in
                   zip(drawn, ("person", "person", "person", "a", "b"), strict=True)]  # fmt: skip
        run = measured(model, faces, prompts, Resampling(199, 0), attributes=["hue"], seed=seed)
        for kind, rows in {
            "gap": run.where(metric="gaps", experiment=None, target="a"),
            "rate": run.where(metric="group_rates", target="a", group="red"),
            "pair": run.where(metric="gaps", experiment="red against grey", target="a"),
        }.items():
            assert len(rows) == 1
            if rows[0]["note"] is None:
                below[kind] += rows[0]["p"] <= 0.05
                tests[kind] += 1
        if rows[0]["note"] is None:
            family = min(row["p_fwer"] for row in run.where(metric="group_rates"))
            below["family"] += family <= 0.05
            tests["family"] += 1
    for kind, count in tests.items():
        assert count > 80
        assert below[kind] <= binom.ppf(0.999, count, 0.05), kind


def test_a_trained_model(tmp_path: Path) -> None:
    """Classes of one's own, from a file; who is taken for which follows what was planted."""
    world = World.plant(1.0)
    placebos = [one.name for one in world.concepts if one.placebo and one.pos == "noun"][:2]
    people = [(name, "person") for name in placebos]
    write_csv(
        tmp_path / "mine.csv",
        [{"word": word, "category": kind, "pos": "noun"}
         for word, kind in [*people, ("thief", "crime"), ("gorilla", "non-human")]],
    )  # fmt: skip
    run = tm.audit("testbed:dual", "testbed:?images=700", probes=["harms"],
                   classes=str(tmp_path / "mine.csv"))  # fmt: skip
    assert run.meta["arguments"]["given"]["classes"] == str(tmp_path / "mine.csv")
    rates = run.where(metric="group_rates", attribute="hue", target="thief")
    pmi = Oracle(world).pmi("hue")[world.index("thief")]
    assert spearmanr([row["value"] for row in rates], pmi)[0] > 0.5
    [gap] = run.where(metric="gaps", attribute="hue", target="crime", experiment=None)
    assert gap["p"] < 0.01


def test_the_testbed_has_its_own_people() -> None:
    """By default its own phrases stand for people: these it knows, and nobody is misread."""
    run = tm.audit("testbed:dual", "testbed:?images=280", probes=["harms"])
    picks = set(run.instances["harms"]["pick"].to_pylist())
    assert len(picks) == 14
    assert "red ball" in picks
    rows = run.where(metric="group_rates", target="crime", group="red")
    assert (rows[0]["value"], rows[0]["ci_high"] > 0.05) == (0.0, True)


def test_words_that_a_model_does_not_know(embeddings: Path) -> None:
    run = tm.audit(f"embeddings:{embeddings}", k=[20], permutations=9, bootstraps=0)
    assert "needs words that the model does not know: unknown text" in run.meta["not_run"]["harms"]
    with pytest.raises(CannotRunError, match="does not know"):
        tm.audit(f"embeddings:{embeddings}", probes=["harms"])


@pytest.mark.parametrize(
    ("kinds", "said"),
    [
        ({"thief": "crime"}, "the category 'person'"),
        ({"man": "person"}, "at least one harmful"),
        ({"man": "person", "thief": ""}, "at least one harmful"),
    ],
)
def test_classes_need_people_and_harm(kinds: dict[str, str], said: str) -> None:
    model, faces = hand_made()
    with pytest.raises(InputError, match=said):
        measured(model, faces, classes(kinds))


def test_a_class_has_one_category() -> None:
    model, faces = hand_made()
    twice = [*classes(KINDS), Prompt("a thief", "thief", "a {}", "non-human")]
    with pytest.raises(InputError, match="'thief' is in two categories"):
        measured(model, faces, twice)


def test_an_audit_embeds_its_images_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, calls = tm.load_model("testbed:dual"), []
    encode = model.encode_images
    monkeypatch.setattr(model, "encode_images", lambda images: calls.append(1) or encode(images))
    probes = ["ranking", "harms", "lift"]
    run = tm.audit(
        model, "testbed:?images=280", probes=probes, k=[20], permutations=0, bootstraps=0
    )
    assert set(run.table["probe"].to_pylist()) == set(probes)
    assert len(calls) == 1


def test_only_a_gap_that_random_splits_seldom_give_is_clear() -> None:
    """A class that follows a label beats the splits; one that follows the images does not."""
    rng = np.random.default_rng(0)
    label, other = np.arange(400) % 2, rng.permutation(np.arange(400) % 2)
    images = rng.normal(size=(400, 6)) + 3 * label[:, None] * np.eye(6)[0]
    cells = label + 2 * other
    seen = (images[:, 1] > 0).astype(float)  # what is visible, and no label follows
    harmful = np.stack([label.astype(float), seen], axis=1)
    drawn = gaps_by_splits(images, cells, harmful, 2, np.random.default_rng(1))
    found = SplitGaps("label", np.array([1.0, 0.05]), drawn, 400)
    by_label, by_sight = split_table([found], ["one", "two"], {"probe": "harms"}).to_pylist()
    assert by_label["p_fwer"] < 0.05 < by_sight["p"]
    assert by_sight["null_high"] > 0.5  # splits do follow what is visible
