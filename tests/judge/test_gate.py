"""The gate: swaps against a slow reference, theorems, and what a user is told."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from scipy.stats import norm, rankdata

import tiltmeter as tm
from benchmarks import gate as worlds
from tests.conftest import brought_embeddings
from tiltmeter.debiasers.debiaser import VectorMap
from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.judge.gate import Gate, compare, gate
from tiltmeter.judge.gate import run_embeddings as evidence
from tiltmeter.judge.gate.comparison import attributes_to_compare, verdicts
from tiltmeter.judge.gate.exchange import standard_ranks, swap_tests
from tiltmeter.judge.gate.intervals import interval_tests
from tiltmeter.metrics.arrays import unit
from tiltmeter.metrics.convention import get_convention
from tiltmeter.results import COMPARISON, Run, rows
from tiltmeter.types import Prompt

QUICK = {"permutations": 0, "bootstraps": 0, "k": [20]}
FEW = {"swaps": 199, "bootstraps": 99}


def small(seed: int = 0, templates: int = 1) -> evidence.PairedRuns:
    """Two noisy models of 120 images and a few words, in some templates each."""
    texts, images, groups, rng = worlds.embedded(seed, images=120, words=4 * templates)
    prompts = [
        Prompt(f"{t} word {w}", f"word {w}", f"{t} {{}}")
        for w in range(4)
        for t in range(templates)
    ]
    seen = (worlds.noisy(images, rng, 0.5), worlds.noisy(images, rng, 0.5))
    return evidence.PairedRuns(prompts, groups, (texts, texts), seen)


def measured(
    pair: evidence.PairedRuns, *, k: int = 30, draws: int = 19, name: str = "tiltmeter", seed=3
):
    convention = get_convention(name).with_(k=(k,))
    return swap_tests(pair, ["shape", "hue"], convention, draws=draws, bootstraps=39, seed=seed)


def of(tests, **wanted):
    """Places of the figures with some keys."""
    return [at for at, key in enumerate(tests.keys)
            if all(key.get(name) == value for name, value in wanted.items())]  # fmt: skip


# --- an independent slow reference ---------------------------------------------------------------


def reference_c_asc(ranks: np.ndarray, inside: np.ndarray) -> float:
    return ranks[inside].mean() - ranks[~inside].mean()


@pytest.mark.parametrize("templates", [1, 2])
def test_swaps_against_a_loop_over_images(templates: int) -> None:
    pair, draws, seed = small(templates=templates), 19, 3
    tests = measured(pair, draws=draws, seed=seed)
    swapped = np.concatenate(tests.swapped, axis=1)
    bits = np.random.default_rng(seed).integers(0, 2, (draws, len(pair)), dtype=np.uint8)
    scores = pair.scores(slice(0, len(pair.prompts)))
    crossed_over = 0
    for word in range(4):
        first, second = (
            np.mean([_ranks(s[word * templates + t]) for t in range(templates)], axis=0)
            for s in scores
        )
        for group, name in enumerate(pair.groups["hue"].names):
            [at] = of(tests, metric="c_asc", attribute="hue", group=name, concept=f"word {word}")
            inside = pair.groups["hue"].codes == group
            a, b = reference_c_asc(first, inside), reference_c_asc(second, inside)
            assert np.concatenate(tests.before)[at] == pytest.approx(a, abs=1e-5)
            assert np.concatenate(tests.after)[at] == pytest.approx(b, abs=1e-5)
            assert np.concatenate(tests.excess)[at] == pytest.approx(abs(b) - abs(a), abs=1e-5)
            side = -1 if (a > 0) != (b > 0) else 1  # a tilt that went over: its mirror image
            crossed_over += side < 0
            for draw in range(draws):
                keep = bits[draw] == 1
                one = np.where(keep, first, side * second)
                other = np.where(keep, second, side * first)
                want = abs(reference_c_asc(other, inside)) - abs(reference_c_asc(one, inside))
                assert swapped[draw, at] == pytest.approx(want, abs=1e-5)
    assert crossed_over  # both cases were there


def _ranks(scores: np.ndarray) -> np.ndarray:
    order = rankdata(scores)
    return (order - order.mean()) / order.std(ddof=1)


def test_swaps_of_max_skew_against_a_loop_over_images() -> None:
    pair, draws, k = small(), 19, 30
    tests = measured(pair, draws=draws, k=k)
    swapped = np.concatenate(tests.swapped, axis=1)
    bits = np.random.default_rng(3).integers(0, 2, (draws, len(pair)), dtype=np.uint8)
    groups = pair.groups["hue"]
    tops = [s >= np.sort(s, axis=1)[:, [-k]] for s in pair.scores(slice(0, 4))]

    def max_skew(top: np.ndarray) -> float:
        counts = np.array([top[groups.codes == code].sum() for code in range(len(groups.names))])
        shares = np.maximum(counts / counts.sum(), np.minimum(1 / k, groups.shares))
        return np.log(shares / groups.shares).max()

    for word in range(4):
        [at] = of(tests, metric="max_skew", attribute="hue", concept=f"word {word}")
        first, second = tops[0][word], tops[1][word]
        assert np.concatenate(tests.before)[at] == pytest.approx(max_skew(first))
        for draw in range(draws):
            keep = bits[draw] == 1
            want = max_skew(np.where(keep, second, first)) - max_skew(np.where(keep, first, second))
            assert swapped[draw, at] == pytest.approx(want, abs=1e-5)


def test_means_over_words_are_means_of_words() -> None:
    tests = measured(small())
    [mean] = of(tests, metric="mean_abs_c_asc", attribute="hue", group=None)
    single = of(tests, metric="c_asc", attribute="hue")
    swapped = np.concatenate(tests.swapped, axis=1)
    np.testing.assert_allclose(swapped[:, mean], swapped[:, single].mean(axis=1), atol=1e-5)
    excess = np.concatenate(tests.excess)
    assert excess[mean] == pytest.approx(excess[single].mean(), abs=1e-6)


# --- theorems ------------------------------------------------------------------------------------


def test_other_scales_change_nothing() -> None:
    """Ranks are within a model: scores of another size, or bent upwards, give the same answer."""
    pair = small()
    scores = pair.scores(slice(0, 4))
    as_they_are = worlds.pair_of(np.eye(4), scores[0].T, scores[1].T, pair.groups)
    bent = worlds.pair_of(np.eye(4), np.exp(20 * scores[0].T), 7 + 100 * scores[1].T, pair.groups)
    one, other = (measured(x).columns() for x in (as_they_are, bent))
    for name, values in one.items():
        np.testing.assert_allclose(values, other[name], atol=1e-5)


def test_before_and_after_change_places() -> None:
    pair = small()
    turned = evidence.PairedRuns(pair.prompts, pair.groups, pair.texts[::-1], pair.images[::-1])
    one, other = measured(pair).columns(), measured(turned).columns()
    np.testing.assert_allclose(one["excess"], -other["excess"], atol=1e-5)
    np.testing.assert_allclose(one["p"], other["p"])
    np.testing.assert_allclose(one["ci_low"], -other["ci_high"], atol=1e-5)


def test_the_same_model_twice() -> None:
    pair = small()
    same = evidence.PairedRuns(pair.prompts, pair.groups, pair.texts, (pair.images[0],) * 2)
    found = measured(same).columns()
    assert not found["excess"].any()
    assert (found["p_fwer"] == 1).all()
    assert set(verdicts(found, None)) == {"no evidence"}
    assert set(verdicts(found, 0.01)) == {"equivalent"}


def test_same_seed_same_answer_and_conventions_that_balance() -> None:
    pair = small()
    groups = {**pair.groups, "gender": pair.groups["hue"]}
    pair = evidence.PairedRuns(pair.prompts, groups, pair.texts, pair.images)
    one, other = (measured(pair, name="berg2022").columns() for _ in range(2))
    for name, values in one.items():
        np.testing.assert_array_equal(values, other[name])
    assert not np.isnan(one["excess"]).any()


def test_ranks_are_standard_and_ties_share_theirs() -> None:
    z = standard_ranks(np.array([[1.0, 2.0, 2.0, 9.0], [5.0, 5.0, 5.0, 5.0]]))
    np.testing.assert_allclose(z.mean(axis=1), 0, atol=1e-7)
    assert z[0].std(ddof=1) == pytest.approx(1)
    assert z[0, 1] == z[0, 2]
    assert not z[1].any()


def test_verdicts_take_both_and_a_margin_comes_first() -> None:
    numbers = {
        "excess": [0.3, -0.3, 0.3, 0.3, 0.02, np.nan],
        "p_fwer": [0.01, 0.01, 0.2, 0.01, 0.01, np.nan],
        "ci_low": [0.2, -0.4, 0.2, -0.1, 0.01, np.nan],
        "ci_high": [0.4, -0.2, 0.4, 0.7, 0.03, np.nan],
        "inner_low": [0.22, -0.38, 0.22, -0.05, 0.012, np.nan],
        "inner_high": [0.38, -0.22, 0.38, 0.65, 0.028, np.nan],
    }
    columns = {name: np.array(values) for name, values in numbers.items()}
    want = ["worse", "better", "no evidence", "no evidence", "worse", None]
    assert verdicts(columns, None) == want
    assert verdicts(columns, 0.05) == [*want[:4], "equivalent", None]


# --- calibration: the long ones are slow ---------------------------------------------------------


@pytest.mark.parametrize("comparisons", [40, pytest.param(1000, marks=pytest.mark.slow)])
def test_two_draws_of_noise_seldom_fire(comparisons: int) -> None:
    """At most 6.8% of 1,000, and of fewer what a level of 5% gives in 99.5% of all tries."""
    from scipy.stats import binom

    worse, either = worlds.false_alarms(comparisons)
    most = 68 if comparisons == 1000 else binom.ppf(0.995, comparisons, 0.05)
    assert worse <= either <= most


@pytest.mark.slow
@pytest.mark.parametrize(
    "how", [{"strength": 0.0}, {"make": worlds.mirrored, "attributes": ("shape",)}]
)
def test_no_tilt_and_a_tilt_turned_round_seldom_fire(how: dict) -> None:
    assert worlds.false_alarms(400, **how)[1] <= 0.08 * 400


@pytest.mark.parametrize("comparisons", [5, pytest.param(50, marks=pytest.mark.slow)])
def test_a_tilt_moved_from_shape_to_hue_is_caught_every_time(comparisons: int) -> None:
    pair = worlds.moved(0)
    first, second = pair.scores(slice(0, worlds.WORDS))
    sizes = {
        name: [np.abs(tm.metrics.c_asc(s, pair.groups[name])).mean() for s in (first, second)]
        for name in ("shape", "hue")
    }
    assert sizes["shape"][0] > 0.2  # it was there
    assert sizes["shape"][1] < 0.01
    assert sizes["hue"][1] > sizes["hue"][0]
    assert worlds.caught(comparisons) == (comparisons, comparisons)


@dataclass(eq=False)
class Shifting(VectorMap):
    """A debiaser for show: takes away where the shapes differ, and stretches where the hues do."""

    stretch: float = 1.0

    def fit(self, X=None, groups=None, *, texts=None):
        shape, hue = np.divmod(groups.codes, 7)  # of the crossing
        means = [X[shape == one].mean(axis=0) for one in (0, 1)]
        self.shape_ = (means[1] - means[0]) / np.linalg.norm(means[1] - means[0])
        flat = X - np.outer(X @ self.shape_, self.shape_)
        self.mean_ = flat.mean(axis=0)
        apart = np.stack([flat[hue == one].mean(axis=0) for one in range(7)]) - self.mean_
        self.hue_ = np.linalg.svd(apart, full_matrices=False)[2][:6]
        return self

    def _transform(self, X):
        flat = X - np.outer(X @ self.shape_, self.shape_)
        return unit(flat + self.stretch * (flat - self.mean_) @ self.hue_.T @ self.hue_, "images")

    def map_texts(self, X, texts, encode):
        return X


@pytest.mark.parametrize("comparisons", [3, pytest.param(50, marks=pytest.mark.slow)])
def test_a_debiaser_that_shifts_the_tilt_is_caught_every_time(comparisons: int) -> None:
    """Fitted on one half of the images, judged on the other, before and after."""
    for seed in range(comparisons):
        texts, images, groups, rng = worlds.embedded(seed, images=2000)
        seen, judged = worlds.noisy(images[:1000], rng, 0.3), worlds.noisy(images[1000:], rng, 0.3)
        crossing = groups["shape"].cross(groups["hue"])
        shifting = Shifting().fit(seen, crossing[:1000])
        held_out = {name: one[1000:] for name, one in groups.items()}
        pair = worlds.pair_of(texts, judged, shifting.map_images(judged), held_out)
        said = worlds.judged(pair, seed)
        assert "better" in said["shape"]
        assert "worse" in said["hue"]


# --- runs ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Run]:
    """The same images and words; the second model leans more to women for the first word."""
    place = tmp_path_factory.mktemp("gate")
    made = [
        tm.audit(f"embeddings:{brought_embeddings(place / str(lean) / 'd', lean=lean)}", **QUICK)
        for lean in (0.3, 2.5)
    ]
    return made[0], made[1]


def test_a_run_keeps_what_its_scores_are_made_of(runs: tuple[Run, Run], tmp_path: Path) -> None:
    run = runs[0]
    back = Run.load(run.save(tmp_path / "run"))
    one, other = evidence.load_run_embeddings(run), evidence.load_run_embeddings(back)
    np.testing.assert_array_equal(one.images, other.images)
    assert one.prompts == other.prompts
    assert {prompt.role for prompt in one.prompts} == {"word"}
    assert len(one.ids) == 240
    assert set(one.labels) == {"gender", "age"}
    # and they give the run's own figures again
    pair = evidence.pair(back, run, get_convention("tiltmeter"))
    scores, _ = pair.scores(slice(0, 1))
    [row] = run.where(metric="c_asc", concept="thing 0", group="woman")
    assert tm.metrics.c_asc(scores, pair.groups["gender"])[0, 1] == pytest.approx(row["value"])


def test_paired_runs(runs: tuple[Run, Run]) -> None:
    found = compare(*runs, **FEW)
    assert found.unpaired is None
    assert found.images == 240
    assert found.tests.schema == found.table.schema == COMPARISON
    assert set(found.tests["attribute"].to_pylist()) == {"gender", "age", "gender*age"}
    worse = found.worse.to_pylist()
    assert {row["concept"] for row in worse if row["attribute"] == "gender"} >= {"thing 0"}
    assert not [row for row in worse if row["attribute"] == "age"]
    [row] = [r for r in worse if r["metric"] == "c_asc" and r["group"] == "woman"
             and r["concept"] == "thing 0"]  # fmt: skip
    assert row["method"] == "paired"
    assert row["ci_low"] > 0
    assert row["excess"] == pytest.approx(row["after"] - row["before"])
    back = compare(*runs[::-1], **FEW)
    assert not back.worse.num_rows
    assert "thing 0" in back.better["concept"].to_pylist()


def test_images_that_only_one_run_has(runs: tuple[Run, Run]) -> None:
    first, second = runs
    fewer = {**second.vectors, "faces": second.vectors["faces"].slice(40)}
    found = compare(first, Run(second.table, second.meta, {}, fewer), **FEW)
    assert (found.images, found.left_out) == (200, 40)


def test_labels_that_differ_are_refused(runs: tuple[Run, Run]) -> None:
    first, second = runs
    faces = second.vectors["faces"]
    at = faces.column_names.index("label gender")
    labels = faces["label gender"].to_pylist()
    labels[0] = "man" if labels[0] == "woman" else "woman"
    wrong = {**second.vectors, "faces": faces.set_column(at, "label gender", pa.array(labels))}
    with pytest.raises(InputError, match="1 images have different labels of 'gender'"):
        compare(first, Run(second.table, second.meta, {}, wrong), **FEW)


def test_unpaired_where_vectors_are_gone(tmp_path: Path) -> None:
    made = [
        tm.audit(
            f"embeddings:{brought_embeddings(tmp_path / str(lean) / 'd', lean=lean)}",
            permutations=0,
            bootstraps=100,
            k=[20],
        )
        for lean in (0.3, 2.5)
    ]
    bare = [Run(run.table, run.meta) for run in made]
    found = compare(*bare)
    assert "the run before: it has no embeddings" in found.unpaired
    assert set(found.tests["method"].to_pylist()) == {"unpaired"}
    worse = found.worse.to_pylist()
    assert {row["concept"] for row in worse} == {"thing 0"}
    assert {row["attribute"] for row in worse} <= {"gender", "gender*age"}
    # pairing finds no less
    assert compare(*made, **FEW).worse.num_rows >= found.worse.num_rows
    # and without intervals nothing can be said
    none = compare(*(Run(_without_intervals(run.table), run.meta) for run in made))
    assert none.tests.num_rows == 0


def _without_intervals(table: pa.Table) -> pa.Table:
    for name in ("ci_low", "ci_high"):
        at = table.column_names.index(name)
        table = table.set_column(at, table.schema.field(name), pa.nulls(len(table), pa.float64()))
    return table


def test_an_unpaired_test_by_hand() -> None:
    """Two C-ASC, .10 +- .10 and .50 +- .05: a change of .40 with arms of hypot(.10, .05)."""

    def one(value: float, arm: float) -> pa.Table:
        return rows(1, probe="ranking", metric="c_asc", attribute="gender", group="woman",
                    concept="nurse", value=[value], ideal=0.0, ci_low=value - arm,
                    ci_high=value + arm, n=100)  # fmt: skip

    found = interval_tests(one(0.10, 0.10), one(0.50, 0.05), ranking=True)
    arm = np.hypot(0.10, 0.05)
    assert found["excess"] == pytest.approx([0.40])
    assert found["ci_low"] == pytest.approx([0.40 - arm])
    assert found["p"] == pytest.approx(2 * norm.sf(1.959964 * 0.40 / arm))
    mirrored = interval_tests(one(0.10, 0.10), one(-0.50, 0.05), ranking=True)
    assert mirrored["excess"] == pytest.approx([0.40])  # as far from 0, on the other side


def test_usefulness_is_in_the_same_table() -> None:
    def useful(value: float) -> Run:
        table = rows(1, probe="zero_shot", metric="accuracy", dataset="d", k=1, value=[value],
                     ideal=1.0, ci_low=value - 0.02, ci_high=value + 0.02, n=1000)  # fmt: skip
        return Run(table)

    found = compare(useful(0.9), useful(0.6))
    [row] = found.worse.to_pylist()
    assert row["metric"] == "accuracy"
    said = gate(useful(0.6), useful(0.9))
    assert said.reasons == ("utility is worse: accuracy 0.900 to 0.600",)
    assert gate(useful(0.9), useful(0.6))


def test_crossings_that_are_too_small_are_left_out(runs: tuple[Run, Run]) -> None:
    pair = small()  # 120 images, 14 crossed groups
    assert attributes_to_compare(pair, runs[0].table) == ["shape", "hue"]


def test_photographs_are_paired_through_the_store(tmp_path: Path) -> None:
    """run.json names space and shards; where the store is gone, so is the pairing."""
    pytest.importorskip("torch")
    from PIL import Image

    rng = np.random.default_rng(0)
    lines = ["path,gender"]
    for at in range(40):
        pixels = rng.integers(0, 255, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{at}.png")
        lines.append(f"{at}.png,{('man', 'woman')[at % 2]}")
    (tmp_path / "labels.csv").write_text("\n".join(lines))
    (tmp_path / "words.csv").write_text("word,pos,category\nkind,adjective,x\nlazy,adjective,x\n")
    given = {"words": str(tmp_path / "words.csv"), "templates": ["a photo of a {} person"],
             "probes": ["ranking"], "store": tmp_path / "store", "k": [5], "permutations": 0,
             "bootstraps": 0}  # fmt: skip
    made = [
        tm.audit(model, f"table:{tmp_path / 'labels.csv'}?path=path", **given)
        for model in ("testbed:dual", "testbed:fusion")
    ]
    told = made[0].meta["data"]["faces"]["vectors"]
    assert (tmp_path / "store" / told["space"] / f"{told['shards'][0]}.npy").is_file()
    assert "vector" not in made[0].vectors["faces"].column_names
    found = compare(*made, **FEW)
    assert found.unpaired is None
    assert found.images == 40
    (tmp_path / "store").rename(tmp_path / "elsewhere")
    assert "embeddings are missing" in compare(*made, **FEW).unpaired
    assert compare(*made, store=tmp_path / "elsewhere", **FEW).unpaired is None


# --- the gate ------------------------------------------------------------------------------------


def test_a_gate_is_true_or_false_and_says_why(runs: tuple[Run, Run]) -> None:
    before, after = runs
    shut = after.gate(before, **FEW)
    assert isinstance(shut, Gate)
    assert not shut
    assert shut.reasons[0].startswith("gender is worse: ")
    assert "thing 0" in shut.reasons[0]
    assert "gender is worse" in repr(shut)
    assert before.gate(after, **FEW)
    assert after.gate(before, fail_on="never", **FEW)
    assert after.gate(before, margin=5.0, **FEW)  # nothing as large as that matters
    assert before.gate(max="max_skew@20[gender] < 5")
    with pytest.raises(InputError, match="a run to compare with, or limits"):
        after.gate()
    with pytest.raises(UnknownNameError, match="did you mean 'worse'"):
        after.gate(before, fail_on="wors")
    with pytest.raises(InputError, match="margin must be above 0"):
        after.gate(before, margin=0.0)


def test_a_saved_run_may_be_named_by_its_place(runs: tuple[Run, Run], tmp_path: Path) -> None:
    place = runs[0].save(tmp_path / "before")
    assert json.loads((place / "run.json").read_text())["files"].keys() >= {
        "vectors/texts.parquet", "vectors/faces.parquet"
    }  # fmt: skip
    assert not runs[1].gate(place, **FEW)


def test_of_harms_the_gaps_of_categories_are_judged() -> None:
    """Not those of single classes, nor of single pairs of groups."""

    def harmed(gap: float) -> pa.Table:
        return rows(3, probe="harms", metric="gaps", attribute="gender",
                    target=["crime", "thief", "crime"], category="crime",
                    experiment=[None, None, "man against woman"], value=[gap] * 3, ideal=0.0,
                    ci_low=[gap - 0.01] * 3, ci_high=[gap + 0.01] * 3, n=500)  # fmt: skip

    found = compare(Run(harmed(0.02)), Run(harmed(0.2)))
    [row] = found.worse.to_pylist()
    assert (row["target"], row["experiment"]) == ("crime", None)
    assert gate(Run(harmed(0.2)), found).reasons == (
        "gender is worse: gap of harm (crime) 0.02 to 0.20",
    )
