"""Labelled classes: CIFAR-100, whose pickles are read with care, and folders."""

from __future__ import annotations

import os
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiltmeter as tm
from tests.datasets.making import photos, text
from tests.refusing import refused
from tiltmeter.datasets.reading import read_pickle
from tiltmeter.datasets.roles import Utility
from tiltmeter.errors import InputError

PIXELS = np.random.default_rng(0).integers(0, 256, (4, 3072), dtype=np.uint8)
BATCH = {"data": PIXELS, "fine_labels": [1, 0, 1, 2], "coarse_labels": [0, 1, 0, 0]}
META = {"fine_label_names": ["apple", "aquarium_fish", "bear"], "coarse_label_names": ["x", "y"]}


def dump(path: Path, content: object, protocol: int = 4) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    return path


def cifar(place: Path, batch: object = BATCH, meta: object = META) -> Path:
    dump(place / "test", batch)
    dump(place / "meta", meta)
    return place


@pytest.mark.parametrize("inside", ["", "cifar-100-python"])
def test_cifar100(tmp_path: Path, inside: str) -> None:
    cifar(tmp_path / inside)
    data = tm.load_data(f"cifar100:{tmp_path}")
    assert isinstance(data, Utility)
    assert data.classes.names == ("apple", "aquarium fish", "bear")
    assert data.classes.codes.tolist() == [1, 0, 1, 2]
    assert data.ids[0] == "test/0"
    assert np.array_equal(data.images[2], PIXELS[2].reshape(3, 32, 32).transpose(1, 2, 0))
    assert len(data.images[1:]) == 3
    assert tm.load_data(f"cifar100:{tmp_path}?labels=coarse").classes.names == ("x", "y")
    with refused("not-found", "train"):
        tm.load_data(f"cifar100:{tmp_path}?split=train")


def old_text(value: bytes) -> bytes:
    """A string as Python 2 pickled it."""
    return b"T" + struct.pack("<i", len(value)) + value


def test_cifar100_as_python_2_wrote_it(tmp_path: Path) -> None:
    """The release is of Python 2 and an old NumPy: byte strings, and numpy.core."""
    minus = b"J\xff\xff\xff\xff"
    kind = b"cnumpy\ndtype\n" + old_text(b"u1") + b"K\0K\x01\x87R"
    kind += b"(K\x03" + old_text(b"|") + b"NNN" + minus + minus + b"K\0tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\0\x85" + old_text(b"b")
    array += b"\x87R(K\x01K\x04M\x00\x0c\x86" + kind + b"\x89"
    array += old_text(PIXELS.tobytes()) + b"tb"
    labels = b"](K\x01K\0K\x01K\x02e"
    (tmp_path / "test").write_bytes(
        b"\x80\x02}(" + old_text(b"data") + array + old_text(b"fine_labels") + labels + b"u."
    )
    names = b"](" + b"".join(map(old_text, (b"apple", b"fish", b"bear"))) + b"e"
    (tmp_path / "meta").write_bytes(b"\x80\x02}(" + old_text(b"fine_label_names") + names + b"u.")
    data = tm.load_data(f"cifar100:{tmp_path}")
    assert data.classes.names == ("apple", "fish", "bear")
    assert np.array_equal(data.images[3], PIXELS[3].reshape(3, 32, 32).transpose(1, 2, 0))


class Malicious:
    def __init__(self, call: Any, *arguments: object) -> None:
        self.call, self.arguments = call, arguments

    def __reduce__(self) -> tuple[Any, tuple[object, ...]]:
        return self.call, self.arguments


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_malicious_pickle_does_nothing(tmp_path: Path, protocol: int) -> None:
    trace = tmp_path / "trace"
    for call, arguments in (
        (os.system, (f"touch {trace}",)),
        (eval, (f"open({str(trace)!r}, 'w')",)),
        (Path.touch, (trace,)),
        (np.save, (str(trace), 1)),
        (getattr, ("text", "upper")),
    ):
        spoilt = dump(tmp_path / "p", {"data": Malicious(call, *arguments)}, protocol)
        with refused("bad-file", "refused"):
            read_pickle(spoilt)
    cifar(tmp_path, {**BATCH, "data": Malicious(os.system, f"touch {trace}")})
    with refused("bad-file", "refused"):
        tm.load_data(f"cifar100:{tmp_path}")
    assert not list(tmp_path.glob("trace*"))
    pickle.loads(pickle.dumps(Malicious(Path.touch, trace)))  # it would have
    assert trace.exists()


