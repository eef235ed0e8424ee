"""The same commands on a real Ray cluster: two nodes, each with its own processes, on one machine.

What kills a driver takes half a minute, and runs with `make test-slow`.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import tiltmeter as tm
from tests import s3_server
from tests.conftest import brought_embeddings
from tests.datasets.test_webdataset import shard
from tests.debiasers.engines import NAMES, fitted, measured
from tests.engine.test_embedding import MODEL, album, shards
from tests.probes.test_ranking_by_parts import by_key
from tiltmeter.auditing.audit import audit
from tiltmeter.cli.app import app
from tiltmeter.corpus import audit_captions
from tiltmeter.debiasers.debiased import Debiased
from tiltmeter.engine import ray_engine
from tiltmeter.engine.embedding.embed_images import Workers, embed
from tiltmeter.engine.embedding.loader import LoaderConfig
from tiltmeter.engine.engines import FailedPart, LocalEngine
from tiltmeter.engine.named import engine_of
from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.metrics.numpy_kernels import cores, in_rows, use_cores
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
    told = CliRunner().invoke(app, ["captions", "x.parquet", "--engine", "ray"])
    assert isinstance(told.exception, InputError)  # which main() ends with 2
    assert "pip install" in str(told.exception)


def test_unknown_engines_and_settings_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'ray'"):
        engine_of("rai")
    with pytest.raises(InputError, match="takes no settings"):
        engine_of("local:workers=2")


def test_a_part_that_fails_does_not_touch_the_others(tmp_path: Path) -> None:
    (tmp_path / "here").write_text("3")
    read = [tmp_path / "here", tmp_path / "gone", tmp_path / "here"]
    found = list(LocalEngine().run(lambda: Path.read_text, read))
    assert [found[0], found[2]] == ["3", "3"]
    assert isinstance(found[1], FailedPart)
    assert "gone" in found[1].reason


def test_a_mistake_in_the_work_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        list(LocalEngine().run(lambda: lambda part: 1 // part, [0]))


def test_loops_keep_to_the_cores_that_a_worker_has() -> None:
    threads: set[int] = set()

    def work(part: slice) -> None:
        threads.add(threading.get_ident())

    before = use_cores(1)
    try:
        in_rows(work, 100)
        assert threads == {threading.get_ident()}
        use_cores(10**6)
        assert cores() == len(os.sched_getaffinity(0))  # no more than there are
    finally:
        use_cores(before)


class TestSettings:
    @pytest.fixture(autouse=True)
    def _ray(self) -> None:
        pytest.importorskip("ray")

    def test_are_read(self) -> None:
        found: Any = engine_of("ray:workers=3,gpus=0.5,cpus=2,address=auto")
        assert (found.workers, found.gpus, found.cpus, found.address) == (3, 0.5, 2.0, "auto")

    @pytest.mark.parametrize("given", ["workers", "workers=two", "gpus=-1"])
    def test_must_be_numbers(self, given: str) -> None:
        with pytest.raises(InputError, match="needs a number"):
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
    """Two nodes of one core each, the first with a GPU (so it says); the second can be killed."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster as Nodes

        self.small = {"num_cpus": 1, "object_store_memory": 100 * 2**20}
        self.nodes = Nodes(initialize_head=True, head_node_args={**self.small, "num_gpus": 1})
        self.revive_second()

    def engine(self, settings: str = "workers=2,cpus=0.5") -> Any:
        return engine_of(f"ray:{settings},address={self.nodes.address}")

    def kill_second(self) -> None:
        self.nodes.remove_node(self.second, allow_graceful=False)

    def revive_second(self) -> None:
        self.second = self.nodes.add_node(**self.small)

    @property
    def alive(self) -> int:
        import ray

        return sum(node["Alive"] for node in ray.nodes())


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder that is s3://bucket to all nodes."""
    root = tmp_path_factory.mktemp("buckets")
    (root / "bucket").mkdir()
    with s3_server.served(root) as environment, pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        patch.setenv("RAY_worker_niceness", "0")  # else workers give way to all others
        yield root / "bucket"


@pytest.fixture(scope="module")
def cluster(bucket: Path) -> Iterator[Cluster]:
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


def corpus(place: Path, files: int) -> Path:
    rng = np.random.default_rng(0)
    words = ["a", "the", "nurse", "doctor", "his", "her", "man", "woman", "kind", "photo", "of"]
    place.mkdir()
    for at in range(files):
        rows = [" ".join(rng.choice(words, 8)) for _ in range(500)]
        pq.write_table(pa.table({"caption": rows}), place / f"{at}.parquet")
    (place / "cut.parquet").write_bytes((place / "0.parquet").read_bytes()[:2000])
    return place


