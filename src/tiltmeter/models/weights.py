"""Weights in files: read without running anything, put into a network without leaving any out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tiltmeter.errors import InputError
from tiltmeter.results import content_hash

State = dict[str, Tensor]


def read(path: Path) -> State:
    """The weights that a file holds, by name; a pickle that would run code is refused."""
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            held: Any = load_file(path)
        else:
            held = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # broken files raise whatever they like
        raise InputError(
            f"{path} cannot be read as weights ({type(error).__name__}): expected a state_dict by "
            "torch.save, with nothing beside it but plain values, or safetensors. What could run "
            "code is not opened: save the state_dict alone where the file is trusted"
        ) from error
    for key in ("model", "state_dict"):
        held = held.get(key, held) if isinstance(held, dict) else held
    if not isinstance(held, dict) or not all(isinstance(x, Tensor) for x in held.values()):
        raise InputError(f'{path} holds no weights by name: expected {{"model": state_dict}}')
    return held


def fill(network: nn.Module, state: State, file: str) -> None:
    """Puts weights in their places: none may be left over, and no place may stay empty."""
    try:
        told = network.load_state_dict(state, strict=False)
    except RuntimeError as error:
        raise InputError(f"{file}: {' '.join(str(error).split())[:400]}") from error
    for what, names in (("has no", told.missing_keys), ("has unknown", told.unexpected_keys)):
        if names:
            raise InputError(
                f"{file} {what} weights of these names: {', '.join(names[:3])}"
                + (f", and {len(names) - 3} more" if len(names) > 3 else "")
            )


def weights_hash(network: Any) -> str:
    """A hash of every parameter and buffer with its name."""
    parts = []
    for name, value in sorted(network.state_dict().items()):
        parts.append(name)
        parts.append(content_hash(value.detach().cpu().float().numpy()))
    return content_hash(parts)
