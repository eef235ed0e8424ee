"""One scene for all tests of the page."""

from __future__ import annotations

import pytest

from tests.explore.making import two_models
from tiltmeter.explore.gathering import Scene


@pytest.fixture(scope="session")
def scene() -> Scene:
    return two_models()
