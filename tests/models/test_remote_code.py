"""Code that a checkpoint brings along runs only when somebody says so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")

CODE = """
from pathlib import Path
from transformers import PretrainedConfig

Path({ran!r}).write_text("ran")

class OddConfig(PretrainedConfig):
    model_type = "odd"
"""


@pytest.mark.parametrize("trusted", [False, True])
def test_remote_code(tmp_path: Path, trusted: bool) -> None:
    place, ran = tmp_path / "odd", tmp_path / "ran"
    place.mkdir()
    (place / "odd.py").write_text(CODE.format(ran=str(ran)))
    config = {"model_type": "odd", "auto_map": {"AutoConfig": "odd.OddConfig"}}
    (place / "config.json").write_text(json.dumps(config))
    start = "from tiltmeter.cli.app import main; main()"
    command = [sys.executable, "-c", start, "audit", f"hf:{place}", "--images", "testbed:"]
    done = subprocess.run(
        command + ["--trust-remote-code"] * trusted,
        env={**os.environ, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"},
        input="",
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert ran.exists() == trusted
    assert done.returncode == 2  # it is no model that we know, in either case
    assert "odd" in done.stderr
