"""Help pages and shell completion: what to type, on 80 columns, without importing a model."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main

from tests.command_line import in_a_process_of_its_own, tiltmeter
from tiltmeter.cli.app import app
from tiltmeter.cli.help import PANELS

GROUP = typer.main.get_command(app)
COMMANDS = [name for name in GROUP.commands if name != "store"]  # type: ignore[attr-defined]
PATHS = [(name,) for name in COMMANDS] + [
    ("store", name) for name in ("info", "verify", "merge", "gc")
]


@pytest.mark.parametrize("path", [(), ("store",), *PATHS], ids=" ".join)
def test_help_fits_80_columns_and_shows_no_python_types(path: tuple[str, ...]) -> None:
    done = tiltmeter(*path, "--help")
    assert done.returncode == 0
    assert "Usage" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert not re.search(r"<(list|str|int|float|bool|path|range)", done.stdout)
    assert "…" not in done.stdout


@pytest.mark.parametrize("path", PATHS, ids=" ".join)
def test_every_command_has_examples_and_panels(path: tuple[str, ...]) -> None:
    shown = tiltmeter(*path, "--help").stdout
    assert f"tiltmeter {' '.join(path)}" in shown.partition("Examples:")[2]
    titles = re.findall(r"╭─ (.+?) ─+╮", shown)
    order = [title for title in PANELS if title in titles]
    assert titles in (order, ["Arguments", *order])


def test_help_lines_are_short_and_start_with_a_verb() -> None:
    for name, command in GROUP.commands.items():  # type: ignore[attr-defined]
        line = command.help.partition("\n")[0]
        assert len(line) <= 70, name
        assert re.fullmatch(r"[A-Z][a-z]+ .*\.", line), name


def test_options_have_metavars() -> None:
    for name in COMMANDS:
        for param in GROUP.commands[name].params:  # type: ignore[attr-defined]
            if not getattr(param, "is_flag", False):
                assert param.metavar, f"{name} {param.name}"


@pytest.mark.parametrize(
    ("words", "current", "expected"),
    [
        ("tiltmeter aud", 1, {"audit"}),
        ("tiltmeter audit testbed:d", 2, {"testbed:dual"}),
        ("tiltmeter audit open_", 2, {"open_clip:"}),
        ("tiltmeter audit testbed : d", 4, set()),
        ("tiltmeter audit --images fair", 3, {"fairface:"}),
        ("tiltmeter audit --probe rank", 3, {"ranking"}),
        ("tiltmeter audit --convention be", 3, {"bendvlm", "berg2022"}),
        ("tiltmeter audit --words sob", 3, {"sobit", "sobit-extra"}),
        ("tiltmeter debias lea", 2, {"leace"}),
        ("tiltmeter list deb", 2, {"debiasers"}),
    ],
)
def test_names_complete(
    words: str, current: int, expected: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As bash asks: the words so far, and which of them the cursor is in."""
    monkeypatch.setenv("_TILTMETER_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(current))
    assert set(tiltmeter().stdout.split()) == expected


def test_completion_imports_no_model() -> None:
    code = (
        "import sys; import tiltmeter.cli.app; from tiltmeter.catalogue import KINDS; "
        "from tiltmeter.cli.completion import completion_of; "
        "assert all(completion_of(kind)('') for kind in KINDS); "
        "print([name for name in ('torch', 'transformers', 'numba') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_completion_can_be_installed(tmp_path: Path) -> None:
    done = in_a_process_of_its_own(
        "--install-completion", "bash",
        HOME=str(tmp_path), _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    script = (tmp_path / ".bash_completions/tiltmeter.sh").read_text()
    assert "_TILTMETER_COMPLETE=complete_bash" in script


def test_help_needs_no_numpy() -> None:
    """A third of the time of `--help` would be its import."""
    code = "import sys, tiltmeter.cli.app; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
