"""Pictures through a model on some engine: every worker keeps its chunks in the store itself.

Chunks are those of the local engine, and so are their batches: the shards have the same names and
bytes. A chunk that is worked on twice, since a worker died, is written to the same name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tiltmeter.engine import local
from tiltmeter.engine.local import Chunk, Pace
from tiltmeter.engine.seam import Engine, Failed
from tiltmeter.images import Made, Pictures
from tiltmeter.store import Space

Part = tuple[int, Pictures | Made]


@dataclass(frozen=True)
class Embedding:
    """What travels to a worker: how to load the model, where its vectors go."""

    load: Callable[[], Any]
    space: Path
    pace: Pace

    def __call__(self) -> Callable[[Part], Chunk]:
        """Loads the model; what the store holds by now is not made again."""
        model, space = self.load(), Space(self.space)
        known = frozenset(space)

        def work(part: Part) -> Chunk:
            start, pictures = part
            (chunk,) = local.embed(model, pictures, known=known.__contains__, pace=self.pace)
            if chunk.vectors is not None:
                space.add([str(chunk.hashes[at]) for at in chunk.new], chunk.vectors)
            return Chunk(
                start,
                chunk.hashes,
                {start + at: reason for at, reason in chunk.unreadable.items()},
                [start + at for at in chunk.new],
            )

        return work


def embed_on(
    engine: Engine,
    load: Callable[[], Any],
    pictures: Pictures | Made,
    space: Space,
    pace: Pace,
    device: str,
) -> Iterator[Chunk]:
    """Chunks in order, without their vectors: those are in the store by then."""
    size = pace.chunk_on(device)
    # one part is one chunk; decoding shares the worker's core: Ray's processes must not be forked
    pace = replace(pace, chunk=size, workers=0)
    parts = [(at, pictures[at : at + size]) for at in range(0, len(pictures), size)]
    for (start, some), found in zip(
        parts, engine.run(Embedding(load, space.path, pace), parts), strict=True
    ):
        if isinstance(found, Failed):
            at = range(start, start + len(some))
            found = Chunk(start, [None] * len(some), dict.fromkeys(at, found.reason))
        yield found
