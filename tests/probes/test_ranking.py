"""The ranking probe: it finds what was planted, and says no more than it may."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiltmeter as tm
from tests.conftest import brought_embeddings
from tiltmeter import metrics
from tiltmeter.engine.ranking import estimates as ranking_estimates
from tiltmeter.errors import InputError
from tiltmeter.metrics.convention import CONVENTIONS
from tiltmeter.probes.ranking.levels import AggregationLevels
from tiltmeter.results import RESULTS, Run
from tiltmeter.stats import null
from tiltmeter.stats.null import top_count_p
from tiltmeter.stats.resampling import Resampling
from tiltmeter.types import Groups, Prompt

SMALL = {"k": [20, 50], "permutations": 199, "bootstraps": 100}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return brought_embeddings(tmp_path_factory.mktemp("ranking") / "brought")


@pytest.fixture(scope="module")
def run(place: Path) -> Run:
    return tm.audit(f"embeddings:{place}", cross=["gender*age"], probes=["ranking"], **SMALL)


@pytest.fixture(scope="module")
def arrays(place: Path) -> tuple[np.ndarray, dict[str, Groups]]:
    faces = tm.load_data(f"embeddings:{place}")
    texts = np.load(place / "texts.npy")
    units = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (texts, faces.vectors)]
    return units[0] @ units[1].T, {n: faces.attribute(n) for n in ("gender", "age", "gender*age")}


def test_values_are_those_of_the_metrics(run: Run, arrays) -> None:
    scores, attributes = arrays
    kind = {"target": "prior", "empty": "bounded", "ties": "expected"}
    for attribute, groups in attributes.items():
        expected = {("c_asc", None): metrics.c_asc(scores, groups),
                    ("ndkl", None): metrics.ndkl(scores, groups, target="prior")}  # fmt: skip
        for k in SMALL["k"]:
            expected["skew", k] = metrics.skew(scores, groups, k=k, **kind)
            expected["max_skew", k] = metrics.max_skew(scores, groups, k=k, **kind)
            expected["min_skew", k] = metrics.min_skew(scores, groups, k=k, **kind)
            expected["normalized_entropy", k] = metrics.normalized_entropy(scores, groups, k=k)
        for (metric, k), values in expected.items():
            for word in range(6):
                found = run.where(metric=metric, k=k, attribute=attribute, concept=f"thing {word}")
                np.testing.assert_allclose(
                    [row["value"] for row in found], values[word].ravel(), atol=1e-6
                )


def test_the_planted_word_is_beyond_neutral_words_and_the_others_are_not(run: Run) -> None:
    rows = run.where(metric="c_asc", attribute="gender", group="woman")
    found = {row["concept"]: row for row in rows if row["category"] != "placebo"}
    planted = found["thing 0"]
    assert planted["verdict"] == "beyond neutral words"
    assert planted["value"] > 0.8
    assert planted["ci_low"] > 0.5
    assert planted["p_fwer"] == planted["p"] == pytest.approx(2 / 200)
    assert planted["p_placebo"] == pytest.approx(2 / 46)
    assert all(found[f"thing {i}"]["verdict"] != "beyond neutral words" for i in range(1, 6))
    for metric in ("max_skew", "ndkl"):
        rows = run.where(metric=metric, attribute="gender", concept="thing 0")
        assert {row["verdict"] for row in rows} == {"beyond neutral words"}
    # the planted word leans by gender: by age it does not
    by_age = run.where(metric="c_asc", attribute="age", concept="thing 0")
    assert {row["verdict"] for row in by_age} <= {"within chance", "not beyond neutral words"}


def test_every_number_comes_with_its_noise(run: Run) -> None:
    for row in run.table.to_pylist():
        assert row["n"] == 240
        assert row["convention"] == "tiltmeter+k=20,50"
        assert row["p_side"] in ("two", "greater", "less")
        assert row["ideal"] is not None
        assert row["p"] is not None
        if row["category"] != "placebo":
            assert row["null_low"] <= row["null_mean"] <= row["null_high"]
            assert row["ci_low"] <= row["value"] + 1e-6
            assert row["value"] - 1e-6 <= row["ci_high"]
            assert row["ci_method"]
        assert (row["group"] is None) == (row["metric"] not in ("c_asc", "skew"))
        assert (row["n_group"] is None) == (row["group"] is None)
    assert run.table.schema == RESULTS


def test_exact_p_values_of_single_prompts(run: Run, arrays) -> None:
    scores, attributes = arrays
    groups = attributes["age"]
    counts = metrics.top_counts(scores, groups, k=20, ties="stable")
    expected = top_count_p(counts, groups.counts, 20)
    for word in range(6):
        found = run.where(metric="skew", k=20, attribute="age", concept=f"thing {word}")
        assert [row["p"] for row in found] == pytest.approx(expected[word])


def test_placebos_are_listed_and_judged_against_each_other(run: Run) -> None:
    rows = run.where(metric="c_asc", attribute="gender", group="woman", category="placebo")
    assert len(rows) == 45
    assert np.mean([row["p_placebo"] <= 0.05 for row in rows]) <= 0.1
    assert {row["verdict"] for row in rows} == {None}


def test_levels(run: Run) -> None:
    found = run.where(metric="max_skew", k=20, attribute="gender")
    words = [row for row in found if row["concept"] and row["category"] != "placebo"]
    categories = [row for row in found if not row["concept"] and row["category"]]
    overall = [row for row in found if not row["concept"] and not row["category"]]
    assert (len(words), len(categories), len(overall)) == (6, 2, 1)
    assert overall[0]["value"] == pytest.approx(np.mean([row["value"] for row in words]), abs=1e-6)
    of_things = [row["value"] for row in words if row["category"] == "things"]
    thing = next(row for row in categories if row["category"] == "things")
    assert thing["value"] == pytest.approx(np.mean(of_things), abs=1e-6)


def test_without_draws_values_remain(place: Path, run: Run) -> None:
    bare = tm.audit(
        f"embeddings:{place}", cross=["gender*age"], probes=["ranking"], k=SMALL["k"],
        permutations=0, bootstraps=0,
    )  # fmt: skip
    assert bare.table["value"].equals(run.table["value"])
    assert bare.table["ci_low"].null_count == bare.table.num_rows
    assert bare.where(metric="c_asc")[0]["p"] is None
    assert bare.where(metric="skew", concept="thing 0")[0]["p"] is not None  # exact: needs no draws


def test_untilted_data_establish_nothing(tmp_path: Path) -> None:
    flat = brought_embeddings(tmp_path / "flat", lean=0.0)
    run = tm.audit(f"embeddings:{flat}", probes=["ranking"], **SMALL)
    rows = [row for row in run.table.to_pylist() if row["concept"] and row["category"] != "placebo"]
    assert {row["verdict"] for row in rows} == {"within chance"}


@pytest.mark.parametrize("name", CONVENTIONS)
def test_every_convention_measures_what_it_says(place: Path, arrays, name: str) -> None:
    chosen = CONVENTIONS[name]
    run = tm.audit(f"embeddings:{place}", convention=name, k=[30], permutations=0, bootstraps=0,
                   attributes=["age"])  # fmt: skip
    rows = run.where(metric="max_skew", concept="thing 0")
    assert rows[0]["convention"] == f"{name}+k=30"
    scores, attributes = arrays
    if chosen.balance == "asis":
        expected = metrics.max_skew(
            scores[:1], attributes["age"], k=30, target=chosen.target, empty=chosen.empty,
            ties=chosen.ties, absolute=chosen.skew == "absolute",
        )  # fmt: skip
        assert rows[0]["value"] == pytest.approx(expected[0], abs=1e-6)
    else:
        assert chosen.balance == "gender"  # whatever is measured
        assert rows[0]["n"] == 2 * attributes["gender"].counts.min()


def test_raw_images_rank_by_the_dot_product(place: Path) -> None:
    from dataclasses import replace

    raw = replace(CONVENTIONS["tiltmeter"], images="raw", name="raw", k=(20,))
    run = tm.audit(f"embeddings:{place}", convention=raw, permutations=0, bootstraps=0)
    faces = tm.load_data(f"embeddings:{place}")
    texts = np.load(place / "texts.npy")
    scores = texts / np.linalg.norm(texts, axis=1, keepdims=True) @ faces.vectors.T
    expected = metrics.c_asc(scores[:1], faces.groups["gender"])[0]
    found = run.where(metric="c_asc", attribute="gender", concept="thing 0")
    assert [row["value"] for row in found] == pytest.approx(expected, abs=1e-6)


def test_top_images_are_kept_by_id_and_group(run: Run, arrays, place: Path) -> None:
    scores, _ = arrays
    table = run.instances["ranking"].to_pylist()
    first = [row for row in table if row["concept"] == "thing 0"]
    order = np.argsort(-scores[0], kind="stable")[:50]
    assert [row["id"] for row in first] == [f"i{i}" for i in order]
    assert [row["rank"] for row in first] == list(range(1, 51))
    labels = tm.load_data(f"embeddings:{place}").groups["gender"]
    assert [dict(row["groups"])["gender"] for row in first] == [
        labels.names[labels.codes[i]] for i in order
    ]


def templated(words: int, templates: int) -> list[Prompt]:
    return [
        Prompt(f"{t} {w}", f"word {w}", f"{t} {{}}", "", "word" if w < 3 else "placebo", "noun")
        for w in range(words)
        for t in range(templates)
    ]


def test_concepts_are_means_over_their_templates() -> None:
    layout = AggregationLevels.of(templated(50, 4))
    singles, concepts, overall = layout.levels
    assert (len(singles), len(concepts), len(overall)) == (12, 3, 1)
    assert concepts[0].prompts.tolist() == [0, 1, 2, 3]
    assert concepts[0].template is None
    assert singles[0].template == "0 {}"
    # placebos for each template alone, and for all four together
    assert len(layout.kinds) == 5
    assert len(layout.kinds[layout.shown[0]]) == 47


def test_a_probe_over_several_templates(tmp_path: Path, place: Path) -> None:
    from tiltmeter.models.embeddings import StoredTexts

    prompts = templated(50, 3)
    rng = np.random.default_rng(0)
    base = rng.normal(size=(50, 16))
    vectors = np.repeat(base, 3, axis=0) + 0.3 * rng.normal(size=(150, 16))
    model = StoredTexts("m", prompts, vectors.astype(np.float32))
    faces = tm.load_data(f"embeddings:{place}")
    run = tm.audit(model, faces, attributes=["gender"], **SMALL)
    for metric in ("c_asc", "max_skew", "ndkl", "normalized_entropy"):
        rows = run.where(metric=metric, concept="word 0")
        rows = [row for row in rows if row["k"] in (None, 20) and row["group"] in (None, "man")]
        whole = [row for row in rows if row["template"] is None]
        parts = [row for row in rows if row["template"] is not None]
        assert (len(whole), len(parts)) == (1, 3)
        assert whole[0]["value"] == pytest.approx(
            np.mean([row["value"] for row in parts]), abs=1e-6
        )
        assert whole[0]["p_fwer"] is not None
        assert "crossed" in whole[0]["ci_method"]
        assert whole[0]["p_placebo"] is not None


def test_too_few_placebos_establish_nothing(tmp_path: Path) -> None:
    few = brought_embeddings(tmp_path / "few", placebos=10)
    run = tm.audit(f"embeddings:{few}", **SMALL)
    row = run.where(metric="c_asc", attribute="gender", group="woman", concept="thing 0")[0]
    assert row["p_fwer"] < 0.05
    assert row["p_placebo"] is None
    assert row["verdict"] is None


def test_only_placebos_is_no_audit(tmp_path: Path) -> None:
    none = brought_embeddings(tmp_path / "none", words=0)
    with pytest.raises(InputError, match="every prompt is a neutral word"):
        tm.audit(f"embeddings:{none}", **SMALL)


def test_absent_groups_under_nan_leave_the_rest_defined(tmp_path: Path) -> None:
    """One absent group in one of the draws must not take band, interval and verdict away."""
    place = brought_embeddings(tmp_path / "b", images=240)
    run = tm.audit(
        f"embeddings:{place}", convention="sfid", k=[8], permutations=199, bootstraps=100
    )
    rows = [row for row in run.where(metric="skew") if row["value"] is not None]
    rows = [row for row in rows if row["concept"] and row["category"] != "placebo"]
    assert all(row["null_mean"] is not None and row["p_fwer"] is not None for row in rows)
    undefined = [row for row in run.where(metric="skew") if row["value"] is None]
    assert {row["note"] for row in undefined} <= {"the group is not in the top k"}


def test_intervals_do_not_hang_on_the_order_of_tied_rows(tmp_path: Path) -> None:
    """Every image ten times, rows sorted by group: ties everywhere, and no tilt."""
    from tiltmeter.models.embeddings import StoredTexts
    from tiltmeter.types import Faces

    rng = np.random.default_rng(0)
    picture = rng.normal(size=(60, 8)).astype(np.float32)
    vectors = np.concatenate([picture, picture])  # the same pictures in both groups
    groups = Groups(np.repeat([0, 1], 60), ("a", "b"), "kind")
    faces = Faces(tuple(map(str, range(120))), {"kind": groups}, vectors)
    prompts = [Prompt("t", "t", "{}", pos="noun")]
    model = StoredTexts("m", prompts, rng.normal(size=(1, 8)).astype(np.float32))
    run = tm.audit(model, faces, k=[21], permutations=50, bootstraps=200)
    for row in run.where(metric="skew"):
        assert row["value"] == pytest.approx(0)
        assert row["ci_low"] < 0 < row["ci_high"]


def test_few_images_do_not_give_a_p_below_the_exact_one(tmp_path: Path) -> None:
    """4 against 4 images: no relabelling test can go below 2/70."""
    place = brought_embeddings(tmp_path / "tiny", images=8, lean=9.0)
    run = tm.audit(
        f"embeddings:{place}", attributes=["gender"], k=[4], permutations=1000, bootstraps=0
    )
    rows = [row for row in run.where(metric="c_asc") if row["p"] is not None]
    assert min(row["p"] for row in rows) >= 0.02
    assert all(row["p_fwer"] >= row["p"] for row in rows if row["p_fwer"] is not None)


def test_min_skew_under_floor_lies_in_its_own_interval(place: Path) -> None:
    run = tm.audit(
        f"embeddings:{place}",
        convention="visogender",
        cross=["gender*age"],
        k=[2],
        permutations=50,
        bootstraps=50,
    )
    for row in run.where(metric="min_skew"):
        if row["ci_low"] is not None:
            assert row["ci_low"] - 1e-9 <= row["value"] <= row["ci_high"] + 1e-9


@pytest.mark.parametrize("engine", ["local", "parts"])
def test_c_asc_divides_by_the_spread_of_the_convention(place: Path, engine: str) -> None:
    """With n in place of n - 1 all of C-ASC is larger by one factor, and no p changes."""
    options: Any = {"k": [20], "permutations": 50, "bootstraps": 50, "probes": ["ranking"]}
    sample, population = (
        tm.audit(f"embeddings:{place}", convention=name, engine=engine, **options)
        for name in ("tiltmeter", "sobit2024")
    )
    pairs = [
        pair
        for pair in zip(sample.where(metric="c_asc"), population.where(metric="c_asc"), strict=True)
        if pair[0]["value"] is not None
    ]
    assert pairs
    for row, other in pairs:
        factor = (row["n"] / (row["n"] - 1)) ** 0.5
        for name in ("value", "null_low", "null_high", "ci_low", "ci_high"):
            if row[name] is not None:
                assert other[name] == pytest.approx(row[name] * factor, rel=1e-5, abs=1e-9)
        assert other["p"] == row["p"]


def test_conventions_and_numpy_arguments_can_be_saved(place: Path, tmp_path: Path) -> None:
    own = CONVENTIONS["tiltmeter"].with_(k=(20,))
    run = tm.audit(
        f"embeddings:{place}",
        convention=own,
        attributes=np.array(["age"]),
        seed=np.int64(1),
        permutations=np.int64(0),
        bootstraps=0,
    )
    assert Run.load(run.save(tmp_path / "run")).meta["seed"] == 1


def test_little_memory_gives_the_same_bytes(
    place: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Statistics a few numbers at a time, and a walk over the prompts for each attribute."""
    groups = tm.load_data(f"embeddings:{place}").groups
    kind = CONVENTIONS["tiltmeter"].with_(k=(20, 50))
    together = ranking_estimates.plan_passes(groups, (51, 12), 6, kind, Resampling(199, 100))
    monkeypatch.setattr(ranking_estimates, "DRAWS_HELD", 1)
    monkeypatch.setattr(null, "AT_ONCE", 500)
    alone = ranking_estimates.plan_passes(groups, (51, 12), 6, kind, Resampling(199, 100))
    assert (len(together), len(alone)) == (1, 2 * len(groups))
    again = tm.audit(f"embeddings:{place}", cross=["gender*age"], probes=["ranking"], **SMALL)
    assert again.table.equals(run.table)
    assert again.instances["ranking"].equals(run.instances["ranking"])


