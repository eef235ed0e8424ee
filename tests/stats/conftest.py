"""Kernels are tested on all cores, as audits run them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tiltmeter.metrics.numpy_kernels import use_cores


@pytest.fixture(scope="package", autouse=True)
def all_cores() -> Iterator[None]:
    before = use_cores(None)
    yield
    use_cores(before)
