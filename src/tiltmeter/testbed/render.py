"""Renders scenes: integers in, integers out, so that every machine renders the same pixels.

The figure is in one half of the image, the icon in the other. An icon is a grid of cells, each of
one of four colours; its strength is the share of its cells that are drawn, the others showing the
background. The same code renders with NumPy and, for training, with torch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from tiltmeter.types import Array, Ints

SIZE = 32  # pixels
CELLS = 4  # the icon has CELLS x CELLS
CELL = 4  # pixels
ICON_TOP = (SIZE - CELLS * CELL) // 2
#: Colours of an icon's cells, and of figures by hue; backgrounds are darker than any of them.
COLOURS = np.array([[250, 250, 250], [20, 200, 200], [240, 120, 190], [170, 240, 80]])
FIGURE = np.array(
    [[205, 45, 40], [230, 130, 30], [225, 205, 40], [50, 165, 60], [60, 100, 220], [150, 70, 200],
     [140, 140, 140]]
)  # fmt: skip
#: What the middle of a figure adds to its colour: a ball gleams, a block is hollow. Little enough
#: for an attack of 16 grey levels to hide it, and enough to be seen through the noise.
SHADE = np.array([10, -16])
BACKGROUND = (20, 80)
NOISE = 12  # grey levels, up or down
GRAINS = 2**16  # different patterns of noise


@dataclass(frozen=True, eq=False)
class Scenes:
    """What is to be rendered: one entry per image, all integers."""

    shape: Array
    hue: Array
    x: Array  # of the figure's centre, within its half
    y: Array
    size: Array  # half the width of a round figure
    side: Array  # 0: figure left, icon right
    background: Array  # n x 3
    grain: Array  # which pattern of noise
    code: Array  # n x 16: colours of the icon's cells
    drawn: Array  # n x 16: which cells are drawn

    def __len__(self) -> int:
        return len(self.shape)

    def redrawn(self, *, shape: Array | None = None, hue: Array | None = None) -> Scenes:
        """The same scenes with other figures in the same places: the true counterfactual."""
        return replace(
            self,
            shape=self.shape if shape is None else shape,
            hue=self.hue if hue is None else hue,
        )

    def without_icon(self) -> Scenes:
        """The same scenes without icons."""
        return replace(self, drawn=self.drawn * 0)

    def to_images(self) -> list[Any]:
        """As PIL images, for models that do not belong to the testbed."""
        from PIL import Image

        return [Image.fromarray(np.asarray(image)) for image in render(self)]

    def __getitem__(self, rows: Any) -> Scenes:
        return Scenes(**{name: value[rows] for name, value in vars(self).items()})


def render(scenes: Scenes) -> Array:
    """Render scenes.

    Parameters
    ----------
    scenes : Scenes
        Of NumPy arrays, or of tensors on any device.

    Returns
    -------
    array of uint8 of shape (n, 32, 32, 3)
        Images, of the kind of the scenes.

    Examples
    --------
    >>> from tiltmeter.testbed.world import World
    >>> render(World.plant().scenes(2, np.random.default_rng(0))).shape
    (2, 32, 32, 3)
    """
    if not isinstance(scenes.shape, np.ndarray):
        import torch

        return _draw(scenes, torch, _constants(scenes.shape.device))
    from tiltmeter.metrics.numpy_kernels import in_rows

    images = np.empty((len(scenes), SIZE, SIZE, 3), np.uint8)

    def work(part: slice) -> None:
        images[part] = _draw(scenes[part], np, _constants(None))

    in_rows(work, len(scenes), step=128)
    return images


@cache
def _constants(device: Any | None) -> SimpleNamespace:
    """Tables for rendering, as NumPy arrays or, once per device, as tensors."""
    tables = {
        "axis": np.arange(SIZE, dtype=np.int16),
        "figure": FIGURE.astype(np.int16),
        "shade": SHADE.astype(np.int16),
        "colours": COLOURS.astype(np.int16),
        "cell": np.arange(CELLS * CELL) // CELL,
        "pixel": np.arange(SIZE * SIZE * 3),
        "noise": _noise(),
    }
    if device is not None:
        import torch

        return SimpleNamespace(**{k: torch.as_tensor(x).to(device) for k, x in tables.items()})
    return SimpleNamespace(**tables)


def _draw(scenes: Scenes, xp: Any, tables: SimpleNamespace) -> Array:
    """Render in 16 bits, which are enough for all values."""
    column, row = tables.axis[None, None, :], tables.axis[None, :, None]
    half = SIZE // 2

    def each(x: Array) -> Array:
        return xp.asarray(x, dtype=xp.int16)[:, None, None]

    # the figure: a disc, or the square of nearly the same area (half width 57/64 of the radius)
    across = column - each(scenes.x + half * scenes.side)
    down = row - each(scenes.y)
    across, down, size = across * across, down * down, each(scenes.size)
    reach = each((scenes.size * 57) // 64)
    round_ = across + down <= size * size
    square = (across <= reach * reach) & (down <= reach * reach)
    inside = xp.where(each(scenes.shape) == 0, round_, square)
    figure = tables.figure[scenes.hue][:, None, None, :]
    core = across + down <= size * size // 3
    shade = tables.shade[scenes.shape][:, None, None]
    figure = figure + (core * shade)[..., None]
    ground = xp.asarray(scenes.background, dtype=xp.int16)[:, None, None, :]
    images = xp.where(inside[..., None], figure, ground)
    # the icon: its cells as large pixels, laid over the half where the figure is not
    colours = tables.colours[scenes.code]
    wide = [(x.reshape(-1, CELLS, CELLS, d)) for x, d in ((colours, 3), (scenes.drawn > 0, 1))]
    icon, shown = (x[:, tables.cell][:, :, tables.cell] for x in wide)
    rows = slice(ICON_TOP, ICON_TOP + CELLS * CELL)
    for side, columns in ((0, slice(half, SIZE)), (1, slice(0, half))):
        here = shown & (each(scenes.side) == side)[..., None]
        images[:, rows, columns] = xp.where(here, icon, images[:, rows, columns])
    grain = tables.noise[tables.pixel + scenes.grain[:, None]]
    images = images + grain.reshape(images.shape)
    return xp.asarray(xp.clip(images, 0, 255), dtype=xp.uint8)


@cache
def _noise() -> Ints:
    """A long row of integers from -NOISE to NOISE, by Wang's hash of their positions.

    An image takes the stretch that begins at its grain.
    """
    h = np.arange(GRAINS + SIZE * SIZE * 3, dtype=np.uint32)
    h = (h ^ np.uint32(61)) ^ (h >> np.uint32(16))
    h = h * np.uint32(9)
    h = h ^ (h >> np.uint32(4))
    h = h * np.uint32(0x27D4EB2D)
    h = h ^ (h >> np.uint32(15))
    return (h % np.uint32(2 * NOISE + 1)).astype(np.int16) - np.int16(NOISE)


def icon_code(name: str) -> Ints:
    """Colours of the cells of a concept's icon, from its name alone.

    >>> icon_code("nurse").shape, bool((icon_code("nurse") == icon_code("nurse")).all())
    ((16,), True)
    """
    import hashlib

    digest = hashlib.sha256(name.encode()).digest()
    return np.array([digest[i] % len(COLOURS) for i in range(CELLS * CELLS)], dtype=np.int64)
