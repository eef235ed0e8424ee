"""Files of regions in the layouts of the releases, written as their scripts write them."""

from __future__ import annotations

import base64
import csv
from pathlib import Path

import numpy as np

SIZE = (640, 480)  # width and height of every image, in pixels


def _packed(array: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(array)).decode()


def write_lxmert(path: Path, ids: list[str], features: np.ndarray, boxes: np.ndarray) -> Path:
    """LXMERT's extract_nlvr2_image.py: ten columns; boxes come as shares, and are written in
    pixels."""
    width, height = SIZE
    pixels = (boxes * np.array([width, height] * 2)).astype(np.float32)
    with path.open("w", newline="") as file:
        writer = csv.writer(file, delimiter="\t")
        for name, row, box in zip(ids, features, pixels, strict=True):
            objects, sure = np.zeros(len(row), np.int64), np.ones(len(row), np.float32)
            labels = [_packed(objects), _packed(sure)] * 2
            cells = [name, height, width, *labels, len(row), _packed(box), _packed(row)]
            writer.writerow(cells)
    return path


def write_bottom_up(path: Path, ids: list[str], features: np.ndarray, boxes: np.ndarray) -> Path:
    """bottom-up-attention's generate_tsv.py: six columns, the width before the height."""
    pixels = (boxes * np.array([*SIZE, *SIZE])).astype(np.float32)
    with path.open("w", newline="") as file:
        writer = csv.writer(file, delimiter="\t")
        for name, row, box in zip(ids, features, pixels, strict=True):
            writer.writerow([name, *SIZE, len(row), _packed(box), _packed(row)])
    return path


def write_directory(path: Path, ids: list[str], features: np.ndarray) -> Path:
    """VisualBERT's detectron_fix_100: an array for each image, without boxes."""
    path.mkdir()
    for name, row in zip(ids, features, strict=True):
        np.save(path / f"{name}.npy", row)
    return path