def test_attributes_share_a_walk_while_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = {
        name: Groups(np.arange(60) % count, tuple(map(str, range(count))), name)
        for name, count in (("a", 2), ("b", 3), ("c", 4), ("d", 2))
    }
    kind = CONVENTIONS["tiltmeter"].with_(k=(100, 1000))  # one byte and two for a count
    c_asc = 4 * 8 * (10 + 7)  # bytes a group: 8 prompts, 10 relabellings and 7 resamples
    counts = 3 * (5 * 10 + 8 * 7)  # 5 of the prompts are words
    monkeypatch.setattr(ranking_estimates, "DRAWS_HELD", 5 * (c_asc + counts))
    found = ranking_estimates.plan_passes(groups, (8, 9), 5, kind, Resampling(10, 7))
    walks = [[(task.attribute, task.ranks) for task in tasks] for tasks in found]
    assert walks == [
        [("a", False), ("a", True), ("b", False), ("b", True)],
        [("c", False), ("c", True)],
        [("d", False), ("d", True)],
    ]
    monkeypatch.setattr(ranking_estimates, "DRAWS_HELD", 4 * max(c_asc, counts))
    found = ranking_estimates.plan_passes({"c": groups["c"]}, (8, 9), 5, kind, Resampling(10, 7))
    assert found == [[("c", False)], [("c", True)]]


