"""Embeddings of the testbed's scenes, computed once per process: most tests audit the same ones."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

EMBEDDINGS: dict[tuple[object, ...], np.ndarray] = {}


@pytest.fixture(scope="module", autouse=True)
def scenes_once() -> Iterator[None]:
    """For a package or module of tests that imports it; tests of the testbed do without."""
    if importlib.util.find_spec("torch") is None:
        yield
        return
    from tiltmeter.models.weights import weights_hash
    from tiltmeter.testbed.models import DualTestbed
    from tiltmeter.testbed.render import Scenes

    computed = DualTestbed.encode_images

    def remembered(self: DualTestbed, images: Any) -> Any:
        if not isinstance(images, Scenes) or self.network.training:
            return computed(self, images)
        weights = weights_hash(self.network), next(self.network.parameters()).dtype
        key = *weights, *(field.tobytes() for field in vars(images).values())
        if key not in EMBEDDINGS:
            EMBEDDINGS[key] = computed(self, images)
        return EMBEDDINGS[key].copy()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DualTestbed, "encode_images", remembered)
        yield
