"""What commands share: values that options take, places for runs, a progress bar."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.types import Progress


def probe_options(given: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Settings of probes, as `--option PROBE.NAME=VALUE` gives them."""
    from tiltmeter.probes import PROBES

    found: dict[str, dict[str, Any]] = {}
    for text in given:
        name, _, value = text.partition("=")
        probe, dot, option = name.partition(".")
        if not (dot and option and value):
            raise InputError(
                f"--option takes PROBE.NAME=VALUE, such as propagation.k=500; got {text!r}"
            )
        if probe not in PROBES:
            raise UnknownNameError("probe", probe, PROBES)
        found.setdefault(probe, {})[option] = value
    return found


def data_roles(given: Sequence[str]) -> dict[str, str]:
    """Specs by role, from ROLE=SPEC."""
    pairs = [one.partition("=") for one in given]
    for one, (role, equals, spec) in zip(given, pairs, strict=True):
        if not (role and equals and spec):
            raise InputError(f"--data takes ROLE=SPEC, such as captions=coco:FILE; got {one!r}")
    return {role: spec for role, _, spec in pairs}


def numbers(option: str, text: str) -> list[float]:
    """Numbers that were written with commas between them."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"{option} takes numbers with commas between; got {text!r}") from None


def next_run() -> Path:
    """A place that is not taken: a run is never written over unasked."""
    root, number = Path("tiltmeter-runs"), 1
    while (root / f"{number:03d}").exists():
        number += 1
    return root / f"{number:03d}"


@contextmanager
def progress_bar(*, quiet: bool) -> Iterator[Progress]:
    """A bar on the terminal's error stream, gone when the work is done."""
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
