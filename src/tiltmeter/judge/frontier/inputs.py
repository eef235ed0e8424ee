"""What a sweep works on: images with vectors, their three parts, words, and tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from tiltmeter.datasets import load_data
from tiltmeter.datasets.found_images import check_complete
from tiltmeter.debiasers.fitted_rows import FittedRows
from tiltmeter.engine.embedding.embed_images import embed
from tiltmeter.errors import InputError
from tiltmeter.io.image_files import GeneratedImages, ImageFiles
from tiltmeter.judge.frontier.utility import UtilityTask, caption_task, class_task, testbed_tasks
from tiltmeter.metrics.arrays import to_numpy
from tiltmeter.probes.texts import audit_prompts
from tiltmeter.store import Store
from tiltmeter.types import Faces, Floats, Progress, Prompt, planted_world


def embed_faces(
    model: Any, faces: str | Faces, store: Store | None, strict: bool, progress: Progress
) -> Faces:
    """Images with their vectors and all their labels."""
    data: Faces = load_data(faces, role="faces") if isinstance(faces, str) else faces
    check_complete(data, strict=strict)
    if data.vectors is None and isinstance(data.images, ImageFiles | GeneratedImages):
        return embed(
            model, data.images, data.ids, store=store, strict=strict, progress=progress
        ).of(data)
    if data.vectors is None:
        progress("looking at the images", 0.0)
        data = replace(data, vectors=np.asarray(to_numpy(model.encode_images(data.images))))
    return data


def split(n: int, shares: Sequence[float], seed: int) -> list[list[int]]:
    """Rows to fit on, to choose by and to report; the first are those of `debias --share`.

    >>> [len(part) for part in split(100, (0.5, 0.25, 0.25), seed=0)]
    [50, 25, 25]
    """
    if len(shares) != 3 or min(shares) <= 0 or sum(shares) > 1 + 1e-9:
        raise InputError(
            f"shares are three: to fit on, to choose by, to report; above 0, and together at most "
            f"1. Got {list(shares)}"
        )
    order = np.random.default_rng(seed).permutation(n)
    first, second = (round(share * n) for share in shares[:2])
    third = min(round(shares[2] * n), n - first - second)
    edges = np.cumsum([0, first, second, third])
    return [sorted(order[low:high].tolist()) for low, high in pairwise(edges)]


def unseen(data: Faces, rows: FittedRows) -> Faces:
    """Data without copies of some rows."""
    copies = set(rows.among(data))
    return data.select([row for row in range(len(data)) if row not in copies]) if copies else data


def intersections(data: Faces, cross: Sequence[str] | None) -> list[str]:
    """What was asked for; else the crossing of the first two attributes."""
    if cross is not None:
        for one in cross:
            data.attribute(one)
        return list(cross)
    return ["*".join(list(data.groups)[:2])] if len(data.groups) > 1 else []


def prompts_of(
    model: Any,
    words: str | Sequence[Prompt] | None,
    templates: Sequence[str] | None,
    articles: str | None = None,
) -> tuple[Prompt, ...]:
    """Words and neutral words: those given, or as an audit shows them."""
    if words is not None and not isinstance(words, str):
        return tuple(words)
    return tuple(audit_prompts(model, words, None, templates, articles))


def tasks_of(
    model: Any, captions: Any, utility: Any, store: Store | None, strict: bool,
    seed: int, progress: Progress,
) -> list[UtilityTask]:  # fmt: skip
    """What the model must still be good for, of the data that were given."""
    found: list[UtilityTask] = []
    if utility is not None:
        data = load_data(utility, role="utility") if isinstance(utility, str) else utility
        done = _vectors(model, data, store, strict, progress)
        rows = np.asarray(done[0])
        found.append(class_task("accuracy", model, data.classes[rows], data.images[rows], done[1],
                                None, seed))  # fmt: skip
    if captions is not None:
        data = load_data(captions, role="captions") if isinstance(captions, str) else captions
        read, vectors = _vectors(model, data, store, strict, progress)
        found.append(caption_task(model, _of_rows(data, read), vectors, seed))
    if planted_world(model) and not found:
        progress("drawing what it must be good for", 0.0)
        found += testbed_tasks(model, seed)
    return found


def _vectors(
    model: Any, data: Any, store: Store | None, strict: bool, progress: Progress
) -> tuple[list[int], Floats]:
    check_complete(data, strict=strict)
    if isinstance(data.images, ImageFiles | GeneratedImages):
        done = embed(model, data.images, data.ids, store=store, strict=strict, progress=progress)
        return done.rows, done.vectors
    return list(range(len(data.ids))), np.asarray(to_numpy(model.encode_images(data.images)))


def _of_rows(captions: Any, rows: Sequence[int]) -> Any:
    """Captions of the pictures that could be read."""
    place = {row: at for at, row in enumerate(rows)}
    known = [at for at, picture in enumerate(captions.of.tolist()) if picture in place]
    return replace(
        captions,
        ids=tuple(captions.ids[row] for row in rows),
        texts=tuple(captions.texts[at] for at in known),
        of=np.array([place[int(captions.of[at])] for at in known], dtype=np.int64),
        images=captions.images[np.asarray(rows)],
    )
