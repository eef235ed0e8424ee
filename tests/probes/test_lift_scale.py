"""The scale of lift: stated, fitted on captions, or none, which is never guessed."""

from __future__ import annotations

import numpy as np
import pytest

import tiltmeter as tm
from tiltmeter.datasets.roles import Captions
from tiltmeter.pages import terminal
from tiltmeter.pages.html import page_of
from tiltmeter.pages.plots.drawing import svg
from tiltmeter.results import Run

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def captions() -> Captions:
    from tiltmeter.testbed.captioned import draw_captioned_scenes
    from tiltmeter.testbed.world import World

    return draw_captioned_scenes(World.plant(), 200, np.random.default_rng(0))


def audited(scale: float | None, captions: Captions | None = None) -> Run:
    """The testbed's dual encoder, stating another scale, or none."""
    model = tm.load_model("testbed:dual")

    class Scaled:
        name, provenance, world = "scaled", model.provenance, model.world
        encode_texts, encode_images = model.encode_texts, model.encode_images

    if scale is not None:
        Scaled.logit_scale = scale * model.logit_scale
    return tm.audit(Scaled(), "testbed:?images=84", probes=["lift"], words="sobit",
                    attributes=["shape"], bootstraps=0, options={"lift": {"splits": 0}},
                    data={} if captions is None else {"captions": captions})  # fmt: skip


def test_the_models_own_scale_is_that_of_its_captions(captions: Captions) -> None:
    run = audited(1.0, captions)
    own, fitted = run.where(metric="logit_scale")
    assert fitted["ci_low"] < own["value"] < fitted["ci_high"]
    assert fitted["n"] == 200
    assert fitted["note"] is None
    assert run.meta["model"]["logit_scale"]["origin"] == "checkpoint"
    curve, refitted = (run.where(metric="reliability", experiment=scale)
                       for scale in ("own", "fitted"))  # fmt: skip
    assert [row["k"] for row in refitted] == list(range(1, 11))
    assert [row["k"] for row in curve] == list(range(1, 11))
    assert sum(row["n"] for row in curve) == 200
    hits, sure = (np.array([row[name] for row in curve]) for name in ("value", "ideal"))
    assert abs(hits.mean() - sure.mean()) < 0.06


def test_a_wrong_scale_is_a_warning(captions: Captions) -> None:
    run = audited(2.0, captions)
    _, fitted = run.where(metric="logit_scale")
    assert "own scale is" in fitted["note"]
    (shown,) = page_of(run).sections  # captions have none of their own
    assert any("own scale is" in note for note in shown.notes)
    curve = shown.figures[-1]
    assert curve.title == "Does the scale say how sure the model is?"
    assert "own scale" in svg(curve)
    assert "Scale of the scores" in [table.caption for table in shown.tables]


def test_matched_logits_follow_the_scale(captions: Captions) -> None:
    once, twice = (audited(scale, captions).where(metric="matched_logit") for scale in (1.0, 2.0))
    assert [row["experiment"] for row in once] == ["captions", "groups"]
    for row, other in zip(once, twice, strict=True):
        assert 0 < row["ci_low"] < row["value"] < row["ci_high"]
        assert other["value"] == pytest.approx(2 * row["value"], rel=1e-4)


def test_embeddings_without_a_scale_get_it_fitted(captions: Captions) -> None:
    run = audited(None, captions)
    record = run.meta["model"]["logit_scale"]
    assert record["origin"] == "fitted"
    own = audited(1.0).where(metric="lift", group="round")
    ratio = record["value"] / tm.load_model("testbed:dual").logit_scale
    for row, other in zip(run.where(metric="lift", group="round"), own, strict=True):
        assert row["value"] == pytest.approx(ratio * other["value"], abs=1e-5)


def test_without_scale_and_captions_lift_has_no_unit(capsys: pytest.CaptureFixture[str]) -> None:
    run = audited(None)
    assert run.meta["model"]["logit_scale"] == {"value": None, "origin": "none", "fitted": None}
    (lift,) = run.where(metric="lift")
    assert lift["value"] is None
    assert "states no scale" in lift["note"]
    assert run.where(metric="lift_size") == []
    rows = run.where(metric="lift_spreads")
    assert {row["verdict"] for row in rows} == {None}
    own = {(row["concept"], row["group"], row["category"]): row
           for row in audited(1.0).where(metric="lift")}  # fmt: skip
    spread = {}
    for row in rows:
        same = own[row["concept"], row["group"], row["category"]]
        if row["p_placebo"] is not None:
            assert row["p_placebo"] == pytest.approx(same["p_placebo"], abs=0.005)
        spread.setdefault(row["group"], same["value"] / row["value"])
        assert row["value"] * spread[row["group"]] == pytest.approx(same["value"], abs=1e-4)
    terminal.run(run)
    assert "states no scale" in " ".join(capsys.readouterr().out.split())
