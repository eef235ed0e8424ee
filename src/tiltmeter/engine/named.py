"""The engine that a text names, as `--engine` gives it."""

from __future__ import annotations

from tiltmeter.engine.engines import Engine, LocalEngine, PartsEngine
from tiltmeter.engine.ray_engine import RayEngine
from tiltmeter.errors import InputError, UnknownNameError

ENGINES = ("local", "parts", "ray")


def engine_of(engine: str | Engine) -> Engine:
    """An engine, or the one that a text names.

    `local`, `parts`, `parts:size=100000`, `ray` or `ray:workers=8,gpus=0.5,cpus=1,address=auto`.
    """
    if not isinstance(engine, str):
        return engine
    name, _, given = engine.partition(":")
    if name not in ENGINES:
        raise UnknownNameError("engine", name, ENGINES)
    if name == "ray":
        return RayEngine.of(given)
    setting, _, value = given.partition("=")
    if name == "local" and given:
        raise InputError(f"--engine local takes no settings; got {given!r}")
    if given and (setting != "size" or not value.isdigit() or not int(value)):
        raise InputError(f"--engine parts takes size=IMAGES, such as 100000; got {given!r}")
    return (
        PartsEngine(size=int(value))
        if given
        else (LocalEngine() if name == "local" else PartsEngine())
    )
