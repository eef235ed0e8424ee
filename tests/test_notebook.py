"""The notebook in examples/ runs: every code cell in order, and what its last lines show."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT

NOTEBOOK = ROOT / "examples/first_audit.ipynb"


def run_cell(source: str, namespace: dict[str, Any]) -> Any:
    """What a notebook shows below a cell: the value of its last line, if that is an expression."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, str(NOTEBOOK), "exec"), namespace)
    if last is None:
        return None
    assert isinstance(last, ast.Expr)
    return eval(compile(ast.Expression(last.value), str(NOTEBOOK), "eval"), namespace)


def test_the_notebook_runs_and_shows_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    content = json.loads(NOTEBOOK.read_text())
    assert content["nbformat"] == 4
    cells = ["".join(cell["source"]) for cell in content["cells"] if cell["cell_type"] == "code"]
    assert all(not cell.get("outputs") for cell in content["cells"])
    namespace: dict[str, Any] = {}
    shown = [run_cell(cell, namespace) for cell in cells]
    assert "shape" in capsys.readouterr().out
    for value in (shown[0], namespace["comparison"], namespace["board"]):
        assert "<h4>" in value._repr_html_()
    board = namespace["board"]
    assert board.models == ["testbed:dual-fair", "testbed:dual"]
    assert namespace["comparison"].worse.num_rows == 0
    assert namespace["comparison"].better.num_rows > 0
    assert namespace["largest"]
