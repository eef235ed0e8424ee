"""One pass over parts of the images gives what the whole matrix of scores does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import brought_embeddings
from tiltmeter.auditing import audit
from tiltmeter.auditing_by_parts import audit_by_parts
from tiltmeter.engine.vectors import Held, Mapped, Stored, sample, vectors_of
from tiltmeter.errors import InputError
from tiltmeter.metrics.association import c_asc
from tiltmeter.metrics.summary import Moments
from tiltmeter.probes.ranking_by_parts import c_asc_error
from tiltmeter.results import Run
from tiltmeter.store import Space
from tiltmeter.types import Faces, Groups, Prompt

KEY = ("metric", "attribute", "group", "concept", "category", "template", "k")


def by_key(run: Run) -> dict[tuple[Any, ...], dict[str, Any]]:
    return {tuple(row[name] for name in KEY): row for row in run.table.to_pylist()}


@pytest.fixture(scope="module")
def brought(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = brought_embeddings(tmp_path_factory.mktemp("brought") / "it", images=3000)
    return f"embeddings:{place}"


def test_values_and_nulls_are_those_of_the_whole_matrix(brought: str) -> None:
    asked: dict[str, Any] = {"cross": ["gender*age"], "k": [10, 100], "seed": 3}
    whole = by_key(audit(brought, probes=["ranking"], permutations=0, bootstraps=0, **asked))
    parts = by_key(audit_by_parts(brought, size=450, **asked))
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
        assert mine["value"] == pytest.approx(row["value"], abs=1e-9), key
        if key[0] == "skew" and row["p"] is not None:  # exact: no draw is in it
            assert mine["p"] == pytest.approx(row["p"], abs=1e-12)


def test_whole_ndkl_lies_between_the_bounds_that_are_told(brought: str) -> None:
    whole = by_key(audit(brought, probes=["ranking"], permutations=0, bootstraps=0, k=[50]))
    parts = by_key(audit_by_parts(brought, size=1000, k=[50]))
    told = 0
    for key, row in whole.items():
        note = parts[key]["note"] or ""
        if key[0] == "ndkl" and note.startswith("from histograms"):
            low, high = (float(word) for word in note.split()[-3::2])
            assert low * (1 - 1e-5) <= row["value"] <= high * (1 + 1e-5)
            assert high - low < 0.1 * row["value"] + 2e-4  # close enough to be of use
            told += 1
    assert told > 50


def test_nulls_of_c_asc_are_those_of_relabellings(brought: str) -> None:
    drawn = by_key(audit(brought, probes=["ranking"], permutations=2000, bootstraps=0, k=[50]))
    parts = by_key(audit_by_parts(brought, k=[50]))
    pairs = [(drawn[key], parts[key]) for key in drawn if key[0] == "c_asc" and key[3]]
    for row, mine in pairs:
        if mine["p"] is None:
            continue
        assert mine["null_lo"] == pytest.approx(row["null_lo"], rel=0.12)
        assert mine["null_hi"] == pytest.approx(row["null_hi"], rel=0.12)
        tail = mine["p"] / 2
        noise = 2 * np.sqrt(tail * (1 - tail) / 2000)  # of a p-value of 2,000 relabellings
        assert abs(mine["p"] - row["p"]) < 4 * noise + 3 / 2001  # no draw gives a p below 2 / 2001


def test_words_are_judged_as_a_family(brought: str) -> None:
    rows = audit_by_parts(brought, k=[50]).where(metric="c_asc", attribute="age")
    words = [row for row in rows if row["concept"] and row["category"] != "placebo"]
    p = np.sort([row["p"] for row in words])
    holm = np.minimum(1, np.maximum.accumulate(p * np.arange(len(p), 0, -1)))
    np.testing.assert_allclose(np.sort([row["p_fwer"] for row in words]), holm)
    assert {row["note"] for row in words} == {"p_fwer by Holm"}
    assert all(row["p_fwer"] is None for row in rows if row not in words)
    # the word that leans is found, whatever else is tested; those that do not are not
    gender = audit_by_parts(brought, k=[50]).where(metric="c_asc", attribute="gender", group="man")
    found = {row["concept"]: row["verdict"] for row in gender if row["category"] != "placebo"}
    assert found.pop("thing 0") == "established"
    assert found.pop(None, None) is None
    assert set(found.values()) == {"not established"}


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
    one, many = (by_key(audit_by_parts(brought, k=[50], size=size)) for size in (3000, 177))
    assert one.keys() == many.keys()
    for key, row in one.items():
        exact = key[0] not in ("c_asc", "ndkl")
        assert many[key]["value"] == (
            row["value"] if exact else pytest.approx(row["value"], abs=1e-9)
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
    from tiltmeter.engine.seam import Local
    from tiltmeter.metrics.convention import get_convention
    from tiltmeter.probes.ranking_by_parts import ranking_by_parts

    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(600, 8)).astype(np.float32)
    space = Space(tmp_path)
    items = [f"item {at}" for at in range(600)]
    names = [space.add(items[at : at + 200], vectors[at : at + 200]) for at in (0, 200, 400)]
    stored = Stored.of(Space(tmp_path), items)
    np.testing.assert_array_equal(stored.read(), vectors)
    np.testing.assert_array_equal(stored.part(150, 450).read(), vectors[150:450])
    asked: dict[str, Any] = {
        "prompts": Known.prompts, "attributes": ["side"], "engine": Local(), "size": 200,
        "convention": get_convention("tiltmeter").with_(k=(20,)),
    }  # fmt: skip
    data = faces(vectors)
    whole = ranking_by_parts(Known(), data, stored, **asked)
    assert (whole.images, whole.failed) == (600, {})

    class Late:
        """The sample is read first: the shard is cut off after it."""

        name, gpus = "late", 0.0

        def run(self, make: Any, parts: Any) -> Any:
            shard = tmp_path / f"{names[1]}.npy"
            shard.write_bytes(shard.read_bytes()[:500])
            return Local().run(make, parts)

    found = ranking_by_parts(Known(), data, stored, **{**asked, "engine": Late()})
    assert list(found.failed) == [200]
    assert f"{names[1]}.npy cannot be read" in found.failed[200]
    rest = np.r_[0:200, 400:600]
    expected = ranking_by_parts(
        Known(), data.only(rest.tolist()), Held(vectors[rest]), **{**asked, "size": 400}
    )
    assert found.images == 400
    assert found.table["n"].to_pylist() == expected.table["n"].to_pylist()
    for mine, theirs in zip(found.table.to_pylist(), expected.table.to_pylist(), strict=True):
        if mine["metric"] != "ndkl":  # whose bins were laid out by another sample
            assert mine["value"] == pytest.approx(theirs["value"], abs=1e-9)


def test_a_mapped_file_travels_by_its_name(tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).normal(size=(500, 4)).astype(np.float32)
    np.save(tmp_path / "x.npy", vectors)
    mapped = vectors_of(np.ascontiguousarray(np.load(tmp_path / "x.npy", mmap_mode="r")))
    assert isinstance(mapped, Mapped)
    np.testing.assert_array_equal(mapped.part(30, 60).part(5, 99).read(), vectors[35:60])
    assert isinstance(vectors_of(vectors[::2]), Held)
    assert len(sample(mapped, 128)) == 128
    with pytest.raises(InputError, match="500 rows, but 600"):
        Mapped(tmp_path / "x.npy", 0, 600).read()


def test_balanced_conventions_are_refused(brought: str) -> None:
    with pytest.raises(InputError, match="--engine local"):
        audit_by_parts(brought, convention="berg2022")


def test_intervals_and_family_of_top_k_figures_are_those_of_the_whole_matrix(brought: str) -> None:
    """Two programs draw from one distribution: edges agree but for the noise of the draws."""
    asked: dict[str, Any] = {"k": [50], "permutations": 1000, "bootstraps": 1000}
    whole = by_key(audit(brought, probes=["ranking"], seed=1, **asked))
    again = by_key(audit(brought, probes=["ranking"], seed=2, **asked))
    parts = by_key(audit_by_parts(brought, size=700, seed=3, **asked))
    top = ("skew", "max_skew", "min_skew", "normalized_entropy")
    mine, noise, widths, families = [], [], [], []
    for key, row in whole.items():
        if key[0] not in top or row["ci_low"] is None:
            continue
        assert parts[key]["ci_method"] == row["ci_method"], key
        for edge in ("ci_low", "ci_high"):
            if np.isfinite(row[edge]):
                mine.append(parts[key][edge] - row[edge])
                noise.append(again[key][edge] - row[edge])
                widths.append(row["ci_high"] - row["ci_low"])
        if row["p_fwer"] is not None:
            families.append([run[key]["p_fwer"] for run in (parts, again, whole)])
    share, seen = np.array(mine) / widths, np.array(noise) / widths
    assert len(mine) > 500
    # no further from the whole matrix's than its own second run is, and to no side
    assert np.sqrt((share**2).mean()) < 1.2 * np.sqrt((seen**2).mean()) + 1e-3
    assert abs(share.mean()) < 0.01
    assert np.abs(share).max() < 0.25
    ours, second, first = np.array(families).T
    assert ours.min() < 0.01  # the word that leans
    assert np.sqrt(((ours - first) ** 2).mean()) < 1.3 * np.sqrt(((second - first) ** 2).mean())


def test_draws_of_the_top_alone_are_those_of_all_images() -> None:
    """Means and variances of weights and labels are what resampling and dealing out give."""
    from tiltmeter.probes.ranking_tops import held, relabelled, resampled

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
        many = rng.poisson(held(k, 10**9), 10**6)
        assert many.min() >= k


def test_a_billion_images_have_their_nulls() -> None:
    from tiltmeter.stats.null import draw_top_counts

    sizes = np.array([600_000_000, 900_000_000])
    drawn = draw_top_counts(sizes, 1000, 4000, np.random.default_rng(0))
    assert (drawn.sum(axis=1) == 1000).all()
    assert drawn[:, 0].mean() == pytest.approx(400, abs=1.5)
    assert drawn[:, 0].std() == pytest.approx(np.sqrt(1000 * 0.4 * 0.6), rel=0.05)
