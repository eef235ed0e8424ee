"""Files of weights: read without running code, loaded without leaving any out."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.models.torchscript import read_archive, root_of
from tiltmeter.results import content_hash

State = dict[str, Tensor]
#: Where checkpoints keep weights, first choice first.
PARTS = ("model", "state_dict", "model_state_dict", "module", "model_ema")
#: Prefixes of distributed and of wrapped models; torch.compile's `_orig_mod.` may be anywhere.
WRAPPERS = ("module.", "model.")


def read(path: Path, part: str | None = None) -> State:
    """Read the weights in a file.

    Parameters
    ----------
    path : Path
        safetensors, a checkpoint by torch.save, or a TorchScript archive. No code in it is run:
        what is not a tensor or a plain value, such as the options of a training, is passed over.
    part : str, optional
        Which weights of a checkpoint that has several, such as `model_ema`. By default the first of
        PARTS that is there.

    Returns
    -------
    dict of str to torch.Tensor
        Weights by name, without the prefixes that wrappers of a training add (WRAPPERS).

    Raises
    ------
    InputError
        The file is not one of these, or contains no weights.
    """
    content = read_content(path)
    if part is not None:
        if not isinstance(content, dict) or part not in content:
            parts = content.items() if isinstance(content, dict) else ()
            names = [str(key) for key, value in parts if isinstance(value, dict)]
            raise UnknownNameError(f"part of {path}:", part, names)
        content = content[part]
    for key in PARTS:
        content = content.get(key, content) if isinstance(content, dict) else content
    if (
        not isinstance(content, dict)
        or not content
        or not all(isinstance(x, Tensor) for x in content.values())
    ):
        raise InputError(
            f'{path} contains no weights by name: expected {{"model": state_dict}}',
            code="bad-file",
            value=path,
        )
    return _unwrapped({str(name): weights for name, weights in content.items()})


def read_content(path: Path) -> Any:
    """Read everything in a file of weights; see `read`."""
    try:
        return _content(path)
    except Exception as error:  # broken files raise any error
        raise InputError(
            f"{path} cannot be read as weights ({type(error).__name__}): expected safetensors, a "
            "checkpoint by torch.save or a TorchScript archive. Code in a file is never run: if "
            "you trust the file, save its state_dict alone",
            code="bad-file",
            value=path,
        ) from error


def _content(path: Path) -> Any:
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    archive = root_of(path)
    if archive is not None:
        return read_archive(path, archive)
    with torch.serialization.safe_globals(_placeholders(path)):
        return torch.load(path, map_location="cpu", weights_only=True)


def _placeholders(path: Path) -> list[Any]:
    """Empty classes in place of those that torch would refuse, such as argparse.Namespace."""
    if not zipfile.is_zipfile(path):
        return []
    names = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    return [(type("Placeholder", (Placeholder,), {}), name) for name in names]


class Placeholder:
    """Stands for an object of a checkpoint that is not a tensor: nothing of it is used."""

    def __new__(cls, *values: Any, **options: Any) -> Self:
        return super().__new__(cls)

    def __init__(self, *values: Any, **options: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        pass


def _unwrapped(state: State) -> State:
    """Weights under the names of the network itself."""
    state = {name.replace("_orig_mod.", ""): weights for name, weights in state.items()}
    for prefix in WRAPPERS * 2:  # one may be inside the other
        if all(name.startswith(prefix) for name in state):
            state = {name.removeprefix(prefix): weights for name, weights in state.items()}
    return state


def fill(network: nn.Module, state: State, file: str) -> None:
    """Load weights into a network; InputError if one is missing or left over."""
    try:
        result = network.load_state_dict(state, strict=False)
    except RuntimeError as error:
        raise InputError(f"{file}: {' '.join(str(error).split())[:400]}") from error
    for what, names in (("has no", result.missing_keys), ("has unknown", result.unexpected_keys)):
        if names:
            raise InputError(
                f"{file} {what} weights of these names: {', '.join(names[:3])}"
                + (f", and {len(names) - 3} more" if len(names) > 3 else "")
            )


def weights_hash(network: Any) -> str:
    """Hash of every parameter and buffer with its name."""
    parts = []
    for name, value in sorted(network.state_dict().items()):
        parts.append(name)
        parts.append(content_hash(value.detach().cpu().float().numpy()))
    return content_hash(parts)
