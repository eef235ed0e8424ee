"""What a run ranked, kept so that its scores can be computed again; and two runs paired by it.

The files are those of `tiltmeter.probes.ranking.stored`; `run.json` says which shards of which
store.
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
from tiltmeter.store import EmbeddingSpace
from tiltmeter.types import Floats, Groups, Ints, Prompt


class EmbeddingsUnavailableError(Exception):
    """Why scores cannot be computed again."""


@dataclass(frozen=True, eq=False)
class RunScores:
    """Texts and images of one run, ready to be scored."""

    prompts: list[Prompt]
    texts: Floats
    ids: list[str]
    labels: dict[str, list[str]]
    images: Floats


def seen(run: Run, *, store: str | Path | None = None) -> RunScores:
    """What a run ranked; GoneError says why that is not known any more."""
    if not {"texts", "faces"} <= set(run.vectors):
        given = run.meta.get("arguments", {}).get("given", {})
        if given.get("keep_vectors") is False:
            raise EmbeddingsUnavailableError("it keeps no vectors: it was made with --no-vectors")
        raise EmbeddingsUnavailableError(
            "it keeps no vectors: it was made without the probe ranking, or long ago"
        )
    said, faces = run.vectors["texts"], run.vectors["faces"]
    columns = {name: said[name].to_pylist() for name in PROMPT}
    prompts = [Prompt(**dict(zip(columns, row, strict=True)))
               for row in zip(*columns.values(), strict=True)]  # fmt: skip
    if "vector" in faces.column_names:
        images = _array(faces["vector"])
    elif "item" in faces.column_names:
        images = _stored(run, faces["item"].to_pylist(), store)
    else:
        size = MOST_KEPT // 2**20
        raise EmbeddingsUnavailableError(
            f"its vectors take more than {size} MB and no store has them (--store)"
        )
    labels = {
        name.removeprefix(LABEL): faces[name].to_pylist()
        for name in faces.column_names
        if name.startswith(LABEL)
    }
    return RunScores(prompts, _array(said["vector"]), faces["id"].to_pylist(), labels, images)


def _stored(run: Run, items: list[str], store: str | Path | None) -> Floats:
    told = run.meta.get("data", {}).get("faces", {}).get("vectors", {})
    root = Path(store or run.meta.get("environment", {}).get("store", ""))
    place = root / str(told.get("space", "?"))
    try:
        return EmbeddingSpace(place).vectors(items)
    except DamagedError:
        raise  # not gone: the message says how to make them again
    except (InputError, OSError) as error:
        raise EmbeddingsUnavailableError(f"its vectors are gone: {error}") from None


def _array(column: pa.ChunkedArray) -> Floats:
    whole = column.combine_chunks()
    whole = pa.concat_arrays(whole.chunks) if isinstance(whole, pa.ChunkedArray) else whole
    flat = whole.flatten().to_numpy(zero_copy_only=False)
    return np.asarray(flat.reshape(len(whole), -1))


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
        """Scores of some of the prompts by either model, prompts x images."""
        first, second = (
            np.asarray(texts[part] @ images.T)
            for texts, images in zip(self.texts, self.images, strict=True)
        )
        return first, second


def pair(
    before: Run, after: Run, convention: Convention, *, store: str | Path | None = None
) -> PairedRuns:
    """The images and texts that both runs ranked; GoneError where there are none."""
    found = []
    for name, run in (("before", before), ("after", after)):
        try:
            found.append(seen(run, store=store))
        except EmbeddingsUnavailableError as error:
            raise EmbeddingsUnavailableError(f"the run {name}: {error}") from None
    first, second = found
    texts = _shared([(p.text, p.concept, p.category) for p in first.prompts],
                    [(p.text, p.concept, p.category) for p in second.prompts])  # fmt: skip
    texts = _word_by_word(first.prompts, *texts)
    rows = _shared(first.ids, second.ids)
    if not len(texts[0]) or len(rows[0]) < 2:
        what = "words" if not len(texts[0]) else "images"
        raise EmbeddingsUnavailableError(f"the two runs share no {what}")
    groups = {}
    for name in first.labels:
        if name in second.labels:
            mine, other = ([one.labels[name][row] for row in at]
                           for one, at in zip(found, rows, strict=True))  # fmt: skip
            _same_labels(name, mine, other, [first.ids[row] for row in rows[0]])
            groups[name] = Groups.from_labels(mine, attribute=name)
    raw = convention.images == "raw"
    images = tuple(
        matrix(one.images[at], "images", "images", "dimensions")
        if raw
        else unit(one.images[at], "images")
        for one, at in zip(found, rows, strict=True)
    )
    said = tuple(unit(one.texts[at], "texts") for one, at in zip(found, texts, strict=True))
    left = len(first.ids) + len(second.ids) - 2 * len(rows[0])
    prompts = [first.prompts[row] for row in texts[0]]
    return PairedRuns(prompts, groups, (said[0], said[1]), (images[0], images[1]), left)


def _shared(first: Sequence[Any], second: Sequence[Any]) -> tuple[Ints, Ints]:
    """Rows of the same thing in either list, in the order of the first."""
    where = {one: row for row, one in enumerate(second)}
    rows = [(row, where[one]) for row, one in enumerate(first) if one in where]
    at = np.array(rows, dtype=np.int64).reshape(-1, 2)
    return at[:, 0], at[:, 1]


def _word_by_word(prompts: Sequence[Prompt], mine: Ints, other: Ints) -> tuple[Ints, Ints]:
    """The same rows, those of a word one after the other."""
    turn: dict[tuple[str, str, str], int] = {}
    for row in mine:
        one = prompts[row]
        turn.setdefault((one.concept, one.category, one.pos), len(turn))
    key = [turn[prompts[row].concept, prompts[row].category, prompts[row].pos] for row in mine]
    order = np.argsort(np.array(key, dtype=np.int64), kind="stable")
    return mine[order], other[order]


def _same_labels(name: str, mine: list[str], other: list[str], ids: list[str]) -> None:
    differ = [row for row, (a, b) in enumerate(zip(mine, other, strict=True)) if a != b]
    if differ:
        row = differ[0]
        raise InputError(
            f"{len(differ):,} images have another label of {name!r} in one run than in the other "
            f"({ids[row]}: {mine[row]}, {other[row]}): audit both with the same labels"
        )
