"""Images on the command line: embed, store, and an audit that reads what was kept."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from tests.command_line import FEW, in_a_process_of_its_own, tiltmeter
from tests.engine.test_embedding import MODEL
from tests.refusing import refused
from tiltmeter.models import load_model

TEXTS = """
    def encode_texts(self, texts):
        import hashlib
        seeds = [int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) for text in texts]
        return np.stack([np.random.default_rng(seed).normal(size=27) for seed in seeds])
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A model of one's own, and forty images in two folders; one of them is none."""
    (tmp_path / "mine.py").write_text(MODEL + TEXTS)
    rng = np.random.default_rng(0)
    for group in ("dark", "light"):
        (tmp_path / "photos" / group).mkdir(parents=True)
        for at in range(20):
            level = rng.integers(0, 128, (8, 8, 3)) + 127 * (group == "light")
            image = Image.fromarray(level.astype(np.uint8))
            image.save(tmp_path / "photos" / group / f"{at}.png")
    (tmp_path / "photos/dark/7.png").write_bytes(b"no image")
    return tmp_path


MINE = ("python:mine.py:Colours", "--images", "folder:photos", "--store", "store")


def test_embed_says_what_it_found_and_goes_on_where_it_stopped(home: Path) -> None:
    done = tiltmeter("embed", *MINE, cwd=home)
    assert done.returncode == 0, done.stderr
    assert "40 rows" in done.stdout
    assert "39" in done.stdout
    assert "photos/dark/7.png" in done.stdout
    again = tiltmeter("embed", *MINE, "--json", cwd=home)
    found = json.loads(again.stdout)
    assert (found["images"], found["embedded"], len(found["unreadable"])) == (39, 0, 1)
    strict = tiltmeter("embed", *MINE, "--strict", cwd=home)
    assert strict.returncode == 2
    assert "7.png" in strict.stderr


@pytest.mark.parametrize(
    ("returned", "values"),
    [
        ("type('Output', (dict,), {'pooler_output': 1})()", ("Output", ".pooler_output")),
        ("{'image_embeds': 1}", ("a dict",)),
        ("np.ones((len(given) - 1, 4))", ("2 embeddings",)),
        ("np.ones(len(given))", ("shape (3,)",)),
    ],
)
@pytest.mark.parametrize("method", ["encode_images", "encode_texts"])
def test_a_wrong_return_value_of_ones_own_model(
    home: Path, method: str, returned: str, values: tuple[str, ...]
) -> None:
    file = home / "mine.py"
    file.write_text(f"{MODEL}{TEXTS}\n    def {method}(self, given): return {returned}\n")
    model = load_model(f"python:{file}:Colours")
    with refused("bad-input", f"mine:Colours: {method}", "3 rows", *values):
        getattr(model, method)(["a", "b", "c"])


def test_embedding_with_a_wrong_return_value_is_a_usage_error(home: Path) -> None:
    (home / "mine.py").write_text(f"{MODEL}{TEXTS}\n    def encode_images(self, _): return {{}}\n")
    done = tiltmeter("embed", *MINE, cwd=home)
    assert (done.returncode, done.stdout) == (2, "")
    assert "encode_images returned a dict" in " ".join(done.stderr.split())


def test_an_audit_reads_the_store(home: Path) -> None:
    tiltmeter("embed", *MINE, cwd=home)
    stored = {path: path.stat().st_mtime_ns for path in (home / "store").rglob("*")}
    done = tiltmeter("audit", *MINE, "--words", "berg", "--k", "5", *FEW[2:], cwd=home)
    assert done.returncode == 0, done.stderr
    assert "39 images" in done.stdout
    assert "1 could" in " ".join(done.stdout.split())
    assert "--data captions=SPEC" not in " ".join(done.stdout.split())  # nothing to say
    assert stored == {path: path.stat().st_mtime_ns for path in (home / "store").rglob("*")}


def test_looking_after_a_store(home: Path) -> None:
    tiltmeter("embed", *MINE, cwd=home)
    assert "mine:Colours" in tiltmeter("store", "info", "store", cwd=home).stdout
    [about] = json.loads(tiltmeter("store", "info", "store", "--json", cwd=home).stdout)
    assert (about["images"], about["dimensions"]) == (39, 27)
    assert "1 shards copied" in tiltmeter("store", "merge", "other", "store", cwd=home).stdout
    assert "0 files removed" in tiltmeter("store", "gc", "other", cwd=home).stdout
    assert tiltmeter("store", "verify", "other", cwd=home).returncode == 0
    next((home / "other").rglob("*.npy")).write_bytes(b"")
    broken = tiltmeter("store", "verify", "other", cwd=home)
    assert broken.returncode == 1
    assert "checksum differs" in broken.stdout
    nothing = tiltmeter("store", "verify", "nowhere", cwd=home)
    assert nothing.returncode == 2
    assert "nowhere" in nothing.stderr


def test_damaged_embeddings_are_made_again_and_that_is_said(home: Path) -> None:
    tiltmeter("embed", *MINE, cwd=home)
    audit = ("audit", *MINE, "--k", "5", *FEW[2:], "--probe", "ranking", "--out")
    assert tiltmeter(*audit, "before", cwd=home).returncode == 0
    [shard] = (home / "store").rglob("*.npy")
    whole = shard.read_bytes()
    shard.write_bytes(
        whole[:128] + bytes(byte ^ (at % 4 == 0) for at, byte in enumerate(whole[128:]))
    )
    done = tiltmeter(*audit, "after", cwd=home)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith(f"warning: {shard} ")
    assert shard.read_bytes() == whole
    before, after = (pq.read_table(home / name / "results.parquet") for name in ("before", "after"))
    assert after.equals(before)


