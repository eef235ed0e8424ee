"""One pass over parts of the images gives what the whole matrix of scores does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import brought_embeddings
from tiltmeter.auditing.audit import audit
from tiltmeter.engine.engines import LocalEngine, PartsEngine
from tiltmeter.engine.parts import ImageParts
from tiltmeter.engine.ranking import partitioned as ranking_parts
from tiltmeter.engine.ranking.moments import c_asc_error
from tiltmeter.engine.vectors import FileVectors, InMemoryVectors, StoreVectors, vectors_of
from tiltmeter.errors import InputError
from tiltmeter.judge.gate.run_embeddings import load_run_embeddings
from tiltmeter.metrics.association import c_asc
from tiltmeter.metrics.convention import get_convention
from tiltmeter.metrics.summary import Moments
from tiltmeter.probes import PROBES
from tiltmeter.probes.ranking.probe import RankingBackend, ranking
from tiltmeter.results import Run
from tiltmeter.sharing.card import command
from tiltmeter.stats.resampling import Resampling
from tiltmeter.store import StoredEmbeddings
from tiltmeter.types import Faces, Groups, Prompt

#: A matrix product of single precision rounds by its shape: with some processors' libraries, parts
#: give other last digits than the whole.
ROUNDING = 1e-6
KEY = ("metric", "attribute", "group", "concept", "category", "template", "k")


def by_parts(model: Any, size: int | None = None, **asked: Any) -> Run:
    engine = "parts" if size is None else f"parts:size={size}"
    return audit(model, probes=["ranking"], engine=engine, **asked)


def by_key(run: Run) -> dict[tuple[Any, ...], dict[str, Any]]:
    return {tuple(row[name] for name in KEY): row for row in run.table.to_pylist()}


@pytest.fixture(scope="module")
def brought(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = brought_embeddings(tmp_path_factory.mktemp("brought") / "it", images=3000)
    return f"embeddings:{place}"


def test_values_and_nulls_are_those_of_the_whole_matrix(brought: str) -> None:
    asked: dict[str, Any] = {"cross": ["gender*age"], "k": [10, 100], "seed": 3}
    whole = by_key(audit(brought, probes=["ranking"], permutations=0, bootstraps=0, **asked))
    parts = by_key(by_parts(brought, size=450, **asked))
    assert set(whole) <= set(parts)
    # the tilt that was put there is seen, and only for its word
    lean = parts["c_asc", "gender", "woman", "thing 0", "things", "a photo of {}", None]
    assert lean["value"] > 0.5
    assert lean["p"] < 1e-9
    for key, row in whole.items():
        mine = parts[key]
        assert (row["n"], row["n_group"], row["ideal"]) == (
            mine["n"], mine["n_group"], mine["ideal"],
        )  # fmt: skip
        if key[0] == "ndkl":
            continue
        assert mine["value"] == pytest.approx(row["value"], abs=ROUNDING), key
        if key[0] == "skew" and row["p"] is not None:  # exact: no draw is in it
            assert mine["p"] == pytest.approx(row["p"], abs=1e-12)


def test_ndkl_is_exact_where_rankings_fit_into_memory(brought: str) -> None:
    whole = by_key(audit(brought, probes=["ranking"], permutations=0, bootstraps=0, k=[50]))
    parts = by_key(by_parts(brought, size=1000, k=[50]))
    keys = [key for key in whole if key[0] == "ndkl"]
    assert len(keys) > 50
    for key in keys:
        assert parts[key]["value"] == pytest.approx(whole[key]["value"], abs=1e-12), key


def test_whole_ndkl_lies_between_the_bounds_that_are_told(
    brought: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranking_parts, "FEW_SCORES", 0)
    whole = by_key(audit(brought, probes=["ranking"], permutations=0, bootstraps=0, k=[50]))
    parts = by_key(by_parts(brought, size=1000, k=[50]))
    told = 0
    for key, row in whole.items():
        note = parts[key]["note"] or ""
        if key[0] == "ndkl" and note.startswith("from histograms"):
            low, high = (float(word) for word in note.partition(";")[0].split()[-3::2])
            assert low * (1 - 1e-5) <= row["value"] <= high * (1 + 1e-5)
            assert high - low < 0.1 * row["value"] + 2e-4  # close enough to be of use
            told += 1
    assert told > 50


def test_nulls_of_c_asc_are_those_of_relabellings(brought: str) -> None:
    # the error of an edge is 2%, and there are hundreds of edges
    many = 4000
    drawn = by_key(audit(brought, probes=["ranking"], permutations=many, bootstraps=0, k=[50]))
    parts = by_key(by_parts(brought, k=[50]))
    pairs = [(drawn[key], parts[key]) for key in drawn if key[0] == "c_asc" and key[3]]
    for row, mine in pairs:
        if mine["p"] is None:
            continue
        assert mine["null_low"] == pytest.approx(row["null_low"], rel=0.12)
        assert mine["null_high"] == pytest.approx(row["null_high"], rel=0.12)
        tail = mine["p"] / 2
        noise = 2 * np.sqrt(tail * (1 - tail) / many)  # of a p-value of so many relabellings
        assert abs(mine["p"] - row["p"]) < 4 * noise + 3 / many  # no draw gives a p below 2 / many


def test_words_are_judged_as_a_family(brought: str) -> None:
    run = by_parts(brought, k=[50])
    # no draw is shared by the words' NDKL: there it is Holm's
    rows = run.where(metric="ndkl", attribute="age", k=None)
    words = [row for row in rows if row["concept"] and row["category"] != "placebo"]
    p = np.sort([row["p"] for row in words])
    holm = np.minimum(1, np.maximum.accumulate(p * np.arange(len(p), 0, -1)))
    np.testing.assert_allclose(np.sort([row["p_fwer"] for row in words]), holm)
    assert all(row["note"].endswith("p_fwer by Holm") for row in words)
    assert all(row["p_fwer"] is None for row in rows if row not in words)
    leans = run.where(metric="ndkl", attribute="gender", k=None, concept="thing 0")
    assert [row["verdict"] for row in leans] == ["beyond neutral words"]
    # the word that leans is found, whatever else is tested; those that do not are not
    gender = run.where(metric="c_asc", attribute="gender", group="man")
    found = {row["concept"]: row["verdict"] for row in gender if row["category"] != "placebo"}
    assert found.pop("thing 0") == "beyond neutral words"
    assert found.pop(None, None) is None
    assert set(found.values()) == {"within chance"}


def test_intervals_of_c_asc_cover() -> None:
    """95 of 100 intervals hold the true value, for groups of unlike size and spread."""
    rng = np.random.default_rng(0)
    size, gap, spread = np.array([60, 240]), 1.2, np.array([1.0, 1.5])
    groups = Groups(np.repeat([0, 1], size), ("a", "b"))
    p = size / size.sum()
    truth = gap / np.sqrt((p * spread**2).sum() + p.prod() * gap**2)
    noise = rng.normal(size=(4000, 300)) * np.repeat(spread, size)
    scores = noise + gap * (groups.codes == 0)
    error = c_asc_error(Moments.of(scores, groups))
    covered = np.abs(c_asc(scores, groups)[:, 0] - truth) < 1.96 * error
    assert covered.mean() == pytest.approx(0.95, abs=0.015)


def test_the_size_of_parts_changes_rounding_alone(brought: str) -> None:
    one, many = (by_key(by_parts(brought, k=[50], size=size)) for size in (3000, 177))
    assert one.keys() == many.keys()
    for key, row in one.items():
        exact = key[0] not in ("c_asc", "ndkl")
        assert many[key]["value"] == (
            row["value"] if exact else pytest.approx(row["value"], abs=ROUNDING)
        )


class Known:
    name = "known"

    def encode_texts(self, texts: list[str]) -> np.ndarray:
        return np.random.default_rng(0).normal(size=(len(texts), 8))

    prompts = tuple(Prompt(f"thing {at}", f"thing {at}", "{}") for at in range(4))


def faces(vectors: np.ndarray) -> Faces:
    rng = np.random.default_rng(1)
    codes = rng.integers(0, 2, len(vectors))
    return Faces(
        tuple(map(str, range(len(vectors)))),
        {"side": Groups(codes, ("left", "right"), "side")},
        vectors,
    )


def test_a_part_that_cannot_be_read_is_named_and_the_rest_goes_on(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(600, 8)).astype(np.float32)
    space = StoredEmbeddings(tmp_path)
    items = [f"item {at}" for at in range(600)]
    names = [space.add(items[at : at + 200], vectors[at : at + 200]) for at in (0, 200, 400)]
    stored = StoreVectors.of(StoredEmbeddings(tmp_path), items)
    np.testing.assert_array_equal(stored.read(), vectors)
    np.testing.assert_array_equal(stored.part(150, 450).read(), vectors[150:450])
    asked: dict[str, Any] = {
        "prompts": Known.prompts, "attributes": ["side"],
        "convention": get_convention("tiltmeter").with_(k=(20,)),
    }  # fmt: skip
    data = faces(vectors)
    backend = RankingBackend(PartsEngine(size=200), images=stored)
    whole = ranking(Known(), data, backend=backend, **asked)
    assert set(whole.table["n"].to_pylist()) == {600}
    assert whole.record == {"images": 600, "parts_not_read": {}}

    shard = tmp_path / f"{names[1]}.npy"
    shard.write_bytes(shard.read_bytes()[:500])
    found = ranking(Known(), data, backend=backend, **asked)
    assert list(found.record["parts_not_read"]) == ["200"]
    assert f"{names[1]}.npy cannot be read" in found.record["parts_not_read"]["200"]
    rest = np.r_[0:200, 400:600]
    expected = ranking(
        Known(), data.select(rest.tolist()), **asked,
        backend=RankingBackend(PartsEngine(size=400), images=InMemoryVectors(vectors[rest])),
    )  # fmt: skip
    assert found.record["images"] == 400
    assert found.table["n"].to_pylist() == expected.table["n"].to_pylist()
    for mine, theirs in zip(found.table.to_pylist(), expected.table.to_pylist(), strict=True):
        if mine["metric"] != "ndkl":  # whose bins were laid out by another sample
            assert mine["value"] == pytest.approx(theirs["value"], abs=1e-9)


def test_a_mapped_file_travels_by_its_name(tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).normal(size=(500, 4)).astype(np.float32)
    np.save(tmp_path / "x.npy", vectors)
    mapped = vectors_of(np.ascontiguousarray(np.load(tmp_path / "x.npy", mmap_mode="r")))
    assert isinstance(mapped, FileVectors)
    np.testing.assert_array_equal(mapped.part(30, 60).part(5, 99).read(), vectors[35:60])
    assert isinstance(vectors_of(vectors[::2]), InMemoryVectors)
    rows = np.arange(500)
    some, cells = ImageParts(mapped, rows, 100).sample(128, LocalEngine())
    np.testing.assert_array_equal(some, vectors[cells])
    assert len(set(cells)) == 128
    with pytest.raises(InputError, match="500 rows, but 600"):
        FileVectors(tmp_path / "x.npy", 0, 600).read()


def test_the_record_names_arguments_and_probes_that_were_not_run(brought: str) -> None:
    asked: dict[str, Any] = {"cross": ["gender*age"], "k": [50], "permutations": 20, "seed": 3}
    by_parts, whole = (audit(brought, engine=one, **asked).meta for one in ("parts", "local"))
    assert whole["arguments"]["given"] == asked
    assert by_parts["arguments"]["given"] == {**asked, "engine": "parts"}
    assert set(by_parts["not_run"]) == set(PROBES) - {"ranking", "lift"}
    assert "does not run by parts" in by_parts["not_run"]["eat"]


def test_the_command_and_the_comparison_know_a_run_by_parts(brought: str) -> None:
    run = by_parts(brought, k=[50], permutations=20)
    line = f"tiltmeter audit {brought} --permutations 20 --engine parts --probe ranking --k 50"
    assert command(run.meta) == line
    stored = {**run.meta, "environment": {"store": "somewhere"}}  # image files need one
    assert str(command(stored)).endswith("--store store")
    whole = audit(brought, probes=["ranking"], k=[50], permutations=20)
    here, there = load_run_embeddings(whole), load_run_embeddings(run)
    np.testing.assert_array_equal(there.images, here.images)
    np.testing.assert_array_equal(there.texts, here.texts)


def test_without_vectors_a_run_by_parts_keeps_counts_alone(brought: str) -> None:
    run = by_parts(brought, k=[50], permutations=0, bootstraps=0, keep_vectors=False)
    assert set(run.vectors) == {"counts"}


def test_images_that_are_drawn_in_memory(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    run = audit("testbed:dual", "testbed:?images=56", probes=["ranking"], engine="parts:size=20",
                words="activities", k=[5], permutations=0, bootstraps=0)  # fmt: skip
    assert run.meta["data"]["faces"]["images"] == 56


def test_balanced_conventions_take_the_same_images(brought: str) -> None:
    asked: dict[str, Any] = {"convention": "berg2022", "k": [50], "permutations": 0,
                             "bootstraps": 0}  # fmt: skip
    whole = by_key(audit(brought, probes=["ranking"], **asked))
    parts = by_key(by_parts(brought, size=400, **asked))
    assert {row["n"] for row in whole.values()} == {row["n"] for row in parts.values()}
    for key, row in whole.items():
        assert parts[key]["value"] == pytest.approx(row["value"], abs=ROUNDING), key


TEMPLATES = ("a photo of a {}", "this is a {}", "{}")
PAIRS = tuple((f"good {at}", f"bad {at}") for at in range(5))


class Words:
    """Texts whose vectors share a part with their word, and a part with their template."""

    name = "words"

    def encode_texts(self, texts: list[str]) -> np.ndarray:
        return np.stack([self.vector(text) for text in texts])

    def vector(self, text: str) -> np.ndarray:
        frame = next(t for t in TEMPLATES if _fits(text, t))
        word = text.removeprefix(frame[:-2])
        rngs = [np.random.default_rng([len(part), *part.encode()]) for part in (word, frame, text)]
        found = sum(
            size * rng.normal(size=24) for size, rng in zip((1.0, 0.8, 0.5), rngs, strict=True)
        )
        return np.asarray(found) + 4.0 * np.eye(24)[0] * word.startswith("good")


def _fits(text: str, template: str) -> bool:
    return text.startswith(template[:-2])


@pytest.fixture(scope="module")
def tables() -> dict[str, dict[tuple[Any, ...], dict[str, Any]]]:
    """One world measured three times: whole with two seeds, and by parts."""
    rng = np.random.default_rng(0)
    codes = rng.choice(3, 4000, p=[0.5, 0.3, 0.2])
    vectors = rng.normal(size=(4000, 24)) * np.array([1.0, 0.8, 1.3])[codes][:, None]
    vectors[:, 0] += 0.6 * (codes == 2)
    vectors[:, 1] += 3.0  # all pictures have something in common, as those of real models do
    data = Faces(
        tuple(map(str, range(4000))),
        {"side": Groups(codes, ("left", "middle", "right"), "side")},
        vectors.astype(np.float32),
    )
    words = [(word, "word", f"kind {at % 2}") for pair in PAIRS for at, word in enumerate(pair)]
    words += [(f"odd {at}", "placebo", "placebo") for at in range(20)]
    asked: dict[str, Any] = {
        "prompts": [Prompt(t.replace("{}", word), word, t, role=role, category=category)
                    for word, role, category in words for t in TEMPLATES],
        "attributes": ["side"], "pairs": PAIRS,
        "convention": get_convention("tiltmeter").with_(k=(50,)),
    }  # fmt: skip
    whole, again, parts = (
        ranking(
            Words(),
            data,
            resampling=Resampling(1000, 1000, seed),
            backend=RankingBackend(engine),
            **asked,
        )
        for seed, engine in ((1, LocalEngine()), (2, LocalEngine()), (3, PartsEngine(size=700)))
    )
    # the images that come up, one by one
    assert parts.instances.drop_columns("score").equals(whole.instances.drop_columns("score"))
    scores = [np.asarray(one.instances["score"]) for one in (parts, whole)]
    np.testing.assert_allclose(*scores, atol=ROUNDING)
    named = {"whole": whole, "again": again, "parts": parts}
    return {name: keyed(Run(found.table)) for name, found in named.items()}


def keyed(run: Run) -> dict[tuple[Any, ...], dict[str, Any]]:
    names = (*KEY, "factor")
    return {tuple(row[name] for name in names): row for row in run.table.to_pylist()}


@pytest.mark.parametrize(
    "metric",
    ["c_asc", "skew", "max_skew", "min_skew", "normalized_entropy", "ndkl", "weat"],
)
def test_noise_is_that_of_the_whole_matrix(
    tables: dict[str, dict[tuple[Any, ...], dict[str, Any]]], metric: str
) -> None:
    """Edges of intervals and nulls, and p-values, are as near as the whole's second run is.

    Two programs draw from one distribution. It covers prompts, means over templates and
    categories, and placebos.
    """
    whole, again, parts = (tables[name] for name in ("whole", "again", "parts"))
    keys = [key for key, row in whole.items() if key[0] == metric and row["factor"] is None]
    if metric == "ndkl":
        for key in keys:  # means over prompts are on the safe side: as if all moved alike
            if key[5] is None and whole[key]["p"] is not None:
                mine, row = parts[key], whole[key]
                assert mine["note"].startswith(
                    "null and interval assume that all prompts vary together"
                )
                assert mine["p"] >= row["p"] - 0.02 or row["p"] > 0.2
                assert mine["null_high"] > row["null_high"]
                assert mine["ci_high"] - mine["ci_low"] > 0.8 * (row["ci_high"] - row["ci_low"])
        keys = [key for key in keys if key[5] is not None]
    assert len(keys) > 5
    for key in keys:
        assert parts[key]["n"] == whole[key]["n"]
        if metric != "ndkl":
            assert parts[key]["value"] == pytest.approx(whole[key]["value"], abs=1e-5), key
    for edge in ("ci_low", "ci_high", "null_low", "null_high"):
        slack = 0.02
        if metric == "ndkl":  # its interval has a tenth of the draws; all words have one null band
            slack = 0.04 if edge.startswith("ci") else 0.15
        rows = [[run[key] for run in (parts, again, whole)] for key in keys
                if whole[key][edge] is not None and np.isfinite(whole[key][edge])]  # fmt: skip
        assert rows, edge
        low, high = ("ci_low", "ci_high") if edge.startswith("ci") else ("null_low", "null_high")
        width = np.array([w[high] - w[low] for _, _, w in rows])
        some = width > 0
        ours = np.array([p[edge] - w[edge] for p, _, w in rows])[some] / width[some]
        theirs = np.array([a[edge] - w[edge] for _, a, w in rows])[some] / width[some]
        assert np.sqrt((ours**2).mean()) < 1.3 * np.sqrt((theirs**2).mean()) + slack, edge
        assert np.abs(ours).max() < 0.3
    for name in ("p", "p_fwer"):
        found = [[run[key][name] for run in (parts, again, whole)] for key in keys
                 if whole[key][name] is not None]  # fmt: skip
        ours, theirs, first = np.array(found, float).T
        if metric == "ndkl":  # p of the lower bound, and Holm's for the family: on the safe side
            assert (ours > first - 0.05).all()
            assert name == "p_fwer" or (ours - first).max() < 0.15
        else:
            far = np.sqrt(((ours - first) ** 2).mean())
            assert far < 1.3 * np.sqrt(((theirs - first) ** 2).mean()) + 0.01, name
    if metric in ("c_asc", "skew", "max_skew", "ndkl"):  # the tilt that was put there is found
        assert min(parts[key]["p_fwer"] or 1 for key in keys) < 0.05


def test_shares_of_the_variance_are_those_of_the_whole_matrix(
    tables: dict[str, dict[tuple[Any, ...], dict[str, Any]]],
) -> None:
    whole, parts = tables["whole"], tables["parts"]
    keys = [key for key, row in whole.items() if row["factor"] and key[0] != "ndkl"]
    assert len(keys) > 30
    for key in keys:
        assert parts[key]["value"] == pytest.approx(whole[key]["value"], abs=0.02), key


def test_draws_of_the_top_alone_are_those_of_all_images() -> None:
    """Means and variances of weights and labels are what resampling and dealing out give."""
    from tiltmeter.engine.ranking.top_items import relabelled, resampled, top_size

    rng, draws = np.random.default_rng(0), 20_000
    sizes, codes = np.array([5, 12]), np.array([0, 0, 1, 1, 1])
    weights = resampled(codes, sizes, draws, rng).astype(float)
    # multinomial: each of n has mean 1, variance 1 - 1/n, covariance -1/n; strata do not touch
    n = sizes[codes]
    expected = np.where(codes[:, None] == codes, -1 / n, 0.0) + np.eye(5)
    np.testing.assert_allclose(weights.mean(axis=0), 1, atol=4 * np.sqrt(1 / draws))
    np.testing.assert_allclose(np.cov(weights.T), expected, atol=0.05)
    labels = relabelled(3, sizes, draws, rng)
    # 5 of 17 are of the first group; three draws of it in a row: 5/17 4/16 3/15
    assert (labels == 0).mean() == pytest.approx(5 / 17, abs=0.01)
    assert (labels == 0).all(axis=1).mean() == pytest.approx(5 * 4 * 3 / (17 * 16 * 15), abs=0.005)
    # what is held is enough for every resample
    for k in (1, 10, 1000):
        many = rng.poisson(top_size(k, 10**9), 10**6)
        assert many.min() >= k


def test_a_billion_images_have_their_nulls() -> None:
    from tiltmeter.stats.null import draw_top_counts

    sizes = np.array([600_000_000, 900_000_000])
    drawn = draw_top_counts(sizes, 1000, 4000, np.random.default_rng(0))
    assert (drawn.sum(axis=1) == 1000).all()
    assert drawn[:, 0].mean() == pytest.approx(400, abs=1.5)
    assert drawn[:, 0].std() == pytest.approx(np.sqrt(1000 * 0.4 * 0.6), rel=0.05)
