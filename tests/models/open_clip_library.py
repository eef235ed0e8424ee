"""The libraries open_clip and torchvision where a test can have them.

`make test-open-clip` installs it into a folder, which TILTMETER_OPEN_CLIP names. The torchvision
of PyPI cannot be imported with a CPU build of torch only because two operators are missing: they
are declared here, and no test calls them.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest


@cache
def _declare_operators() -> Any:
    import torch

    library = torch.library.Library("torchvision", "DEF")  # declared as long as it is referenced
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


def add_torchvision() -> bool:
    """Make torchvision importable, before transformers looks for it; whether it is."""
    folder = os.environ.get("TILTMETER_OPEN_CLIP")
    if folder:
        if str(Path(folder).resolve()) not in sys.path:
            sys.path.append(str(Path(folder).resolve()))
        _declare_operators()
    return importlib.util.find_spec("torchvision") is not None


def open_clip() -> Any:
    """The library; where it cannot be imported, the test is skipped."""
    add_torchvision()
    try:
        import open_clip
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"open_clip cannot be imported here ({error}): make test-open-clip")
    return open_clip
