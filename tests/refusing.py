"""Errors as tests expect them: by their code and the essential values, not by their sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tiltmeter.errors import Code, TiltmeterError


@contextmanager
def refused(code: Code, *mentions: str, suggests: str | None = None) -> Iterator[None]:
    """What is inside raises an error with this code, whose message mentions these values."""
    with pytest.raises(TiltmeterError) as caught:
        yield
    error = caught.value
    assert error.code == code, error
    assert [value for value in mentions if value not in str(error)] == [], error
    if suggests is not None:
        assert suggests in getattr(error, "suggestions", ()), error
