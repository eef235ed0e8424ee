"""Results of finished parts on disk, so that they are not computed again after a driver was lost.

A worker writes its result before it returns it. The folder of a job is named by a hash of its task
and parts, and removed when all parts are done. Only classes of this package and NumPy's arrays are
read back: a journal cannot run code. A damaged or foreign file is a part that is not finished.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tiltmeter.datasets.shards import ShardTable
from tiltmeter.engine.engines import FailedPart, Work
from tiltmeter.results import write_atomically

DIGEST = 32  # bytes of a SHA-256, in front of the pickled result


@dataclass(frozen=True, eq=False)
class Journal:
    """The finished parts of one job."""

    folder: Path

    @classmethod
    def of(cls, place: Path, task: Any, parts: Sequence[Any]) -> Journal:
        """The journal of a job under a directory, named by what the job computes."""
        state = hashlib.sha256(repr([type(task).__qualname__, list(parts)]).encode())
        _update(state, task)
        return cls(place / state.hexdigest()[:24])

    def read(self, number: int) -> Any:
        """The result of a part; `FailedPart` if it is not there or damaged."""
        try:
            data = self._file(number).read_bytes()
            if hashlib.sha256(data[DIGEST:]).digest() != data[:DIGEST]:
                return FailedPart("damaged")
            return _Reader(io.BytesIO(data[DIGEST:])).load()
        except (OSError, pickle.UnpicklingError, AttributeError, EOFError, ImportError) as error:
            return FailedPart(str(error))

    def write(self, number: int, result: Any) -> None:
        """Keep the result of a part; on a full or read-only disk it is computed again instead."""
        data = pickle.dumps(result, protocol=5)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomically(
                self._file(number),
                lambda path: path.write_bytes(hashlib.sha256(data).digest() + data),
            )
        except OSError:
            return

    def remove(self) -> None:
        """Remove the journal of a finished job."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(
        self,
        run: Callable[[Callable[[], Work], Sequence[Any]], Iterator[Any]],
        task: Callable[[], Work],
        parts: Sequence[Any],
    ) -> Iterator[Any]:
        """Results in the order of the parts: from the journal, or computed and kept in it."""
        # a worker that was killed while it wrote leaves a file with another name
        there = {int(file.stem) for file in self.folder.glob("*.part") if file.stem.isdigit()}
        finished = {at for at in there if not isinstance(self.read(at), FailedPart)}
        missing = [(at, part) for at, part in enumerate(parts) if at not in finished]
        computed = run(_Kept(self, task), missing)
        for number in range(len(parts)):
            yield self.read(number) if number in finished else next(computed)
        self.remove()

    def _file(self, number: int) -> Path:
        return self.folder / f"{number}.part"


@dataclass(frozen=True, eq=False)
class _Kept:
    """Sent to workers: computes a part and keeps the result."""

    journal: Journal
    task: Callable[[], Work]

    def __call__(self) -> Work:
        work = self.task()

        def kept(numbered: tuple[int, Any]) -> Any:
            number, part = numbered
            result = work(part)
            self.journal.write(number, result)
            return result

        return kept


class _Reader(pickle.Unpickler):
    """Reads classes of this package and arrays, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        arrays = module.partition(".")[0] == "numpy" and name in (
            "_reconstruct", "ndarray", "dtype", "scalar", "_frombuffer"
        )  # fmt: skip
        summaries = module.startswith(("tiltmeter.metrics.", "tiltmeter.engine."))
        if not (arrays or (summaries and name[0].isupper() and "." not in name)):
            raise pickle.UnpicklingError(f"{module}.{name} is no result of a part")
        return super().find_class(module, name)


def _update(state: Any, value: Any) -> None:
    """Add a value to a hash: by content, not by identity."""
    if isinstance(value, ShardTable):
        state.update(f"{value.key} {value.state}".encode())
    elif isinstance(value, np.ndarray):
        state.update(f"{value.dtype.str}{value.shape}".encode())
        state.update(np.ascontiguousarray(value).data)
    elif is_dataclass(value) and not isinstance(value, type):
        state.update(type(value).__qualname__.encode())
        for field in fields(value):
            _update(state, getattr(value, field.name))
    elif callable(value):
        state.update(pickle.dumps(value))
    else:
        state.update(repr(value).encode())
