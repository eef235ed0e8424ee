"""The same pixels everywhere, and a redrawn figure that changes nothing else."""

from __future__ import annotations

import hashlib
import time

import numpy as np
import pytest

from tiltmeter.testbed.render import Scenes, icon_code, render
from tiltmeter.testbed.world import World

FIXED = Scenes(
    shape=np.array([0, 1, 0]), hue=np.array([0, 3, 6]), x=np.array([7, 6, 8]),
    y=np.array([10, 16, 20]), size=np.array([7, 5, 4]), side=np.array([0, 1, 0]),
    background=np.array([[20, 30, 40], [79, 20, 55], [60, 60, 60]]),
    grain=np.array([0, 65535, 1234]),
    code=np.stack([icon_code(name) for name in ("nurse", "lamp", "smart")]),
    drawn=np.stack([np.ones(16, int), np.arange(16) % 2, np.zeros(16, int)]),
)  # fmt: skip


def test_pixels_are_the_same_on_every_machine() -> None:
    assert hashlib.sha256(render(FIXED).tobytes()).hexdigest() == (
        "e498cd9e01927af2b15a3f6dbe994b9aa3b7dd57a337454b196a82035fd387e0"
    )


def test_torch_draws_what_numpy_draws() -> None:
    torch = pytest.importorskip("torch")
    scenes = World.plant().scenes(300, np.random.default_rng(0))
    there = Scenes(**{name: torch.as_tensor(x) for name, x in vars(scenes).items()})
    assert (render(there).numpy() == render(scenes)).all()


def test_redrawing_changes_the_figure_only() -> None:
    scenes = World.plant().scenes(200, np.random.default_rng(0))
    changed = (render(scenes) != render(scenes.redrawn(hue=(scenes.hue + 1) % 7))).any(axis=-1)
    column = np.arange(32)[None, None, :] - (scenes.x + 16 * scenes.side)[:, None, None]
    row = np.arange(32)[None, :, None] - scenes.y[:, None, None]
    reach = scenes.size[:, None, None]
    assert changed.any(axis=(1, 2)).all()
    assert not (changed & ((abs(column) > reach) | (abs(row) > reach))).any()


def test_redrawn_as_it_was_is_the_same() -> None:
    assert (render(FIXED.redrawn(shape=FIXED.shape)) == render(FIXED)).all()


def test_it_is_fast() -> None:
    scenes = World.plant().scenes(4000, np.random.default_rng(0))
    render(scenes[:64])
    took = []
    for _ in range(3):
        started = time.perf_counter()
        render(scenes)
        took.append(time.perf_counter() - started)
    assert len(scenes) / min(took) > 2000
