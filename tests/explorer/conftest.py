"""One scene for all tests of the page."""

from __future__ import annotations

import pytest

from tests.explorer.making import two_models
from tiltmeter.explorer.gathering import Scene


@pytest.fixture(scope="session")
def scene() -> Scene:
    return two_models()
