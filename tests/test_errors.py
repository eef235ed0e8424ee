"""Errors carry a stable code and the offending value, whatever their sentence says."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from tiltmeter.errors import (
    ConventionError,
    DamagedError,
    InputError,
    MissingError,
    TiltmeterError,
    UnknownNameError,
)

ERRORS = [
    (TiltmeterError("no"), "error", None),
    (InputError("no"), "bad-input", None),
    (InputError("no", code="exists", value="run"), "exists", "run"),
    (MissingError("model 'hf'", "torch"), "missing-package", "torch"),
    (DamagedError(Path("s/m/1.npy"), "is empty"), "damaged-file", Path("s/m/1.npy")),
    (ConventionError("no"), "convention-mismatch", None),
    (UnknownNameError("probe", "rankin", ["ranking", "eat"]), "unknown-name", "rankin"),
]


@pytest.mark.parametrize(("error", "code", "value"), ERRORS, ids=lambda one: type(one).__name__)
def test_code_and_value_survive_a_process_boundary(
    error: TiltmeterError, code: str, value: object
) -> None:
    copied = pickle.loads(pickle.dumps(error))
    for one in (error, copied):
        assert (one.code, one.value) == (code, value)
    assert type(copied) is type(error)
    assert str(copied) == str(error)
    assert vars(copied) == vars(error)


def test_a_narrower_code_belongs_to_one_error_only() -> None:
    InputError("no", code="exists")
    assert InputError.code == "bad-input"


def test_suggestions() -> None:
    near = UnknownNameError("probe", "rankin", ["ranking", "eat"])
    assert (near.kind, near.suggestions) == ("probe", ["ranking"])
    far = UnknownNameError("probe", "xyz", ["ranking", "eat"])
    assert far.suggestions == []
    assert "eat, ranking" in str(far)
    typed = UnknownNameError("model", "org/name", (), suggestions=["hf:org/name"])
    assert "'hf:org/name'" in str(typed)
