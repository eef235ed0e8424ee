"""Copies of captions: exact and near, and what they do to counts."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.stats import binomtest

from tests.command_line import tiltmeter
from tests.conftest import write_csv
from tiltmeter.corpus import Vocabulary, audit_captions, count_files
from tiltmeter.corpus.auditing import count_distinct_on
from tiltmeter.corpus.duplicates import Duplicates
from tiltmeter.corpus.estimates import binomial_p
from tiltmeter.corpus.reading import Block
from tiltmeter.engine.engines import PartsEngine
from tiltmeter.errors import InputError
from tiltmeter.stats.multiplicity import holm
from tiltmeter.stimuli import load


def kept(captions: list[str], kind: str, size: int = 1000) -> list[str]:
    seen, left = Duplicates(kind), []
    for start in range(0, len(captions), size):
        left += seen.leave_out(Block(pa.array(captions[start : start + size]))).captions.to_pylist()
    assert seen.count == len(captions) - len(left)
    return left


def test_exact_copies_are_those_of_a_set() -> None:
    rng = np.random.default_rng(0)
    captions = [f"caption {n}" for n in rng.integers(0, 60_000, 100_000)]
    assert kept(captions, "exact") == list(dict.fromkeys(captions))  # the table grows on the way


def test_near_copies_follow_the_share_of_common_pairs() -> None:
    """Found as often as 1 - (1 - J^8)^16 says, by the true J of each pair of captions."""
    rng = np.random.default_rng(1)
    words = [f"w{n}" for n in range(5000)]
    found, expected = [], []
    for _ in range(400):
        first = list(rng.choice(words, 24, replace=False))
        second = first.copy()
        for place in rng.choice(24, rng.integers(0, 5), replace=False):
            second[place] = "other"
        a, b = (set(pairwise(text)) for text in (first, second))
        j = len(a & b) / len(a | b)
        expected.append(1 - (1 - j**8) ** 16)
        found.append(len(kept([" ".join(first), " ".join(second)], "near")) == 1)
    error = np.sqrt(np.sum(np.array(expected) * (1 - np.array(expected))))
    assert abs(sum(found) - sum(expected)) < 4 * error
    assert 50 < sum(found) < 350


def test_unrelated_captions_stay() -> None:
    rng = np.random.default_rng(2)
    captions = [" ".join(f"w{n}" for n in rng.integers(0, 3000, 9)) for _ in range(3000)]
    assert kept(captions, "near") == captions


def test_copies_count_once(tmp_path: Path) -> None:
    rows = [{"caption": "a nurse and her cat", "url": f"http://x/{n}"} for n in range(50)]
    rows += [{"caption": f"a nurse and his dog number {n}", "url": f"http://y/{n}"}
             for n in range(10)]  # fmt: skip
    file = tmp_path / "captions.csv"
    write_csv(file, rows)
    shares = {}
    for kind in (None, "exact", "near"):
        run = audit_captions(file, words=["nurse"], duplicates=kind)
        [row] = run.where(experiment="pronoun both", group="female")
        shares[kind] = (row["n_group"], row["n"])
    assert shares[None] == (50, 60)
    assert shares["exact"] == (1, 11)
    assert shares["near"][0] == 1
    assert shares["near"][1] < 11
    record = audit_captions(file, words=["nurse"], duplicates="exact").meta["data"]["captions"]
    assert record["duplicates"] == {"kind": "exact", "left_out": 49}
    images = audit_captions(file, words=["nurse"]).instances["captions"]["image"].to_pylist()
    assert all(image.startswith("http://") for image in images)
    done = tiltmeter("captions", file, "--duplicates", "exakt")
    assert done.returncode == 2
    assert "did you mean 'exact'" in done.stderr.replace("\n", " ")
    (tmp_path / "broken.csv").write_bytes(b"caption\n\xff\xfe\n")
    with pytest.raises(InputError, match=r"broken\.csv"):
        audit_captions(tmp_path, words=["nurse"], duplicates="exact")


def test_shares_have_binomial_p_and_one_family_per_axis(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    captions = [{"caption": f"{rng.choice(['he', 'she'])} is a {word}"}
                for word in ("baker", "judge", "miner") for _ in range(300)]  # fmt: skip
    captions += [{"caption": "she is a nurse"}] * 60
    write_csv(tmp_path / "captions.csv", captions)
    words = ["baker", "judge", "miner", "nurse"]
    run = audit_captions(tmp_path / "captions.csv", words=words)
    rows = run.where(metric="group_share", experiment="pronoun exclusive", group="female")
    for row in rows:
        exact = binomtest(row["n_group"], row["n"], row["null_mean"])
        low, high = exact.pvalue / 2, exact.pvalue * 2  # another two-sided p, never far from ours
        assert low <= row["p"] <= max(high, 1e-12)
    assert [row["p_fwer"] for row in rows] == pytest.approx(holm(np.array([r["p"] for r in rows])))
    others = run.where(metric="group_share", experiment="pronoun exclusive", group="male")
    assert [row["p"] for row in others] == pytest.approx([row["p"] for row in rows])
    assert [row["p_fwer"] for row in others] == [row["p_fwer"] for row in rows]
    [nurse] = [row for row in rows if row["concept"] == "nurse"]
    assert nurse["p_fwer"] < 1e-9
    lifts = run.where(metric="lift", experiment="pronoun", group="female")
    assert all(0 <= row["p"] <= row["p_fwer"] + 1e-12 <= 1 + 1e-9 for row in lifts)


def test_the_tail_is_that_of_the_binomial_distribution() -> None:
    k, n = np.arange(8), np.full(8, 7)
    draws = np.random.default_rng(4).binomial(7, 0.3, 200_000)
    for value, p in zip(k, binomial_p(k, n, 0.3), strict=True):
        tail = min((draws <= value).mean(), (draws >= value).mean())
        assert p == pytest.approx(min(1, 2 * tail), abs=0.01)
    assert np.isnan(binomial_p(np.array([0]), np.array([0]), 0.3))


def test_workers_that_share_hashes_out_keep_each_caption_once(tmp_path: Path) -> None:
    """The same counts and samples as one process, however many shares there are."""
    rng = np.random.default_rng(0)
    words = ["a", "nurse", "doctor", "his", "her", "man", "woman"]
    files = []
    for at in range(3):
        rows = [" ".join(rng.choice(words, 4)) for _ in range(900)]
        files.append(tmp_path / f"{at}.parquet")
        pq.write_table(pa.table({"caption": rows}), files[-1])
    vocabulary = Vocabulary.of(load("sobit").words)
    copies = Duplicates("exact")
    whole, _ = count_files(files, vocabulary, duplicates=copies)
    assert 0 < copies.count < 2700
    for shares in (1, 5):
        found, broken, left_out = count_distinct_on(PartsEngine(slots=shares), files, vocabulary)
        assert (left_out, broken) == (copies.count, {})
        for name in ("captions", "containing"):
            np.testing.assert_array_equal(getattr(found, name), getattr(whole, name))


def test_near_copies_are_refused_where_captions_are_shared_out(tmp_path: Path) -> None:
    file = tmp_path / "0.parquet"
    pq.write_table(pa.table({"caption": ["a nurse"]}), file)
    engine: Any = SimpleNamespace(name="ray", slots=2, size=0, gpus=0.0, journal=None)
    with pytest.raises(InputError, match="--duplicates near") as error:
        audit_captions(file, duplicates="near", engine=engine)
    assert error.value.code == "bad-option"
