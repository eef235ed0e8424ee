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
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tiltmeter.engine.engines import Work, attempt
from tiltmeter.errors import InputError, MissingError, UnknownNameError
from tiltmeter.metrics.numpy_kernels import use_cores

PATIENCE = 10  # seconds
#: Most tasks per job: each costs the driver about ten milliseconds.
TASKS = 2000
LOG_LEVEL = "RAY_BACKEND_LOG_LEVEL"
DEATHS = 4  # consecutive workers that may die while starting
INSTALL = "--engine ray needs Ray: pip install 'tiltmeter[ray]'"


@dataclass(frozen=True)
class RayEngine:
    """A pool of workers on a Ray cluster, by default a local one."""

    workers: int = 0  # 0: as many as fit into the cluster
    cpus: float = 1.0  # per worker
    gpus: float = 0.0  # per worker; may be a fraction
    size: int = 0  # images per part; 0: automatic
    address: str = ""  # auto: a running cluster; "": RAY_ADDRESS, or a local one
    name: str = "ray"
    journal: Path | None = None  # for results of finished parts; all nodes must see it

    @classmethod
    def of(cls, text: str) -> RayEngine:
        """Parse settings such as `workers=8,gpus=0.5`; Ray must be installed."""
        ray_module()
        kinds = {"workers": int, "cpus": float, "gpus": float, "size": int, "address": str}
        settings: dict[str, Any] = {}
        for setting in filter(None, text.split(",")):
            name, equals, value = setting.partition("=")
            if name not in kinds:
                raise UnknownNameError("setting of --engine ray", name, kinds)
            try:
                settings[name] = kinds[name](value)
            except ValueError:
                equals = ""
            if not equals or (name != "address" and settings[name] < 0):
                raise InputError(
                    f"--engine ray:{name}= needs a number of at least 0; got {setting!r}"
                )
        return cls(**settings)

    @property
    def slots(self) -> int:
        """Number of workers; connects to the cluster."""
        self._connected()
        return self._room()

    def run(self, make: Callable[[], Work], parts: Sequence[Any]) -> Iterator[Any]:
        """Yield the results of the parts, in order."""
        if not parts:
            return
        data = self._connected()
        rows = [{"part": pickle.dumps(part)} for part in parts]
        context = data.DataContext.get_current()
        context.enable_progress_bars = False
        context.execution_options.preserve_order = True
        if hasattr(context, "max_consecutive_actor_init_deaths"):
            context.max_consecutive_actor_init_deaths = DEATHS
        logging.getLogger("ray.data").setLevel(logging.ERROR)  # it warns about intended settings
        results = data.from_items(rows, override_num_blocks=min(len(rows), TASKS)).map_batches(
            _Worker,
            fn_constructor_args=(make, str(Path.cwd()), max(math.ceil(self.cpus), 1)),
            batch_size=1,
            compute=data.ActorPoolStrategy(size=min(self.slots, len(parts))),
            num_cpus=self.cpus,
            num_gpus=self.gpus or None,
        )
        try:
            for row in results.iter_rows():
                yield pickle.loads(row["result"])
        except ray_module().exceptions.RayActorError as error:
            last = str(error).strip().rpartition("\n")[2]
            raise InputError(
                f"Ray's workers died and could not be restarted ({last}). Embeddings in the store "
                "are kept: run the same command again to continue"
            ) from error

    def _connected(self) -> Any:
        ray = ray_module()
        if not ray.is_initialized():
            # by default Ray would join any cluster that runs on this machine
            address = self.address or os.environ.get("RAY_ADDRESS") or "local"
            options = {"include_dashboard": False} if address == "local" else {}
            _check_reachable(address)
            try:
                with _quiet_core():
                    ray.init(address, logging_level=logging.ERROR, log_to_driver=False, **options)
            except (ConnectionError, RuntimeError, ValueError) as error:
                first = str(error).partition("\n")[0]
                raise InputError(f"no Ray cluster at {address}: {first}") from error
            # it would print worker logs among our results; no option turns that off
            worker_module: Any = importlib.import_module("ray._private.worker")
            worker_module._worker_logs_enabled = False
        return importlib.import_module("ray.data")

    def _room(self) -> int:
        """Number of workers that fit into the cluster; raises if none does, as Ray would hang."""
        required = {
            kind: amount for kind, amount in (("GPU", self.gpus), ("CPU", self.cpus)) if amount
        }
        nodes = [node["Resources"] for node in ray_module().nodes() if node["Alive"]]
        room = sum(
            min(
                (int(node.get(kind, 0) / amount + 1e-9) for kind, amount in required.items()),
                default=1,
            )
            for node in nodes
        )
        if not room:
            largest = {kind: max(node.get(kind, 0) for node in nodes) for kind in required}
            missing = [kind for kind, amount in required.items() if amount > largest[kind]] or list(
                required
            )
            raise InputError(
                f"a worker needs {required[missing[0]]:g} {missing[0]}, but no node of the Ray "
                f"cluster has more than {largest[missing[0]]:g}"
                f"{' with enough CPUs' * (largest[missing[0]] >= required[missing[0]])}: "
                f"pass --engine ray:{missing[0].lower()}s=0"
            )
        return self.workers or room


def _check_reachable(address: str) -> None:
    """Raise if nothing listens at the address: Ray would retry for minutes."""
    host, colon, port = address.rpartition(":")
    if not colon or "/" in host or not port.isdigit():
        return  # auto, or another form that Ray resolves itself
    try:
        socket.create_connection((host, int(port)), timeout=PATIENCE).close()
    except OSError as error:
        raise InputError(f"no Ray cluster at {address}: {error.strerror or error}") from None


@contextmanager
def _quiet_core() -> Iterator[None]:
    """Start Ray's C++ core without its messages, which nobody but the variable can turn off.

    It warns on stderr of how Ray Data starts actors, and says that the variable is set.
    """
    if LOG_LEVEL in os.environ:
        yield
        return
    os.environ[LOG_LEVEL] = "fatal"
    shown = os.dup(2)
    with Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(shown, 2)
        os.close(shown)
        del os.environ[LOG_LEVEL]


class _Worker:
    """A Ray actor: the function with its state, called on one part at a time."""

    def __init__(self, make: Callable[[], Work], directory: str, cores: int) -> None:
        if Path(directory).is_dir():  # so that relative paths have the same meaning
            os.chdir(directory)
        use_cores(cores)  # the other cores of the node belong to other workers
        self.work = make()

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        results = [attempt(self.work, pickle.loads(part)) for part in batch["part"]]
        return {"result": [pickle.dumps(result, protocol=5) for result in results]}


def ray_module() -> Any:
    """The module `ray`; raises `MissingRayError` if it is not installed."""
    try:
        import ray
    except ImportError:
        raise MissingRayError from None
    return ray


class MissingRayError(MissingError):
    """Ray is not installed."""

    def __init__(self) -> None:
        InputError.__init__(self, INSTALL)
