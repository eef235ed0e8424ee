"""Engines run a function over parts of the data.

An engine creates the function once per worker (where it loads a model), calls it on every part, and
yields the results in the order of the parts. So the sum over parts is the same on any engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tiltmeter.errors import TiltmeterError

Work = Callable[[Any], Any]


@dataclass(frozen=True)
class FailedPart:
    """A part that failed, with the reason; it does not affect other parts."""

    reason: str


class Engine(Protocol):
    """Runs a function over parts.

    `gpus` is the number of GPUs per worker, `size` the number of images that are summarised
    together (0: automatic), `slots` the number of workers, and `journal` a directory that all
    workers see, for the results of finished parts. `run` calls `make` once per worker, and yields
    the result of each part, or a `FailedPart`.
    """

    @property
    def name(self) -> str: ...

    @property
    def gpus(self) -> float: ...

    @property
    def size(self) -> int: ...

    @property
    def slots(self) -> int: ...

    @property
    def journal(self) -> Path | None: ...

    def run(self, make: Callable[[], Work], parts: Sequence[Any]) -> Iterator[Any]: ...


@dataclass(frozen=True)
class LocalEngine:
    """This process; rankings are made in one piece."""

    name: str = "local"
    gpus: float = 0.0
    size: int = 0
    slots: int = 1
    journal: Path | None = None

    def run(self, make: Callable[[], Work], parts: Sequence[Any]) -> Iterator[Any]:
        work = make()
        return (attempt(work, part) for part in parts)


@dataclass(frozen=True)
class PartsEngine(LocalEngine):
    """This process, one part at a time: images need not fit into memory."""

    name: str = "parts"


def in_this_process(engine: Engine | None) -> bool:
    """Whether an engine runs in this process, without workers that load their own model."""
    return engine is None or isinstance(engine, LocalEngine)


def attempt(work: Work, part: Any) -> Any:
    """The result of a part, or a `FailedPart` if its data are at fault; bugs are raised."""
    try:
        return work(part)
    except (TiltmeterError, OSError) as error:
        return FailedPart(str(error))
