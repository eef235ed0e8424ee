"""Small collections in shards, of every layout that workers open, and the same in one piece."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.conftest import brought_embeddings
from tiltmeter.io.tables import read_table
from tiltmeter.models import load_model

#: Added to the model of `test_embedding`: texts, so that it can be audited.
SPEAKS = """
    def encode_texts(self, texts):
        return np.stack([np.resize([1.0, len(text), text.count("a")], 27) for text in texts])
"""


def clip_retrieval(place: Path, sizes: tuple[int, ...] = (700, 1, 900, 399), **made: Any) -> Path:
    """Embeddings in half precision with their metadata, in shards of the given sizes."""
    whole = brought_embeddings(place / "whole", images=sum(sizes), **made)
    vectors = np.load(whole / "images.npy").astype(np.float16)
    labels = read_table(whole / "images.csv")
    for folder in ("img_emb", "metadata"):
        (place / folder).mkdir()
    start = 0
    for number, size in enumerate(sizes):
        np.save(place / "img_emb" / f"img_emb_{number}.npy", vectors[start : start + size])
        table = labels.slice(start, size)
        captions = pa.array([f"caption {row}" for row in range(start, start + size)])
        pq.write_table(
            table.append_column("caption", captions),
            place / "metadata" / f"metadata_{number}.parquet",
        )
        start += size
    for name in ("texts.npy", "texts.csv"):
        shutil.copy(whole / name, place / name)
    shutil.rmtree(whole)
    return place


def scaled_model(place: Path) -> Any:
    """The texts of a collection as a model that states its scale, so that lift has a unit."""
    model: Any = load_model(f"embeddings:{place}")
    model.logit_scale = 20.0
    return model


class Letters:
    """Texts of any words: the sum of a fixed direction for each letter, so that classes differ."""

    name, logit_scale = "letters", 20.0

    def encode_texts(self, texts: Any) -> np.ndarray:
        directions = np.random.default_rng(5).normal(size=(128, 16))
        return np.stack([directions[[ord(c) % 128 for c in text]].sum(axis=0) for text in texts])
