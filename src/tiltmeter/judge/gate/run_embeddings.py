"""Texts and images that a run ranked, to recompute its scores; and two runs paired.

The tables are those of `tiltmeter.probes.ranking.stored`; `run.json` names the store and shards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tiltmeter.errors import DamagedError, InputError
from tiltmeter.metrics.arrays import matrix, unit
from tiltmeter.metrics.convention import Convention
from tiltmeter.probes.ranking.stored import LABEL, MOST_KEPT, PROMPT
from tiltmeter.results import Run
from tiltmeter.store import StoredEmbeddings
from tiltmeter.types import Floats, Groups, Ints, Prompt


class EmbeddingsUnavailableError(Exception):
    """The embeddings of a run are not available; the message says why."""


@dataclass(frozen=True, eq=False)
class RunEmbeddings:
    """Embeddings of the texts and images of one run."""

    prompts: list[Prompt]
    texts: Floats
    ids: list[str]
    labels: dict[str, list[str]]
    images: Floats


@dataclass(frozen=True, eq=False)
class RunImages:
    """Images of a run with their groups, scaled as the convention says."""

    images: Floats
    groups: dict[str, Groups]


def load_run_embeddings(run: Run, *, store: str | Path | None = None) -> RunEmbeddings:
    """Embeddings of the texts and images that a run ranked.

    Parameters
    ----------
    run : Run
        A run of the probe `ranking`.
    store : str or Path, optional
        Where the embeddings are, if the store was moved.

    Returns
    -------
    RunEmbeddings

    Raises
    ------
    EmbeddingsUnavailableError
        If the run kept no embeddings, or they are no longer in the store.
    DamagedError
        If the store is damaged.
    """
    prompts, texts = _load_texts(run)
    return RunEmbeddings(prompts, texts, *_load_images(run, store))


def _load_texts(run: Run) -> tuple[list[Prompt], Floats]:
    if "texts" not in run.vectors:
        raise EmbeddingsUnavailableError(_why_none(run, "ranking"))
    table = run.vectors["texts"]
    columns = {name: table[name].to_pylist() for name in PROMPT}
    prompts = [Prompt(**dict(zip(columns, row, strict=True)))
               for row in zip(*columns.values(), strict=True)]  # fmt: skip
    return prompts, vectors_of(table["vector"])


def _load_images(
    run: Run, store: str | Path | None
) -> tuple[list[str], dict[str, list[str]], Floats]:
    if "faces" not in run.vectors:
        raise EmbeddingsUnavailableError(_why_none(run, "lift or ranking"))
    faces = run.vectors["faces"]
    if "vector" in faces.column_names:
        images = vectors_of(faces["vector"])
    elif "item" in faces.column_names:
        images = _stored(run, faces["item"].to_pylist(), store)
    else:
        size = MOST_KEPT // 2**20
        raise EmbeddingsUnavailableError(
            f"its embeddings take more than {size} MB and are in no store (audit with --store)"
        )
    labels = {
        name.removeprefix(LABEL): faces[name].to_pylist()
        for name in faces.column_names
        if name.startswith(LABEL)
    }
    return faces["id"].to_pylist(), labels, images


def _why_none(run: Run, probe: str) -> str:
    if run.meta.get("arguments", {}).get("given", {}).get("keep_vectors") is False:
        return "it has no embeddings: it was made with --no-vectors"
    if "shards" in run.meta.get("data", {}).get("faces", {}):
        return "its images stayed in their shards, so they cannot be paired: use --engine local"
    return (
        f"it has no embeddings: it was made without the probe {probe}, by an early release, or "
        "with a model that has none, such as one that writes"
    )


def _stored(run: Run, items: list[str], store: str | Path | None) -> Floats:
    recorded = run.meta.get("data", {}).get("faces", {}).get("vectors", {})
    root = Path(store or run.meta.get("environment", {}).get("store", ""))
    path = root / str(recorded.get("space", "?"))
    try:
        return StoredEmbeddings(path).vectors(items)
    except DamagedError:
        raise  # its message says how to repair the store
    except (InputError, OSError) as error:
        raise EmbeddingsUnavailableError(
            f"its embeddings are missing: {error} (if the store was moved, pass --store DIR)"
        ) from None


def vectors_of(column: pa.ChunkedArray) -> Floats:
    """A column of embeddings as a matrix."""
    array = column.combine_chunks()
    array = pa.concat_arrays(array.chunks) if isinstance(array, pa.ChunkedArray) else array
    flat = array.flatten().to_numpy(zero_copy_only=False)
    return np.asarray(flat.reshape(len(array), -1))


@dataclass(frozen=True, eq=False)
class ImagePair:
    """The images of two runs: those that both have, or all of both where they share none."""

    runs: tuple[RunImages, RunImages]
    paired: bool
    left_out: int = 0  # images that only one of the runs has

    def __len__(self) -> int:
        return len(self.runs[0].images)


def pair_images(
    before: Run, after: Run, convention: Convention, *, store: str | Path | None = None
) -> ImagePair:
    """Images of both runs; raises `EmbeddingsUnavailableError` where a run kept none."""
    loaded = []
    for name, run in (("before", before), ("after", after)):
        try:
            loaded.append(_load_images(run, store))
        except EmbeddingsUnavailableError as error:
            raise EmbeddingsUnavailableError(f"the run {name}: {error}") from None
    rows = shared_rows(loaded[0][0], loaded[1][0])
    paired = len(rows[0]) > 1
    if not paired:
        rows = np.arange(len(loaded[0][0])), np.arange(len(loaded[1][0]))
    attributes = [name for name in loaded[0][1] if name in loaded[1][1]]
    sides = []
    for (_, labels, images), selected in zip(loaded, rows, strict=True):
        scaled = matrix(images[selected], "images", "images", "dimensions")
        scaled = scaled if convention.images == "raw" else unit(scaled, "images")
        groups = {
            name: Groups.from_labels([labels[name][row] for row in selected], attribute=name)
            for name in attributes
        }
        sides.append(RunImages(np.asarray(scaled), groups))
    if paired:
        for name in attributes:
            both = [[side[1][name][row] for row in selected]
                    for side, selected in zip(loaded, rows, strict=True)]  # fmt: skip
            _check_labels(name, both[0], both[1], [loaded[0][0][row] for row in rows[0]])
    left = sum(len(one[0]) for one in loaded) - 2 * len(rows[0]) if paired else 0
    return ImagePair((sides[0], sides[1]), paired, left)


@dataclass(frozen=True, eq=False)
class PairedRuns:
    """Two models on the same images and texts."""

    prompts: list[Prompt]
    groups: dict[str, Groups]
    texts: tuple[Floats, Floats]
    images: tuple[Floats, Floats]

    def __len__(self) -> int:
        return len(self.images[0])

    def scores(self, part: slice) -> tuple[Floats, Floats]:
        """Scores of a range of prompts by both models, prompts x images."""
        first, second = (
            np.asarray(texts[part] @ images.T)
            for texts, images in zip(self.texts, self.images, strict=True)
        )
        return first, second


def pair_texts(before: Run, after: Run, images: ImagePair) -> PairedRuns:
    """Images and texts that both runs ranked; raises `EmbeddingsUnavailableError` if none."""
    if not images.paired:
        raise EmbeddingsUnavailableError("the two runs share no images")
    loaded = []
    for name, run in (("before", before), ("after", after)):
        try:
            loaded.append(_load_texts(run))
        except EmbeddingsUnavailableError as error:
            raise EmbeddingsUnavailableError(f"the run {name}: {error}") from None
    (prompts, _), (others, _) = loaded
    rows = shared_rows([(p.text, p.concept, p.category) for p in prompts],
                       [(p.text, p.concept, p.category) for p in others])  # fmt: skip
    if not len(rows[0]):
        raise EmbeddingsUnavailableError("the two runs share no words")
    rows = group_by_word(prompts, *rows)
    first, second = (np.asarray(unit(one[1][selected], "texts"))
                     for one, selected in zip(loaded, rows, strict=True))  # fmt: skip
    sides = images.runs
    return PairedRuns(
        [prompts[row] for row in rows[0]],
        sides[0].groups,
        (first, second),
        (sides[0].images, sides[1].images),
    )


def shared_rows(first: Sequence[Any], second: Sequence[Any]) -> tuple[Ints, Ints]:
    """Rows of the shared entries in both lists, in the order of the first."""
    row_of = {entry: row for row, entry in enumerate(second)}
    rows = [(row, row_of[entry]) for row, entry in enumerate(first) if entry in row_of]
    both = np.array(rows, dtype=np.int64).reshape(-1, 2)
    return both[:, 0], both[:, 1]


def group_by_word(
    prompts: Sequence[Prompt], first_rows: Ints, second_rows: Ints
) -> tuple[Ints, Ints]:
    """The same rows, with those of a word next to each other."""
    word_number: dict[tuple[str, str, str], int] = {}
    for row in first_rows:
        prompt = prompts[row]
        word_number.setdefault((prompt.concept, prompt.category, prompt.pos), len(word_number))
    key = [
        word_number[prompts[row].concept, prompts[row].category, prompts[row].pos]
        for row in first_rows
    ]
    order = np.argsort(np.array(key, dtype=np.int64), kind="stable")
    return first_rows[order], second_rows[order]


def _check_labels(
    name: str, first_labels: list[str], second_labels: list[str], ids: list[str]
) -> None:
    differ = [
        row for row, (a, b) in enumerate(zip(first_labels, second_labels, strict=True)) if a != b
    ]
    if differ:
        row = differ[0]
        raise InputError(
            f"{len(differ):,} images have different labels of {name!r} in the two runs "
            f"({ids[row]}: {first_labels[row]}, {second_labels[row]}): audit both with the same "
            "labels"
        )
