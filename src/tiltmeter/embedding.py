"""Photographs into vectors: those that a store holds are read, the others embedded and kept."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tiltmeter.engine import local
from tiltmeter.engine.local import Effort
from tiltmeter.errors import InputError
from tiltmeter.images import Made, Pictures
from tiltmeter.store import Store
from tiltmeter.types import Faces, Floats, Progress

SHOWN = 5  # unreadable pictures that a message names


@dataclass(frozen=True, eq=False)
class Embedded:
    """Faces with their vectors, and how they came about."""

    faces: Faces  # without the pictures that could not be read
    new: int  # embedded now
    unreadable: Mapping[str, str]  # id -> reason
    seconds: float

    @property
    def rate(self) -> float:
        """Pictures embedded a second."""
        return self.new / self.seconds if self.seconds else 0.0


def embed(
    model: Any,
    faces: Faces,
    *,
    store: Store | None = None,
    effort: Effort = Effort(),  # noqa: B008
    strict: bool = False,
    progress: Progress | None = None,
) -> Embedded:
    """The faces with the model's vectors; what cannot be read is left out, or refused."""
    pictures = faces.images
    if not isinstance(pictures, Pictures | Made):
        raise InputError(f"{faces.name} has no picture files to embed")
    if not hasattr(model, "encode_images"):
        name = getattr(model, "name", type(model).__name__)
        raise InputError(f"{name} gives no vectors to images: it has no encode_images")
    space = None if store is None else store.space(model)
    started = time.perf_counter()
    hashes: list[str | None] = []
    unreadable: dict[str, str] = {}
    vectors: dict[str, Floats] = {}  # of the pictures embedded now, where nothing is stored
    new = 0
    known = frozenset() if space is None else frozenset(space)
    for chunk in local.embed(model, pictures, known=known.__contains__, effort=effort):
        hashes += chunk.hashes
        unreadable |= {faces.ids[at]: reason for at, reason in chunk.unreadable.items()}
        if strict and unreadable:
            raise InputError(f"a picture cannot be read: {next(iter(unreadable.values()))}")
        if chunk.vectors is not None:
            items = [str(hashes[at]) for at in chunk.new]
            new += len(items)
            if space is None:
                vectors |= zip(items, chunk.vectors, strict=True)
            else:
                space.add(items, chunk.vectors)
        if progress is not None:
            rate = new / (time.perf_counter() - started)
            progress(f"embedding, {rate:,.0f} images/s", len(hashes) / len(pictures))
    seconds = time.perf_counter() - started
    rows = [row for row, item in enumerate(hashes) if item is not None]
    if not rows:
        some = "; ".join(list(unreadable.values())[:SHOWN])
        raise InputError(f"none of the {len(pictures):,} pictures can be read: {some}")
    items = [str(hashes[row]) for row in rows]
    found = np.stack([vectors[item] for item in items]) if space is None else space.vectors(items)
    kept = replace(
        faces.only(rows),
        vectors=found,
        provenance={**faces.provenance, "unreadable": len(unreadable)},
    )
    return Embedded(kept, new, unreadable, seconds)
