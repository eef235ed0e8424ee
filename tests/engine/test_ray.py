"""The same commands on a real Ray cluster: two nodes, each with its own processes, on one machine.

The clusters take half a minute to come and go: these tests run with `make test-slow`, where Ray is
installed.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.conftest import brought_embeddings
from tests.probes.test_ranking_by_parts import by_key
from tests.test_embedding import MODEL, album
from tiltmeter.auditing import audit
from tiltmeter.auditing_by_parts import audit_by_parts
from tiltmeter.corpus import audit_captions
from tiltmeter.embedding import embed
from tiltmeter.engine.local import Pace
from tiltmeter.engine.seam import Failed, Local, engine_of
from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.models import load_model
from tiltmeter.store import Store

pytest.importorskip("torch")
SPEAKS = """
    def encode_texts(self, texts):
        return np.stack([np.resize([1.0, len(text), text.count("a")], 27) for text in texts])
"""


def test_without_ray_the_message_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"pip install 'tiltmeter\[ray\]'"):
        engine_of("ray")


def test_unknown_engines_and_settings_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'ray'"):
        engine_of("rai")
    with pytest.raises(InputError, match="takes no settings"):
        engine_of("local:workers=2")


def test_a_part_that_fails_does_not_touch_the_others(tmp_path: Path) -> None:
    (tmp_path / "here").write_text("3")
    read = [tmp_path / "here", tmp_path / "gone", tmp_path / "here"]
    found = list(Local().run(lambda: Path.read_text, read))
    assert [found[0], found[2]] == ["3", "3"]
    assert isinstance(found[1], Failed)
    assert "gone" in found[1].reason


def test_a_mistake_in_the_work_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        list(Local().run(lambda: lambda part: 1 // part, [0]))


class TestSettings:
    @pytest.fixture(autouse=True)
    def _ray(self) -> None:
        pytest.importorskip("ray")

    def test_are_read(self) -> None:
        found: Any = engine_of("ray:workers=3,gpus=0.5,cpus=2,address=auto")
        assert (found.workers, found.gpus, found.cpus, found.address) == (3, 0.5, 2.0, "auto")

    @pytest.mark.parametrize("given", ["workers", "workers=two", "gpus=-1"])
    def test_must_be_numbers(self, given: str) -> None:
        with pytest.raises(InputError, match="takes a number"):
            engine_of(f"ray:{given}")

    def test_a_cluster_that_is_not_there_is_said_at_once(self) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))  # and nobody listens
            engine = engine_of(f"ray:address=127.0.0.1:{taken.getsockname()[1]}")
            with pytest.raises(InputError, match="no Ray cluster at 127.0.0.1"):
                list(engine.run(lambda: str, ["a"]))

    def test_must_be_known(self) -> None:
        with pytest.raises(UnknownNameError, match="workers"):
            engine_of("ray:worker=3")


class Cluster:
    """Two nodes of one core each; the second can be killed."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster as Nodes

        small = {"object_store_memory": 100 * 2**20}
        self.nodes = Nodes(initialize_head=True, head_node_args={"num_cpus": 1, **small})
        self.second = self.nodes.add_node(num_cpus=1, **small)

    @property
    def engine(self) -> str:
        return f"ray:workers=2,cpus=0.5,address={self.nodes.address}"

    def kill_second(self) -> None:
        self.nodes.remove_node(self.second, allow_graceful=False)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    ray = pytest.importorskip("ray")
    made = Cluster()
    yield made
    ray.shutdown()
    made.nodes.shutdown()


def model_file(place: Path) -> Path:
    file = place / "colours.py"
    file.write_text(MODEL + SPEAKS)
    return file


def words_file(place: Path) -> str:
    file = place / "words.csv"
    file.write_text("word,category,pos\nnurse,work,noun\ndoctor,work,noun\nbaker,work,noun\n")
    return str(file)


def shards(store: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(store.glob("*/*.npy"))}


def corpus(place: Path, files: int) -> Path:
    rng = np.random.default_rng(0)
    words = ["a", "the", "nurse", "doctor", "his", "her", "man", "woman", "kind", "photo", "of"]
    place.mkdir()
    for at in range(files):
        rows = [" ".join(rng.choice(words, 8)) for _ in range(500)]
        pq.write_table(pa.table({"caption": rows}), place / f"{at}.parquet")
    (place / "cut.parquet").write_bytes((place / "0.parquet").read_bytes()[:2000])
    return place


