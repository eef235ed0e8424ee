"""Write a directory of embeddings with bias of known size, in the layout that tiltmeter reads.

    python examples/planted_embeddings.py planted
    tiltmeter audit embeddings:planted --cross 'shape*hue'

It shows no people: its images are shapes with a hue. Supply your own embeddings in
the same four files.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np

IMAGES, DIMENSIONS, PLACEBOS, SEED = 3000, 64, 120, 0
SHAPES = ("round", "square")
HUES = ("red", "green", "blue", "grey")
#: How much higher a word scores with a shape or hue, in standard deviations of its scores.
PLANTED = {
    "anvil": {"round": 0.6},
    "feather": {"square": 0.6},
    "harvest": {"red": 0.5},
    "tide": {"blue": 0.8},
    "quarry": {"grey": 0.5, "square": 0.3},
    "market": {},
    "bridge": {},
    "signal": {},
}


def unit(x: np.ndarray) -> np.ndarray:
    """Rows of length 1."""
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def write_table(path: Path, rows: list[dict[str, object]]) -> None:
    """Write a CSV with a header."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def make(directory: Path) -> None:
    """Write images.npy, images.csv, texts.npy and texts.csv."""
    rng = np.random.default_rng(SEED)
    shape = rng.choice(len(SHAPES), IMAGES, p=(0.55, 0.45))
    hue = rng.choice(len(HUES), IMAGES, p=(0.4, 0.3, 0.2, 0.1))
    # the first dimensions encode shape and hue; the rest is everything else about an image
    named = dict(zip((*SHAPES, *HUES), np.eye(DIMENSIONS), strict=False))
    images = rng.normal(size=(IMAGES, DIMENSIONS)) / 2
    images += np.stack([named[SHAPES[s]] + named[HUES[h]] for s, h in zip(shape, hue, strict=True)])
    # a neutral word has small associations by chance, as real words do; a planted word has
    # those that were planted and no others
    concepts = [*PLANTED, *(f"placebo-{i:03d}" for i in range(PLACEBOS))]
    texts = rng.normal(size=(len(concepts), DIMENSIONS)) * np.where(
        np.arange(DIMENSIONS) < len(named), 0.15, 1.0
    )
    texts[: len(PLANTED), : len(named)] = 0
    for row, planted in enumerate(PLANTED.values()):
        for name, strength in planted.items():
            texts[row] += strength * np.linalg.norm(texts[row]) / 2 * named[name]
    directory.mkdir(parents=True, exist_ok=True)
    np.save(directory / "images.npy", unit(images).astype(np.float32))
    np.save(directory / "texts.npy", unit(texts).astype(np.float32))
    write_table(
        directory / "images.csv",
        [
            {"id": f"figure-{i:05d}", "shape": SHAPES[s], "hue": HUES[h]}
            for i, (s, h) in enumerate(zip(shape, hue, strict=True))
        ],
    )
    template = "a picture of a {}"
    write_table(
        directory / "texts.csv",
        [
            {
                "text": template.format(concept),
                "concept": concept,
                "template": template,
                "category": "" if concept.startswith("placebo") else "planted",
                "role": "placebo" if concept.startswith("placebo") else "word",
                "pos": "noun",
            }
            for concept in concepts
        ],
    )


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    make(Path(sys.argv[1]))
    print(f"Wrote {IMAGES} image embeddings and {len(PLANTED)} planted words to {sys.argv[1]}.")
