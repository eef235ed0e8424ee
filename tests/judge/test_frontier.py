"""The sweep: parts that do not overlap, numbers that are right, choices that do not peek."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

pytest.importorskip("sklearn")

import tiltmeter as tm
from tests.conftest import brought_embeddings
from tests.debiasers.making import planted
from tests.judge import making
from tiltmeter.cli.app import app
from tiltmeter.debiasers import DEBIASERS
from tiltmeter.errors import InputError, TiltmeterError
from tiltmeter.judge.frontier import Frontier, frontier
from tiltmeter.judge.frontier.evaluation import BiasEvaluator, CandidateRanking
from tiltmeter.judge.frontier.gated import BOOTSTRAPS, worse_answers
from tiltmeter.judge.frontier.inputs import split
from tiltmeter.judge.frontier.leakage import leakage
from tiltmeter.judge.frontier.strengths import COMPOSITIONS, GRIDS, Candidate, candidates, untrained
from tiltmeter.judge.frontier.table import CandidateResult
from tiltmeter.judge.gate import compare
from tiltmeter.metrics.convention import get_convention
from tiltmeter.results import COMPARISON, PLACEBO, Run
from tiltmeter.types import Faces, Groups, Prompt

HOUSE = get_convention("tiltmeter")


def faces_of(x: np.ndarray, **groups: Groups) -> Faces:
    return Faces(tuple(f"i{at}" for at in range(len(x))), dict(groups), vectors=x)


def words(count: int, templates: int = 1) -> tuple[Prompt, ...]:
    return tuple(
        Prompt(f"word {w} in {t}", f"word {w}", f"in {t}")
        for w in range(count)
        for t in range(templates)
    )


# theorems


@given(st.integers(8, 500), st.integers(0, 5))
def test_parts_do_not_overlap_and_the_first_is_that_of_debias(n: int, seed: int) -> None:
    parts = split(n, (0.5, 0.25, 0.25), seed)
    rows = [row for part in parts for row in part]
    assert len(rows) == len(set(rows)) <= n
    drawn = np.random.default_rng(seed).permutation(n)[: round(0.5 * n)]  # as debias(share=0.5)
    assert parts[0] == sorted(drawn.tolist())


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(-0.1, 1)), min_size=1, max_size=12))
def test_nothing_beats_what_is_on_the_front(points: list[tuple[float, float]]) -> None:
    found = swept([*points])
    front = {id(one) for one in found.front}
    for one in (found.before, *found.candidates):
        beaten = any(
            found.validation_bias(other) <= found.validation_bias(one)
            and other.validation_cost <= one.validation_cost
            and (found.validation_bias(other), other.validation_cost)
            != (found.validation_bias(one), one.validation_cost)
            for other in (found.before, *found.candidates)
        )
        if id(one) in front:
            assert not beaten
        elif not beaten:  # a twin of one that is on it
            assert any(
                (found.validation_bias(o), o.validation_cost)
                == (found.validation_bias(one), one.validation_cost)
                for o in found.front
            )


def test_the_choice_keeps_within_the_loss_and_sees_no_labels() -> None:
    found = swept([(0.5, 0.0), (0.1, 0.2), (0.3, 0.005)])
    assert found.best is found.candidates[2]  # the least biased costs 20 points
    blind = replace(found, candidates=[replace(one, sees_labels=True) for one in found.candidates])
    assert blind.best is None
    assert replace(found, max_cost=0.3).best is found.candidates[1]


def swept(points: list[tuple[float, float]]) -> Frontier:
    """A sweep of given bias and cost, beginning with the model before."""
    one = [
        CandidateResult(
            Candidate(f"m{at}", {}), "vectors", False, 0.0, {("max_skew", "a"): bias}, cost, {}
        )
        for at, (bias, cost) in enumerate([(1.0, 0.0), *points])
    ]
    return Frontier("a", one[0], one[1:], 0.01, {})


def test_words_that_lean_together_widen_the_null() -> None:
    """Twenty copies of one ranking say no more than one; twenty others say more."""
    rng = np.random.default_rng(0)
    groups = Groups(np.arange(600) % 2, ("a", "b"), "kind")
    faces = faces_of(rng.normal(size=(600, 40)), kind=groups)
    judge = BiasEvaluator(faces, ("kind",), words(20), HOUSE.with_(k=(100,)), permutations=400)
    one = rng.normal(size=(1, 40))
    others = np.linalg.qr(rng.normal(size=(40, 20)))[0].T
    spread = {}
    for name, texts in {"same": np.repeat(one, 20, axis=0), "others": others}.items():
        found = judge.null(CandidateRanking.by_score(texts, faces.vectors), "max_skew", "kind")
        assert found is not None
        spread[name] = found[1].std()
    single = BiasEvaluator(faces, ("kind",), words(1), HOUSE.with_(k=(100,)), permutations=400)
    alone = single.null(CandidateRanking.by_score(one, faces.vectors), "max_skew", "kind")
    assert alone is not None
    assert spread["same"] == pytest.approx(alone[1].std(), rel=1e-9)
    assert spread["others"] < 0.5 * spread["same"]


def test_the_null_band_holds_where_nothing_leans() -> None:
    inside = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        groups = Groups(rng.permutation(np.arange(300) % 3), ("a", "b", "c"), "kind")
        faces = faces_of(rng.normal(size=(300, 8)), kind=groups)
        judge = BiasEvaluator(faces, ("kind",), words(10), HOUSE.with_(k=(50,)), 199, seed=seed)
        shown = CandidateRanking.by_score(rng.normal(size=(10, 8)), faces.vectors)
        figures, _ = judge.estimates(shown)
        inside += figures["max_skew", "kind"].within_null
    assert inside >= 54  # 97.5% are expected below the upper edge


# a slow reference


def test_means_are_those_of_plain_loops() -> None:
    rng = np.random.default_rng(3)
    x, groups = planted(n=90, groups=3)
    texts = rng.normal(size=(6, x.shape[1]))
    judge = BiasEvaluator(faces_of(x, kind=groups), ("kind",), words(3, 2), HOUSE.with_(k=(20,)))
    found = judge.means(CandidateRanking.by_score(texts, x))
    per_word: dict[int, list[float]] = {}
    sizes: dict[int, list[float]] = {}
    scores = (texts @ x.T).astype(np.float32)
    for at, row in enumerate(scores):
        top = sorted(range(90), key=lambda i: -row[i])[:20]
        skews = []
        association = []
        for g in range(3):
            q = groups.shares[g]
            p = max(sum(groups.codes[i] == g for i in top) / 20, min(1 / 20, q))
            skews.append(np.log(p / q))
            mine, rest = row[groups.codes == g], row[groups.codes != g]
            association.append(abs(mine.mean() - rest.mean()) / row.std(ddof=1))
        per_word.setdefault(at // 2, []).append(max(skews))
        sizes.setdefault(at // 2, []).append(float(np.mean(association)))
    assert found["max_skew", "kind"] == pytest.approx(
        np.mean([np.mean(x) for x in per_word.values()])
    )
    assert found["c_asc_size", "kind"] == pytest.approx(
        np.mean([np.mean(x) for x in sizes.values()]), rel=1e-5
    )


# hand-computed


def test_a_nonlinear_probe_finds_what_a_linear_one_cannot() -> None:
    """One group lies around the other on all sides: no plane tells them apart."""
    rng = np.random.default_rng(0)
    groups = Groups(rng.integers(0, 2, 1200), ("near", "far"), "kind")
    x = np.where(groups.codes == 1, 1.5, 0.5)[:, None] * rng.normal(size=(1200, 10))
    told = leakage(x[:800], groups[np.arange(800)], x[800:], groups[np.arange(800, 1200)])
    assert not told["linear"].leaks
    assert told["nonlinear"].accuracy > 0.97
    assert told["nonlinear"].leaks
    assert told["linear"].majority == pytest.approx(groups[np.arange(800, 1200)].shares.max())


def test_a_group_alone_cannot_be_probed() -> None:
    groups = Groups(np.zeros(4, int), ("a", "b"), "kind")
    with pytest.raises(InputError, match="one group"):
        leakage(np.eye(4), groups, np.eye(4), groups)


# the contract


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return brought_embeddings(tmp_path_factory.mktemp("brought"), images=480, lean=2.5)


def sweep(place: Path, **options: Any) -> Frontier:
    given: dict[str, Any] = {"k": 30, "permutations": 99, "bootstraps": 50} | options
    return frontier(f"embeddings:{place}", f"embeddings:{place}", attribute="gender", **given)


class Speaks:
    """Texts for planted figures: every word leans to women by its first coordinate."""

    name = "speaks"

    def encode_texts(self, texts: Sequence[str]) -> np.ndarray:
        found = []
        for text in texts:
            x = np.random.default_rng(list(text.encode())).normal(size=16) / 4
            x[0] = -1.0 if "woman" not in text and "man" in text else 1.0
            found.append(x / np.linalg.norm(x))
        return np.array(found, np.float32)


def leaning(n: int = 600) -> Faces:
    """Women lie farther along the first coordinate."""
    rng = np.random.default_rng(0)
    gender = Groups(rng.permutation(np.arange(n) % 2), ("man", "woman"), "gender")
    age = Groups(rng.integers(0, 3, n), ("young", "middle", "old"), "age")
    x = rng.normal(size=(n, 16))
    x[:, 0] += 1.5 * gender.codes
    return faces_of(x / np.linalg.norm(x, axis=1, keepdims=True), gender=gender, age=age)


@pytest.fixture(scope="module")
def found() -> Frontier:
    return frontier(Speaks(), leaning(), attribute="gender", words=words(8), k=30,
                    permutations=199, bootstraps=50)  # fmt: skip


def test_every_method_is_swept(found: Frontier) -> None:
    assert {one.candidate.method for one in found.candidates} == set(untrained())
    assert "prompt-array" not in untrained()  # training is for those who ask
    assert found.before.test_attributes == ["gender", "age", "gender*age"]


def test_harms_are_asked_about(found: Frontier) -> None:
    tests = found.chosen["leace"].gates[1].to_pylist()
    gaps = [row for row in tests if row["probe"] == "harms"]
    assert {row["attribute"] for row in gaps} >= {"gender", "age"}
    assert all(row["verdict"] for row in gaps)
    kept = found.run.where(metric="gaps", experiment=found.chosen["leace"].name)
    assert [row["value"] for row in kept] == [row["after"] for row in gaps]


def test_what_cannot_run_is_told(place: Path) -> None:
    """Vectors that were brought have no texts that name groups; methods that need some say so."""
    found = sweep(place, bootstraps=0, permutations=0, probes=False)
    ran = {one.candidate.method for one in found.candidates}
    left = {name.partition(":")[0] for name in found.meta["not_run"]}
    assert {"leace", "clip-clip", "pbm"} <= ran - left
    assert {"orth-proj", "bend"} <= left - ran
    assert ran | left == set(untrained())


def test_the_bias_was_there_and_goes(found: Frontier) -> None:
    before = found.before.bias("gender")
    assert before.null is not None
    assert before.low > before.null[2]
    assert before.p <= 0.01
    leace = found.chosen["leace"]
    assert leace.verdict("max_skew", "gender") == "better"
    assert leace.bias("gender").within_null
    told = [one.leakage["gender"]["linear"] for one in (found.before, found.chosen["leace"])]
    assert told[0].leaks
    assert not told[1].leaks
    bent = found.chosen["bend"]
    assert bent.verdict("max_skew", "gender") == "better"
    assert bent.leakage == found.before.leakage  # the images stay as they were, and tell as much


def test_doing_nothing_changes_nothing() -> None:
    found = frontier(Speaks(), leaning(), attribute="gender", words=words(4), k=30, probes=False,
                     strengths=["bend:project=no,rounds=0", "mpr:rho=inf"],
                     permutations=9, bootstraps=9)  # fmt: skip
    same = found.candidates[0].bias("gender")
    assert same.value == found.before.bias("gender").value
    assert (same.change, same.change_low, same.change_high) == (0, 0, 0)
    assert found.candidates[1].bias("gender").value == pytest.approx(same.value)


def test_a_re_ranker_is_marked_and_has_no_vectors_to_leak(found: Frontier) -> None:
    pbm = found.chosen["pbm"]
    assert pbm.sees_labels
    assert not pbm.leakage
    assert not pbm.utility
    assert ("c_asc_size", "gender") not in pbm.test
    assert np.isnan(pbm.test["ndkl", "gender"].change)
    assert pbm.bias("gender").value < found.before.bias("gender").null[1]
    assert all(one.kind != "ranking" for one in found.front)


def test_what_is_judged_was_neither_fitted_on_nor_chosen_by(found: Frontier) -> None:
    parts = found.meta["frontier"]["parts"]
    assert [parts[name]["images"] for name in ("fit", "validation", "test")] == [300, 150, 150]
    assert len({parts[name]["ids"] for name in parts}) == 3


def test_copies_are_left_out_of_what_is_judged() -> None:
    x, groups = planted(n=400, d=16, groups=2)
    twice = np.concatenate([x, x])
    both = Groups(np.tile(groups.codes, 2), groups.names, "kind")

    found = frontier(Speaks(), faces_of(twice, kind=both), attribute="kind", methods=["leace"],
                     words=words(4), k=20, permutations=0, bootstraps=0, probes=False)  # fmt: skip
    told = found.meta["frontier"]
    assert told["copies"] > 150
    assert sum(part["images"] for part in told["parts"].values()) == 800 - told["copies"]


def test_same_inputs_same_bytes(place: Path, tmp_path: Path) -> None:
    for name in ("first", "second"):
        sweep(place, methods=["leace", "sfid", "mpr"]).save(tmp_path / name)
    for file in ("results.parquet", "instances/frontier.parquet"):
        first, second = ((tmp_path / name / file).read_bytes() for name in ("first", "second"))
        assert first == second
    run = Run.load(tmp_path / "first")
    [row] = run.where(metric="max_skew", attribute="gender", split="test", experiment="before")
    assert row["null_low"] < row["null_high"]
    assert row["convention"] == "tiltmeter+k=30"
    assert len(run.instances["frontier"]) == 1 + len(run.meta["frontier"]["candidates"])
    assert set(run.meta["environment"]["seconds"]) == {
        row["experiment"] for row in run.where(split="test") if row["experiment"] != "before"
    }


def test_strengths_are_those_of_the_registry() -> None:
    assert set(GRIDS) <= set(DEBIASERS)
    for name, grid in {**GRIDS, **COMPOSITIONS}.items():
        assert len(candidates([name], None, 1000)) == len(grid)
    [near] = [one for one in candidates(["bend"], None, 300) if one.settings.get("rounds") == 1][:1]
    assert near.settings["neighbours"] == 6  # 2% of 300
    [typed] = candidates(None, ["clip-clip:keep=12"], 300)
    assert (typed.name, typed.settings) == ("clip-clip: keep=12", {"keep": "12"})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"methods": ["leese"]}, "leace"),
        ({"strengths": ["leace:towers"]}, "METHOD:NAME=VALUE"),
        ({"strengths": ["leace:height=3"]}, "height"),
        ({"shares": (0.5, 0.6, 0.1)}, "shares are three"),
        ({"k": 200}, "smaller --k"),
        ({"methods": ["orth-proj"]}, "orth-proj"),
    ],
)
def test_bad_input_is_told(place: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(TiltmeterError, match=said):
        sweep(place, **options)


def test_the_command(place: Path, tmp_path: Path) -> None:
    spec, out = f"embeddings:{place}", str(tmp_path / "swept")
    given = ["frontier", spec, "--images", spec, "-a", "gender", "-m", "leace", "-m", "pbm", "--k",
             "30", "--permutations", "49", "--bootstraps", "20", "--out", out]  # fmt: skip
    shown = CliRunner().invoke(app, given)
    assert shown.exit_code == 0, shown.output
    assert "leace" in shown.output
    assert "tiltmeter debias leace" in shown.output
    told = json.loads(CliRunner().invoke(app, [*given, "--force", "--json"]).output)
    assert told["best"].startswith("leace")
    assert len(told["candidates"]) == 5  # before, three strengths of LEACE, PBM
    assert (tmp_path / "swept/instances/frontier.parquet").is_file()


def test_frontier_and_compare_agree_on_a_method() -> None:
    """The same images, the same candidate: the same tests and verdicts."""
    model, faces = making.planted(lean=1.0, images=480)
    found = frontier(model, faces, attribute="gender", methods=["leace"], k=20, probes=False,
                     permutations=0, bootstraps=0)  # fmt: skip
    chosen = found.chosen["leace"]
    parts = [faces.select(part) for part in split(len(faces), (0.5, 0.25, 0.25), seed=0)]
    fair = tm.debias("leace", model, parts[0], attribute="gender",
                     settings=chosen.candidate.settings)  # fmt: skip
    given = {"probes": ["lift", "ranking", "harms"], "k": [20], "permutations": 0,
             "bootstraps": BOOTSTRAPS, "options": {"lift": {"splits": 0}},
             "cross": ["gender*age"]}  # fmt: skip
    before, after = (tm.audit(one, parts[2], **given) for one in (model, fair))
    tests = [
        {(row["probe"], row["attribute"], row["category"]): row for row in table.to_pylist()}
        for table in (compare(before, after, bootstraps=BOOTSTRAPS).tests, chosen.gates[1])
    ]
    assert tests[0].keys() == tests[1].keys()
    for key, row in tests[0].items():
        assert row["verdict"] == tests[1][key]["verdict"]
        # an image at the end of a top k may fall on either side, and groups in another order have
        # other resamples; this model has one vector for all classes of harm, and after a
        # correction rounding decides between them
        for name in ("before",) if row["probe"] == "harms" else ("before", "excess", "ci_low"):
            assert row[name] == pytest.approx(tests[1][key][name], abs=0.03)
    assert tests[0]["lift", "gender", None]["verdict"] == "better"


def test_lift_comes_before_max_skew_where_it_is_known() -> None:
    def gates(lift: float) -> tuple[pa.Table, pa.Table]:
        row = {"probe": "lift", "metric": "mean_abs_lift", "attribute": "a", "after": lift}
        return (pa.Table.from_pylist([row], schema=COMPARISON),) * 2

    found = swept([(0.1, 0.0), (0.4, 0.0), (0.2, 0.0)])
    least, more, ranker = found.candidates
    ranker = replace(ranker, kind="ranking")  # leaves every score as it was
    known = [replace(least, gates=gates(0.5)), replace(more, gates=gates(0.1)), ranker]
    by_lift = replace(found, before=replace(found.before, gates=gates(0.7)), candidates=known)
    assert found.best is least
    assert by_lift.best is known[1]
    assert by_lift.validation_bias(ranker) == 0.7
    assert replace(by_lift, candidates=[ranker]).best is ranker


def test_what_compare_rejects_is_not_recommended() -> None:
    found = swept([(0.5, 0.0), (0.1, 0.0)])
    worse = pa.Table.from_pylist(
        [{"probe": "ranking", "metric": "max_skew", "attribute": "hue", "verdict": "worse"}],
        schema=COMPARISON,
    )
    none = COMPARISON.empty_table()
    for gates in ((worse, none), (none, worse)):
        tried = [found.candidates[0], replace(found.candidates[1], gates=gates)]
        assert replace(found, candidates=tried).best is tried[0]
    assert replace(found.candidates[0], gates=(none, worse)).worse == ["retrieval by hue"]
    neutral = [{"probe": "lift", "metric": "mean_abs_lift", "attribute": "hue",
                "category": PLACEBO, "verdict": "worse"}]  # fmt: skip
    assert worse_answers(pa.Table.from_pylist(neutral, schema=COMPARISON)) == [
        "association by hue (neutral words)"
    ]
