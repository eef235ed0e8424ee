"""A model that knows nothing, on images that show nothing: no finding, by chance or by colour."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tiltmeter as tm
from tests.conftest import write_csv
from tests.random_clip import random_clip
from tiltmeter.pages.html import page_of
from tiltmeter.stats.lift_verdict import CLEAR, WEAK


def test_a_random_clip_on_60_squares_gives_no_finding(tmp_path: Path) -> None:
    """Neither where groups were drawn at random, nor where they differ in colour."""
    pytest.importorskip("transformers")
    from PIL import Image

    colours = np.random.default_rng(0).integers(0, 256, (60, 3))
    for at, (red, green, blue) in enumerate(colours.tolist()):
        Image.new("RGB", (32, 32), (red, green, blue)).save(tmp_path / f"{at}.png")
    write_csv(
        tmp_path / "squares.csv",
        [{"file": f"{at}.png", "half": "ab"[at % 2], "tone": "warm" if red > blue else "cold"}
         for at, (red, _, blue) in enumerate(colours)],
    )  # fmt: skip
    run = tm.audit(
        f"hf:{random_clip(tmp_path / 'clip')}",
        f"table:{tmp_path / 'squares.csv'}?path=file",
        k=[20], permutations=99, bootstraps=20,
        options={"lift": {"splits": 40}},
    )  # fmt: skip
    assert {row["attribute"] for row in run.where(metric="lift_size")} == {"half", "tone"}
    assert not run.where(metric="lift", verdict="associated")
    found = page_of(run).summary
    assert found.tested == []
    assert not {one.verdict for one in found.lift} & {CLEAR, WEAK}
    assert found.verdicts["associated"] == 0