def test_counts_are_kept_in_as_few_bytes_as_they_need() -> None:
    parts = ranking_estimates.PromptBlocks(prompts=3, words=2)
    drawn = np.array([[[300, 0], [17, 283]]], np.uint32)
    parts.draw("top 300 null", 0, drawn, np.min_scalar_type(300), words=True)
    kept = parts.draws("top 300 null")
    assert kept is not None
    assert kept.dtype == np.uint16
    assert kept.swapaxes(0, 1).tolist() == drawn.tolist()
    assert parts.draws("top 300 null") is None  # handed over for good


def test_tensors_give_the_same_table(place: Path, run: Run) -> None:
    """`cpu:0` is torch's own name for the CPU: what runs on a GPU runs there."""
    pytest.importorskip("torch")
    options = {"ranking": {"device": "cpu:0"}}
    again = tm.audit(
        f"embeddings:{place}", cross=["gender*age"], probes=["ranking"], options=options, **SMALL
    )
    for name in RESULTS.names:
        one, other = again.table[name], run.table[name]
        if one.type != "double":
            assert one.equals(other), name
        else:
            np.testing.assert_allclose(
                one.to_numpy(), other.to_numpy(), rtol=1e-4, atol=1e-5, err_msg=name
            )
    ids = [again.instances["ranking"]["id"], run.instances["ranking"]["id"]]
    assert ids[0].equals(ids[1])
