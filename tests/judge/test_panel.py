"""Several models at once: spread, ranks and signs, by hand and on models of the testbed."""

from __future__ import annotations

import numpy as np
import pytest

import tiltmeter as tm
from tiltmeter.errors import ConventionError, InputError
from tiltmeter.judge.panel import panel
from tiltmeter.models.embeddings import StoredTexts
from tiltmeter.results import Run
from tiltmeter.types import Faces, Groups, Prompt

IMAGES, WORDS = 400, 12


def audited(name: str, lean: float, seed: int = 0, **options) -> Run:
    """Every second word leans to the second group, the others as far to the first."""
    rng = np.random.default_rng(seed)
    codes = np.arange(IMAGES) % 2
    images = np.random.default_rng(0).normal(size=(IMAGES, 24))
    images[:, 0] = 2.0 * codes - 1
    texts = 0.3 * rng.normal(size=(WORDS + 45, 24))
    texts[:, 0] = 0
    texts[:WORDS, 0] = lean * np.where(np.arange(WORDS) % 2, 1, -1)
    roles = ["word"] * WORDS + ["placebo"] * 45
    prompts = [Prompt(f"w{row}", f"w{row}", "{}", role=role, pos="noun")
               for row, role in enumerate(roles)]  # fmt: skip
    faces = Faces(tuple(map(str, range(IMAGES))), {"side": Groups(codes, ("a", "b"), "side")},
                  vectors=images, name="one")  # fmt: skip
    return tm.audit(StoredTexts(name, prompts, texts), faces, k=[50], permutations=199,
                    bootstraps=0, **options)  # fmt: skip


@pytest.fixture(scope="module")
def whole() -> Run:
    return panel([audited("weak", 0.1, 1), audited("strong", 2.0, 2), audited("middle", 0.5, 3)])


def test_models_are_ranked_as_they_lean(whole: Run) -> None:
    rows = whole.where(experiment="rank among models", metric="max_skew")
    assert {row["model"]: row["value"] for row in rows} == {"weak": 1, "middle": 2, "strong": 3}
    for row in rows:
        assert row["ci_low"] <= row["value"] <= row["ci_high"]
        assert row["n"] == WORDS


def test_spread_is_the_deviation_of_means(whole: Run) -> None:
    [spread] = whole.where(experiment="spread over models", metric="max_skew", k=50)
    means = [
        np.mean([row["value"] for row in whole.where(metric="max_skew", model=name, k=50)
                 if row["concept"] and row["category"] != "placebo"])
        for name in ("weak", "strong", "middle")
    ]  # fmt: skip
    assert spread["value"] == pytest.approx(np.std(means, ddof=1))
    assert (spread["ci_low"], spread["ci_high"]) == (min(means), max(means))


def test_signs_must_agree_for_a_verdict_over_all(whole: Run) -> None:
    other = panel([audited("up", 2.0), audited("down", -2.0)])
    for run, agrees in (
        (panel([audited("up", 2.0), audited("too", 1.5, 1)]), True),
        (other, False),
    ):
        rows = run.where(experiment="share of models that lean up", group="b")
        assert len(rows) == WORDS
        assert all((row["verdict"] == "beyond neutral words") == agrees for row in rows)
        assert all((row["value"] in (0, 1)) == agrees for row in rows)


def test_single_rows_stay_as_they_are(whole: Run) -> None:
    one = audited("weak", 0.1, 1)
    assert whole.where(model="weak", probe="ranking") == one.where(probe="ranking")
    assert [meta["model"]["name"] for meta in whole.meta["panel"]] == ["weak", "strong", "middle"]


def test_what_cannot_be_a_panel() -> None:
    with pytest.raises(InputError, match="at least two runs; got 1"):
        panel([audited("weak", 0.1)])
    with pytest.raises(ConventionError):
        panel([audited("weak", 0.1), audited("weak", 0.1, convention="sfid")])
