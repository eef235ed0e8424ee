"""Models, one file a backend: all satisfy the protocols in `tiltmeter.types`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.io.specs import Spec
from tiltmeter.registry import Registry

MODELS = Registry(
    "model",
    {
        "albef": "tiltmeter.models.albef:load",
        "debias": "tiltmeter.debiasers.debiased:load",
        "embeddings": "tiltmeter.models.embeddings:load",
        "hf": "tiltmeter.models.hf:load",
        "open_clip": "tiltmeter.models.open_clip:load",
        "python": "tiltmeter.models.python:load",
        "tcl": "tiltmeter.models.albef:load",
        "testbed": "tiltmeter.testbed.models:load",
    },
)
#: They have nothing of transformers, or come to it by `load_model`: it need not be imported.
OWN = ("debias", "embeddings", "testbed")


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
    with nullcontext() if parsed.scheme in OWN else _without_bar():
        model = MODELS[parsed.scheme](parsed)
    if device != "cpu" and hasattr(model, "to"):
        model.to(_device(device))
    return model


@contextmanager
def _without_bar() -> Iterator[None]:
    """Without transformers' own bar for weights that are read from disk; a download keeps its."""
    try:
        from huggingface_hub.utils.tqdm import enable_progress_bars
        from transformers.utils import logging
    except ImportError:  # then nothing is loaded by it
        yield
        return
    shown = logging.is_progress_bar_enabled()
    if shown:
        logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        enable_progress_bars()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def _device(name: str) -> str:
    import torch

    there = torch.cuda.is_available()
    if name not in ("auto", "cpu", "cuda"):
        raise UnknownNameError("device", name, ("auto", "cpu", "cuda"))
    if name == "cuda" and not there:
        raise InputError("device cuda was asked for, but torch sees no GPU: --device cpu works")
    return "cuda" if there and name != "cpu" else "cpu"
