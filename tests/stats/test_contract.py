"""Public functions of the statistics are documented, each with an example that runs."""

from __future__ import annotations

import inspect

import pytest

from tiltmeter import stats

INTERNAL = {"slices_of_draws", "tie_tolerance"}
PUBLIC = {
    f"{module}.{name}": function
    for module in stats.__all__
    for name, function in inspect.getmembers(getattr(stats, module), inspect.isfunction)
    if function.__module__ == f"tiltmeter.stats.{module}"
    and not name.startswith("_")
    and name not in INTERNAL
}


@pytest.mark.parametrize("name", PUBLIC)
def test_public_functions_are_documented_with_an_example(name: str) -> None:
    doc = inspect.getdoc(PUBLIC[name]) or ""
    for section in ("Parameters", "Returns", "Examples"):
        assert f"{section}\n{'-' * len(section)}\n" in doc
    assert f"{PUBLIC[name].__name__}(" in doc.partition(">>>")[2]


def test_there_are_some() -> None:
    assert len(PUBLIC) > 30
