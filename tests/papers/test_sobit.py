"""So-B-IT's tables: what was planted comes out on top, nothing does where nothing was planted."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import typer
from scipy.stats import binom, spearmanr
from typer.testing import CliRunner

from tiltmeter.cli.words import words as words_command
from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.judge.panel import panel
from tiltmeter.metrics.convention import get_convention
from tiltmeter.models.embeddings import StoredTexts
from tiltmeter.pages.terminal import words as show_words
from tiltmeter.papers import sobit
from tiltmeter.papers import top_composition as tops
from tiltmeter.papers.sobit_tables import HEAT_WORDS
from tiltmeter.probes.ranking.probe import ranking
from tiltmeter.results import RESULTS, Run, combined, rows
from tiltmeter.stats.null import null_of_shares_in_lists
from tiltmeter.stats.resampling import Resampling
from tiltmeter.stimuli import load
from tiltmeter.testbed.data import planted_truth
from tiltmeter.testbed.language import HUES, SHAPES
from tiltmeter.testbed.oracle import Oracle
from tiltmeter.testbed.world import World
from tiltmeter.types import Faces, Groups, Prompt

IMAGES, K = 1400, 100
KINDS = ("Appearance", "Healthcare", "Criminal justice")
HOUSE = get_convention("tiltmeter").with_(k=(K,))
ATTRIBUTES = ["shape", "hue", "shape*hue"]
SMALL = Resampling(199, 50)


def prompts(world: World, *, placebos: int = 60) -> list[Prompt]:
    listed = [Prompt(w.text, w.text, "a {}", w.category, "word", "noun")
              for w in load("sobit").words if w.category in KINDS]  # fmt: skip
    known = {one.name for one in world.concepts}
    neutral = [one.name for one in world.concepts if one.placebo][:placebos]
    unique = {one.text: one for one in reversed(listed) if one.concept in known}
    return [*unique.values(), *(Prompt(n, n, "a {}", "", "placebo", "noun") for n in neutral)]


def audited(
    world: World, *, seed: int = 0, resampling: Resampling = SMALL, name: str = "oracle", **more
) -> Run:
    """A perfect model of a world, on figures without icons."""
    oracle, some = Oracle(world), prompts(world)
    made = oracle.embeddings(IMAGES, np.random.default_rng(seed), noise=0.7)
    texts = made.texts[[world.index(one.concept) for one in some]]
    faces = Faces(tuple(map(str, range(IMAGES))), made.groups, vectors=made.images,
                  truth=planted_truth(world), name="figures")  # fmt: skip
    options = {"attributes": ATTRIBUTES, "convention": HOUSE, **more}
    model = StoredTexts(name, some, texts)
    drawn = replace(resampling, seed=seed)
    found = ranking(model, faces, prompts=some, resampling=drawn, **options)
    kept = {"counts": found.kept["counts"]}
    return Run(found.table, {"model": {"name": name}}, {"ranking": found.instances}, kept)


@pytest.fixture(scope="module")
def tilted() -> Run:
    return audited(World.plant(1.0))


@pytest.fixture(scope="module")
def fair() -> Run:
    return audited(World.plant(0.0), name="fair")


def test_top_words_are_those_that_were_planted(tilted: Run) -> None:
    """For nearly every group and category the word on top is one that was planted there."""
    right, all_ = 0, 0
    for attribute in ("shape", "hue"):
        listed = sobit.word_rows(tilted, "c_asc", attribute)
        for top in sobit.top_words(tilted, attribute):
            place = {"category": top["category"], "group": top["group"]}
            rivals = [r for r in listed if all(r[n] == v for n, v in place.items())]
            assert top["value"] == max(row["value"] for row in rivals)
            assert top["truth"] > 0  # the tilt is there, and it is this way
            best = sorted((row["truth"] for row in rivals), reverse=True)[:2]
            right += top["truth"] >= best[-1]
            all_ += 1
            values, truth = zip(*((r["value"], r["truth"]) for r in rivals), strict=True)
            assert spearmanr(values, truth)[0] > 0.75
    assert all_ == 9 * len(KINDS)
    assert right >= 0.85 * all_


def test_order_and_verdicts_follow_the_plan(tilted: Run) -> None:
    for attribute, least in (("shape", 0.97), ("hue", 0.93), ("shape*hue", 0.85)):
        listed = sobit.word_rows(tilted, "c_asc", attribute)
        truth = np.array([row["truth"] for row in listed])
        assert spearmanr([row["value"] for row in listed], truth)[0] > least
        held = np.array([row["verdict"] == "beyond neutral words" for row in listed])
        signs = np.sign([row["value"] for row in listed])
        assert held.mean() > 0.2
        assert (signs == np.sign(truth))[held].mean() > 0.99
        assert np.abs(truth[held]).mean() > 2 * np.abs(truth[~held]).mean()


def test_nothing_is_on_top_where_nothing_was_planted() -> None:
    """At dose 0, of several audits, few have any word beyond neutral words; of words very few."""
    world, runs = World.plant(0.0), 8
    alarms, held, count = 0, 0, 0
    for seed in range(runs):
        run = audited(world, seed=seed, resampling=Resampling(99, 0), attributes=["hue"])
        rows = sobit.top_words(run, "hue")
        alarms += any(row["p_fwer"] <= 0.05 for row in rows)
        listed = sobit.word_rows(run, "c_asc", "hue")
        held += sum(row["verdict"] == "beyond neutral words" for row in listed)
        count += len(listed)
    assert alarms <= binom.ppf(0.999, runs, 0.05)
    assert held / count < 0.01


def test_a_crossing_finds_what_single_attributes_miss() -> None:
    """A word that leans to round red and to square orange figures and so on, and by no margin."""
    signs = dict(zip(HUES[:6], (1, -1) * 3, strict=True))
    thief = {f"{shape} | {hue}": turn * sign for shape, turn in zip(SHAPES, (1, -1), strict=True)
             for hue, sign in signs.items()}  # fmt: skip
    world = World.plant(1.0, table={"thief": thief, "obese": {"round": 0.8}})
    # C-ASC compares mean scores: these are even over shapes and over hues
    scores = Oracle(world).pmi()[world.index("thief")].reshape(len(SHAPES), len(HUES))
    assert max(np.ptp(scores.mean(axis=0)), np.ptp(scores.mean(axis=1))) < 0.05
    run = audited(world, seed=3)
    for attribute in ("shape", "hue"):
        alone = sobit.heat(run, attribute, ["thief"])
        assert not any(row["verdict"] == "beyond neutral words" for row in alone)
    crossed = {row["group"]: row for row in sobit.heat(run, "shape*hue", ["thief"])}
    for group, beta in thief.items():
        assert crossed[group]["verdict"] == "beyond neutral words"
        assert np.sign(crossed[group]["value"]) == np.sign(beta)
    # and a plain tilt is seen by the attribute itself
    plain = sobit.heat(run, "shape", ["obese"])
    assert {row["verdict"] for row in plain} == {"beyond neutral words"}


def test_several_top_words_fall(tilted: Run) -> None:
    rows = sobit.top_words(tilted, "hue", many=3)
    by = Counter((row["category"], row["group"]) for row in rows)
    assert set(by.values()) == {3}
    for first, second in pairwise(rows):
        if (first["category"], first["group"]) == (second["category"], second["group"]):
            assert first["value"] >= second["value"]


def test_categories_are_means_over_words(tilted: Run) -> None:
    for metric in ("normalized_entropy", "max_skew", "ndkl"):
        means = sobit.category_means(tilted, "hue", metric=metric)
        assert [row["category"] for row in means] == sorted(KINDS)
        k = None if metric == "ndkl" else K
        for row in means:
            words = [one["value"] for one in sobit.word_rows(tilted, metric, "hue", k=k)
                     if one["category"] == row["category"]]  # fmt: skip
            assert row["value"] == pytest.approx(np.mean(words))
            assert row["null_low"] < row["null_mean"] < row["null_high"]
            assert row["p"] <= 0.05


def test_composition_against_a_slow_reference(tilted: Run) -> None:
    """Counted from the pictures themselves, one by one."""
    world = World.plant(1.0)
    made = Oracle(world).embeddings(IMAGES, np.random.default_rng(0), noise=0.7)
    groups = {n: made.groups[n] for n in ("shape", "hue")}
    groups["shape*hue"] = groups["shape"].cross(groups["hue"])
    for attribute, of in groups.items():
        rows = tops.composition(tilted, attribute)
        words = [row for row in rows if row["concept"]]
        for word in ("thief", "obese", "attractive"):
            scores = made.images @ made.texts[world.index(word)]
            top = np.argsort(-scores, kind="stable")[:K]
            mine = {row["group"]: row for row in words if row["concept"] == word}
            for code, name in enumerate(of.names):
                assert mine[name]["value"] == pytest.approx((of.codes[top] == code).mean())
                assert mine[name]["ideal"] == pytest.approx(of.shares[code])
        by_word: dict[str, float] = {}
        for row in words:
            by_word[row["concept"]] = by_word.get(row["concept"], 0) + row["value"]
        assert list(by_word.values()) == pytest.approx([1.0] * len(by_word))
        for row in rows:
            assert row["null_low"] <= row["null_mean"] <= row["null_high"]
            assert set(row) == set(RESULTS.names)
        categories = [row for row in rows if not row["concept"]]
        assert len(categories) == len(KINDS) * len(of.names)
        for row in categories:
            place = row["category"], row["group"]
            members = [one["value"] for one in words if (one["category"], one["group"]) == place]
            assert row["value"] == pytest.approx(np.mean(members))


def test_interval_of_a_share_holds_it(tilted: Run) -> None:
    rows = [row for row in tops.composition(tilted, "hue") if row["ci_low"] is not None]
    assert len(rows) > 300
    for row in rows:
        assert 0 <= row["ci_low"] <= row["value"] <= row["ci_high"] <= 1.001


def test_null_of_a_category_is_that_of_labels_dealt_out() -> None:
    """Top lists that share images: the spread in closed form against 4,000 shuffles."""
    rng = np.random.default_rng(0)
    n, k = 300, 40
    lists = [rng.permutation(n)[: 2 * k][rng.permutation(2 * k)[:k]] for _ in range(5)]
    lists.append(lists[0])  # one list twice: all of it is shared
    codes = np.array([0] * 60 + [1] * 240)
    times, seen = np.bincount(np.concatenate(lists)), np.concatenate(lists)
    shares = np.bincount(codes[seen]) / len(seen)
    null, p = null_of_shares_in_lists(shares, times[times > 0].tolist(), [60, 240])
    drawn = []
    for _ in range(4000):
        dealt = rng.permutation(codes)
        drawn.append(np.mean([(dealt[top] == 0).mean() for top in lists]))
    spread = (null.high[0] - null.mean[0]) / 1.959964
    assert spread == pytest.approx(np.std(drawn), rel=0.05)
    assert null.mean[0] == pytest.approx(np.mean(drawn), abs=0.003)
    far = np.abs(np.array(drawn) - 0.2) >= abs(shares[0] - 0.2)
    assert p[0] == pytest.approx(far.mean(), abs=0.05)
    _, whole = null_of_shares_in_lists(np.array([0.2, 0.8]), [1] * n, [60, 240])
    assert whole.tolist() == [1.0, 1.0]  # a top of everybody says nothing


def test_kept_counts_and_top_images_give_the_same_composition(tilted: Run) -> None:
    bare = Run(tilted.table, tilted.meta, tilted.instances)
    for attribute in ATTRIBUTES:
        found, counted = (tops.composition(one, attribute) for one in (tilted, bare))
        for one, other in zip(found, counted, strict=True):
            assert one.pop("value") == pytest.approx(other.pop("value"), abs=1e-12)
            p, q = ([row.pop(name) for name in ("p", "p_bh")] for row in (one, other))
            assert p == pytest.approx(q, abs=1e-12)
            assert one == other


def test_composition_shares_places_as_the_skew_does() -> None:
    """Three images of every score, and a top 100: the last place is always one of three."""
    rng = np.random.default_rng(0)
    some = [Prompt(f"a {n}", n, "a {}", "c", "word", "noun") for n in ("one", "two", "three")]
    vectors = np.repeat(rng.normal(size=(200, 16)), 3, axis=0)
    groups = Groups(rng.integers(0, 2, 600), ("a", "b"), "kind")
    faces = Faces(tuple(map(str, range(600))), {"kind": groups}, vectors=vectors)
    found = ranking(
        StoredTexts("tied", some, rng.normal(size=(3, 16))), faces, prompts=some,
        attributes=["kind"], convention=HOUSE, resampling=Resampling(0, 0),
    )  # fmt: skip
    run = Run(found.table, {}, {"ranking": found.instances}, {"counts": found.kept["counts"]})
    skews = {(r["concept"], r["group"]): r["value"] for r in run.where(metric="skew", k=K)}
    shares = {(r["concept"], r["group"]): r for r in tops.composition(run, "kind") if r["concept"]}
    assert any(row["value"] * K % 1 > 0.1 for row in shares.values())  # thirds of a place
    for place, row in shares.items():
        assert row["value"] == pytest.approx(row["ideal"] * np.exp(skews[place]), abs=1e-12)


def test_divergence_is_zero_only_for_the_images_own_shares(tilted: Run, fair: Run) -> None:
    rows = tops.divergence(tilted, "shape")
    round_ = [row for row in tops.composition(tilted, "shape") if row["group"] == "round"]
    shares = {row["concept"]: row["value"] for row in round_}
    q = round_[0]["ideal"]
    for row in rows:
        p = shares[row["concept"]]
        parts = [(p, q), (1 - p, 1 - q)]
        expected = sum(a * np.log(a / b) for a, b in parts if a > 0)
        assert row["value"] == pytest.approx(expected)
        assert row["value"] >= 0
    beyond = np.mean([row["p"] <= 0.05 for row in rows])
    assert beyond > 0.5
    assert np.mean([row["p"] <= 0.05 for row in tops.divergence(fair, "shape")]) < 0.2


def test_an_association_and_its_mirror_count_once(tilted: Run) -> None:
    words = len({row["concept"] for row in sobit.word_rows(tilted, "c_asc", "shape")})
    for attribute, sides in (("shape", 1), ("hue", len(HUES))):
        both = sobit.word_rows(tilted, "c_asc", attribute)
        once = sobit.without_mirrors(both)
        assert len(once) == words * sides
        assert all(row in both for row in once)
    by_shape = sobit.word_rows(tilted, "c_asc", "shape")
    round_ = [row for row in by_shape if row["group"] == "round"]
    once = sobit.without_mirrors(by_shape)
    assert Counter(r["verdict"] for r in once) == Counter(r["verdict"] for r in round_)
    assert [r["value"] for r in once] == pytest.approx([abs(r["value"]) for r in round_])
    undefined = [{**row, "value": None} for row in by_shape]
    assert [r["group"] for r in sobit.without_mirrors(undefined)] == ["round"] * words


def test_changes_are_where_the_tilt_was_taken_out(tilted: Run, fair: Run) -> None:
    rows = sobit.changes(tilted, fair, many=3)
    assert {row["attribute"] for row in rows} == set(ATTRIBUTES)
    by_hue = [row["group"] for row in rows if row["attribute"] == "hue"]
    assert tuple(dict.fromkeys(by_hue)) == HUES  # groups in the order of the data
    for row in rows:
        before = sobit.heat(tilted, row["attribute"], [row["concept"]])
        [old] = [one for one in before if one["group"] == row["group"]]
        assert row["before"] == old["value"]
        assert row["difference"] == pytest.approx(row["after"] - row["before"])
        assert row["ci_low"] < row["difference"] < row["ci_high"]
        assert row["verdict_before"] == old["verdict"]
    # the bias was there, and is gone
    by_shape = [row for row in rows if row["attribute"] == "shape"]
    assert {row["verdict_before"] for row in by_shape} == {"beyond neutral words"}
    assert {row["direction"] for row in by_shape} == {"better"}
    assert all(row["p_bh"] < 0.01 for row in by_shape)
    assert "beyond neutral words" not in {row["verdict_after"] for row in by_shape}


def test_changes_turn_round_with_the_runs(tilted: Run, fair: Run) -> None:
    place = ("attribute", "group", "concept")
    there = {tuple(r[n] for n in place): r for r in sobit.changes(tilted, fair)}
    back = {tuple(r[n] for n in place): r for r in sobit.changes(fair, tilted)}
    assert there.keys() == back.keys()
    for key, row in there.items():
        assert row["difference"] == pytest.approx(-back[key]["difference"])
        assert row["p"] == pytest.approx(back[key]["p"])
        assert row["ci_low"] == pytest.approx(-back[key]["ci_high"])
    same = sobit.changes(tilted, tilted)
    assert {row["difference"] for row in same} == {0.0}
    assert {row["p"] for row in same} == {1.0}


def test_words_of_two_templates_are_read_once() -> None:
    world = World.plant(1.0)
    once = prompts(world)
    again = [replace(one, text=f"the {one.text}", template="the {}") for one in once]
    some = [one for pair in zip(once, again, strict=True) for one in pair]
    made = Oracle(world).embeddings(IMAGES, np.random.default_rng(0), noise=0.7)
    texts = made.texts[[world.index(one.concept) for one in some]]
    faces = Faces(tuple(map(str, range(IMAGES))), made.groups, vectors=made.images)
    found = ranking(
        StoredTexts("two", some, texts), faces, prompts=some, attributes=["shape"],
        convention=HOUSE, resampling=Resampling(19, 0),
    )  # fmt: skip
    run = Run(found.table, {}, {"ranking": found.instances})
    rows = sobit.word_rows(run, "c_asc", "shape")
    assert {row["template"] for row in rows} == {None}
    assert len(rows) == 2 * len({p.concept for p in some if p.role == "word"})
    shares = [row for row in tops.composition(run, "shape") if row["concept"]]
    assert all("2 templates" in row["note"] for row in shares)
    for row in shares:  # two lists that share images vary less than one, and more than none
        assert 0 < row["null_low"] < row["ideal"] < row["null_high"] < 1


def test_one_model_of_several(tilted: Run, fair: Run) -> None:
    both = panel([tilted, fair])
    with pytest.raises(InputError, match="several: fair, oracle"):
        sobit.select_run(both)
    with pytest.raises(UnknownNameError, match="did you mean 'fair'"):
        sobit.select_run(both, model="fari")
    one = sobit.select_run(both, model="oracle")
    assert sobit.top_words(one, "hue") == sobit.top_words(tilted, "hue")
    assert tops.composition(one, "hue") == tops.composition(tilted, "hue")
    # Figures 3 and 4 show all models
    models = {row["model"] for row in sobit.category_means(both, "hue")}
    assert models == {"oracle", "fair"}


def test_extra_words_join_their_categories(tilted: Run) -> None:
    names = {word.category for word in load("sobit-extra").words}
    known = set(load("sobit").categories)
    assert {sobit.ALSO_CALLED.get(name, name) for name in names} - known == {"Stereotyping", "Text"}
    table = tilted.table.to_pylist()
    for row in table:
        if row["category"] == "Criminal justice" and row["concept"] == "thief":
            row["category"] = "Crime + Justice"
    moved = Run(type(tilted.table).from_pylist(table, schema=RESULTS), {}, tilted.instances)
    assert sobit.top_words(moved, "hue", many=50) == sobit.top_words(tilted, "hue", many=50)


def test_words_are_marked_where_the_lexicon_has_them(tilted: Run) -> None:
    rows = sobit.marked(sobit.top_words(tilted, "shape"), {"THIEF": 0.1, "lamp": 0.6})
    for row in rows:
        assert row["valence"] == (0.1 if row["concept"] == "thief" else None)
    assert (show_words._sign(0.1), show_words._sign(0.5), show_words._sign(0.9)) == (
        " (-)", "", " (+)")  # fmt: skip


def test_what_is_not_there(tilted: Run) -> None:
    with pytest.raises(UnknownNameError, match="attribute of the run 'gender'"):
        sobit.top_words(tilted, "gender")
    with pytest.raises(UnknownNameError, match="word of the run"):
        sobit.heat(tilted, "hue", ["thieff"])
    with pytest.raises(UnknownNameError, match="group of hue"):
        sobit.leading(tilted, "hue", "rde")
    with pytest.raises(InputError, match="top images are not known"):
        tops.composition(Run(tilted.table), "hue")


@pytest.fixture(scope="module")
def app() -> typer.Typer:
    app = typer.Typer()
    app.command()(words_command)
    return app


def test_the_command_prints_tables(app, tilted: Run, fair: Run, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    tilted.save(tmp_path / "tilted")
    fair.save(tmp_path / "fair")
    lexicon = tmp_path / "lexicon.csv"
    lexicon.write_text("word,valence\nthief,0.1\nbeautiful,0.95\nlamp,0.0\nsun,1.0\n")
    done = CliRunner().invoke(
        app, [str(tmp_path / "fair"), "--before", str(tmp_path / "tilted"),
              "--lexicon", f"lexicon:{lexicon}?scale=0,1"],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert max(map(len, done.output.splitlines())) <= 80
    for said in (
        "shape: the words nearest to each group",
        "hue: Normalised entropy@100",
        "groups above their share in the top",
        "shape*hue: C-ASC of the words nearest to",
        "words whose C-ASC changed most",
    ):
        assert said in done.output  # fmt: skip


def test_the_command_prints_json(app, tilted: Run, tmp_path) -> None:
    tilted.save(tmp_path / "run")
    place = [str(tmp_path / "run"), "--json"]
    done = CliRunner().invoke(app, [*place, "--category", "Healthcare", "-a", "hue"])
    found = json.loads(done.output)
    assert {row["category"] for row in found["top_words"]} == {"Healthcare"}
    assert {row["attribute"] for row in found["composition"]} == {"hue"}
    assert found["top_words"] == [
        row for row in sobit.top_words(tilted, "hue") if row["category"] == "Healthcare"
    ]
    crossed = CliRunner().invoke(app, [*place, "--category", "Healthcare"])
    heat = json.loads(crossed.output)["heat"]
    assert {row["category"] for row in heat} == {"Healthcare"}
    assert len({row["concept"] for row in heat}) >= HEAT_WORDS
    wrong = CliRunner().invoke(app, [*place, "--category", "Healthcar"])
    assert "did you mean 'Healthcare'" in str(wrong.exception)
    wrong = CliRunner().invoke(app, [*place, "-a", "gender"])
    assert isinstance(wrong.exception, UnknownNameError)


def test_strengths_are_shown_where_they_were_measured(tilted: Run, capsys) -> None:
    more = rows(2, probe="strength", metric="strength", target=["thief", "obese"],
                category=["Criminal justice", "Healthcare"], template="a {}", value=[0.9, 0.1],
                ci_low=[0.8, 0.05], ci_high=[0.95, 0.2], n=100,
                experiment="100 words of mine, bare")  # fmt: skip
    run = Run(combined([tilted.table, more]), {}, tilted.instances)
    show_words.words({None: show_words.tables(run, attribute="shape", category="Healthcare")})
    said = capsys.readouterr().out
    assert "10.0%" in said
    assert "90.0%" not in said  # thief stands in another category
    assert "Compared with 100 words of mine, bare." in said
