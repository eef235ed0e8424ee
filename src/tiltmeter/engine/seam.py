"""What is computed, and where: a function with its state, and the engine that runs it over parts.

An engine makes the function once a worker (a model is loaded there), calls it on every part, and
gives what came of the parts in their order. So the sum of all parts is the same on any engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tiltmeter.errors import InputError, TiltmeterError, UnknownNameError

Work = Callable[[Any], Any]
ENGINES = ("local", "ray")


@dataclass(frozen=True)
class Failed:
    """A part of which nothing came, and why; the others are not touched by it."""

    reason: str


class Engine(Protocol):
    """Where work is done."""

    @property
    def name(self) -> str: ...

    @property
    def gpus(self) -> float: ...  # that a worker has

    def run(self, make: Callable[[], Work], parts: Sequence[Any]) -> Iterator[Any]: ...


@dataclass(frozen=True)
class Local:
    """This process, part after part."""

    name: str = "local"
    gpus: float = 0.0

    def run(self, make: Callable[[], Work], parts: Sequence[Any]) -> Iterator[Any]:
        work = make()
        return (attempt(work, part) for part in parts)


def attempt(work: Work, part: Any) -> Any:
    """What comes of a part, or Failed where that part is at fault; a mistake of ours is raised."""
    try:
        return work(part)
    except (TiltmeterError, OSError) as error:
        return Failed(str(error))


def engine_of(text: str) -> Engine:
    """The engine that `local`, `ray` or `ray:workers=8,gpus=0.5,cpus=1,address=auto` names."""
    name, _, given = text.partition(":")
    if name not in ENGINES:
        raise UnknownNameError("engine", name, ENGINES)
    if name == "local":
        if given:
            raise InputError(f"--engine local takes no settings; got {given!r}")
        return Local()
    from tiltmeter.engine.ray_engine import Ray

    return Ray.of(given)
