"""Tables 4 and 5 of CounterBias: the summary by hand, and the training on the testbed."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

from tiltmeter.papers.fairvlp_study import (
    MODALITIES,
    K,
    MethodResult,
    StudySize,
    fairvlp_study,
    markdown,
    study_rows,
    study_table,
)


def made(name: str, factor: float, hits: int) -> MethodResult:
    """Bias of four words, one undefined; ten captions, of which `hits` are right."""
    bias = factor * np.array([0.1, 0.2, 0.3, np.nan])
    row = {"metric": "abs_bias_VL", "category": "Activity", "value": 0.2 * factor,
           "ci_low": 0.1 * factor, "ci_high": 0.3 * factor, "null_mean": 0.01, "n": 4,
           "n_undefined": 1}  # fmt: skip
    masked = (np.arange(10) < hits).astype(float)
    return MethodResult(
        name, 1.0, [row], dict.fromkeys(MODALITIES, bias), dict.fromkeys(MODALITIES, 2 * bias),
        1.0, masked, {way: np.tile(masked[:, None], len(K))
                      for way in ("text to image", "image to text")},
    )  # fmt: skip


def test_methods_are_compared_with_vanilla_word_by_word() -> None:
    rows = study_rows([made("vanilla", 1.0, 8), made("FairVLP", 0.5, 6)], draws=200)
    found = {(row["method"], row["measure"], row["words"]): row for row in rows}
    fair = found["FairVLP", "B@VL", "all, redrawn"]
    assert fair["of_vanilla"] == pytest.approx(0.5)  # of every word: so the interval is a point
    assert fair["of_vanilla_low"] == pytest.approx(0.5)
    assert (fair["value"], fair["n"]) == (pytest.approx(10.0), 3)
    assert found["FairVLP", "B@VL", "Activity"]["value"] == pytest.approx(10.0)
    cost = found["FairVLP", "masked accuracy", ""]
    assert (cost["value"], cost["change"]) == (pytest.approx(60.0), pytest.approx(-20.0))
    assert cost["change_low"] < -20 < cost["change_high"]
    assert "change" not in found["vanilla", "masked accuracy", ""]
    table = study_table(rows).to_pylist()
    [share] = [r for r in table if r["metric"] == "B@VL of vanilla" and r["model"] == "FairVLP"
               and r["category"] == "all, redrawn"]  # fmt: skip
    assert share["value"] == pytest.approx(0.5)
    [accuracy] = [r for r in table if r["metric"] == "masked accuracy" and r["model"] == "FairVLP"]
    assert accuracy["value"] == pytest.approx(0.6)
    assert accuracy["ci_low"] < 0.6 < accuracy["ci_high"]
    text = markdown(rows)
    assert "| FairVLP | 10.0 [5.0, 15.0] |" in text
    assert "0.50 [0.50, 0.50]" in text
    assert text.count("| FairVLP |") == 2  # Tables 4 and 5


@pytest.mark.slow
def test_bias_is_found_in_the_biased_model_and_not_in_its_twin() -> None:
    size = StudySize(steps=2, batch=16, images=130, captions=50, tuning=1)
    before, twin, tuned = fairvlp_study(
        methods=["before", "fair twin", "FairVLP, paper's losses"], size=size, device="cpu"
    )
    for kind in MODALITIES:
        assert np.nanmean(twin.by_target[kind]) < 0.2 * np.nanmean(before.by_target[kind])
    assert before.seconds < tuned.seconds
    assert before.flipped > 0.9
