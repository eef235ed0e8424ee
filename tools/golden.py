"""Golden runs: result tables of many commands, so that a change of code can be compared.

    python -m tools.golden make DIR       # before the change: run all commands, keep their tables
    python -m tools.golden check DIR      # after it: run them again, list every value that differs

DIR belongs outside the repository: the tables are those of one machine (its rounding, its data).
Runs that need data of others (`--shared`) are left out, by name, where these are missing.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

#: What may differ: times, durations, and hashes of files with them.
UNLIKE = ("environment", "seconds", "run", "run.json", "hash")
FEW = ["--permutations", "200", "--bootstraps", "100"]
ALL = [
    "--data", "triplets=testbed:triplets?images=120", "--data", "lexicon=testbed:lexicon",
    "--data", "valence=testbed:valence?images=200",
]  # fmt: skip
COUNTERFACTUAL = ["--probe", "counterfactual", "--option", "counterfactual.images=12"]
#: name: the command; `{name}` is the folder of an earlier run, `{minilit}` a model with embeddings.
RUNS: dict[str, list[str]] = {
    "default": ["audit", "--no-report"],
    "probes": ["audit", "testbed:fusion", *ALL, *FEW, "--no-report"],
    "fair": ["audit", "testbed:fusion?twin=fair", *FEW, "--no-report"],
    "counterfactual": ["audit", "testbed:fusion", *COUNTERFACTUAL, *FEW, "--no-report"],
    "berg": ["audit", "testbed:dual", "--images", "testbed:?images=2800", "--convention",
             "berg2022", "--probe", "ranking", *FEW, "--no-report"],
    "before": ["audit", "testbed:dual", "--images", "testbed:?images=1400&seed=5", "--probe",
               "ranking", "--probe", "harms", *FEW, "--no-report"],
    "leace": ["debias", "leace", "testbed:dual", "--images", "testbed:?images=1400", "-a", "shape"],
    "after": ["audit", "{leace}", "--images", "testbed:?images=1400&seed=5", "--probe", "ranking",
              "--probe", "harms", *FEW, "--no-report"],
    "pbm": ["debias", "pbm", "testbed:dual", "--images", "testbed:?images=1400", "-a", "shape"],
    "reranked": ["audit", "{pbm}", "--images", "testbed:?images=1400&seed=5", "--probe", "ranking",
                 *FEW, "--no-report"],
    "compare": ["compare", "{before}", "{after}", "--swaps", "199", "--bootstraps", "100",
                "--json"],
    "frontier": ["frontier", "testbed:dual", "-a", "shape", "--images", "testbed:?images=2000",
                 "-m", "leace", "-m", "pbm", "--permutations", "99", "--bootstraps", "50"],
    "bundle": ["bundle", "{default}"],
    "captions": ["captions", "{shared}/data/coco_captions/captions_val2017.json"],
    "minilit": ["audit", "python:{shared}/models/minilit/minilit.py:MiniLiT", "--images",
                "embeddings:{minilit}", "-a", "gender", "-a", "race", "--cross", "race*gender",
                "--probe", "ranking", "--probe", "harms", "--probe", "eat", *FEW, "--no-report"],
}  # fmt: skip


def main() -> None:
    """Make golden runs, or check them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("action", choices=("make", "check"))
    parser.add_argument("place", type=Path)
    parser.add_argument("--only", nargs="+", choices=tuple(RUNS), help="only these runs")
    parser.add_argument("--shared", type=Path, default=Path("../shared"), help="data of others")
    parser.add_argument("--ignore", nargs="+", default=[], help="columns whose texts may change")
    options = parser.parse_args()
    golden = options.place.resolve()
    if options.action == "make":
        run_all(golden, options.only, options.shared.resolve())
        return
    with tempfile.TemporaryDirectory() as folder:
        again = Path(folder)
        for name in [] if options.only is None else options.only:  # the runs that they start from
            for other in RUNS:
                if f"{{{other}}}" in RUNS[name] and other not in options.only:
                    shutil.copytree(golden / other, again / other)
        run_all(again, options.only, options.shared.resolve())
        differ = 0
        for name in options.only or RUNS:
            if (golden / name).exists():
                lines = list(differences(golden / name, again / name, options.ignore))
                print(f"{name}: {'equal' if not lines else f'{len(lines)} differences'}")
                print("".join(f"    {line}\n" for line in lines[:20]), end="")
                differ += len(lines)
    sys.exit(1 if differ else 0)


