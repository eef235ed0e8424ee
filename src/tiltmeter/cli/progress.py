"""Progress on stderr: a bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # imports NumPy, which help does not need
    from tiltmeter.types import Progress

EVERY = 30.0  # seconds between plain lines
SOONEST = 2.0  # seconds before a time left is said
UNLIKE = 0.25  # share of an audit's probes that must be done before
PROBES = "probes"
MOST = 0.99  # shown while anything is left: all images may be embedded, but no text


@contextmanager
def progress_bar(*, quiet: bool) -> Iterator[Progress]:
    """A progress bar on stderr that disappears when the work is done.

    Where stderr is no terminal, a line every 30 seconds says what is done and how far.

    Parameters
    ----------
    quiet
        Show nothing.
    """
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    if quiet:
        yield lambda what, share: None
        return
    if not console.is_terminal:
        yield PlainLines()
        return
    columns: tuple[Any, ...] = (
        TextColumn("{task.description:<40}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
    )
    left = TimeLeft()
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("loading the model", total=1.0)

        def tell(what: str, share: float) -> None:
            bar.update(task, description=left(what, share), completed=min(share, MOST))

        yield tell


class TimeLeft:
    """What is done, with the time that it will still take at the rate so far.

    Batches are alike, so a few of them give the rate. The probes of an audit are not: their rate
    is that of all of them so far, and the first part of the work gives none.
    """

    def __init__(self) -> None:
        self.what, self.start, self.first = "", time.monotonic(), 0.0

    def __call__(self, what: str, share: float) -> str:
        unlike = ": " in what
        name = PROBES if unlike else what.partition(",")[0]
        if name != self.what or share < self.first:
            self.what, self.start, self.first = name, time.monotonic(), share
        taken, done = time.monotonic() - self.start, share - self.first
        too_soon = done <= (UNLIKE if unlike else 0.0) or taken < SOONEST
        if too_soon or share >= 1 or what.endswith(" left"):  # parts say their own time left
            return what
        left = _seconds(taken / done * (1 - share))
        return f"{what}, at least {left} left" if unlike else f"{what}, {left} left"


class PlainLines:
    """A line every 30 seconds, for logs."""

    def __init__(self, every: float = EVERY) -> None:
        self.every, self.last, self.left = every, time.monotonic(), TimeLeft()

    def __call__(self, what: str, share: float) -> None:
        said = self.left(what, share)
        if time.monotonic() - self.last >= self.every:
            self.last = time.monotonic()
            print(f"{said} ({min(share, MOST):.0%})", file=sys.stderr, flush=True)


def _seconds(seconds: float) -> str:
    """45 s, 3 min, 2.5 h.

    >>> _seconds(45), _seconds(200), _seconds(9000)
    ('45 s', '3 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