def captions_are_those_of_the_local_engine(cluster: Cluster, bucket: Path) -> None:
    place = corpus(bucket / "captions", 6)
    here = audit_captions(place)
    there = audit_captions("s3://bucket/captions", engine=cluster.engine())
    same = [name for name in here.table.column_names if name != "dataset"]
    assert there.table.select(same).equals(here.table.select(same))
    samples = here.instances["captions"]
    same = [name for name in samples.column_names if name != "dataset"]
    assert there.instances["captions"].select(same).equals(samples.select(same))
    # a file that is cut off is named, all others count
    assert list(there.meta["data"]["captions"]["broken"]) == ["s3://bucket/captions/cut.parquet"]
    assert there.meta["data"]["captions"]["captions"] == 3000


def an_audit_is_that_of_the_local_engine(cluster: Cluster, tmp_path: Path) -> None:
    """The same bytes, since the same parts are added up in the same order."""
    brought = f"embeddings:{brought_embeddings(tmp_path / 'brought', images=2000)}"
    asked: dict[str, Any] = {
        "cross": ["gender*age"], "k": [10, 100], "permutations": 50, "bootstraps": 20,
        "probes": ["ranking"],
    }  # fmt: skip
    here = audit(brought, engine="parts:size=300", **asked)
    there = audit(brought, engine=cluster.engine("workers=2,cpus=0.5,size=300"), **asked)
    assert there.table.equals(here.table)
    whole = by_key(
        audit(brought, probes=["ranking"], cross=["gender*age"], k=[10, 100], permutations=0,
              bootstraps=0)
    )  # fmt: skip
    mine = by_key(here)
    assert len(whole) > 500
    for key, row in whole.items():
        if key[0] != "ndkl":
            assert mine[key]["value"] == pytest.approx(row["value"], abs=1e-9), key


def pictures_are_those_of_the_local_engine_though_a_node_dies(
    cluster: Cluster, bucket: Path, tmp_path: Path
) -> None:
    spec = f"python:{model_file(tmp_path)}:Colours?pause=0.03"
    (bucket / "shards").mkdir()
    for at in range(4):
        shard(bucket / "shards" / f"{at:05d}.tar", 80, at)
    cut = bucket / "shards" / "00003.tar"
    cut.write_bytes(cut.read_bytes()[:200_000])
    faces = tm.load_data("webdataset:s3://bucket/shards")
    assert 240 < len(faces) < 320
    # the first picture's bytes are spoilt after the shards were looked through
    file, offset, _ = faces.images.rows[0]
    with (bucket / file.removeprefix("s3://bucket/")).open("rb+") as first:
        first.seek(offset)
        first.write(bytes(16))
    config, load = LoaderConfig(batch=8, chunk=8), partial(load_model, spec)
    local = embed(load(), faces.images, faces.ids, store=Store(tmp_path / "local"), config=config)
    assert cluster.alive == 2
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
        config=config,
        workers=Workers(cluster.engine(), load),
        progress=progress,
    )
    assert cluster.alive == 1
    cluster.revive_second()
    assert killed[0] < 0.9
    assert done.rows == local.rows
    assert done.unreadable == local.unreadable
    assert list(done.unreadable) == ["00000/00000"]
    assert "00000.tar, at byte" in done.unreadable["00000/00000"]
    np.testing.assert_array_equal(done.vectors, local.vectors)
    assert shards(tmp_path / "ray") == shards(tmp_path / "local")
    assert not list((tmp_path / "ray").glob("*/.*.part"))

    # an audit of what the store holds
    stored: dict[str, Any] = {"words": words_file(tmp_path), "k": [10, 50], "bootstraps": 0}
    there = audit(
        spec, faces, engine=cluster.engine("workers=2,cpus=0.5,size=100"), probes=["ranking"],
        store=tmp_path / "ray", **stored,
    )  # fmt: skip
    here = by_key(
        audit(spec, faces, store=tmp_path / "local", probes=["ranking"], permutations=0, **stored)
    )
    assert there.meta["data"]["faces"]["images"] == len(faces) - 1
    mine = by_key(there)
    assert set(here) <= set(mine)
    for key, row in here.items():
        if key[0] != "ndkl":
            assert mine[key]["value"] == pytest.approx(row["value"], abs=1e-9), key


def where(part: int) -> tuple[int, str, int]:
    time.sleep(0.3)
    return os.getpid(), os.environ.get("CUDA_VISIBLE_DEVICES", ""), cores()


def workers_share_a_gpu(cluster: Cluster) -> None:
    """Two on half a GPU each, both on the node that has one."""
    found = list(cluster.engine("cpus=0.5,gpus=0.5").run(lambda: where, range(8)))
    assert len({pid for pid, _, _ in found}) == 2
    # and each keeps to a core, however many the machine has
    assert {(gpu, used) for _, gpu, used in found} == {("0", 1)}


