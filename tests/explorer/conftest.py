"""One scene for all tests of the page."""

from __future__ import annotations

import pytest

from tests.explorer.making import two_models
from tests.remembering import scenes_once
from tiltmeter.explorer.gather import ExplorerData

__all__ = ["scenes_once"]


@pytest.fixture(scope="session")
def scene() -> ExplorerData:
    return two_models()
