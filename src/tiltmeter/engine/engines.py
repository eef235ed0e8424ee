"""What is computed, and where: a function with its state, and the engine that runs it over parts.

An engine makes the function once a worker (a model is loaded there), calls it on every part, and
gives what came of the parts in their order. So the sum of all parts is the same on any engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tiltmeter.errors import TiltmeterError

Work = Callable[[Any], Any]


@dataclass(frozen=True)
class FailedPart:
    """A part of which nothing came, and why; the others are not touched by it."""

    reason: str


class Engine(Protocol):
    """Where work is done."""

    @property
    def name(self) -> str: ...

    @property
    def gpus(self) -> float: ...  # that a worker has

    @property
    def size(self) -> int: ...  # images of a part; 0: as many as suit

    def run(self, make: Callable[[], Work], parts: Sequence[Any]) -> Iterator[Any]: ...


@dataclass(frozen=True)
class LocalEngine:
    """This process. Rankings are made in one piece."""

    name: str = "local"
    gpus: float = 0.0
    size: int = 0

    def run(self, make: Callable[[], Work], parts: Sequence[Any]) -> Iterator[Any]:
        work = make()
        return (attempt(work, part) for part in parts)


@dataclass(frozen=True)
class PartsEngine(LocalEngine):
    """This process, part after part: images may be more than its memory holds."""

    name: str = "parts"


def in_this_process(engine: Engine | None) -> bool:
    """Whether an engine works here, and not in workers that load their own model."""
    return engine is None or isinstance(engine, LocalEngine)


def attempt(work: Work, part: Any) -> Any:
    """What comes of a part, or Failed where that part is at fault; a mistake of ours is raised."""
    try:
        return work(part)
    except (TiltmeterError, OSError) as error:
        return FailedPart(str(error))