def run_all(place: Path, only: list[str] | None, shared: Path) -> None:
    """Run the commands, each into a folder of its name."""
    place.mkdir(parents=True, exist_ok=True)
    folders = {name: str(place / name) for name in RUNS} | {"shared": str(shared)}
    folders["minilit"] = str(place / "minilit-embeddings")
    for name, command in RUNS.items():
        if only is not None and name not in only:
            continue
        if any("{shared}" in word for word in command) and not shared.is_dir():
            print(f"{name}: skipped, there is no {shared}")
            continue
        if name == "minilit":
            _copy_minilit(shared / "models/minilit", Path(folders["minilit"]))
        out = place / name
        words = [word.format(**folders) for word in command]
        if command[0] == "compare":
            out.mkdir()
        elif command[0] == "bundle":
            words += ["--out", f"{out}.tiltmeter.zip", "--force"]
        else:
            words += ["--out", str(out), "--force"]
        code = "from tiltmeter.cli.app import main; main()"
        done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{name}: {' '.join(words)}\n{done.stdout}{done.stderr}")
        if command[0] == "compare":
            (out / "printed.json").write_text(done.stdout)
        if command[0] == "bundle":
            out.mkdir(exist_ok=True)
            with zipfile.ZipFile(f"{out}.tiltmeter.zip") as packed:
                packed.extractall(out)
        print(f"{name}: done", flush=True)


def differences(golden: Path, again: Path, ignore: list[str]) -> Iterator[str]:
    """Values that changed, one line each; those of ignored columns are not compared."""
    for file in sorted(golden.rglob("*")):
        other = again / file.relative_to(golden)
        if file.suffix not in (".parquet", ".json") or file.name == "run.json":
            continue
        if not other.exists():
            yield f"{file.name}: gone"
        elif file.suffix == ".json":
            a, b = (json.loads(path.read_text()) for path in (file, other))
            yield from _unlike(a, b, file.name)
        else:
            old = pq.read_table(file)
            kept = old.select([name for name in old.column_names if name not in ignore])
            yield from _rows_unlike(kept, pq.read_table(other), file.name)


def _rows_unlike(a: pa.Table, b: pa.Table, name: str) -> Iterator[str]:
    if a.num_rows != b.num_rows:
        yield f"{name}: {a.num_rows:,} rows before, {b.num_rows:,} now"
        return
    for column in a.column_names:
        if column not in b.column_names:
            yield f"{name}: column {column} is gone"
            continue
        for row, (old, new) in enumerate(
            zip(a[column].to_pylist(), b[column].to_pylist(), strict=True)
        ):
            if not _same(old, new):
                yield f"{name}, row {row}, {column}: {old} before, {new} now: {_about(a, row)}"


def _about(table: pa.Table, row: int) -> str:
    names = ("probe", "metric", "attribute", "group", "concept", "template", "k", "experiment")
    present = [name for name in names if name in table.column_names]
    return ", ".join(str(x) for name in present if (x := table[name][row].as_py()) is not None)


def _unlike(a: object, b: object, at: str) -> Iterator[str]:
    if isinstance(a, dict) and isinstance(b, dict):
        for name in a:
            if name not in UNLIKE:
                yield from _unlike(a[name], b.get(name), f"{at}.{name}")
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for row, pair in enumerate(zip(a, b, strict=True)):
            yield from _unlike(*pair, f"{at}[{row}]")
    elif not _same(a, b) and not (isinstance(a, str) and "/" in a):  # a path, or a hash of one
        yield f"{at}: {a} before, {b} now"


def _same(a: object, b: object) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return bool(np.isclose(a, b, rtol=1e-9, atol=1e-12, equal_nan=True))
    return a == b


def _copy_minilit(home: Path, place: Path) -> None:
    place.mkdir(parents=True, exist_ok=True)
    shutil.copy(home / "fairface_val5000_image_embeddings.npy", place / "images.npy")
    with (home / "fairface_val5000_files.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    text = io.StringIO()
    writer = csv.DictWriter(text, ["file", "age", "gender", "race"], extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows)
    (place / "images.csv").write_text(text.getvalue())


if __name__ == "__main__":
    main()