@pytest.mark.parametrize(
    "array",
    [np.array([os.system], object), np.array(["text"]), np.zeros(2, "V8"), np.zeros(2, "M8[s]")],
    ids=["objects", "text", "void", "dates"],
)
def test_arrays_of_anything_but_numbers_are_refused(tmp_path: Path, array: np.ndarray) -> None:
    with refused("bad-file", "refused"):
        read_pickle(dump(tmp_path / "p", {"data": array}))


@pytest.mark.parametrize("protocol", [3, 4])
@pytest.mark.parametrize("kind", ["uint8", "<i8", ">i4", "float32", "bool"])
def test_arrays_of_numbers_come_as_they_are(tmp_path: Path, kind: str, protocol: int) -> None:
    array = np.arange(12).reshape(3, 4).astype(kind)
    for one in (array, np.asfortranarray(array)):
        content = read_pickle(dump(tmp_path / "p", {"data": one, "n": [1, b"x"]}, protocol))
        assert np.array_equal(content["data"], array)
        assert content["data"].dtype == array.dtype
        assert content["n"] == [1, b"x"]


@pytest.mark.parametrize(
    "content", [b"", b"no pickle", b"\x80\x04\x95", b"}(I1\ncnumpy\nndarray\n)Ru."]
)
def test_a_spoilt_pickle(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "p").write_bytes(content)
    with refused("bad-file"):
        read_pickle(tmp_path / "p")


@pytest.mark.parametrize(
    "batch",
    [
        [],
        {**BATCH, "data": PIXELS.astype(float)},
        {**BATCH, "data": PIXELS[:, :100]},
        {**BATCH, "data": "pixels"},
        {**BATCH, "fine_labels": [0, 1]},
        {**BATCH, "fine_labels": ["a"] * 4},
        {**BATCH, "fine_labels": [0, 0, 0, 7]},
    ],
)
def test_a_pickle_of_something_else(tmp_path: Path, batch: object) -> None:
    cifar(tmp_path, batch)
    with pytest.raises(InputError):
        tm.load_data(f"cifar100:{tmp_path}")


def test_imagefolder(tmp_path: Path) -> None:
    photos(tmp_path / "val", "n01/a.jpeg", "n01/b.JPEG", "n02/a.jpeg", "stray.jpeg")
    data = tm.load_data(f"imagefolder:{tmp_path}?split=val")
    assert (data.classes.names, data.classes.codes.tolist()) == (("n01", "n02"), [0, 0, 1])
    assert data.provenance["found"]["malformed"]["first"] == ["stray.jpeg"]
    assert data.name == f"{tmp_path.name}-val"  # imagenet-val, not val
    names = text(tmp_path / "names.txt", "n01 tench, Tinca tinca", "n02 goldfish, Carassius")
    named = tm.load_data(f"imagefolder:{tmp_path}?split=val&names={names}")
    assert named.classes.names == ("goldfish", "tench")
    names = text(tmp_path / "names.txt", "n01 crane, bird", "n02 crane")
    named = tm.load_data(f"imagefolder:{tmp_path}?split=val&names={names}")
    assert named.classes.names == ("crane", "crane (n02)")
    names = text(tmp_path / "names.txt", "n01 tench")
    with refused("bad-file", "n02"):
        tm.load_data(f"imagefolder:{tmp_path}?split=val&names={names}")
    for split in ("test", "../val"):
        with refused("not-found"):
            tm.load_data(f"imagefolder:{tmp_path}?split={split}")