@pytest.mark.parametrize(
    ("arguments", "code", "value"),
    [
        (("embed", "testbed:dual", "--images", "testbed:", "--store", "s"),
         "no-images", "tiltmeter list datasets"),
        (("embed", "testbed:stream", *MINE[1:4], "s"), "bad-input", "encode_images"),
        (("embed", "python:mine.py:Colours", "--images", "folder:none", "--store", "s"),
         "not-found", "folder:none"),
        (("audit", *MINE, "--data", "captions"), "bad-option", "'captions'"),
        (("audit", *MINE, "--probe", "rankings"), "unknown-name", "'ranking'"),
        (("audit", "testbed:dual", "--device", "tpu"), "unknown-name", "'tpu'"),
    ],
)  # fmt: skip
def test_bad_input(home: Path, arguments: tuple[str, ...], code: str, value: str) -> None:
    done = tiltmeter(*arguments, cwd=home)
    assert done.returncode == 2
    assert done.stderr.rstrip().endswith(f"[{code}]")
    assert value in " ".join(done.stderr.split())
    assert not (home / "s").exists()


def test_without_torch_the_testbed_says_what_it_needs(home: Path) -> None:
    (home / "torch.py").write_text(
        "raise ModuleNotFoundError('No module named torch', name='torch')"
    )
    done = in_a_process_of_its_own("audit", cwd=home)
    assert done.returncode == 2
    assert "pip install 'tiltmeter[models]'" in " ".join(done.stderr.split())


@pytest.fixture
def incomplete(home: Path) -> str:
    """A table of forty images and four missing ones."""
    places = [*sorted((home / "photos").rglob("*.png")), *(Path(f"gone/{n}.png") for n in range(4))]
    names = [(home / place).relative_to(home).as_posix() for place in places]
    rows = [f"{name},{('man', 'woman')[at % 2]}" for at, name in enumerate(names)]
    (home / "labels.csv").write_text("\n".join(["file,gender", *rows]))
    (home / "photos/dark/7.png").unlink()
    return "table:labels.csv?path=file"


def test_missing_files_are_counted_and_named(home: Path, incomplete: str) -> None:
    audit = ("audit", MINE[0], "--images", incomplete, "--k", "5", *FEW[2:], "--probe", "ranking")
    for command in (audit, ("plan", "--images", incomplete, "--k", "5")):
        done = tiltmeter(*command, cwd=home)
        assert done.returncode == 0, done.stderr
        first = "photos/dark/7.png, gone/0.png, gone/1.png, ..."
        line = f"labels: 5 listed images are missing ({first}); left out."
        assert line in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    "command",
    [
        ("audit", "hf:clip"),
        ("embed", "hf:clip", "--store", "s"),
        ("frontier", MINE[0], "-a", "gender", "--out", "s"),
        ("debias", "leace", MINE[0], "-a", "gender", "--out", "s"),
        ("explore", "--model", MINE[0], "--no-browser"),
    ],
    ids=lambda command: command[0],
)
def test_strict_refuses_missing_files(
    home: Path, incomplete: str, command: tuple[str, ...]
) -> None:
    (home / "clip").mkdir()  # a folder without a model: it is refused when it is loaded
    done = tiltmeter(*command, "--images", incomplete, "--strict", cwd=home)
    assert done.returncode == 2
    assert done.stderr.rstrip().endswith("[incomplete]"), done.stderr
    assert "5 listed images are missing" in " ".join(done.stderr.split())
    assert not (home / "s").exists()


def test_debias_names_images_that_are_missing_or_unreadable(home: Path) -> None:
    rows = [f"photos/{group}/{at}.png,{group}" for group in ("dark", "light") for at in range(21)]
    (home / "train.csv").write_text("\n".join(["file,level", *rows]))
    command = ("debias", "leace", "python:mine.py:Colours", "--attribute", "level", "--images",
               "table:train.csv?path=file", "--out", "fair", "--force")  # fmt: skip
    done = tiltmeter(*command, cwd=home)
    assert done.returncode == 0, done.stderr
    missing, fitted, *_ = done.stdout.splitlines()
    assert missing.startswith("train: 2 listed images are missing (photos/dark/20.png, ")
    assert "1 could not be read (photos/dark/7.png)" in missing
    assert "fitted on 39 images" in fitted
    left_out = json.loads(tiltmeter(*command, "--json", cwd=home).stdout)["left_out"]["faces"]
    assert left_out["found"]["missing"]["count"] == 2
    assert left_out["unreadable"]["count"] == 1


@pytest.mark.parametrize("command", [("audit", "testbed:dual", "--out", "run"), ("plan",)])
def test_too_large_a_k_says_how_many_listed_images_are_missing(
    home: Path, command: tuple[str, ...]
) -> None:
    rows = [f"photos/{group}/{at}.png,{group}" for group in ("dark", "light") for at in range(30)]
    (home / "half.csv").write_text("\n".join(["file,level", *rows]))
    done = tiltmeter(*command, "--images", "table:half.csv?path=file", "--k", "50", cwd=home)
    assert done.returncode == 2
    said = " ".join(done.stderr.split())
    assert "half has 40 images, since 20 of its 60 listed images are missing" in said
    assert "--k 8" in said
