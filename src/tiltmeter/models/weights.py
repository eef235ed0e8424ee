"""Files of weights: read without running code, loaded without leaving any out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tiltmeter.errors import InputError
from tiltmeter.results import content_hash

State = dict[str, Tensor]


def read(path: Path) -> State:
    """Read the weights in a file.

    Parameters
    ----------
    path : Path
        safetensors, or a state_dict by torch.save.

    Returns
    -------
    dict of str to torch.Tensor
        Weights by name.

    Raises
    ------
    InputError
        The file is not one of these, or a pickle that could run code.
    """
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            content: Any = load_file(path)
        else:
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # broken files raise any error
        raise InputError(
            f"{path} cannot be read as weights ({type(error).__name__}): expected a state_dict by "
            "torch.save, with nothing else in it but plain values, or safetensors. Files that "
            "could run code are not opened: if you trust the file, save its state_dict alone"
        ) from error
    for key in ("model", "state_dict"):
        content = content.get(key, content) if isinstance(content, dict) else content
    if not isinstance(content, dict) or not all(isinstance(x, Tensor) for x in content.values()):
        raise InputError(f'{path} contains no weights by name: expected {{"model": state_dict}}')
    return content


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
