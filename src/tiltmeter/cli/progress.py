"""The progress bar."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tiltmeter.types import Progress


@contextmanager
def progress_bar(*, quiet: bool) -> Iterator[Progress]:
    """A progress bar on stderr that disappears when the work is done.

    Parameters
    ----------
    quiet
        Show nothing.
    """
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    columns: tuple[Any, ...] = (
        TextColumn("{task.description:<24}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )
    with Bar(
        *columns, console=console, transient=True, disable=quiet or not console.is_terminal
    ) as bar:
        task = bar.add_task("starting", total=1.0)
        yield lambda what, share: bar.update(task, description=what, completed=share)
