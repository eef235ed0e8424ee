"""What a model is good for: classes and captions it knows, and those it does not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import tiltmeter as tm
from tiltmeter.datasets.roles import Captions
from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.io.image_files import ImageFiles
from tiltmeter.probes.retrieval import retrieval

COLOURS = {"red": (200, 20, 20), "green": (20, 200, 20), "blue": (20, 20, 200)}


class Painter:
    """Knows colours, by name and by sight; `blind` it knows nothing."""

    fingerprint = "painter"

    def __init__(self, *, blind: bool = False) -> None:
        self.name, self.blind = "painter", blind

    def encode_images(self, images) -> np.ndarray:
        seen = np.stack([np.asarray(image, float).mean(axis=(0, 1)) for image in images])
        return np.ones_like(seen) if self.blind else seen

    def encode_texts(self, texts) -> np.ndarray:
        known = [[200 if name in text else 20 for name in COLOURS] for text in texts]
        return np.ones((len(texts), 3)) if self.blind else np.array(known, float)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for name, colour in COLOURS.items():
        (tmp_path / name).mkdir()
        for at in range(10):
            noise = rng.integers(-20, 20, (8, 8, 3)) + np.array(colour)
            picture = Image.fromarray(np.clip(noise, 0, 255).astype(np.uint8))
            picture.save(tmp_path / name / f"{at}.png")
    return tmp_path


def captioned(folder: Path) -> Captions:
    """The first picture of each colour, with two captions each."""
    paths = tuple(folder / name / "0.png" for name in COLOURS)
    texts = tuple(f"{way} {name} thing" for name in COLOURS for way in ("a", "the"))
    return Captions(tuple(COLOURS), texts, np.repeat(np.arange(3), 2), ImageFiles(paths, folder))


def test_zero_shot(folder: Path) -> None:
    run = tm.audit(Painter(), data={"utility": f"imagefolder:{folder}"})
    [whole] = run.where(probe="zero_shot", target=None)
    assert (whole["value"], whole["n"], whole["null_mean"]) == (1.0, 30, pytest.approx(1 / 3))
    assert whole["ci_low"] < 0.9 < whole["ci_high"]
    assert [row["n"] for row in run.where(target="red")] == [10]
    assert {"ranking", "retrieval", "harms", "ieat"} <= set(run.meta["not_run"])
    assert not {"zero_shot", "eat"} & set(run.meta["not_run"])
    blind = tm.audit(Painter(blind=True), data={"utility": f"imagefolder:{folder}"})
    assert blind.where(target=None)[0]["value"] == pytest.approx(1 / 3)
    worse = tm.compare(run, blind).worse.to_pylist()
    assert worse[0]["target"] is None  # less accurate is worse


def test_retrieval_both_ways(folder: Path) -> None:
    run = tm.audit(Painter(), data={"captions": captioned(folder)}, probes=["retrieval"])
    for way, n in (("text to image", 6), ("image to text", 3)):
        [first] = run.where(experiment=way, k=1)
        assert (first["value"], first["n"]) == (1.0, n)
    assert run.where(experiment="text to image", k=1)[0]["null_mean"] == pytest.approx(1 / 3)
    # four of the six captions are wrong, so five drawn cannot all be
    assert run.where(experiment="image to text", k=5)[0]["null_mean"] == pytest.approx(1)


def test_intervals_cover_and_chance_is_met() -> None:
    """Random vectors recall what chance does, and the interval says so in nearly all data sets."""
    covered = []
    for seed in range(60):
        rng = np.random.default_rng(seed)

        class Random:
            name = "random"

            def encode_texts(self, texts, rng=rng) -> np.ndarray:
                return rng.normal(size=(len(texts), 16))

        table, _ = retrieval(
            Random(), ["text"] * 200, np.repeat(np.arange(100), 2), rng.normal(size=(100, 16)),
            dataset="random",
        )  # fmt: skip
        row = next(
            r for r in table.to_pylist() if r["k"] == 10 and r["experiment"] == "text to image"
        )
        covered.append(row["ci_low"] <= row["null_mean"] <= row["ci_high"])
    assert np.mean(covered) > 0.85


def test_unreadable_pictures_take_their_captions_along(folder: Path) -> None:
    data = captioned(folder)
    data.images.paths[1].write_bytes(b"")
    run = tm.audit(Painter(), data={"captions": data}, probes=["retrieval"])
    assert {row["n"] for row in run.table.to_pylist()} == {4, 2}


def test_what_is_asked_for_must_be_there(folder: Path) -> None:
    with pytest.raises(InputError, match="retrieval: needs data: --data captions=SPEC"):
        tm.audit(Painter(), data={"utility": f"imagefolder:{folder}"}, probes=["retrieval"])
    with pytest.raises(UnknownNameError, match="unknown data role 'caption'"):
        tm.audit(Painter(), data={"caption": "coco:x"})
    with pytest.raises(InputError, match="add --images SPEC"):
        tm.audit(Painter())
    with pytest.raises(InputError, match="utility"):
        tm.audit(Painter(), data={"utility": "testbed:lexicon"})
    with pytest.raises(InputError, match="needs a model that gives embeddings"):
        tm.audit("testbed:stream", probes=["ranking"])
