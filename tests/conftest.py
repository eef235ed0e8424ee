"""What tests share: random rankings, and directories of embeddings in the layout users bring."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable
from pathlib import Path

# One thread per process, set before NumPy and torch are loaded: `make test` has a worker for every
# core, and the threads of several workers spend half their time waiting for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest
from hypothesis import settings

settings.register_profile("tiltmeter", deadline=None, max_examples=150, derandomize=True)
settings.load_profile("tiltmeter")

ROOT = Path(__file__).parent.parent


def pytest_configure() -> None:
    if os.environ.get("PYTEST_XDIST_WORKER"):
        from tiltmeter.metrics.numpy_kernels import use_cores

        use_cores(1)


def write_csv(path: Path, rows: list[dict[str, object]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def brought_embeddings(
    place: Path, *, images: int = 240, words: int = 6, placebos: int = 45, lean: float = 1.5
) -> Path:
    """Vectors with labels; the first word leans to women by `lean`, the others nowhere."""
    rng = np.random.default_rng(0)
    gender = rng.permutation(np.arange(images) % 2)
    age = rng.integers(0, 3, images)
    vectors = rng.normal(size=(images, 16)).astype(np.float32)
    vectors[:, 0] += gender * lean
    texts = rng.normal(size=(words + placebos, 16)).astype(np.float32)
    texts[:, 0] = 0
    texts[0] = np.eye(16)[0] + 0.1 * texts[0]
    place.mkdir(parents=True, exist_ok=True)
    np.save(place / "images.npy", vectors)
    np.save(place / "texts.npy", texts)
    write_csv(
        place / "images.csv",
        [
            {
                "id": f"i{row}",
                "gender": ("man", "woman")[gender[row]],
                "age": ("young", "middle", "old")[age[row]],
            }
            for row in range(images)
        ],
    )
    write_csv(
        place / "texts.csv",
        [
            {
                "text": f"a photo of thing {row}",
                "concept": f"thing {row}",
                "template": "a photo of {}",
                "category": "things" if row < words // 2 else "others",
                "role": "word" if row < words else "placebo",
                "pos": "noun",
            }
            for row in range(words + placebos)
        ],
    )
    return place


@pytest.fixture
def embeddings(tmp_path: Path) -> Path:
    return brought_embeddings(tmp_path / "brought")


@pytest.fixture(scope="session")
def shared() -> Callable[[str], Path]:
    """Finds real test material, which never ships; where it is missing the test says so."""

    def find(name: str) -> Path:
        given = os.environ.get("TILTMETER_DATA")
        root = Path(given).parent if given else ROOT.parent / "shared"
        if not (root / name).exists():
            pytest.skip(f"needs {name}: set TILTMETER_DATA to the folder `data` beside it")
        return root / name

    return find
