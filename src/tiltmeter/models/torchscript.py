"""Weights in a TorchScript archive, such as OpenAI's CLIP files, read without running its code.

The archive is a zip file: `data.pkl` has the modules as nested objects, `data/N` the numbers of
tensor N, `code/` the program, which is not looked at. Everything in the pickle is replaced by one
of the few classes below, so nothing in the file can be called.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

DTYPES = {
    "BFloat16Storage": torch.bfloat16, "BoolStorage": torch.bool, "ByteStorage": torch.uint8,
    "CharStorage": torch.int8, "DoubleStorage": torch.float64, "FloatStorage": torch.float32,
    "HalfStorage": torch.float16, "IntStorage": torch.int32, "LongStorage": torch.int64,
    "ShortStorage": torch.int16,
}  # fmt: skip


class _Attributes:
    """Stands for any object of the program: its attributes, without its code."""

    def __init__(self, *values: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            vars(self).update(state)


class _Unpickler(pickle.Unpickler):
    def __init__(self, archive: zipfile.ZipFile, root: str) -> None:
        super().__init__(io.BytesIO(archive.read(f"{root}/data.pkl")))
        self.archive, self.root = archive, root

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _tensor
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if module == "torch" and name in DTYPES:
            return DTYPES[name]
        return _Attributes

    def persistent_load(self, pid: Any) -> Tensor:
        _, dtype, key, _, _ = pid
        content = bytearray(self.archive.read(f"{self.root}/data/{key}"))
        return torch.frombuffer(content, dtype=dtype) if content else torch.empty(0, dtype=dtype)


def _tensor(numbers: Tensor, offset: int, shape: Any, stride: Any, *_: Any) -> Tensor:
    return numbers.as_strided(tuple(shape), tuple(stride), offset).clone()


def _walk(value: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, _Attributes):
        for key, part in vars(value).items():
            yield from _walk(part, f"{name}.{key}" if name else key)


def root_of(path: Path) -> str | None:
    """The directory inside a TorchScript archive; None where the file is something else."""
    if not zipfile.is_zipfile(path):
        return None
    with zipfile.ZipFile(path) as archive:
        programs = [n for n in archive.namelist() if n.endswith("/constants.pkl")]
    return programs[0].removesuffix("/constants.pkl") if programs else None


def read_archive(path: Path, root: str) -> dict[str, Tensor]:
    """Weights and buffers of a TorchScript archive, by name."""
    with zipfile.ZipFile(path) as archive:
        return dict(_walk(_Unpickler(archive, root).load(), ""))
