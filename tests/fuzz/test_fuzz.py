"""Damaged input for every reader: the right result, or one of our own errors."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz.readers import HOSTILE, READERS, SPECS
from tiltmeter.datasets import load_data
from tiltmeter.errors import TiltmeterError
from tiltmeter.models import load_model

FEW, MANY = 12, 300


def damaged(data: bytes, rng: random.Random) -> bytes:
    """One kind of damage: a bit, some bytes, a cut, a part twice, or a part gone."""
    if not data:
        return b"\0"
    at, kind = rng.randrange(len(data)), rng.randrange(6)
    length = rng.randrange(1, 9)
    if kind == 0:
        return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]
    if kind == 1:
        return data[:at] + rng.randbytes(length) + data[at + length :]
    if kind == 2:
        return data[:at]
    if kind == 3:
        return data[:at] + data[at : at + 50] * 2 + data[at + 50 :]
    if kind == 4:
        return data[:at] + data[at + length :]
    return data[:at] + rng.randbytes(length) + data[at:]


def outcome(read: Any, path: Path) -> Any:
    """What reading gives; None for one of our errors. Anything else fails the test."""
    try:
        return read(path)
    except TiltmeterError as error:
        assert str(error).strip()  # noqa: PT017
        return None


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("cases", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])
def test_damage(name: str, cases: int, tmp_path: Path) -> None:
    reader, rng = READERS[name], random.Random(f"{name}{cases}")
    path = reader.make(tmp_path)
    data, sound = path.read_bytes(), reader.read(path)
    assert sound
    for _ in range(cases):
        path.write_bytes(damaged(data, rng))
        found = outcome(reader.read, path)
        if reader.sealed:
            assert found in (None, sound)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", READERS)
def test_hostile_files(name: str, tmp_path: Path) -> None:
    reader = READERS[name]
    path = reader.make(tmp_path)
    sound = reader.read(path)
    for content in HOSTILE.values():
        path.write_bytes(content)
        found = outcome(reader.read, path)
        if reader.sealed:
            assert found in (None, sound)


@pytest.mark.parametrize("spec", SPECS)
def test_specs(spec: str) -> None:
    for load in (load_model, load_data):
        with pytest.raises((TiltmeterError, OSError)):
            load(spec)
