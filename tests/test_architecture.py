"""The house stands as the design says: imports point one way, and nothing is imported unasked."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import tiltmeter

SOURCE = Path(tiltmeter.__file__).parent
#: A room imports only from rooms above it in this list: data flows down, and nothing flows back.
ROOMS = (
    "errors", "registry", "types", "results", "metrics", "stats", "io", "stimuli", "datasets",
    "models", "testbed", "store", "engine", "probes", "debiasers", "auditing", "corpus", "planning",
    "judge", "papers", "pages", "reproduce", "catalogue", "explorer", "sharing", "pytest_plugin",
    "cli", "__main__",
)  # fmt: skip
#: Imports that the order would allow and the design does not.
SHUT = {
    "metrics": {"results"},  # a metric sees arrays, no files
    "stats": {"results"},
    "stimuli": {"results"},
    "datasets": {"stimuli"},
    "models": {"datasets", "stimuli"},
}
#: Files that are about tensors, imported only when these are asked for.
OF_TORCH = {
    "probes/counterfactual/sources/adversarial.py",
    "debiasers/adversary.py", "debiasers/export.py", "debiasers/prompt_array.py",
    "debiasers/prompt_array_data.py", "debiasers/text_tower.py",
    "debiasers/fairvlp.py", "debiasers/training_loop.py", "models/trainable.py",
    "metrics/torch_kernels.py", "models/albef.py", "models/albef_network.py", "models/hf/blip.py",
    "models/hf/bridgetower.py", "models/hf/dual.py", "models/hf/flava.py",
    "models/hf/generative.py", "models/hf/continued_texts.py", "testbed/writer.py",
    "models/hf/image_network.py", "models/hf/region_models.py", "models/hf/regions.py",
    "models/hf/text.py",
    "models/hf/vilt.py", "models/network.py", "models/open_clip.py", "models/weights.py",
    "models/frozen_in_time.py", "models/slip.py", "models/torchscript.py",
    "engine/embedding/patches.py", "stats/torch_kernels.py", "stats/triton_walk.py",
    "testbed/losses.py", "testbed/models.py", "testbed/networks.py",
}  # fmt: skip
FILES = [
    path for path in SOURCE.rglob("*.py") if path.name != "__init__.py" or path.parent != SOURCE
]


def room(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def name(path: Path) -> str:
    return ".".join(("tiltmeter", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(
        ".__init__"
    )


def modules_of(path: Path) -> set[str]:
    """The modules of ours that a file imports, at its top or later."""
    known, found = {name(file) for file in FILES}, set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (names & known) or ({node.module} & known)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names} & known
    return found


def imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "tiltmeter":
            found |= {alias.name for alias in node.names if alias.name != "__version__"}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tiltmeter."):
            found.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("tiltmeter.")}
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_one_way(path: Path) -> None:
    here = room(path)
    for other in imported(path) - {here}:
        assert ROOMS.index(other) < ROOMS.index(here), f"{here} must not import {other}"
        assert other not in SHUT.get(here, ()), f"{here} must not import {other}"


def test_the_test_above_can_fail(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text("from tiltmeter.cli.app import app\nimport tiltmeter.models\n")
    assert imported(wrong) == {"cli", "models"}
    assert ROOMS.index("cli") > ROOMS.index("metrics")


#: Tables of names that are imported when they are used, and point to rooms further down the list.
#: Results have one such door, for what a `Run` shows of itself; models find their loaders.
DOORS = {"results/views.py": {"judge", "pages"}, "models/__init__.py": {"debiasers", "testbed"},
         "datasets/__init__.py": {"testbed"}}  # fmt: skip


def named(path: Path) -> set[str]:
    """Rooms that a file names in texts such as `tiltmeter.pages.html:write`."""
    texts = (node.value for node in ast.walk(ast.parse(path.read_text()))
             if isinstance(node, ast.Constant) and isinstance(node.value, str))  # fmt: skip
    found = {m[1] for m in (re.fullmatch(r"tiltmeter\.(\w+)[\w.]*:\w+", one) for one in texts) if m}
    return {one for one in found if ROOMS.index(one) > ROOMS.index(room(path))}


def test_doors_upwards_are_the_ones_that_are_named() -> None:
    found = {str(path.relative_to(SOURCE)): named(path) for path in FILES}
    assert {name: rooms for name, rooms in found.items() if rooms} == DOORS


def test_no_module_imports_itself_by_way_of_others() -> None:
    graph = {name(path): modules_of(path) - {name(path)} for path in FILES}
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the cycle


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_torch_is_never_imported_at_the_top(path: Path) -> None:
    if str(path.relative_to(SOURCE)) in OF_TORCH:
        return
    tops = [
        node
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    names = {alias.name for node in tops for alias in node.names} | {
        getattr(node, "module", None) for node in tops
    }
    assert not any(name and name.split(".")[0] in ("torch", "transformers") for name in names)


def run_python(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_import_is_quick_and_light() -> None:
    code = (
        "import time, sys; t = time.perf_counter(); import tiltmeter; "
        "took = time.perf_counter() - t; tiltmeter.metrics; "
        "heavy = [m for m in ('torch', 'numba', 'scipy', 'pyarrow') if m in sys.modules]; "
        "print(took, *heavy)"
    )
    took, *heavy = min((run_python(code).split() for _ in range(3)), key=lambda out: float(out[0]))
    assert heavy == []
    assert float(took) < 0.3


def test_metrics_on_numpy_do_not_need_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None; import tiltmeter as tm; "
        "print(tm.metrics.ndkl([[3, 2, 1]], [0, 1, 0], target='uniform').shape)"
    )
    assert run_python(code) == "(1,)"


def test_public_names_exist_whatever_was_imported_before() -> None:
    code = (
        "import tiltmeter.auditing.audit, tiltmeter.cli.app, tiltmeter.judge.gate; "
        "import tiltmeter as tm; "
        "print(callable(tm.audit), callable(tm.compare), all(hasattr(tm, n) for n in tm.__all__))"
    )
    assert run_python(code) == "True True True"
