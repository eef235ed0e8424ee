"""A leaderboard: biased and fair twins are far apart, models of noise are tied."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiltmeter as tm
from tests.command_line import tiltmeter
from tests.refusing import refused
from tiltmeter.judge.leaderboard import BIAS, HARMS, UTILITY, Standing, _ranked
from tiltmeter.pages.leaderboard import sentence
from tiltmeter.results import Run, combined, rows

MODELS = ("testbed:dual", "testbed:dual?twin=fair", "testbed:fusion?twin=fair")
QUICK: dict[str, Any] = {
    "limit": 700, "permutations": 0, "bootstraps": 60, "k": [20], "probes": ["lift", "harms"],
    "options": {"lift": {"splits": 20}},
}  # fmt: skip


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    return [tm.audit(model, **QUICK) for model in MODELS]


def test_twins_are_far_apart_and_noise_is_tied(runs: list[Run]) -> None:
    board = tm.leaderboard(runs)
    assert board.models[-1] == "testbed:dual"
    for measure in board.of(BIAS):
        biased, *fair = sorted(measure.standings, key=lambda one: one.model != "testbed:dual")
        assert (biased.first, biased.last, biased.verdict) == (3, 3, "clear")
        assert {(one.first, one.last, one.verdict) for one in fair} == {(1, 2, "none found")}
        assert not measure.tied
    assert {one.name for one in board.of(BIAS)} == {"shape", "hue"}
    assert "testbed:dual the most" in sentence(board)
    noise = tm.leaderboard(runs[1:])
    assert all(measure.tied for measure in noise.measures)
    assert "no model can be placed before another" in sentence(noise)


def test_the_order_of_the_runs_changes_no_rank(runs: list[Run]) -> None:
    one, other = (tm.leaderboard(order).table.to_pylist() for order in (runs, runs[::-1]))
    key = lambda row: (row["measure"], row["model"])  # noqa: E731
    assert sorted(one, key=key) == sorted(other, key=key)


def altered(run: Run, name: str, **meta: Any) -> Run:
    return replace(run.renamed(name), meta={**run.renamed(name).meta, **meta})


def test_what_cannot_be_compared_is_refused_by_name_with_the_reason(runs: list[Run]) -> None:
    first = runs[0]
    data = {"faces": {**first.meta["data"]["faces"], "seed": 8}}
    words = {**first.meta["prompts"], "hash": "other"}
    unchecked = {**first.meta["model"], "name": "d", "spec": "hf:other"}
    convention = Run(
        first.table.set_column(
            first.table.column_names.index("convention"), first.table.schema.field("convention"),
            [["tiltmeter+k=30"] * first.table.num_rows],
        ), {**first.meta, "model": {**first.meta["model"], "name": "c"}}, vectors=first.vectors,
    )  # fmt: skip
    others = {
        "a": (altered(first, "a", data=data), "--images"),
        "b": (altered(first, "b", prompts=words), "--words"),
        "c": (convention, "the same --k"),
        "d": (altered(first, "d", model=unchecked), "--data captions=SPEC"),
    }
    for name, (run, instead) in others.items():
        with refused("bad-input", f"{name}: ", instead):
            tm.leaderboard([first, runs[1], run])
    board = tm.leaderboard(
        [first, runs[1], *(run for run, _ in others.values())], skip_incomparable=True
    )
    assert list(board.refused) == list(others)
    assert len(board.models) == 2


def test_lift_is_on_the_scale_of_the_captions(runs: list[Run]) -> None:
    """The same model at half its temperature, with captions, is the same model."""
    first, half = runs[0], runs[0].renamed("half")
    scale = first.meta["model"]["logit_scale"]["value"]
    table = half.table.to_pandas()
    sizes = (table["metric"] == "lift_size").to_numpy()
    table.loc[sizes, ["value", "ci_low", "ci_high"]] *= 2

    def fitted(run: Run, own: float, frame: Any) -> Run:
        row = rows(1, probe="lift", metric="logit_scale", experiment="fitted", dataset="coco", n=9,
                   value=50.0, convention="tiltmeter+k=20")  # fmt: skip
        given = (
            run.table
            if frame is None
            else rows(len(frame), **{name: frame[name].tolist() for name in run.table.column_names})
        )
        model = {**run.meta["model"], "spec": "hf:x", "logit_scale": {"value": own}}
        return Run(combined([given, row]), {**run.meta, "model": model}, vectors=run.vectors)

    board = tm.leaderboard([fitted(first, scale, None), fitted(half, 2 * scale, table)])
    for measure in board.of(BIAS):
        one, other = measure.standings
        assert one.value == pytest.approx(other.value)
        assert one.value == pytest.approx(
            50 / scale * first.where(metric="lift_size", attribute=measure.name)[0]["value"]
        )
        assert measure.tied


def test_ranks_follow_the_intervals() -> None:
    """By hand: b overlaps a and c, which are apart."""
    ends = {"a": (0.0, 2.0), "b": (1.0, 4.0), "c": (3.0, 5.0)}
    standings = [Standing(name, sum(two) / 2, *two, None, 1) for name, two in ends.items()]
    found = [(one.rank, one.first, one.last) for one in _ranked(BIAS, "x", standings).standings]
    assert found == [(1.0, 1, 2), (2.0, 1, 3), (3.0, 2, 3)]
    turned = [(one.rank, one.first, one.last) for one in _ranked(UTILITY, "x", standings).standings]
    assert turned == [(3.0, 2, 3), (2.0, 1, 3), (1.0, 1, 2)]
    unknown = [*standings, Standing("d", None, None, None, None, None),
               Standing("e", 9.0, None, None, None, 1)]  # fmt: skip
    last = _ranked(HARMS, "x", unknown).standings
    assert (last[3].rank, last[3].first) == (None, None)
    assert (last[4].first, last[4].last) == (1, 4)


def test_ranks_cover_the_truth() -> None:
    """Simulated models with known means: a pair is placed wrongly in less than 5% of boards."""
    rng = np.random.default_rng(0)
    wrong = 0
    for _ in range(400):
        noisy = rng.normal(0.0, 1.0, 5)  # five models of one mean
        standings = [
            Standing(str(at), x, x - 1.96, x + 1.96, None, 1) for at, x in enumerate(noisy)
        ]
        wrong += not _ranked(BIAS, "x", standings).tied
    assert wrong / 400 < 0.1


def test_fewer_than_two_and_one_name(runs: list[Run]) -> None:
    with refused("bad-input", "at least two"):
        tm.leaderboard(runs[:1])
    with refused("bad-input", "--name"):
        tm.leaderboard([runs[0], runs[0]])


def test_from_the_command_line(runs: list[Run], tmp_path: Path) -> None:
    places = [run.save(tmp_path / f"run{at}") for at, run in enumerate(runs)]
    done = tiltmeter("leaderboard", *places, "--out", "board.html", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "1 to 2" in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    page = (tmp_path / "board.html").read_text()
    assert "testbed:dual-fair" in page
    assert page.count("<svg") == 2 * 2  # each is drawn for phones too
    (tmp_path / "mine.html").write_text("mine")
    kept = tiltmeter("leaderboard", *places, "--out", "mine.html", cwd=tmp_path)
    assert (kept.returncode, (tmp_path / "mine.html").read_text()) == (2, "mine")
    twice = tiltmeter("leaderboard", places[0], places[0], cwd=tmp_path)
    assert (twice.returncode, twice.stdout) == (2, "")
