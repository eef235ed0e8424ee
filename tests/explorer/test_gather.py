"""Where a page comes from: a run, a store, models alone; and what is said where it cannot."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("starlette", reason="needs starlette: pip install 'tiltmeter[explore]'")

import tiltmeter as tm
from tests.command_line import tiltmeter
from tests.conftest import brought_embeddings
from tests.explorer.making import photographs
from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.explorer.gather import MOST_GROUPS, choosable, gather
from tiltmeter.explorer.queries import QueryRunner
from tiltmeter.store import Store
from tiltmeter.types import Faces, Groups

FEW = {"permutations": 0, "bootstraps": 0, "probes": ["ranking"]}


@pytest.fixture(scope="module")
def brought(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return brought_embeddings(tmp_path_factory.mktemp("brought") / "vectors")


@pytest.fixture(scope="module")
def run(brought: Path) -> Path:
    made = tm.audit(f"embeddings:{brought}", k=[20], cross=["gender*age"], **FEW)
    return made.save(brought.parent / "run")


@pytest.fixture(scope="module")
def album(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"table:{photographs(tmp_path_factory.mktemp('album') / 'here')}?path=file"


def test_the_page_shows_what_the_run_ranked(run: Path) -> None:
    """The top images of every word are those that the audit kept, with their scores."""
    asker = QueryRunner(gather(run))
    kept = tm.Run.load(run).instances["ranking"].to_pylist()
    for at in range(3):
        text = f"a photo of thing {at}"
        mine = [row for row in kept if row["concept"] == f"thing {at}"]
        found = asker.ask(text, k=20)
        assert [asker.data.ids[row] for row in found.rows] == [row["id"] for row in mine]
        assert found.scores.tolist() == pytest.approx([row["score"] for row in mine], abs=1e-6)


def test_and_says_what_the_run_says(run: Path) -> None:
    asker, saved = QueryRunner(gather(run)), tm.Run.load(run)
    found = asker.ask("a photo of thing 0", by="gender", k=20)
    for one in found.groups:
        for metric, value in (("c_asc", one.c_asc), ("skew", one.skew)):
            rows = saved.where(metric=metric, concept="thing 0", attribute="gender", group=one.name)
            assert value == pytest.approx(rows[0]["value"], abs=1e-5)
    assert found.groups[1].direction == 1  # women, as planted


def test_attributes_crossings_and_words_of_a_run(run: Path) -> None:
    scene = gather(run)
    assert list(scene.groups) == ["gender", "age", "gender*age"]
    assert [p.concept for p in scene.words["things"]] == ["thing 0", "thing 1", "thing 2"]
    assert scene.images is None


def test_a_run_and_another_model_on_the_same_images(tmp_path: Path) -> None:
    made = tm.audit("testbed:dual", "testbed:?images=280", k=[20], **FEW)
    scene = gather(made.save(tmp_path / "run"), ["testbed:dual?twin=fair"], show_images=True)
    assert [tower.name for tower in scene.models] == ["testbed:dual", "testbed:dual-fair"]
    again = gather(None, ["testbed:dual", "testbed:dual?twin=fair"], "testbed:?images=280")
    for one, other in zip(scene.models, again.models, strict=True):
        assert np.allclose(one.vectors, other.vectors, atol=1e-5)
    assert len(scene.images) == 280


def test_a_store_with_a_model_and_images(tmp_path: Path, album: str) -> None:
    store = tmp_path / "store"
    done = tiltmeter("embed", "testbed:dual", "--images", album, "--store", store)
    assert done.returncode == 0, done.stderr
    had = set(store.rglob("*.npy"))
    scene = gather(store, ["testbed:dual"], album)
    assert set(store.rglob("*.npy")) == had  # read, not made again
    items = list(Store(store).spaces()[0])
    assert len(scene) == len(items) == 40
    assert gather(None, ["testbed:dual"], album).models[0].vectors == pytest.approx(
        scene.models[0].vectors, abs=1e-5
    )


def test_a_run_whose_store_moved(tmp_path: Path, album: str) -> None:
    store = tmp_path / "store"
    made = tm.audit("testbed:dual", album, k=[5], store=store, **FEW)
    made.save(tmp_path / "run")
    whole = gather(tmp_path / "run")
    store.rename(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="its embeddings are missing.*--store DIR"):
        gather(tmp_path / "run")
    found = gather(tmp_path / "run", store=tmp_path / "elsewhere")
    assert (found.models[0].vectors == whole.models[0].vectors).all()


def test_a_run_that_keeps_no_vectors(run: Path, tmp_path: Path) -> None:
    made = tm.Run.load(run)
    tm.Run(made.table, made.meta, made.instances).save(tmp_path / "old")
    with pytest.raises(InputError, match="cannot be explored: it has no embeddings"):
        gather(tmp_path / "old")


def test_a_model_that_changed_since(brought: Path, tmp_path: Path) -> None:
    place = shutil.copytree(brought, tmp_path / "vectors")
    made = tm.audit(f"embeddings:{place}", k=[20], **FEW).save(tmp_path / "run")
    np.save(place / "texts.npy", 2 - np.load(place / "texts.npy"))
    with pytest.raises(InputError, match="has changed since the run was made"):
        gather(made)


def test_a_panel(run: Path, tmp_path: Path) -> None:
    from tiltmeter.judge.panel import panel

    one = tm.Run.load(run)
    panel([one, one]).save(tmp_path / "panel")
    with pytest.raises(InputError, match="a run of several models"):
        gather(tmp_path / "panel")


def test_what_cannot_be_shown_is_said(run: Path, brought: Path, tmp_path: Path, album: str) -> None:
    with pytest.raises(InputError, match="has no encode_texts"):
        gather(None, ["testbed:stream"])
    with pytest.raises(InputError, match="neither a run .* nor a store"):
        gather(tmp_path)
    (tmp_path / "s/space").mkdir(parents=True)
    (tmp_path / "s/space/space.json").write_text("{}")
    with pytest.raises(InputError, match="--model SPEC and --images SPEC"):
        gather(tmp_path / "s")
    with pytest.raises(InputError, match="no images to show"):
        gather(run, show_images=True)
    with pytest.raises(InputError, match="no images to show"):
        gather(None, [f"embeddings:{brought}"], show_images=True)
    with pytest.raises(InputError, match="are not in"):
        gather(run, images=album, show_images=True)
    with pytest.raises(UnknownNameError):
        gather(run, convention="nobody's")
    with pytest.raises(InputError, match="pass embeddings of the same images"):
        gather(None, [f"embeddings:{brought}"], album)


def test_vectors_are_never_taken_for_those_of_another_model(brought: Path, tmp_path: Path) -> None:
    other = shutil.copytree(brought, tmp_path / "other")
    turned = np.load(brought / "images.npy")[:, ::-1]
    np.save(other / "images.npy", turned)
    scene = gather(None, [f"embeddings:{brought}", f"embeddings:{other}"])
    lengths = np.linalg.norm(turned, axis=1, keepdims=True)
    assert np.allclose(scene.models[1].vectors, turned / lengths, atol=1e-6)
    assert np.allclose(scene.models[0].vectors, (turned / lengths)[:, ::-1], atol=1e-6)
    with pytest.raises(InputError, match="needs its own"):
        gather(None, ["testbed:dual", "testbed:fusion"], f"embeddings:{brought}")


def test_attributes_with_too_many_groups_are_left_out() -> None:
    n = 3 * MOST_GROUPS
    few = Groups(np.arange(n) % 3, ("a", "b", "c"), "few")
    many = Groups(np.arange(n) % (MOST_GROUPS + 1), tuple(map(str, range(MOST_GROUPS + 1))), "many")
    one = Groups(np.zeros(n, int), ("all",), "one")
    ids = tuple(map(str, range(n)))
    assert list(choosable(Faces(ids, {"few": few, "many": many, "one": one}))) == [
        "few", "few*one"
    ]  # fmt: skip
    with pytest.raises(InputError, match="no attribute with 2 to"):
        choosable(Faces(ids, {"many": many}))


def test_a_corrected_model_is_shown_with_a_warning(tmp_path: Path) -> None:
    data = "testbed:?images=280&seed=3"
    tm.debias("leace", "testbed:dual", data, attribute="shape", out=tmp_path / "fair")
    scene = gather(None, ["testbed:dual", str(tmp_path / "fair")], data)
    assert "was fitted on 280 of these images" in scene.notes[0]
    asker = QueryRunner(scene)
    before, after = (asker.ask("a photo of a nurse", model=m, by="shape", k=50) for m in (0, 1))
    assert abs(before.groups[0].c_asc) > 0.3
    assert abs(after.groups[0].c_asc) < 0.1


# --- the command --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(("--model", "testbed:stream"), "has no encode_texts"),
     (("nowhere",), "neither a run"),
     (("--model", "nobody:x"), "unknown model"),
     (("--port", "0"), "--port")],
)  # fmt: skip
def test_errors_end_with_exit_code_2(arguments: tuple[str, ...], said: str, tmp_path: Path) -> None:
    done = tiltmeter("explore", "--no-browser", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_without_starlette_it_says_what_to_install(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['starlette'] = None; sys.argv = ['tiltmeter', 'explore']; "
        "from tiltmeter.cli.app import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert "pip install 'tiltmeter[explore]'" in done.stderr


def test_the_command_serves_until_it_is_stopped(run: Path) -> None:
    httpx = pytest.importorskip("httpx2")
    started = subprocess.Popen(
        [sys.executable, "-m", "tiltmeter", "explore", str(run), "--no-browser"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ,
    )  # fmt: skip
    assert started.stdout is not None
    lines = [started.stdout.readline() for _ in range(3)]
    address = re.search(r"http://127\.0\.0\.1:\d+/[\w-]{32}/", lines[1])
    assert address, lines
    answer = httpx.post(f"{address[0]}rank", json={"text": "a photo of thing 0", "k": 20})
    assert answer.json()["groups"][1]["direction"] == 1
    started.send_signal(signal.SIGINT)
    _, errors = started.communicate(timeout=20)
    assert errors == ""
