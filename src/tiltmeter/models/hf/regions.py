"""Regions of images that a detector found, for models that take them instead of pixels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor

from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.io.tables import item_ids, read_table
from tiltmeter.types import Array


@dataclass(frozen=True, eq=False)
class Regions(Sequence["Regions"]):
    """Features of the regions of images, and their boxes.

    Parameters
    ----------
    features : array of shape (images, regions, dimensions)
        A tensor keeps its gradients; an attack then acts on features, and no image need exist that
        has them.
    boxes : array of shape (images, regions, 4), optional
        Left, top, right and bottom as shares of the image, 0 to 1.
    ids : tuple of str
        One identifier per image; row numbers by default.

    Raises
    ------
    InputError
        The shapes do not fit together, or boxes are not within 0 and 1.

    Examples
    --------
    >>> seen = Regions(np.zeros((2, 36, 2048)), ids=("one", "two"))
    >>> len(seen), seen.of(["two"]).features.shape
    (2, (1, 36, 2048))
    """

    features: Array
    boxes: Array | None = None
    ids: tuple[str, ...] = ()

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
    def read(cls, path: str | Path) -> Regions:
        """Read regions from a file.

        Parameters
        ----------
        path : path
            .npz (features; optionally boxes, ids), .npy (features), or .parquet (columns).

        Returns
        -------
        Regions
            Features, boxes and ids.

        Raises
        ------
        InputError
            The file does not exist, is of another kind, or has no features.
        """
        path = Path(path)
        if not path.is_file():
            raise InputError(f"no such file of regions: {path}")
        ids: Sequence[Any] = ()
        try:
            if path.suffix == ".npy":
                content = {"features": np.load(path, mmap_mode="r", allow_pickle=False)}
            elif path.suffix == ".npz":
                with np.load(path, allow_pickle=False) as file:
                    content = {name: file[name] for name in file.files}
                ids = content.get("ids", np.empty(0)).tolist()
            elif path.suffix == ".parquet":
                table = read_table(path)
                names = [name for name in ("features", "boxes") if name in table.column_names]
                content = {n: np.asarray(table[n].to_pylist(), dtype=np.float32) for n in names}
                ids = item_ids(table, path)
            else:
                raise InputError(f"{path} cannot be read; expected .npz, .npy or .parquet")
        except (OSError, EOFError, TypeError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(
                f"{path} does not have the same number of regions for each image, or is not "
                f"such a file: {error}"
            ) from None
        if "features" not in content:
            raise InputError(
                f"{path} contains {', '.join(content) or 'nothing'}; expected features, "
                "n x regions x d, and optionally boxes and ids"
            )
        return cls(content["features"], content.get("boxes"), tuple(str(name) for name in ids))

    @classmethod
    def joined(cls, parts: Sequence[Any]) -> Regions:
        """Join several into one."""
        if not all(isinstance(part, cls) for part in parts):
            kind = next(type(part).__name__ for part in parts if not isinstance(part, cls))
            raise InputError(
                f"this model takes regions, not images: expected Regions, got {kind}. Read "
                "those that a detector made: Regions.read(FILE)"
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
    def __getitem__(self, at: int | slice) -> Regions:
        """The regions of one image, or of several: always Regions."""
        rows = range(len(self))[at]
        return self.select([rows] if isinstance(rows, int) else rows)

    def select(self, rows: Sequence[int]) -> Regions:
        at = [int(row) for row in rows]
        boxes = None if self.boxes is None else self.boxes[at]
        return Regions(self.features[at], boxes, tuple(self.ids[row] for row in at))

    def of(self, ids: Sequence[str]) -> Regions:
        """The regions of the images with these ids, in their order."""
        row = {name: at for at, name in enumerate(self.ids)}
        for name in ids:
            if name not in row:
                raise UnknownNameError("image with regions", name, row)
        return self.select([row[name] for name in ids])

    def to(self, device: torch.device | str) -> Regions:
        """The same as tensors on a device."""
        boxes = None if self.boxes is None else _tensor(self.boxes, device)
        return Regions(_tensor(self.features, device), boxes, self.ids)


def detect(images: Sequence[Any], *, count: int = 36, network: Any = None) -> Regions:
    """Detect regions with torchvision's Faster R-CNN.

    Parameters
    ----------
    images : sequence of PIL.Image.Image
        The images.
    count : int
        Number of regions per image, the most certain first; an image with fewer repeats its own.
    network : torch.nn.Module, optional
        The detector; by default one with torchvision's weights, which are downloaded.

    Returns
    -------
    Regions
        Features of 1024 dimensions. The released VisualBERT and LXMERT were trained on those of
        other detectors, with 2048: for them, read features that those made.

    Raises
    ------
    InputError
        torchvision is not installed.
    """
    try:
        from torchvision.models.detection import (  # type: ignore[import-not-found,unused-ignore]
            fasterrcnn_resnet50_fpn,
        )
    except (ImportError, RuntimeError):  # RuntimeError: torchvision built for another torch
        raise InputError(
            "to detect regions, torchvision must be installed (pip install torchvision); or read "
            "regions that were detected elsewhere: Regions.read(FILE)"
        ) from None
    network = (network or fasterrcnn_resnet50_fpn(weights="DEFAULT")).eval()
    features, boxes = [], []
    with torch.inference_mode():
        for image in images:
            pixels = _tensor(np.asarray(image.convert("RGB")), "cpu").permute(2, 0, 1) / 255
            whole = torch.tensor([image.width, image.height] * 2)
            detected = network([pixels])[0]["boxes"]
            if not len(detected):
                detected = torch.tensor([[0, 0, 1, 1]]) * whole
            shares = detected[torch.arange(count) % len(detected)] / whole
            scaled, _ = network.transform([pixels])  # to the detector's own size
            height, width = scaled.image_sizes[0]
            pooled = network.roi_heads.box_roi_pool(
                network.backbone(scaled.tensors),
                [shares * torch.tensor([width, height] * 2)],
                scaled.image_sizes,
            )
            features.append(network.roi_heads.box_head(pooled))
            boxes.append(shares.clamp(0, 1))
    return Regions(torch.stack(features).numpy(), torch.stack(boxes).numpy())


def _tensor(array: Array, device: torch.device | str) -> Tensor:
    tensor = array if isinstance(array, Tensor) else torch.from_numpy(np.array(array, np.float32))
    return tensor.to(device, torch.float32)


def _joined(parts: list[Array]) -> Array:
    try:
        return torch.cat(parts) if isinstance(parts[0], Tensor) else np.concatenate(parts)
    except (ValueError, RuntimeError, TypeError) as error:
        raise InputError(f"the regions of these images have different shapes: {error}") from None


def _sizes(shape: Sequence[int]) -> str:
    return " x ".join(str(side) for side in shape)
