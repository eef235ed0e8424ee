"""`python -m benchmarks`: its exit codes."""

from __future__ import annotations

import pytest

from benchmarks import __main__ as benchmarks


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert benchmarks.main(["--help"]) == 0
    assert capsys.readouterr().out.startswith("usage: python -m benchmarks")


def test_an_unknown_case_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert benchmarks.main(["sc_eat", "nosuch"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "'nosuch'" in shown.err
    assert all(name in shown.err for name in benchmarks.CASES)


@pytest.mark.parametrize(("worked", "code"), [(True, 0), (False, 1)])
def test_a_failed_case(worked: bool, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmarks, "row", lambda name: (name, worked or name != "audit"))
    assert benchmarks.main([]) == code
