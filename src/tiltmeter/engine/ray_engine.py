"""Parts on a Ray cluster: Ray Data maps them over a pool of actors, each with its own state.

A dead actor is started again and its parts go to others; what was lost with a node is recomputed.
A part may thus be processed twice, so work that writes must be idempotent (a store is).
"""

from __future__ import annotations

import importlib
import logging
import math
import os
import pickle
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tiltmeter.engine.engines import Work, attempt
from tiltmeter.errors import InputError, MissingError, UnknownNameError
from tiltmeter.metrics.numpy_kernels import use_cores

PATIENCE = 10  # seconds
#: Tasks that parts are given out in, at most: one takes the driver ten milliseconds, whatever is in
#: it, and all workers together would wait for that.
TASKS = 2000
DEATHS = 4  # workers, one after the other, that may die while they start
INSTALL = "--engine ray needs Ray: pip install 'tiltmeter[ray]'"


@dataclass(frozen=True)
class RayEngine:
    """A pool of `workers` on the cluster at `address`, or on one of this machine's own."""

    workers: int = 0  # 0: as many as the cluster has room for
    cpus: float = 1.0  # of a worker
    gpus: float = 0.0  # of a worker; a part of one will do
    size: int = 0  # images of a part; 0: as many as suit
    address: str = ""  # auto: one that runs; else RAY_ADDRESS, or a cluster of our own
    name: str = "ray"

    @classmethod
    def of(cls, text: str) -> RayEngine:
        """Settings written workers=8,gpus=0.5; Ray must be installed."""
        library()
        kinds = {"workers": int, "cpus": float, "gpus": float, "size": int, "address": str}
        given: dict[str, Any] = {}
        for one in filter(None, text.split(",")):
            name, equals, value = one.partition("=")
            if name not in kinds:
                raise UnknownNameError("setting of --engine ray", name, kinds)
            try:
                given[name] = kinds[name](value)
            except ValueError:
                equals = ""
            if not equals or (name != "address" and given[name] < 0):
                raise InputError(f"--engine ray:{name}= takes a number from 0 up; got {one!r}")
        return cls(**given)

    def run(self, make: Callable[[], Work], parts: Sequence[Any]) -> Iterator[Any]:
        """What comes of the parts, in their order, as it comes."""
        if not parts:
            return
        data = self._connected()
        rows = [{"part": pickle.dumps(part)} for part in parts]
        context = data.DataContext.get_current()
        context.enable_progress_bars = False
        context.execution_options.preserve_order = True
        if hasattr(context, "max_consecutive_actor_init_deaths"):
            context.max_consecutive_actor_init_deaths = DEATHS
        logging.getLogger("ray.data").setLevel(logging.ERROR)  # it warns of what is meant
        found = data.from_items(rows, override_num_blocks=min(len(rows), TASKS)).map_batches(
            _Worker,
            fn_constructor_args=(make, str(Path.cwd()), max(math.ceil(self.cpus), 1)),
            batch_size=1,
            compute=data.ActorPoolStrategy(size=min(self._room(), len(parts))),
            num_cpus=self.cpus,
            num_gpus=self.gpus or None,
        )
        try:
            for row in found.iter_rows():
                yield pickle.loads(row["result"])
        except library().exceptions.RayActorError as error:
            last = str(error).strip().rpartition("\n")[2]
            raise InputError(
                f"Ray's workers died and could not be started again ({last}). What they had put "
                "into a store is kept: the same command goes on from there"
            ) from error

    def _connected(self) -> Any:
        ray = library()
        if not ray.is_initialized():
            # left to itself, Ray would join any cluster that somebody runs on this machine
            address = self.address or os.environ.get("RAY_ADDRESS") or "local"
            own = {"include_dashboard": False} if address == "local" else {}
            _reached(address)
            try:
                ray.init(address, logging_level=logging.ERROR, log_to_driver=False, **own)
            except (ConnectionError, RuntimeError, ValueError) as error:
                first = str(error).partition("\n")[0]
                raise InputError(f"no Ray cluster at {address}: {first}") from error
            # it would print what became of its workers among our results; no option turns that off
            news: Any = importlib.import_module("ray._private.worker")
            news._worker_logs_enabled = False
        return importlib.import_module("ray.data")

    def _room(self) -> int:
        """Workers that the cluster can hold; one that no node has room for would wait for ever."""
        wanted = {kind: each for kind, each in (("GPU", self.gpus), ("CPU", self.cpus)) if each}
        nodes = [node["Resources"] for node in library().nodes() if node["Alive"]]
        room = sum(
            min((int(node.get(kind, 0) / each + 1e-9) for kind, each in wanted.items()), default=1)
            for node in nodes
        )
        if not room:
            most = {kind: max(node.get(kind, 0) for node in nodes) for kind in wanted}
            short = [kind for kind, each in wanted.items() if each > most[kind]] or list(wanted)
            raise InputError(
                f"a worker is to have {wanted[short[0]]:g} {short[0]}, but no node of the Ray "
                f"cluster has more than {most[short[0]]:g}"
                f"{' with as many CPUs as it needs' * (most[short[0]] >= wanted[short[0]])}: "
                f"--engine ray:{short[0].lower()}s=0 does without"
            )
        return self.workers or room


def _reached(address: str) -> None:
    """Refuses an address where nobody answers: Ray would go on trying for minutes."""
    host, colon, port = address.rpartition(":")
    if not colon or "/" in host or not port.isdigit():
        return  # auto, or an address of Ray's own kind
    try:
        socket.create_connection((host, int(port)), timeout=PATIENCE).close()
    except OSError as error:
        raise InputError(f"no Ray cluster at {address}: {error.strerror or error}") from None


class _Worker:
    """An actor's share: the function with its state, called on a part at a time."""

    def __init__(self, make: Callable[[], Work], place: str, cores: int) -> None:
        if Path(place).is_dir():  # so that names of files mean there what they mean here
            os.chdir(place)
        use_cores(cores)  # the others of the node belong to other workers
        self.work = make()

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        found = [attempt(self.work, pickle.loads(part)) for part in batch["part"]]
        return {"result": [pickle.dumps(one, protocol=5) for one in found]}


def library() -> Any:
    """Ray, or how to get it."""
    try:
        import ray
    except ImportError:
        raise MissingRayError from None
    return ray


class MissingRayError(MissingError):
    """Ray is not installed."""

    def __init__(self) -> None:
        InputError.__init__(self, INSTALL)
