"""Models, one file a backend: all satisfy the protocols in `tiltmeter.types`."""

from __future__ import annotations

from typing import Any

from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.registry import Registry
from tiltmeter.specs import Spec

MODELS = Registry(
    "model",
    {
        "albef": "tiltmeter.models.albef:load",
        "embeddings": "tiltmeter.models.embeddings:load",
        "hf": "tiltmeter.models.hf:load",
        "open_clip": "tiltmeter.models.open_clip:load",
        "python": "tiltmeter.models.python:load",
        "tcl": "tiltmeter.models.albef:load",
        "testbed": "tiltmeter.testbed.models:load",
    },
)


def load_model(spec: str, *, device: str = "cpu") -> Any:
    """The model that `spec` names, such as `testbed:fusion` or `embeddings:DIR`.

    `device` is cpu, cuda, or auto: a GPU where there is one.
    """
    parsed = Spec.parse(spec)
    model = MODELS[parsed.scheme](parsed)
    if device != "cpu" and hasattr(model, "to"):
        model.to(_device(device))
    return model


def _device(name: str) -> str:
    import torch

    there = torch.cuda.is_available()
    if name not in ("auto", "cpu", "cuda"):
        raise UnknownNameError("device", name, ("auto", "cpu", "cuda"))
    if name == "cuda" and not there:
        raise InputError("device cuda was asked for, but torch sees no GPU: --device cpu works")
    return "cuda" if there and name != "cpu" else "cpu"
