"""Regions of images that a detector found, for models that take them instead of pixels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np

from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.io.image_files import is_row, rows_of
from tiltmeter.types import Array

#: The id that a file of regions gives to the regions of an all-white image.
WHITE = "white"


@dataclass(frozen=True, eq=False)
class Regions(Sequence["Regions"]):
    """Features of the regions of images, and their boxes.

    A slice, an array of row numbers or a boolean array selects images.

    Parameters
    ----------
    features : array of shape (images, regions, dimensions)
        A tensor keeps its gradients; an attack then acts on features, and no image need exist that
        has them.
    boxes : array of shape (images, regions, 4), optional
        Left, top, right and bottom as shares of the image, 0 to 1.
    ids : tuple of str
        One identifier per image; row numbers by default.
    white : Regions, optional
        What the detector found in an all-white image.

    Raises
    ------
    InputError
        The shapes do not fit together, or boxes are not within 0 and 1.

    Examples
    --------
    >>> regions = Regions(np.zeros((2, 36, 2048)), ids=("one", "two"))
    >>> len(regions), regions.of(["two"]).features.shape
    (2, (1, 36, 2048))
    """

    features: Array
    boxes: Array | None = None
    ids: tuple[str, ...] = ()
    white: Regions | None = None

    def __post_init__(self) -> None:
        shape = tuple(self.features.shape)
        if len(shape) != 3:
            raise InputError(f"features of regions are n x regions x d; got {_sizes(shape)}")
        if self.boxes is not None:
            if tuple(self.boxes.shape) != (*shape[:2], 4):
                raise InputError(
                    f"boxes of these regions are {_sizes((*shape[:2], 4))}; got "
                    f"{_sizes(self.boxes.shape)}"
                )
            if shape[0] and not (self.boxes.min() >= 0 and self.boxes.max() <= 1):
                raise InputError(
                    "boxes are shares of the image, from 0 to 1; these range from "
                    f"{float(self.boxes.min()):g} to {float(self.boxes.max()):g}: divide left and "
                    "right by the image's width, top and bottom by its height"
                )
        if not self.ids:
            object.__setattr__(self, "ids", tuple(str(row) for row in range(shape[0])))
        if len(self.ids) != shape[0]:
            raise InputError(f"{shape[0]} images with regions, but {len(self.ids)} ids")

    @classmethod
    def joined(cls, parts: Sequence[Any]) -> Regions:
        """Join several into one."""
        if not all(isinstance(part, cls) for part in parts):
            kind = next(type(part).__name__ for part in parts if not isinstance(part, cls))
            raise InputError(
                f"this model takes regions, not images: expected Regions, got {kind}. Read "
                "those that a detector made: tiltmeter.io.region_files.read_regions(FILE)"
            )
        boxes = [part.boxes for part in parts]
        return cls(
            _joined([part.features for part in parts]),
            None if any(box is None for box in boxes) else _joined(boxes),
            tuple(name for part in parts for name in part.ids),
        )

    def __len__(self) -> int:
        return len(self.features)

    @overload
    def __getitem__(self, at: int) -> Regions: ...
    @overload
    def __getitem__(self, at: slice) -> Regions: ...
    def __getitem__(self, at: Any) -> Regions:
        """The regions of one image, or of several: always Regions."""
        return self.select([range(len(self))[at]] if is_row(at) else rows_of(at, len(self)))

    def select(self, rows: Sequence[int]) -> Regions:
        """The regions of the images in these rows."""
        at = [int(row) for row in rows]
        boxes = None if self.boxes is None else self.boxes[at]
        return Regions(self.features[at], boxes, tuple(self.ids[row] for row in at), self.white)

    def of(self, ids: Sequence[str]) -> Regions:
        """The regions of the images with these ids, in their order."""
        row = {name: at for at, name in enumerate(self.ids)}
        for name in ids:
            if name not in row:
                raise UnknownNameError("image with regions", name, row)
        return self.select([row[name] for name in ids])

    def white_image(self) -> Regions:
        """What a detector finds in an all-white image: `white`, or a stand-in.

        The stand-in has features of 0 (the features of a detector are 0 or above: nothing was
        found) and boxes of the whole image.

        >>> Regions(np.ones((2, 3, 4))).white_image().features.max()
        np.float32(0.0)
        """
        if self.white is not None:
            return self.white
        features = np.zeros((1, *self.features.shape[1:]), np.float32)
        whole = np.tile(np.array([0, 0, 1, 1], np.float32), (1, features.shape[1], 1))
        return Regions(features, None if self.boxes is None else whole, (WHITE,))

    def to(self, device: Any) -> Regions:
        """The same as tensors on a device."""
        boxes = None if self.boxes is None else _tensor(self.boxes, device)
        return Regions(_tensor(self.features, device), boxes, self.ids)


def _tensor(array: Array, device: Any) -> Any:
    import torch

    is_tensor = isinstance(array, torch.Tensor)
    tensor = array if is_tensor else torch.from_numpy(np.array(array, np.float32))
    return tensor.to(device, torch.float32)


def _joined(parts: list[Array]) -> Array:
    try:
        if isinstance(parts[0], np.ndarray):
            return np.concatenate(parts)
        import torch

        return torch.cat(parts)
    except (ValueError, RuntimeError, TypeError) as error:
        raise InputError(f"the regions of these images have different shapes: {error}") from None


def _sizes(shape: Sequence[int]) -> str:
    return " x ".join(str(side) for side in shape)
