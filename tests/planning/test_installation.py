"""`tiltmeter doctor`: packages by what the installed package itself requires."""

from __future__ import annotations

from importlib import metadata

import pytest

from tiltmeter.planning import installation
from tiltmeter.planning.installation import check_installation, required_packages

REQUIRES = [
    "numpy>=2.0",
    "no-such-core>=1",
    "scikit-learn>=1.5; extra == 'debias'",
    "no-such-tool; extra == 'dev'",
    "scikit-learn>=1.5; extra == 'models'",
    'no-such-model<3,>=2; extra == "models"',
    "no-such-model<3,>=2; extra == 'open-clip'",
    "no-such-clip>=3; extra == 'open-clip'",
    "scikit-learn>=1.5; extra == 'open-clip'",
    "no-such-ray[data]>=2.40; extra == 'ray'",
]


def test_a_package_belongs_to_the_smallest_extra() -> None:
    core, extras = required_packages(REQUIRES)
    assert core == ["numpy", "no-such-core"]
    assert extras == {
        "debias": ["scikit-learn"],
        "models": ["no-such-model"],
        "open-clip": ["no-such-clip"],
        "ray": ["no-such-ray"],
    }


def test_only_a_missing_core_package_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation.metadata, "requires", lambda _: REQUIRES)
    found = {check.name: check for check in check_installation()}
    assert (found["numpy"].ok, found["numpy"].detail) == (True, metadata.version("numpy"))
    assert found["no-such-core"].ok is False
    assert found["extra models"].ok is None
    assert "pip install 'tiltmeter[models]'" in found["extra models"].detail
    assert found["kernels"].ok is True


def test_every_requirement_of_this_installation_is_checked() -> None:
    checks = list(check_installation())
    shown = " ".join(f"{check.name} {check.detail}" for check in checks)
    for package in ("altair", "vl-convert-python", "scikit-learn", "starlette", "uvicorn", "httpx2",
                    "datasets", "wordfreq", "ray", "open-clip-torch", "safetensors"):  # fmt: skip
        assert package in shown
    assert len(checks) < 30


def test_without_metadata_the_rest_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    def requires(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(installation.metadata, "requires", requires)
    found = {check.name: check.ok for check in check_installation()}
    assert found["packages"] is None
    assert found["kernels"] is True
