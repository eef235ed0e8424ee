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
    if not {"texts", "faces"} <= set(run.vectors):
        options = run.meta.get("arguments", {}).get("given", {})
        if options.get("keep_vectors") is False:
            raise EmbeddingsUnavailableError("it has no embeddings: it was made with --no-vectors")
        raise EmbeddingsUnavailableError(
            "it has no embeddings: it was made without the probe ranking, or by an early release"
        )
    text_table, faces = run.vectors["texts"], run.vectors["faces"]
    columns = {name: text_table[name].to_pylist() for name in PROMPT}
    prompts = [Prompt(**dict(zip(columns, row, strict=True)))
               for row in zip(*columns.values(), strict=True)]  # fmt: skip
    if "vector" in faces.column_names:
        images = _array(faces["vector"])
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
    return RunEmbeddings(
        prompts, _array(text_table["vector"]), faces["id"].to_pylist(), labels, images
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
        raise EmbeddingsUnavailableError(f"its embeddings are missing: {error}") from None


def _array(column: pa.ChunkedArray) -> Floats:
    array = column.combine_chunks()
    array = pa.concat_arrays(array.chunks) if isinstance(array, pa.ChunkedArray) else array
    flat = array.flatten().to_numpy(zero_copy_only=False)
    return np.asarray(flat.reshape(len(array), -1))


@dataclass(frozen=True, eq=False)
class PairedRuns:
    """Two models on the same images and texts."""

    prompts: list[Prompt]
    groups: dict[str, Groups]
    texts: tuple[Floats, Floats]
    images: tuple[Floats, Floats]
    left_out: int = 0  # images that only one of the runs has

    def __len__(self) -> int:
        return len(self.images[0])

    def scores(self, part: slice) -> tuple[Floats, Floats]:
        """Scores of a range of prompts by both models, prompts x images."""
        first, second = (
            np.asarray(texts[part] @ images.T)
            for texts, images in zip(self.texts, self.images, strict=True)
        )
        return first, second


def pair(
    before: Run, after: Run, convention: Convention, *, store: str | Path | None = None
) -> PairedRuns:
    """Images and texts that both runs ranked; raises `EmbeddingsUnavailableError` if none."""
    runs = []
    for name, run in (("before", before), ("after", after)):
        try:
            runs.append(load_run_embeddings(run, store=store))
        except EmbeddingsUnavailableError as error:
            raise EmbeddingsUnavailableError(f"the run {name}: {error}") from None
    first, second = runs
    texts = _shared([(p.text, p.concept, p.category) for p in first.prompts],
                    [(p.text, p.concept, p.category) for p in second.prompts])  # fmt: skip
    texts = _group_by_word(first.prompts, *texts)
    rows = _shared(first.ids, second.ids)
    if not len(texts[0]) or len(rows[0]) < 2:
        missing = "words" if not len(texts[0]) else "images"
        raise EmbeddingsUnavailableError(f"the two runs share no {missing}")
    groups = {}
    for name in first.labels:
        if name in second.labels:
            first_labels, second_labels = ([scores.labels[name][row] for row in selected]
                           for scores, selected in zip(runs, rows, strict=True))  # fmt: skip
            _check_labels(name, first_labels, second_labels, [first.ids[row] for row in rows[0]])
            groups[name] = Groups.from_labels(first_labels, attribute=name)
    raw = convention.images == "raw"
    images = tuple(
        matrix(scores.images[selected], "images", "images", "dimensions")
        if raw
        else unit(scores.images[selected], "images")
        for scores, selected in zip(runs, rows, strict=True)
    )
    text_vectors = tuple(
        unit(scores.texts[selected], "texts") for scores, selected in zip(runs, texts, strict=True)
    )
    left = len(first.ids) + len(second.ids) - 2 * len(rows[0])
    prompts = [first.prompts[row] for row in texts[0]]
    return PairedRuns(
        prompts, groups, (text_vectors[0], text_vectors[1]), (images[0], images[1]), left
    )


def _shared(first: Sequence[Any], second: Sequence[Any]) -> tuple[Ints, Ints]:
    """Rows of the shared entries in both lists, in the order of the first."""
    row_of = {entry: row for row, entry in enumerate(second)}
    rows = [(row, row_of[entry]) for row, entry in enumerate(first) if entry in row_of]
    both = np.array(rows, dtype=np.int64).reshape(-1, 2)
    return both[:, 0], both[:, 1]


def _group_by_word(
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
