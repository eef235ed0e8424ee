"""`cifar100:DIR`: CIFAR-100, the version for Python: the pickles train, test and meta.

A pickle can run any code; these are read by a reader that only creates arrays and plain data.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tiltmeter.datasets.found_images import group_counts
from tiltmeter.datasets.options import choice
from tiltmeter.datasets.reading import read_pickle
from tiltmeter.datasets.roles import Utility
from tiltmeter.errors import InputError
from tiltmeter.io.image_files import GeneratedImages
from tiltmeter.io.specs import Spec
from tiltmeter.io.tables import Columns
from tiltmeter.results import file_hash
from tiltmeter.types import Groups

SIDE = 32


def load(spec: Spec, columns: Columns) -> Utility:
    """Utility: CIFAR-100, version for Python (cs.toronto.edu/~kriz/cifar.html; no terms stated).

    `?split=test` (or train), `?labels=fine` (100 classes; or coarse, 20).
    """
    del columns  # no groups
    spec.check_options("split", "labels")
    split = choice(spec, "split", ("test", "train"))
    kind = choice(spec, "labels", ("fine", "coarse"))
    directory = spec.directory()
    if (directory / "cifar-100-python").is_dir():
        directory = directory / "cifar-100-python"
    batch, meta = _read(directory / split), _read(directory / "meta")
    pixels: Any = batch.get("data")
    codes: Any = batch.get(f"{kind}_labels")
    names: Any = meta.get(f"{kind}_label_names")
    if not (isinstance(pixels, np.ndarray) and pixels.dtype == np.uint8 and pixels.ndim == 2):
        raise _not_cifar(directory / split, "it has no `data` of bytes, one row per image")
    if pixels.shape[1] != 3 * SIDE * SIDE or not _fits(codes, len(pixels)) or not _texts(names):
        raise _not_cifar(directory / split, "its sizes or labels, or those of meta, differ")
    images = pixels.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)
    classes = Groups(np.array(codes), tuple(name.replace("_", " ") for name in names), "class")
    found = {"rows": len(pixels), "groups": group_counts([classes])}
    return Utility(
        ids=tuple(f"{split}/{row}" for row in range(len(pixels))),
        classes=classes,
        images=GeneratedImages(partial(_image, images), range(len(pixels))),
        name=f"cifar100-{split}",
        provenance={"pixels": file_hash(directory / split), "labels": kind, "found": found},
    )


def _not_cifar(path: Path, why: str) -> InputError:
    return InputError(
        f"{path} does not have the layout of CIFAR-100: {why}", code="bad-file", value=str(path)
    )


def _read(path: Path) -> dict[str, Any]:
    content = read_pickle(path)
    if not isinstance(content, dict):
        raise _not_cifar(path, "it has no dictionary")
    return {key.decode() if isinstance(key, bytes) else str(key): v for key, v in content.items()}


def _fits(codes: Any, count: int) -> bool:
    return (
        isinstance(codes, list) and len(codes) == count and all(type(code) is int for code in codes)
    )


def _texts(names: Any) -> bool:
    return isinstance(names, list) and all(isinstance(name, str) for name in names)


def _image(images: np.ndarray, row: int) -> Any:
    from PIL import Image

    return Image.fromarray(np.ascontiguousarray(images[row]))
