"""Models, one file a backend: all satisfy the protocols in `tiltmeter.types`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.registry import Registry
from tiltmeter.specs import Spec

MODELS = Registry(
    "model",
    {
        "albef": "tiltmeter.models.albef:load",
        "debias": "tiltmeter.debias.debiased:load",
        "embeddings": "tiltmeter.models.embeddings:load",
        "hf": "tiltmeter.models.hf:load",
        "open_clip": "tiltmeter.models.open_clip:load",
        "python": "tiltmeter.models.python:load",
        "tcl": "tiltmeter.models.albef:load",
        "testbed": "tiltmeter.testbed.models:load",
    },
)


def load_model(spec: str, *, device: str = "cpu", trust_remote_code: bool = False) -> Any:
    """The model that `spec` names, such as `testbed:fusion` or `embeddings:DIR`.

    A directory made by `tiltmeter debias` needs no scheme before it. `device` is cpu, cuda, or
    auto: a GPU where there is one. `trust_remote_code` lets a checkpoint of `hf:` run code that it
    brings along.
    """
    if (Path(spec) / "debiased.json").is_file():
        spec = f"debias:{spec}"
    parsed = Spec.parse(spec)
    if trust_remote_code and parsed.scheme == "hf":
        parsed = replace(parsed, options={**parsed.options, "trust_remote_code": "yes"})
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
