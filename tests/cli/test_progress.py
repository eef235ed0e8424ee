"""Progress says what is true: a rate of what is alike, no guess from a first part, no early end."""

from __future__ import annotations

import pytest

from tiltmeter.cli import progress
from tiltmeter.cli.progress import PlainLines, TimeLeft


class Clock:
    """A clock that a test sets."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


def test_batches_give_a_rate_at_once(clock: Clock) -> None:
    left = TimeLeft()
    assert left("embedding, 0 of 100 images", 0.0) == "embedding, 0 of 100 images"
    clock.now = 3.0
    assert left("embedding, 10 of 100 images", 0.1) == "embedding, 10 of 100 images, 27 s left"
    clock.now = 30.0
    assert left("embedding, 100 of 100 images", 1.0) == "embedding, 100 of 100 images"


def test_the_first_probe_says_nothing_about_the_others(clock: Clock) -> None:
    left = TimeLeft()
    left("ranking: starting", 0.0)
    clock.now = 60.0
    assert left("ranking: ranking images", 0.01) == "ranking: ranking images"
    clock.now = 120.0
    assert left("lift: scoring images", 0.4) == "lift: scoring images, at least 3 min left"


def test_probes_after_an_embedding_are_timed_by_themselves(clock: Clock) -> None:
    left = TimeLeft()
    left("embedding, 0 of 100 images", 0.0)
    clock.now = 1000.0
    left("ranking: starting", 0.0)
    clock.now = 1010.0
    assert left("lift: starting", 0.5) == "lift: starting, at least 10 s left"


def test_plain_lines_come_every_30_seconds(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    tell = PlainLines()
    for second in range(0, 91, 3):
        clock.now = float(second)
        tell(f"embedding, {second} of 100 images", second / 100)
    assert capsys.readouterr().err.splitlines() == [
        "embedding, 30 of 100 images, 70 s left (30%)",
        "embedding, 60 of 100 images, 40 s left (60%)",
        "embedding, 90 of 100 images, 10 s left (90%)",
    ]


def test_parts_say_their_own_time_left(clock: Clock) -> None:
    left = TimeLeft()
    left("lift: starting", 0.0)
    clock.now = 100.0
    said = "lift: scoring images, 3 of 9 parts, 1 parts/s, 6 s left"
    assert left(said, 0.4) == said


def test_all_images_are_not_all_work(
    clock: Clock, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts are encoded after the images: neither a line nor the bar says 100%."""
    tell = PlainLines()
    clock.now = 31.0
    tell("embedding, 100 of 100 images", 1.0)
    assert capsys.readouterr().err.endswith("(99%)\n")
    monkeypatch.setenv("FORCE_COLOR", "1")
    with progress.progress_bar(quiet=False) as told:
        told("embedding, 100 of 100 images", 1.0)
    assert "99%" in (shown := capsys.readouterr().err)
    assert "100%" not in shown
