"""Checks of the installation, for `tiltmeter doctor`."""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Iterable, Iterator
from importlib import import_module, metadata
from typing import NamedTuple

#: Extras for work on the package itself, which are not checked.
DEVELOPMENT = ("bench", "browser", "dev", "docs")


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
    try:
        requirements = metadata.requires("tiltmeter") or []
    except metadata.PackageNotFoundError:  # run from its source
        yield CheckResult("packages", None, "not checked: install tiltmeter with pip, not by path")
    else:
        yield from _packages(requirements)
    yield _gpu()
    yield _check_result()


def _packages(requirements: Iterable[str]) -> Iterator[CheckResult]:
    """A row for each core package, then one for each extra."""
    core, extras = required_packages(requirements)
    for package in core:
        version = _version(package)
        yield CheckResult(
            package, version is not None, version or f"not installed: pip install {package}"
        )
    for extra, packages in extras.items():
        versions = {package: _version(package) for package in packages}
        found = ", ".join(
            f"{package} {version}" for package, version in versions.items() if version
        )
        missing = ", ".join(package for package, version in versions.items() if not version)
        install = f"needs {missing}: pip install 'tiltmeter[{extra}]'" if missing else ""
        detail = "; ".join(filter(None, (found, install)))
        yield CheckResult(f"extra {extra}", None if missing else True, detail)


def required_packages(requirements: Iterable[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Names of the core packages, and of those of each extra; a package is in one list only.

    An extra that contains another lists only what it adds.

    Parameters
    ----------
    requirements
        As `importlib.metadata.requires` returns them.

    Examples
    --------
    >>> required_packages(["numpy>=2.0", "torch>=2.6; extra == 'models'"])
    (['numpy'], {'models': ['torch']})
    """
    core: list[str] = []
    extras: dict[str, list[str]] = {}
    for requirement in requirements:
        package = re.split(r"[^\w.-]", requirement, maxsplit=1)[0]
        extra = re.search(r"extra == ['\"]([\w.-]+)", requirement)
        if extra is None:
            core.append(package)
        elif extra[1] not in DEVELOPMENT and package != "tiltmeter":
            extras.setdefault(extra[1], []).append(package)
    listed = set(core)
    for extra_name in sorted(extras, key=lambda name: len(extras[name])):
        extras[extra_name] = [one for one in extras[extra_name] if one not in listed]
        listed.update(extras[extra_name])
    return core, {extra_name: packages for extra_name, packages in extras.items() if packages}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


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
