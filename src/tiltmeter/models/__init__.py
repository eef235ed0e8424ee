"""Models, one file per backend: all satisfy the protocols in `tiltmeter.types`."""

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
#: Schemes without transformers, or that reach it by `load_model`: it need not be imported.
OWN = ("debias", "embeddings", "testbed")


def load_model(spec: str, *, device: str = "cpu", trust_remote_code: bool = False) -> Any:
    """Load a model.

    Parameters
    ----------
    spec : str
        Such as `testbed:fusion`, `hf:openai/clip-vit-base-patch32`, `embeddings:DIR` or
        `python:FILE.py:factory`; or a directory that `tiltmeter debias` wrote.
    device : {"cpu", "cuda", "auto"}
        Where it runs; `auto` is a GPU if there is one.
    trust_remote_code : bool
        Allow a checkpoint of `hf:` to run its own code.

    Returns
    -------
    object
        A model with one or more of the protocols in `tiltmeter.types`.

    Raises
    ------
    UnknownNameError
        The scheme or the device is unknown.
    InputError
        The model cannot be loaded, or there is no GPU.

    Examples
    --------
    >>> load_model("testbed:dual").encode_texts(["a photo of a nurse"]).shape
    (1, 96)
    """
    if (Path(spec) / "debiased.json").is_file():
        spec = f"debias:{spec}"
    parsed = Spec.parse(spec, known=MODELS)
    if trust_remote_code and parsed.scheme == "hf":
        parsed = replace(parsed, options={**parsed.options, "trust_remote_code": "yes"})
    with nullcontext() if parsed.scheme in OWN else _without_bar():
        model = MODELS[parsed.scheme](parsed)
    if device != "cpu" and hasattr(model, "to"):
        model.to(_device(device))
    return model


@contextmanager
def _without_bar() -> Iterator[None]:
    """Hide transformers' progress bar of reading weights from disk, not that of downloads."""
    try:
        from huggingface_hub.utils.tqdm import enable_progress_bars
        from transformers.utils import logging
    except ImportError:  # then nothing is loaded with it
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

    has_gpu = torch.cuda.is_available()
    if name not in ("auto", "cpu", "cuda"):
        raise UnknownNameError("device", name, ("auto", "cpu", "cuda"))
    if name == "cuda" and not has_gpu:
        raise InputError("torch finds no GPU for device cuda: use --device cpu")
    return "cuda" if has_gpu and name != "cpu" else "cpu"
