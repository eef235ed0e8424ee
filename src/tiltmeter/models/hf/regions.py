"""Detection of image regions, for models that take them instead of pixels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from tiltmeter.errors import InputError
from tiltmeter.io.regions import Regions


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
            "regions that were detected elsewhere: tiltmeter.io.region_files.read_regions(FILE)"
        ) from None
    network = (network or fasterrcnn_resnet50_fpn(weights="DEFAULT")).eval()
    features, boxes = [], []
    with torch.inference_mode():
        for image in images:
            pixels = torch.tensor(np.asarray(image.convert("RGB")), dtype=torch.float32)
            pixels = pixels.permute(2, 0, 1) / 255
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
