"""Runs for the tests of the page, made by the real audit, small."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

import tiltmeter as tm
from tests.conftest import write_csv
from tiltmeter.results import Run, combined, rows
from tiltmeter.types import WrittenText

#: Labels as the world writes them, and worse.
HOSTILE = (
    "<script>document.title='owned'</script>",
    "\"><img src=x onerror=alert(1)>' & {{7*7}} {% raw %}",
    '=HYPERLINK("http://example.invalid","x") | **bold** `code` [a](b)',
    "שלום \u202eעולם مرحبا 👩🏽‍🚀 \x00\x1b[31m",
    "long " + "x" * 10_000,
    "url(#clip0) var(--ink) </svg></desc><b>",
)


def hostile_embeddings(place: Path, *, images: int = 240, lean: float = 2.0) -> Path:
    """Vectors whose groups, words, categories and file names are HOSTILE."""
    rng = np.random.default_rng(0)
    group, other = rng.integers(0, 3, images), rng.integers(0, 2, images)
    vectors = rng.normal(size=(images, 12)).astype(np.float32)
    vectors[:, 0] += lean * (group == 0)
    texts = rng.normal(size=(len(HOSTILE) + 45, 12)).astype(np.float32)
    texts[0] = np.eye(12)[0]
    place.mkdir(parents=True, exist_ok=True)
    np.save(place / "images.npy", vectors)
    np.save(place / "texts.npy", texts)
    write_csv(
        place / "images.csv",
        [
            {"id": f"{HOSTILE[at % 3]}/{at}.png", "group": _cell(HOSTILE[group[at]]),
             "<b>other": _cell(HOSTILE[3 + other[at]])}
            for at in range(images)
        ],
    )  # fmt: skip
    write_csv(
        place / "texts.csv",
        [
            {
                "text": f"a photo of {at}", "template": "a photo of {}",
                "concept": _cell(HOSTILE[at]) if at < len(HOSTILE) else f"thing {at}",
                "category": _cell(HOSTILE[at % 2]) if at < len(HOSTILE) else "other",
                "role": "word" if at < len(HOSTILE) else "placebo", "pos": "noun",
            }
            for at in range(len(HOSTILE) + 45)
        ],
    )  # fmt: skip
    csv.field_size_limit(1 << 20)
    return place


def _cell(label: str) -> str:
    """A CSV file holds no NUL; the other signs stay."""
    return label.replace("\x00", "")


def hostile_run(place: Path, *, lean: float = 2.0) -> Run:
    """An audit of them."""
    return tm.audit(
        f"embeddings:{hostile_embeddings(place, lean=lean)}",
        k=[20],
        cross=["group*<b>other"],
        permutations=99,
        bootstraps=40,
        probes=["ranking"],
    )


class HostileWriter:
    """A generative model that writes HOSTILE texts, as refusals of some images and as answers."""

    name = HOSTILE[0]

    def write(self, images: Any | None, prompt: str, **options: Any) -> list[list[WrittenText]]:
        count = 1 if images is None else len(images)
        texts = [f"{'sorry ' * (at % 3 == 0)}{HOSTILE[at % len(HOSTILE)]} a nurse"
                 for at in range(count)]  # fmt: skip
        return [[WrittenText(text, "stop", 3)] for text in texts]


def hostile_answers(place: Path) -> Run:
    """An audit of what it writes about images of two groups with hostile names."""
    place.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(0).integers(0, 255, (60, 8, 8, 3), dtype=np.uint8)
    lines = [{"file": f"{at}.png", "<b>group": _cell(HOSTILE[at % 2])} for at in range(60)]
    for at, image in enumerate(pixels):
        Image.fromarray(image).save(place / f"{at}.png")
    write_csv(place / "labels.csv", lines)
    return tm.audit(
        HostileWriter(), f"table:{place / 'labels.csv'}?path=file",  # type: ignore[arg-type]
        permutations=99, bootstraps=40, probes=["silence", "description"],
    )  # fmt: skip


def relabelled(run: Run, column: str, names: dict[str, str]) -> Run:
    """The run with other names in one column."""
    at = run.table.schema.get_field_index(column)
    values = [names.get(one, one) for one in run.table[column].to_pylist()]
    table = run.table.set_column(at, run.table.schema.field(at), pa.array(values, pa.string()))
    return Run(table, run.meta, run.instances)


def lifted(
    attribute: str,
    groups: list[str],
    *,
    experiment: str = "concept",
    verdict: str = "clear",
    of: Sequence[str] = ("associated", "associated"),
    model: str = "m",
) -> pa.Table:
    """Rows of the probe lift: two words, how many are beyond neutral words, and the size."""
    same = {"probe": "lift", "model": model, "dataset": "d", "attribute": attribute,
            "experiment": experiment, "n": 400}  # fmt: skip
    words = [
        rows(len(groups), **same, metric="lift", concept=word, group=groups, ideal=0.0,
             value=[value] + [-value] * (len(groups) - 1), ci_low=value - 0.1, ci_high=value + 0.1,
             null_mean=0.0, null_low=math.log(0.6), null_high=math.log(1.7), n_group=200,
             verdict=[one, *[None] * (len(groups) - 1)])
        for word, value, one in zip(("nurse", "carpenter"), (0.2, math.log(0.36)), of, strict=True)
    ]  # fmt: skip
    beyond = rows(1, **same, metric="words_beyond", value=2.0, null_mean=0.1,
                  note="judged by 400 neutral words")  # fmt: skip
    size = rows(1, **same, metric="lift_size", value=0.4, ideal=0.0, ci_low=0.2, ci_high=0.6,
                null_mean=0.05, null_high=0.1, p=0.005, verdict=verdict)  # fmt: skip
    return combined([*words, beyond, size])
