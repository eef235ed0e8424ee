"""The command line as tests call it."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import warnings
from pathlib import Path
from unittest import mock

FEW = ("--k", "20", "--permutations", "99", "--bootstraps", "50", "--no-report")
TERMINAL = {"COLUMNS": "80", "NO_COLOR": "1"}


def tiltmeter(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Runs a command in this process: what a new one imports takes longer than most commands."""
    from tiltmeter.cli.app import main

    command = ["tiltmeter", *map(str, arguments)]
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    modules, path = set(sys.modules), list(sys.path)
    code: object = 0
    with (
        contextlib.chdir(cwd or Path.cwd()),
        mock.patch.dict(os.environ, TERMINAL),
        mock.patch.object(sys, "argv", command),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("default")
        warnings.showwarning = lambda *given: err.write(warnings.formatwarning(*given[:4]))
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    sys.path[:] = path
    for name in set(sys.modules) - modules:  # a test's own models: another test has others
        if cwd and cwd in Path(getattr(sys.modules[name], "__file__", None) or "/").parents:
            del sys.modules[name]
    shown = [stream.buffer.getvalue().decode() for stream in (out, err)]  # type: ignore[attr-defined]
    return subprocess.CompletedProcess(command, int(str(code)), *shown)


def in_a_process_of_its_own(
    *arguments: object, cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs a command as a shell would."""
    return subprocess.run(
        [sys.executable, "-m", "tiltmeter", *map(str, arguments)],
        capture_output=True, text=True, cwd=cwd, env=os.environ | TERMINAL | environment,
    )  # fmt: skip
