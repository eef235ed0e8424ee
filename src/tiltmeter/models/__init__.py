"""Models, one file per backend: all satisfy the protocols in `tiltmeter.types`."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from tiltmeter.errors import InputError, MissingError, UnknownNameError
from tiltmeter.io.specs import Spec
from tiltmeter.registry import Registry

MODELS = Registry(
    "model",
    {
        "albef": "tiltmeter.models.albef:load",
        "debias": "tiltmeter.debiasers.debiased:load",
        "embeddings": "tiltmeter.models.embeddings:load",
        "fit": "tiltmeter.models.frozen_in_time:load",
        "hf": "tiltmeter.models.hf:load",
        "openai": "tiltmeter.models.openai:load",
        "open_clip": "tiltmeter.models.open_clip:load",
        "python": "tiltmeter.models.python:load",
        "slip": "tiltmeter.models.slip:load",
        "tcl": "tiltmeter.models.albef:load",
        "testbed": "tiltmeter.testbed.loading:load",
    },
)
DEVICES = ("auto", "cpu", "cuda")
#: Packages that a scheme needs, beside what its loader imports at once.
NEEDS = {
    "albef": ("torch", "transformers"),
    "hf": ("torch", "transformers"),
    "open_clip": ("torch",),
    "openai": ("httpx2",),
    "slip": ("torch",),
    "tcl": ("torch", "transformers"),
    "testbed": ("torch",),
}
#: Extras that have all that a scheme needs, where that is not the extra of the missing package.
EXTRA_OF = {"open_clip": "open-clip", "slip": "open-clip"}
#: Schemes without transformers, or that reach it by `load_model`: it need not be imported.
OWN = ("debias", "embeddings", "openai", "testbed")


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
    parsed = check_model(spec, device=device)
    if trust_remote_code and parsed.scheme == "hf":
        parsed = replace(parsed, options={**parsed.options, "trust_remote_code": "yes"})
    with nullcontext() if parsed.scheme in OWN else _hub(parsed.rest):
        model = MODELS[parsed.scheme](parsed)
    if device != "cpu" and hasattr(model, "to"):
        model.to(_device(device))
    return model


def check_model(spec: str, *, device: str = "cpu") -> Spec:
    """Check what can be known of a model before it is loaded.

    Parameters
    ----------
    spec : str
        As for `load_model`.
    device : {"cpu", "cuda", "auto"}
        Where it should run.

    Returns
    -------
    Spec
        The parsed spec; of a directory that `tiltmeter debias` wrote, with the scheme `debias`.

    Raises
    ------
    UnknownNameError
        The scheme or the device is unknown.
    MissingError
        A package is not installed.
    InputError
        A directory does not exist.

    Examples
    --------
    >>> check_model("hf:../nowhere")
    Traceback (most recent call last):
    ...
    tiltmeter.errors.InputError: there is no directory ../nowhere: hf: takes a directory that \
save_pretrained wrote, or OWNER/NAME on the Hugging Face Hub
    """
    if (Path(spec) / "debiased.json").is_file():
        spec = f"debias:{spec}"
    elif (Path(spec) / "run.json").is_file():
        raise _run_is_no_model(spec)
    parsed = Spec.parse(spec, known=MODELS)
    if parsed.scheme not in MODELS:
        raise UnknownNameError(MODELS.kind, parsed.scheme, MODELS)
    if device not in DEVICES:
        raise UnknownNameError("device", device, DEVICES)
    for package in NEEDS.get(parsed.scheme, ()):
        if find_spec(package) is None:
            raise MissingError(f"{parsed.scheme}:", package, extra=EXTRA_OF.get(parsed.scheme))
    place = parsed.rest
    is_path = place.startswith((".", "/", "~")) or place.count("/") > 1
    if parsed.scheme == "hf" and is_path and not Path(place).is_dir():
        raise InputError(
            f"there is no directory {place}: hf: takes a directory that save_pretrained wrote, or "
            "OWNER/NAME on the Hugging Face Hub",
            code="not-found",
            value=place,
        )
    return parsed


def _run_is_no_model(place: str) -> UnknownNameError:
    """Suggest the model that a run is about, and how to read the run."""
    from tiltmeter.results.files import parse_json  # here: it takes pyarrow

    record = parse_json((Path(place) / "run.json").read_bytes(), place)
    model = record.get("model") if isinstance(record, dict) else None
    spec = model.get("spec") if isinstance(model, dict) else None
    read = f"tiltmeter report {place}"
    note = f"{place} is a run, not a model" + (f" (`{read}` writes its report)" if spec else "")
    return UnknownNameError("model", place, MODELS, suggestions=[spec or read], note=note)


@contextmanager
def _hub(name: str) -> Iterator[None]:
    """Hide the progress bar of reading weights from disk, and do not wait for a hub out of reach.

    Each request to it would be repeated for 20 seconds. What was downloaded before is found.
    """
    try:
        from huggingface_hub import constants
        from huggingface_hub.utils.tqdm import enable_progress_bars
        from transformers.utils import logging
    except ImportError:  # then nothing is loaded with it
        yield
        return
    shown, offline = logging.is_progress_bar_enabled(), constants.HF_HUB_OFFLINE
    if shown:
        logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        enable_progress_bars()
    if not Path(name).exists() and not _reachable(constants.ENDPOINT):
        constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = offline
        if shown:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def _reachable(url: str) -> bool:
    """Whether the name of a server can be resolved; a proxy would do that itself."""
    if getproxies():
        return True
    try:
        return bool(socket.getaddrinfo(urlsplit(url).hostname, None))
    except OSError:
        return False


def _device(name: str) -> str:
    import torch

    has_gpu = torch.cuda.is_available()
    if name == "cuda" and not has_gpu:
        raise InputError("torch finds no GPU for device cuda: use --device cpu")
    return "cuda" if has_gpu and name != "cpu" else "cpu"
