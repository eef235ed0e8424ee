"""Engines by name, as given to `--engine`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tiltmeter.engine.engines import Engine, LocalEngine, PartsEngine
from tiltmeter.engine.ray_engine import RayEngine
from tiltmeter.errors import InputError, UnknownNameError

ENGINES = ("local", "parts", "ray")


#: Directory in a store for what is not finished: indexes of collections, and results of parts.
UNFINISHED = "unfinished"


def engine_with_store(engine: str | Engine, store: str | Path | None) -> Engine:
    """The engine of a name, with a journal in the store, if there is one.

    Parameters
    ----------
    engine : str or Engine
        As for `engine_of`.
    store : str or Path, optional
        Directory of a store, which all workers see.

    Returns
    -------
    Engine
    """
    made = engine_of(engine)
    if store is None or not isinstance(made, PartsEngine | RayEngine) or made.journal is not None:
        return made
    return replace(made, journal=Path(store).absolute() / UNFINISHED)


def engine_of(engine: str | Engine) -> Engine:
    """The engine of a name, or the engine itself.

    Parameters
    ----------
    engine : str or Engine
        `local`, `parts`, `parts:size=100000`, `ray` or
        `ray:workers=8,gpus=0.5,cpus=1,address=auto`.

    Returns
    -------
    Engine

    Raises
    ------
    UnknownNameError
        If the name is unknown.
    InputError
        If the settings are wrong.

    Examples
    --------
    >>> engine_of("parts:size=100000")
    PartsEngine(name='parts', gpus=0.0, size=100000, slots=1, journal=None)
    """
    if not isinstance(engine, str):
        return engine
    name, _, settings = engine.partition(":")
    if name not in ENGINES:
        raise UnknownNameError("engine", name, ENGINES)
    if name == "ray":
        return RayEngine.of(settings)
    setting, _, value = settings.partition("=")
    if name == "local" and settings:
        raise InputError(f"--engine local takes no settings; got {settings!r}")
    if settings and (setting != "size" or not value.isdigit() or not int(value)):
        raise InputError(f"--engine parts takes size=IMAGES, such as 100000; got {settings!r}")
    return (
        PartsEngine(size=int(value))
        if settings
        else (LocalEngine() if name == "local" else PartsEngine())
    )
