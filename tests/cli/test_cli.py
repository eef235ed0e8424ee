"""The command line as a user meets it: tables, JSON, help, and errors with exit code 2."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from pyarrow.csv import read_csv

from tests.command_line import FEW, in_a_process_of_its_own, tiltmeter
from tests.conftest import ROOT, write_csv
from tests.refusing import refused
from tiltmeter.catalogue import debiaser_contents
from tiltmeter.debiasers import DEBIASERS
from tiltmeter.models import load_model


def code_of(done: subprocess.CompletedProcess[str]) -> str | None:
    """The code at the end of an error message."""
    found = re.search(r"\[([a-z-]+)\]\s*$", done.stderr)
    return found and found[1]


def test_one_command_gives_a_table_that_fits_80_columns(embeddings: Path, tmp_path: Path) -> None:
    done = tiltmeter(
        "audit", f"embeddings:{embeddings}", "--cross", "gender*age", "--verbose", *FEW,
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    planted = next(line for line in done.stdout.splitlines() if line.startswith("thing 0"))
    assert planted.split()[2] == "woman"
    assert float(planted.split()[-1]) < 0.05  # p among neutral words
    assert "Kept in tiltmeter-runs/001" in done.stdout
    assert (tmp_path / "tiltmeter-runs/001/results.parquet").exists()
    again = tiltmeter("audit", f"embeddings:{embeddings}", *FEW, cwd=tmp_path)
    assert "tiltmeter-runs/002" in again.stdout
    assert "thing 0" not in again.stdout
    assert len(again.stdout.splitlines()) <= 40
    quiet = tiltmeter("audit", f"embeddings:{embeddings}", "--quiet", *FEW, cwd=tmp_path)
    assert (quiet.returncode, quiet.stdout) == (0, "")  # without a report nothing is left to say


def test_json_is_json(embeddings: Path, tmp_path: Path) -> None:
    done = in_a_process_of_its_own(
        "audit", f"embeddings:{embeddings}", "--json", "--out", tmp_path / "run", *FEW
    )
    found = json.loads(done.stdout)
    assert found["c_asc_beyond_neutral_words"][0]["concept"] == "thing 0"
    assert found["out"] == str(tmp_path / "run")
    assert done.stderr == ""


def test_clip_retrievals_layout(embeddings: Path, tmp_path: Path) -> None:
    """Shards of vectors with metadata, in folders; the texts come along in our own files."""
    other = tmp_path / "clip"
    for folder in ("img_emb", "metadata"):
        (other / folder).mkdir(parents=True)
    vectors = np.load(embeddings / "images.npy").astype(np.float16)
    table = read_csv(embeddings / "images.csv").rename_columns(["image_path", "gender", "age"])
    for part, rows in enumerate((slice(0, 100), slice(100, 240))):
        np.save(other / f"img_emb/img_emb_{part}.npy", vectors[rows])
        pq.write_table(
            table.slice(rows.start, rows.stop - rows.start),
            other / f"metadata/metadata_{part}.parquet",
        )
    for name in ("texts.npy", "texts.csv"):
        shutil.copy(embeddings / name, other)
    outputs = [
        json.loads(
            tiltmeter(
                "audit", f"embeddings:{place}", "--json", "--out", tmp_path / place.name / "o", *FEW
            ).stdout
        )
        for place in (embeddings, other)
    ]
    values = [[row["value"] for row in output["overall"]] for output in outputs]
    np.testing.assert_allclose(
        values[0], values[1], atol=0.05
    )  # half precision moves a rank or two


MODEL = """
import numpy as np
class Tower:
    def __init__(self, size="16"):
        self.size = int(size)
    def encode_texts(self, texts):
        return np.stack([np.random.default_rng(len(t)).normal(size=self.size) for t in texts])
def nothing():
    return 3