@pytest.mark.slow
def test_captions_and_pictures_are_those_of_the_local_engine_though_a_node_dies(
    cluster: Cluster, tmp_path: Path
) -> None:
    import ray

    # captions: a file that is cut off is named, all others count
    place = corpus(tmp_path / "captions", 6)
    here = audit_captions(place)
    there = audit_captions(place, engine=engine_of(cluster.engine))
    assert there.table.equals(here.table)
    assert there.instances["captions"].equals(here.instances["captions"])
    assert list(there.meta["data"]["captions"]["broken"]) == [str(place / "cut.parquet")]
    assert len({node["NodeID"] for node in ray.nodes() if node["Alive"]}) == 2

    # an audit: the same bytes, since the same parts are added up in the same order
    brought = f"embeddings:{brought_embeddings(tmp_path / 'brought', images=2000)}"
    asked: dict[str, Any] = {"cross": ["gender*age"], "k": [10, 100], "size": 300}
    assert audit_by_parts(brought, engine=engine_of(cluster.engine), **asked).table.equals(
        audit_by_parts(brought, **asked).table
    )

    # pictures: the second node is killed in the middle
    spec = f"python:{model_file(tmp_path)}:Colours?pause=0.05"
    faces = album(tmp_path / "album", 400)
    broken = tmp_path / "album" / "0007.png"
    broken.write_bytes(broken.read_bytes()[:40])
    pace = Pace(batch=8, chunk=16)
    load = partial(load_model, spec)
    local = embed(load(), faces.images, faces.ids, store=Store(tmp_path / "local"), pace=pace)
    killed: list[float] = []

    def progress(what: str, share: float) -> None:
        if share > 0.2 and not killed:
            killed.append(share)
            cluster.kill_second()

    done = embed(
        load(),
        faces.images,
        faces.ids,
        store=Store(tmp_path / "ray"),
        pace=pace,
        engine=engine_of(cluster.engine),
        load=load,
        progress=progress,
    )
    assert killed
    assert killed[0] < 0.9
    assert len({node["NodeID"] for node in ray.nodes() if node["Alive"]}) == 1
    assert done.rows == local.rows
    assert list(done.unreadable) == list(local.unreadable) == ["0007.png"]
    np.testing.assert_array_equal(done.vectors, local.vectors)
    assert shards(tmp_path / "ray") == shards(tmp_path / "local")
    assert not list((tmp_path / "ray").glob("*/.*.part"))

    # an audit of what is in the store, on the node that is left
    stored: dict[str, Any] = {"words": words_file(tmp_path), "k": [10, 50], "size": 100}
    there = audit_by_parts(
        spec, faces, engine=engine_of(cluster.engine), store=tmp_path / "ray", **stored
    )
    here = audit(
        spec, faces, store=tmp_path / "local", probes=["ranking"], permutations=0, bootstraps=0,
        words=stored["words"], k=stored["k"],
    )  # fmt: skip
    assert there.meta["data"]["faces"]["images"] == 399
    mine, theirs = by_key(there), by_key(here)
    assert set(theirs) <= set(mine)
    for key, row in theirs.items():
        if key[0] != "ndkl":
            assert mine[key]["value"] == pytest.approx(row["value"], abs=1e-9), key


@pytest.mark.slow
def test_a_killed_driver_goes_on_from_what_is_there(cluster: Cluster, tmp_path: Path) -> None:
    spec = f"python:{model_file(tmp_path)}:Colours?pause=0.1"
    faces = album(tmp_path / "album", 300)
    program = (
        "import sys; from pathlib import Path; from functools import partial\n"
        "from tests.test_embedding import album\n"
        "from tiltmeter.embedding import embed; from tiltmeter.engine.local import Pace\n"
        "from tiltmeter.engine.seam import engine_of; from tiltmeter.models import load_model\n"
        "from tiltmeter.store import Store\n"
        "spec, root, store, engine = sys.argv[1:]\n"
        "load = partial(load_model, spec); faces = album(Path(root), 300)\n"
        "done = embed(load(), faces.images, faces.ids, store=Store(Path(store)),\n"
        "             pace=Pace(batch=4, chunk=10), engine=engine_of(engine), load=load)\n"
        "print(done.new)"
    )
    store = tmp_path / "ray"
    command = [sys.executable, "-c", program, spec, str(tmp_path / "album"), str(store)]
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([*command, cluster.engine], **quiet) as driver:
        deadline = time.monotonic() + 120
        while len(list(store.glob("*/*.parquet"))) < 4 and time.monotonic() < deadline:
            time.sleep(0.05)
        driver.send_signal(signal.SIGKILL)
    time.sleep(5)  # its actors end when the cluster sees that it is gone
    before = {path: path.stat().st_mtime_ns for path in store.glob("*/*.parquet")}
    assert 4 <= len(before) < 30, "it was to be killed in the middle"
    again = subprocess.run(
        [*command, cluster.engine], capture_output=True, text=True, check=True, env={**os.environ}
    )
    # what was there was neither made nor written again
    assert int(again.stdout.split()[-1]) == 300 - 10 * len(before)
    assert all(path.stat().st_mtime_ns == then for path, then in before.items())
    local = tmp_path / "local"
    embed(
        load_model(spec), faces.images, faces.ids, store=Store(local), pace=Pace(batch=4, chunk=10)
    )
    assert shards(store) == shards(local)
    assert len(shards(store)) == 30


@pytest.mark.slow
def test_a_gpu_that_no_node_has_is_said(cluster: Cluster) -> None:
    engine = engine_of(f"ray:gpus=1,address={cluster.nodes.address}")
    with pytest.raises(InputError, match="1 GPU, but the Ray cluster has 0"):
        list(engine.run(lambda: str, ["a"]))
