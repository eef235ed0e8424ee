"""Files of regions: the layouts of the releases give the same regions; broken ones are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.io.region_layouts import write_bottom_up, write_directory, write_lxmert
from tests.refusing import refused
from tiltmeter.io.region_files import read_regions
from tiltmeter.io.regions import Regions

IDS = ["1", "2", "7"]


def made(count: int = 3, dimensions: int = 12) -> tuple[np.ndarray, np.ndarray]:
    """Features as a detector has them, none below 0, and boxes."""
    rng = np.random.default_rng(0)
    features = rng.exponential(size=(count, 5, dimensions)).astype(np.float32)
    corner, size = rng.uniform(0, 0.5, (2, count, 5, 2))
    return features, np.concatenate([corner, corner + size], axis=-1).astype(np.float32)


@pytest.mark.parametrize("layout", ["lxmert", "bottom-up", "directory", "npz", "parquet"])
def test_every_layout_gives_the_same(layout: str, tmp_path: Path) -> None:
    features, boxes = made(4)
    ids = [*IDS, "white"]
    path = tmp_path / "regions"
    if layout == "lxmert":
        path = write_lxmert(path.with_suffix(".tsv"), ids, features, boxes)
    elif layout == "bottom-up":
        path = write_bottom_up(path.with_suffix(".tsv"), ids, features, boxes)
    elif layout == "directory":
        path = write_directory(path, ids, features)
    elif layout == "npz":
        path = path.with_suffix(".npz")
        np.savez(path, features=features, boxes=boxes, ids=ids)
    else:
        path = path.with_suffix(".parquet")
        columns = {"id": ids, "features": features.tolist(), "boxes": boxes.tolist()}
        pq.write_table(pa.table(columns), path)
    found = read_regions(path)
    assert sorted(found.ids) == IDS
    found = found.of(IDS)
    assert np.allclose(found.features, features[:3])
    if layout == "directory":
        assert found.boxes is None
    else:
        assert np.allclose(found.boxes, boxes[:3], atol=1e-6)
    assert found.white is not None
    assert np.allclose(found.select([0]).white_image().features, features[3:])


def test_a_stand_in_for_the_white_image(tmp_path: Path) -> None:
    """Without one in the file: no features, in boxes of the whole image."""
    features, boxes = made()
    found = read_regions(write_lxmert(tmp_path / "r.tsv", IDS, features, boxes))
    white = found.white_image()
    assert white.features.shape == (1, *features.shape[1:])
    assert not white.features.any()
    assert white.boxes[0].tolist() == [[0, 0, 1, 1]] * 5
    assert Regions(features).white_image().boxes is None


def test_rows_are_selected_as_in_an_array() -> None:
    features, boxes = made()
    regions = Regions(features, boxes, tuple(IDS))
    assert regions[np.array([2, 0])].ids == regions.of(["7", "1"]).ids == ("7", "1")
    assert regions[np.array([False, True, False])].ids == regions[1].ids == ("2",)
    assert regions[-1].ids == regions[2:].ids == ("7",)
    with pytest.raises(IndexError):
        regions[3]


def test_rounding_beyond_the_edge_is_cut(tmp_path: Path) -> None:
    features, boxes = made()
    boxes[0, 0] = [-0.0005, 0, 1, 1.0005]
    found = read_regions(write_lxmert(tmp_path / "r.tsv", IDS, features, boxes))
    assert found.boxes[0, 0].tolist() == [0, 0, 1, 1]


def test_broken_files(tmp_path: Path) -> None:
    features, boxes = made()
    good = write_lxmert(tmp_path / "good.tsv", IDS, features, boxes)
    lines = good.read_text().splitlines()
    cells = lines[1].split("\t")

    def tsv(line: list[str]) -> Path:
        path = tmp_path / "broken.tsv"
        path.write_text("\n".join([lines[0], "\t".join(line), lines[2]]) + "\n")
        return path

    with refused("bad-file", "line 2 has 9 columns", "10", "6"):
        read_regions(tsv(cells[:-1]))
    with refused("bad-file", "line 2 (2)"):
        read_regions(tsv([*cells[:-1], cells[-1][:-9]]))  # cut off
    with refused("bad-file", "line 2 (2)", "64 x 480 pixels"):
        read_regions(tsv([cells[0], cells[1], "64", *cells[3:]]))  # another size of image
    other = write_lxmert(tmp_path / "other.tsv", ["2"], features[1:2, :4], boxes[1:2, :4])
    with refused("bad-file", "4 x 12, 5 x 12", "MIN_BOXES"):
        read_regions(tsv(other.read_text().splitlines()[0].split("\t")))
    folder = write_directory(tmp_path / "folder", IDS, features)
    np.save(folder / "7.npy", features[0, 0])
    with refused("bad-file", "7.npy is 12", "regions x d"):
        read_regions(folder)
    (folder / "7.npy").write_bytes(b"no array")
    with refused("bad-file", "7.npy"):
        read_regions(folder)
    (tmp_path / "none").mkdir()
    with refused("bad-file", "no regions"):
        read_regions(tmp_path / "none")
    with refused("not-found", "none.tsv"):
        read_regions(tmp_path / "none.tsv")
    with refused("bad-file", "expected .tsv, .npz"):
        read_regions(Path(__file__))
