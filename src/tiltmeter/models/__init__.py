"""Models, one file a backend: all satisfy the protocols in `tiltmeter.types`."""

from __future__ import annotations

from typing import Any

from tiltmeter.registry import Registry
from tiltmeter.specs import Spec

MODELS = Registry(
    "model",
    {
        "embeddings": "tiltmeter.models.embeddings:load",
        "hf": "tiltmeter.models.hf:load",
        "python": "tiltmeter.models.python:load",
        "testbed": "tiltmeter.testbed.models:load",
    },
)


def load_model(spec: str) -> Any:
    """The model that `spec` names, such as `testbed:fusion` or `embeddings:DIR`."""
    parsed = Spec.parse(spec)
    return MODELS[parsed.scheme](parsed)