"""


def test_a_model_of_ones_own(embeddings: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MODEL)
    for spec in ("python:mine.py:Tower", "python:mine:Tower?size=16"):
        done = tiltmeter(
            "audit", spec, "--images", f"embeddings:{embeddings}", "--words", "occupations",
            "--attribute", "gender", *FEW, "--json", cwd=tmp_path,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["model"]["name"] == "mine:Tower"


def test_a_model_file_imports_modules_next_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "next_to_mine.py").write_text(MODEL)
    (tmp_path / "later_than_mine.py").write_text("SIZE = 4")
    (tmp_path / "mine.py").write_text(
        "from next_to_mine import Tower\n"
        "def build():\n    from later_than_mine import SIZE\n    return Tower(SIZE)\n"
    )
    model = load_model(f"python:{tmp_path / 'mine.py'}:build")
    assert model.encode_texts(["a", "b"]).shape == (2, 4)
    assert sys.path[-1] == str(tmp_path)  # it hides no library


def test_plan(tmp_path: Path) -> None:
    rows = [{"file": f"{i}.jpg", "kind": "a" if i % 10 else "b"} for i in range(2000)]
    write_csv(tmp_path / "labels.csv", rows)
    done = tiltmeter("plan", "--images", f"table:{tmp_path / 'labels.csv'}", "--words", "50")
    assert done.returncode == 0, done.stderr
    assert "0.209" in done.stdout  # 2.80 / sqrt(2000 * .1 * .9)
    as_json = json.loads(
        tiltmeter("plan", "--images", f"table:{tmp_path / 'labels.csv'}", "--json").stdout
    )
    assert as_json[0]["groups"][1]["smallest"] == pytest.approx(0.209, abs=5e-4)


@pytest.mark.parametrize(
    "kind", ["models", "datasets", "probes", "metrics", "conventions", "stimuli"]
)
def test_list(kind: str) -> None:
    done = tiltmeter("list", kind)
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    found = json.loads(tiltmeter("list", kind, "--json").stdout)[kind]
    assert found
    assert all(found.values())


@pytest.mark.parametrize("name", list(DEBIASERS))
def test_options_of_a_debiaser_are_listed(name: str) -> None:
    """Each with its default, as one types it, and what it does."""
    pytest.importorskip("torch")
    method, *options = debiaser_contents(name).items()
    assert method[1]
    if name != "pipeline":  # made by joining names with +
        assert options
    for option, said in options:
        assert re.fullmatch(r"\w+=.*", option)
        assert said, option


def test_doctor_finds_the_kernels_in_order() -> None:
    done = tiltmeter("doctor", "--json")
    assert done.returncode == 0, done.stdout
    found = {row["name"]: row for row in json.loads(done.stdout)}
    assert found["kernels"]["ok"] is True


def test_version() -> None:
    import tiltmeter as tm

    assert tiltmeter("--version").stdout == f"tiltmeter {tm.__version__}\n"


# --- bad input: each a clear error, exit code 2, and nothing half written -----------------------


def spoil_vectors(value: float) -> Callable[[Path], None]:
    def spoil(place: Path) -> None:
        vectors = np.load(place / "images.npy")
        vectors[7] = value
        np.save(place / "images.npy", vectors)

    return spoil


def spoil_labels(
    change: Callable[[list[dict[str, str]]], list[dict[str, str]]],
) -> Callable[[Path], None]:
    def spoil(place: Path) -> None:
        rows = read_csv(place / "images.csv").to_pylist()
        write_csv(place / "images.csv", change(rows))

    return spoil


def lone_group(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    return [rows[0] | {"gender": "unknown"}, *rows[1:]]


def twice(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    return [rows[1], *rows[1:]]


def no_label(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    return [rows[0] | {"gender": ""}, *rows[1:]]


def empty_table(place: Path) -> None:
    (place / "images.csv").write_text("id,gender,age\n")


def latin_1(place: Path) -> None:
    (place / "images.csv").write_bytes("id,gender\n1,Männer\n".encode("latin-1"))


def no_vectors(place: Path) -> None:
    (place / "images.npy").unlink()


def torn_vectors(place: Path) -> None:
    (place / "images.npy").write_bytes((place / "images.npy").read_bytes()[:1000])


def whole_numbers(place: Path) -> None:
    np.save(place / "images.npy", np.ones((240, 16), dtype=np.int64))


def other_space(place: Path) -> None:
    np.save(place / "texts.npy", np.ones((51, 8), dtype=np.float32))


def fewer_texts(place: Path) -> None:
    np.save(place / "texts.npy", np.load(place / "texts.npy")[:-1])


def no_text_column(place: Path) -> None:
    (place / "texts.csv").write_text("words\n" + "a\n" * 51)


def wrong_role(place: Path) -> None:
    text = (place / "texts.csv").read_text()
    (place / "texts.csv").write_text(text.replace(",placebo,", ",plcebo,"))


def no_texts(place: Path) -> None:
    (place / "texts.csv").unlink()


def nothing(place: Path) -> None:
    pass


#: What is wrong, what else is passed, the error's code and the value that it must name.
BAD: dict[str, tuple[Callable[[Path], None], tuple[str, ...], str, str]] = {
    "NaN": (spoil_vectors(np.nan), (), "bad-input", "row 7"),
    "infinity": (spoil_vectors(np.inf), (), "bad-input", "row 7"),
    "zero vector": (spoil_vectors(0.0), (), "bad-input", "row 7"),
    "rows differ": (spoil_labels(lambda rows: rows[:-1]), (), "bad-labels", "239"),
    "unknown column": (nothing, ("--attribute", "gendre"), "unknown-name", "'gender'"),
    "no labels": (
        spoil_labels(lambda rows: [{"id": r["id"]} for r in rows]),
        (),
        "bad-labels",
        "--attribute",
    ),
    "lone member": (spoil_labels(lone_group), (), "bad-input", "'unknown'"),
    "one group": (
        spoil_labels(lambda rows: [r | {"gender": "man"} for r in rows]),
        ("--attribute", "gender"),
        "bad-input",
        "'man'",
    ),
    "missing label": (spoil_labels(no_label), (), "bad-input", "1 of 240"),
    "k above N": (nothing, ("--k", "241"), "bad-input", "240"),
    "k of all images": (nothing, ("--k", "240"), "bad-input", "from 1 to 239"),
    "default k above N": (nothing, ("--k", "1000"), "bad-input", "240"),
    "duplicate ids": (spoil_labels(twice), (), "bad-labels", "'i1'"),
    "empty table": (empty_table, (), "bad-file", "images.csv"),
    "not UTF-8": (latin_1, (), "bad-file", "images.csv"),
    "no vectors": (no_vectors, (), "bad-file", "images.npy"),
    "torn vectors": (torn_vectors, (), "bad-file", "images.npy"),
    "integers": (whole_numbers, (), "bad-file", "int64"),
    "other space": (other_space, (), "bad-input", "8"),
    "fewer texts": (fewer_texts, (), "bad-input", "50"),
    "no text column": (no_text_column, (), "bad-input", "'text'"),
    "wrong role": (wrong_role, (), "unknown-name", "'placebo'"),
    "no texts": (no_texts, (), "bad-input", "--images embeddings:"),
    "unknown probe": (nothing, ("--probe", "rankin"), "unknown-name", "'ranking'"),
    "unknown convention": (nothing, ("--convention", "berg"), "unknown-name", "'berg2022'"),
    "unknown intersection": (nothing, ("--cross", "gender*agee"), "unknown-name", "'age'"),
    "unknown words": (nothing, ("--words", "sobitt"), "unknown-name", "'sobit'"),
    "unknown text": (nothing, ("--words", "occupations"), "unknown-name", "athlete"),
    "missing words": (nothing, ("--words", "none.csv"), "bad-input", "none.csv"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named_and_nothing_is_written(
    name: str, embeddings: Path, tmp_path: Path
) -> None:
    spoil, options, code, value = BAD[name]
    spoil(embeddings)
    few = () if "--k" in options else FEW[:2]
    done = tiltmeter(
        "audit", f"embeddings:{embeddings}", "--out", tmp_path / "run", *FEW[2:], *few, *options
    )
    assert (done.returncode, code_of(done)) == (2, code), done.stderr
    assert value in " ".join(done.stderr.split())
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "value"),
    [
        (("audit", "embedings:x"), "unknown-name", "'embeddings'"),
        (("audit", "--images", "table:x.csv"), "bad-option", "--images table:x.csv"),
        (("audit", "embeddings:nowhere"), "not-found", "embeddings:nowhere"),
        (("audit", "embeddings"), "unknown-name", "'embeddings:"),
        (("audit", "openai/clip-vit"), "unknown-name", "did you mean 'hf:openai/clip-vit'?"),
        (("audit", "fairface:x"), "unknown-name", "tiltmeter list datasets"),
        (("audit", "--probe", "leace"), "unknown-name", "tiltmeter list debiasers"),
        (("audit", "mine.py"), "unknown-name", "'python:mine.py:FACTORY'"),
        (("audit", "--option", "k=3"), "bad-option", "'k=3'"),
        (("audit", "--option", "rankin.k=3"), "unknown-name", "'ranking'"),
        (("audit", "python:nowhere.py:f"), "not-found", "nowhere.py"),
        (("audit", "clip-fair"), "unknown-name", "no folder clip-fair here"),
        (("audit", "clip-fair"), "unknown-name", "tiltmeter debias ... --out clip-fair"),
        (("audit", "./clip-fair"), "unknown-name", "no folder ./clip-fair here"),
        (("audit", "--k", "ten"), "bad-option", "'ten'"),
        (("audit", "--words", "doctor,flibber"), "bad-option", "unknown: write flibber:noun"),
        (("audit", "python:nowhere:f", "--images", "table:x.csv"), "not-found", "x.csv"),
        (("audit", "python:nowhere:f"), "bad-input", "'nowhere'"),
        (("audit", "python:json"), "bad-input", "python:module:factory"),
        (("audit", "python:json:lods"), "unknown-name", "'loads'"),
        (("audit", "python:types:SimpleNamespace"), "bad-input", "encode_texts"),
        (("plan", "--images", "table:none.csv"), "not-found", "none.csv"),
        (("plan", "--images", "table:none.csv"), "not-found", "relative to the current directory"),
        (("plan", "--images", "table:none.csv?atributes=a"), "unknown-name", "'attributes'"),
        (("plan", "--images", "tabel:none.csv"), "unknown-name", "'table'"),
        (("plan", "--images", "labels.csv"), "unknown-name", "'table:labels.csv'"),
        (("plan", "--images", "fairfac"), "unknown-name", "'fairface:'"),
        (("plan",), "bad-option", "--images"),
        (("plan", "--images", "testbed:", "--power", "2"), "bad-option", "2.0"),
        (("list", "metric"), "unknown-name", "'metrics'"),
        (("verify", "x.zip", "--digest", "12"), "bad-option", "'12'"),
    ],
)
def test_misspelt_names_and_missing_places(
    arguments: tuple[str, ...], code: str, value: str, tmp_path: Path
) -> None:
    done = tiltmeter(*arguments, cwd=tmp_path)
    assert (done.returncode, code_of(done)) == (2, code), done.stderr
    assert value in " ".join(done.stderr.split())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("record", "suggestion"),
    [({"model": {"spec": "testbed:dual"}}, "testbed:dual"), ({}, "tiltmeter report earlier")],
)
def test_a_run_is_no_model(
    record: dict[str, object], suggestion: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("earlier").mkdir()
    Path("earlier/run.json").write_text(json.dumps(record))
    with refused("unknown-name", "earlier is a run", "tiltmeter report", suggests=suggestion):
        load_model("earlier")


def test_errors_are_json_where_json_was_requested(tmp_path: Path) -> None:
    done = tiltmeter("audit", "embeddings:nowhere", "--json", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    error = json.loads(done.stderr)["error"]
    assert (error["code"], error["value"]) == ("not-found", "nowhere")
    assert "embeddings:nowhere" in error["message"]


@pytest.mark.parametrize(
    ("typed", "hint"),
    [(["audti"], "audit"), (["audit", "--k", "0"], "--k"), (["audit", "--ot", "x"], "--out")],
)
def test_what_cannot_be_parsed_gets_a_hint_in_one_line(typed: list[str], hint: str) -> None:
    done = tiltmeter(*typed)
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert hint in line
    assert line.endswith("[bad-option]")


def test_an_existing_place_is_refused_before_any_work(embeddings: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/mine.txt").write_text("mine")
    for force in ((), ("--force",)):
        done = tiltmeter(
            "audit", f"embeddings:{embeddings}", "--out", tmp_path / "run", *FEW, *force
        )
        assert done.returncode == 2
        assert force or code_of(done) == "exists"
        assert (tmp_path / "run/mine.txt").read_text() == "mine"


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_half_and_double_precision_are_read(dtype: type, embeddings: Path, tmp_path: Path) -> None:
    expected = tiltmeter(
        "audit", f"embeddings:{embeddings}", "--json", "--out", tmp_path / "a", *FEW
    )
    for name in ("images.npy", "texts.npy"):
        np.save(embeddings / name, np.load(embeddings / name).astype(dtype))
    found = tiltmeter("audit", f"embeddings:{embeddings}", "--json", "--out", tmp_path / "b", *FEW)
    assert found.returncode == 0, found.stderr
    values = []
    for done in (expected, found):
        overall = json.loads(done.stdout)["overall"]
        values.append([row["value"] for row in overall if row["metric"] == "c_asc"])
    np.testing.assert_allclose(*values, atol=2e-3)


def test_the_example_in_the_makefile_runs(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, ROOT / "examples/planted_embeddings.py", tmp_path / "planted"], check=True
    )
    done = tiltmeter(
        "audit", f"embeddings:{tmp_path / 'planted'}", "--json", "--out", tmp_path / "run", *FEW
    )
    found = json.loads(done.stdout)["c_asc_beyond_neutral_words"]
    beyond = {row["concept"] for row in found if row["metric"] == "c_asc"}
    assert {"anvil", "feather", "harvest", "tide", "quarry"} <= beyond
    assert not beyond & {"market", "bridge", "signal"}


# --- unusual input that must work, or be named ---------------------------------------------------


def test_brackets_in_names_are_printed_as_they_are(embeddings: Path, tmp_path: Path) -> None:
    """The terminal library reads [bold] as markup; labels and words are not its own."""
    for name in ("images.csv", "texts.csv"):
        text = (embeddings / name).read_text()
        text = text.replace(",woman,", ",[/x]woman,").replace("thing 0", "[bold]thing 0")
        (embeddings / name).write_text(text.replace("id,gender,age", "id,[/z]gender,age"))
    out = tmp_path / "[red]run"
    done = tiltmeter("audit", f"embeddings:{embeddings}", "--verbose", "--out", out, *FEW)
    assert done.returncode == 0, done.stderr
    assert "[bold]thing 0" in done.stdout
    assert "[/x]woman" in done.stdout
    assert "[/z]gender" in done.stdout
    assert "[red]run" in " ".join(done.stdout.split())


def test_cells_of_a_table_are_read_as_they_stand(embeddings: Path, tmp_path: Path) -> None:
    """007 is an id, NA a label, and True or 3 a label only when asked for."""
    rows = read_csv(embeddings / "images.csv").to_pylist()
    write_csv(
        embeddings / "images.csv",
        [
            {"id": f"{i:04d}", "region": "NA" if row["gender"] == "man" else "EU",
             "checked": i % 2 == 0, "decade": i % 3, "note": "" if i % 5 else "xy"[i % 2]}
            for i, row in enumerate(rows)
        ],
    )  # fmt: skip
    spec = f"embeddings:{embeddings}"
    refused = tiltmeter("audit", spec, "--out", tmp_path / "no", *FEW)
    assert refused.returncode == 2
    assert "'note'" in refused.stderr
    done = tiltmeter("audit", spec, "-a", "region", "-a", "decade", "--json",
                     "--out", tmp_path / "run", *FEW)  # fmt: skip
    assert done.returncode == 0, done.stderr
    table = pq.read_table(tmp_path / "run/results.parquet")
    assert set(table["attribute"].drop_null().to_pylist()) == {"region", "decade"}
    assert set(table["group"].drop_null().to_pylist()) == {"NA", "EU", "0", "1", "2"}
    assert "0000" in pq.read_table(tmp_path / "run/instances/ranking.parquet")["id"].to_pylist()


def test_several_wordings_without_templates(embeddings: Path, tmp_path: Path) -> None:
    rows = read_csv(embeddings / "texts.csv").to_pylist()
    write_csv(
        embeddings / "texts.csv",
        [{"text": row["text"], "concept": f"c{i // 3}", "role": row["role"]}
         for i, row in enumerate(rows)],
    )  # fmt: skip
    done = tiltmeter(
        "audit", f"embeddings:{embeddings}", "-a", "gender", "--out", tmp_path / "run", *FEW
    )
    assert done.returncode == 0, done.stderr
    templates = set(pq.read_table(tmp_path / "run/results.parquet")["template"].to_pylist())
    assert templates == {None, "wording 1", "wording 2", "wording 3"}


NO_VECTORS = "import numpy as np\nclass f:\n def encode_texts(self, t): return np.ones((2, 16))"
THEIR_ERRORS = {
    "def f(): raise RuntimeError('no weights')": "RuntimeError: no weights",
    "f = 3": "TypeError",
    "import nowhere_at_all": "ModuleNotFoundError",
    "def f(:": "SyntaxError",
    "class f:\n def encode_texts(self, t): raise KeyError('x')": "KeyError",
    NO_VECTORS: "2 embeddings",
}


@pytest.mark.parametrize("code", THEIR_ERRORS)
def test_errors_in_a_model_of_ones_own(code: str, embeddings: Path, tmp_path: Path) -> None:
    model, images = f"python:{tmp_path / 'mine.py'}:f", f"embeddings:{embeddings}"
    (tmp_path / "mine.py").write_text(code)
    done = tiltmeter("audit", model, "--images", images, "--out", tmp_path / "run", *FEW)
    assert done.returncode == 2
    assert THEIR_ERRORS[code] in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("typed", "code", "takes", "write"),
    [
        ("build?nam=x y", "unknown-name", "name (required), size", "build?name=x%20y"),
        ("build?name=x&other=1", "unknown-name", "name (required), size", "build?name=x"),
        ("build?size=3", "bad-option", "name (required), size", "build?size=3&name=VALUE"),
        ("nothing?name=x", "unknown-name", "no arguments", "nothing"),
    ],
)
def test_arguments_that_a_factory_does_not_take(
    typed: str, code: str, takes: str, write: str, embeddings: Path, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text("def build(name, size=3): ...\ndef nothing(): ...")
    images = ("--images", f"embeddings:{embeddings}")
    done = tiltmeter("audit", f"python:mine.py:{typed}", *images, *FEW, cwd=tmp_path)
    assert done.returncode == 2
    said = " ".join(done.stderr.split())
    assert code_of(done) == code
    assert f"takes {takes}" in said
    assert f"'python:mine.py:{write}'" in said


def test_placebos_that_fit_no_word_are_refused(embeddings: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MODEL)
    words = ("--words", "occupations", "--placebo", "placebo-adjectives")
    images = ("--images", f"embeddings:{embeddings}")
    done = tiltmeter("audit", "python:mine.py:Tower", *images, *words, *FEW, cwd=tmp_path)
    assert done.returncode == 2
    assert "placebo-adjectives" in " ".join(done.stderr.split())


def test_plan_knows_of_balance_and_of_k(tmp_path: Path) -> None:
    rows = [{"id": i, "gender": "b" if i < 122 else "a"} for i in range(400)]
    write_csv(tmp_path / "labels.csv", rows)
    spec = f"table:{tmp_path / 'labels.csv'}"
    done = tiltmeter("plan", "--images", spec, "--convention", "berg2022", "--k", "50", "--json")
    found = json.loads(done.stdout)[0]
    assert [group["n"] for group in found["groups"]] == [122, 122]
    assert found["floors"][0]["mean"] == pytest.approx(0.09, abs=0.01)
    for k in ("500", "400"):  # 400 are all images: MaxSkew@400 is 0 of any model
        refused = tiltmeter("plan", "--images", spec, "--k", k)
        assert refused.returncode == 2
        assert "400 i" in refused.stderr
    balanced = ("plan", "--images", spec, "--convention", "berg2022", "--k", "244")
    assert tiltmeter(*balanced).returncode == 2


@pytest.mark.parametrize("option", [("--seed", "18446744073709551616"), ("--bootstraps", "1")])
def test_numbers_out_of_range(option: tuple[str, str], embeddings: Path, tmp_path: Path) -> None:
    few = [] if option[0] == "--bootstraps" else ["--bootstraps", "50"]
    done = tiltmeter("audit", f"embeddings:{embeddings}", "--k", "20", "--permutations", "99", *few,
                     "--out", tmp_path / "run", *option)  # fmt: skip
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_a_shell_gets_the_exit_code_and_one_line(tmp_path: Path) -> None:
    done = in_a_process_of_its_own("audit", "embeddings:nowhere", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert code_of(done) == "not-found"
    assert len(done.stderr.splitlines()) == 1


def test_a_terminal_that_knows_ascii_only(embeddings: Path, tmp_path: Path) -> None:
    done = in_a_process_of_its_own(
        "audit", f"embeddings:{embeddings}", "--out", tmp_path / "run", *FEW,
        PYTHONIOENCODING="ascii",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
