"""Checks of the installation, for `tiltmeter doctor`."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator
from importlib import import_module, metadata
from typing import NamedTuple

#: Packages and what they are needed for; core packages first.
PACKAGES = (
    ("numpy", "core"), ("scipy", "core"), ("numba", "core"), ("pyarrow", "core"),
    ("pillow", "core"), ("pyyaml", "core"), ("typer", "core"), ("rich", "core"),
    ("jinja2", "core"), ("torch", "models, tensors"), ("transformers", "models"),
    ("safetensors", "models"), ("pandas", "Run.to_pandas"), ("polars", "Run.to_polars"),
)  # fmt: skip


class CheckResult(NamedTuple):
    """The result of one check."""

    name: str
    ok: bool | None  # None: optional and not installed
    detail: str


def check_installation() -> Iterator[CheckResult]:
    """Checks Python, the packages, the GPU and a known result.

    Yields
    ------
    CheckResult
    """
    yield CheckResult("python", True, f"{platform.python_version()} on {platform.machine()}")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield CheckResult("cores", True, str(cores))
    for package, purpose in PACKAGES:
        try:
            yield CheckResult(package, True, metadata.version(package))
        except metadata.PackageNotFoundError:
            ok = False if purpose == "core" else None
            yield CheckResult(package, ok, f"not installed; needed for: {purpose}")
    yield _gpu()
    yield _check_result()


def _gpu() -> CheckResult:
    try:
        torch = import_module("torch")
    except ImportError:
        return CheckResult("gpu", None, "not checked: torch is not installed")
    if not torch.cuda.is_available():
        return CheckResult("gpu", None, "none; everything runs on the CPU")
    return CheckResult("gpu", True, torch.cuda.get_device_name(0))


def _check_result() -> CheckResult:
    """MaxSkew of top-100 counts 40, 30, 20, 10, 0, 0, 0 against seven equal shares is 1.030."""
    import numpy as np

    from tiltmeter.metrics.ranking import max_skew

    started = time.perf_counter()
    codes = np.repeat(np.arange(7), [40, 30, 20, 10, 20, 20, 20])
    scores = -np.arange(len(codes), dtype=np.float32)[None]
    value = max_skew(scores, codes, k=100, target="uniform", empty="bounded", ties="stable")[0]
    took = time.perf_counter() - started
    detail = f"MaxSkew {value:.3f}, expected 1.030; {took:.1f} s including compilation"
    return CheckResult("kernels", bool(abs(value - 1.0296) < 5e-4), detail)
