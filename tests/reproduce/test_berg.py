"""The recipe of Berg et al.: several ways of debiasing, and the whole page in a small world."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiltmeter.errors import InputError
from tiltmeter.reproduce.measurements import Audit, Context, Variants
from tiltmeter.reproduce.runner import reproduce

SMALL = {
    "faces": "testbed:?images=140",
    "other": "testbed:?images=140&seed=9",
    "captions": "testbed:captions?images=60",
    "utility": "testbed:utility?images=60",
}
RANKING = Audit(
    ("ranking",), {"words": "berg-train", "attributes": ("gender",), "k": (20,)}, faces="other",
    roles=("other",),
)  # fmt: skip


@pytest.fixture
def context(tmp_path: Path) -> Context:
    keywords = {"permutations": 0, "bootstraps": 0, "seed": 0}
    return Context(SMALL, {"gender": "shape"}, keywords, tmp_path, tmp_path / "models", True)


def test_variants_are_measured_on_the_same_unseen_images(context: Context) -> None:
    """One that the method refuses is left out, with its reason."""
    ways = {
        "half": ("clip-clip", {"keep": 0.5}),
        "too many": ("clip-clip", {"keep": 10_000}),
        "all": ("clip-clip", {"keep": 96}),
    }
    runs = Variants("gender", RANKING, ways).measure("testbed:dual", context)
    assert list(runs) == ["before", "half", "all"]
    assert list(runs["before"].meta["left_out"]) == ["too many"]
    assert "10000" in runs["before"].meta["left_out"]["too many"]
    value = {
        part: run.where(metric="ndkl", concept=None, category=None)[0]["value"]
        for part, run in runs.items()
    }
    assert value["all"] == pytest.approx(value["before"])
    assert value["half"] != pytest.approx(value["before"])
    assert {run.meta["data"]["faces"]["images"] for run in runs.values()} == {140}


def test_no_variant_at_all_is_an_error(context: Context) -> None:
    with pytest.raises(InputError, match="10000"):
        Variants("gender", RANKING, {"x": ("clip-clip", {"keep": 10_000})}).measure(
            "testbed:dual", context
        )


@pytest.mark.slow
def test_every_item_that_needs_no_training_is_made(tmp_path: Path) -> None:
    data = {**SMALL, "faces": "testbed:?images=420"}  # half of them are more than k
    page = reproduce("berg", data=data, out=tmp_path / "berg", permutations=9, bootstraps=5)
    missing = {label for label, made in page.made.items() if made.startswith("Not made")}
    assert missing == {"Figure 1", "Table 4a", "Table 4b", "Table 7"}
    assert all("--train" in page.made[label] for label in missing - {"Figure 1"})
    text = (tmp_path / "berg" / "summary.md").read_text(encoding="utf-8")
    assert "prepend, 3 tokens" in text
    assert "CLIP-clip, m = 50%" in text