def many_parts_share_tasks_and_keep_their_order(cluster: Cluster) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ray_engine, "TASKS", 3)
        read = [Path(f"/nowhere/{at}") if at % 7 == 3 else at for at in range(20)]
        found = list(cluster.engine().run(lambda: twice, read))
    whole = [one for one in found if not isinstance(one, FailedPart)]
    assert whole == [2 * at for at in range(20) if at % 7 != 3]
    assert ["/nowhere/3" in found[3].reason, "/nowhere/10" in found[10].reason] == [True, True]


def twice(part: int | Path) -> int:
    return len(part.read_bytes()) if isinstance(part, Path) else 2 * part


def a_gpu_that_no_node_has_is_said(cluster: Cluster) -> None:
    with pytest.raises(InputError, match="2 GPU, but no node of the Ray cluster has more than 1"):
        list(cluster.engine("gpus=2").run(lambda: str, ["a"]))
    with pytest.raises(InputError, match="5 CPU, but no node of the Ray cluster has more than 1"):
        list(cluster.engine("cpus=5").run(lambda: str, ["a"]))


def test_a_cluster_does_what_the_local_engine_does(
    cluster: Cluster, bucket: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One test, so that processes that share the tests out do not start a cluster each."""
    captions_are_those_of_the_local_engine(cluster, bucket)
    an_audit_is_that_of_the_local_engine(cluster, tmp_path)
    workers_share_a_gpu(cluster)
    many_parts_share_tasks_and_keep_their_order(cluster)
    a_gpu_that_no_node_has_is_said(cluster)
    pictures_are_those_of_the_local_engine_though_a_node_dies(cluster, bucket, tmp_path)
    assert capsys.readouterr().out == ""  # which may be JSON: Ray keeps its news to itself


@pytest.mark.parametrize("name", NAMES)
def test_corrections_are_seen_by_workers_too(cluster: Cluster, name: str) -> None:
    """The same bytes as by parts in this process, which the contract holds to the whole matrix."""
    model, seen, others = fitted(name)
    engine = cluster.engine("workers=2,cpus=0.5,size=60")
    there = measured(model, others, engine)
    assert there.table.equals(measured(model, others, "parts:size=60").table)
    assert there.meta["engine"] == "ray"
    if isinstance(model, Debiased) and "labels" in model.debiaser.needs:
        with pytest.raises(InputError, match="fitted on"):
            measured(model, seen, engine)


@pytest.mark.slow
def test_a_killed_driver_goes_on_from_what_is_there(cluster: Cluster, tmp_path: Path) -> None:
    spec = f"python:{model_file(tmp_path)}:Colours?pause=0.1"
    faces = album(tmp_path / "album", 300)
    program = (
        "import sys; from pathlib import Path; from functools import partial\n"
        "from tests.engine.test_embedding import album\n"
        "from tiltmeter.engine.embedding.embed_images import Workers, embed\n"
        "from tiltmeter.engine.embedding.loader import LoaderConfig\n"
        "from tiltmeter.engine.named import engine_of; from tiltmeter.models import load_model\n"
        "from tiltmeter.store import Store\n"
        "spec, root, store, engine = sys.argv[1:]\n"
        "load = partial(load_model, spec); faces = album(Path(root), 300)\n"
        "done = embed(load(), faces.images, faces.ids, store=Store(Path(store)),\n"
        "             config=LoaderConfig(batch=4, chunk=10),\n"
        "             workers=Workers(engine_of(engine), load))\n"
        "print(done.new)"
    )
    store = tmp_path / "ray"
    engine = f"ray:workers=2,cpus=0.5,address={cluster.nodes.address}"
    command = [sys.executable, "-c", program, spec, str(tmp_path / "album"), str(store)]
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([*command, engine], **quiet) as driver:
        deadline = time.monotonic() + 120
        while len(list(store.glob("*/*.parquet"))) < 4 and time.monotonic() < deadline:
            time.sleep(0.05)
        driver.send_signal(signal.SIGKILL)
    time.sleep(5)  # its actors end when the cluster sees that it is gone
    before = {path: path.stat().st_mtime_ns for path in store.glob("*/*.parquet")}
    assert 4 <= len(before) < 30, "it was to be killed in the middle"
    again = subprocess.run(
        [*command, engine], capture_output=True, text=True, check=True, env={**os.environ}
    )
    # what was there was neither made nor written again
    assert int(again.stdout.split()[-1]) == 300 - 10 * len(before)
    assert all(path.stat().st_mtime_ns == then for path, then in before.items())
    local = tmp_path / "local"
    embed(
        load_model(spec),
        faces.images,
        faces.ids,
        store=Store(local),
        config=LoaderConfig(batch=4, chunk=10),
    )
    assert shards(store) == shards(local)
    assert len(shards(store)) == 30
