"""The same commands on a real Ray cluster: two nodes, each with its own processes, on one machine.

Nothing is killed by the clock: jobs wait in the middle until it is done (`killing`).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
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
from tests.debiasers.engines import NAMES, fitted, measured
from tests.engine.collections_in_shards import SPEAKS
from tests.engine.killing import (
    CASES,
    FREE,
    Gated,
    collections,
    kill_a_worker,
    measure,
    wait_for,
)
from tests.engine.test_embedding import MODEL, album, shards
from tests.probes.test_ranking_by_parts import by_key
from tiltmeter.auditing.audit import audit
from tiltmeter.cli.app import app
from tiltmeter.corpus import audit_captions
from tiltmeter.datasets import list_shards
from tiltmeter.debiasers.debiased import Debiased
from tiltmeter.engine import ray_engine
from tiltmeter.engine.embedding.embed_images import Workers, embed
from tiltmeter.engine.embedding.loader import LoaderConfig
from tiltmeter.engine.embedding.shards import embed_shards
from tiltmeter.engine.engines import FailedPart, LocalEngine
from tiltmeter.engine.named import engine_of
from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.metrics.numpy_kernels import cores, in_rows, use_cores
from tiltmeter.models import load_model
from tiltmeter.results import Run
from tiltmeter.store import Store

pytest.importorskip("torch")


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
        self.second: Any = None

    def engine(self, settings: str = "workers=2,cpus=0.5") -> Any:
        return engine_of(f"ray:{settings},address={self.nodes.address}")

    def kill_second(self) -> None:
        self.nodes.remove_node(self.second, allow_graceful=False)
        self.second = None

    def revive_second(self) -> None:
        self.second = self.second or self.nodes.add_node(**self.small)


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
def nodes(bucket: Path) -> Iterator[Cluster]:
    ray = pytest.importorskip("ray")
    made = Cluster()
    yield made
    ray.shutdown()
    made.nodes.shutdown()


@pytest.fixture
def cluster(nodes: Cluster) -> Cluster:
    """Two nodes, whatever the test before killed."""
    nodes.revive_second()
    return nodes


def model_file(place: Path) -> Path:
    file = place / "colours.py"
    file.write_text(MODEL + SPEAKS)
    return file


def corpus(place: Path, files: int) -> Path:
    rng = np.random.default_rng(0)
    words = ["a", "the", "nurse", "doctor", "his", "her", "man", "woman", "kind", "photo", "of"]
    place.mkdir()
    for at in range(files):
        rows = [" ".join(rng.choice(words, 8)) for _ in range(500)]
        pq.write_table(pa.table({"caption": rows}), place / f"{at}.parquet")
    (place / "cut.parquet").write_bytes((place / "0.parquet").read_bytes()[:2000])
    return place


def test_captions_are_those_of_the_local_engine(cluster: Cluster, bucket: Path) -> None:
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


def test_an_audit_is_that_of_the_local_engine(cluster: Cluster, tmp_path: Path) -> None:
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
        if key[0] != "ndkl":  # single precision: parts may round otherwise than the whole
            assert mine[key]["value"] == pytest.approx(row["value"], abs=1e-6), key


def test_images_of_one_list_are_those_of_the_local_engine_though_a_node_dies(
    cluster: Cluster, tmp_path: Path
) -> None:
    spec = f"python:{model_file(tmp_path)}:Colours"
    faces = album(tmp_path / "album", 96)
    config, load = LoaderConfig(batch=8, chunk=8), partial(load_model, spec)
    local = embed(load(), faces.images, faces.ids, store=Store(tmp_path / "local"), config=config)
    engine = Gated(cluster.engine(), tmp_path / "gate", "EmbeddingTask", cluster.kill_second)
    done = embed(load(), faces.images, faces.ids, store=Store(tmp_path / "ray"), config=config,
                 workers=Workers(engine, load))  # fmt: skip
    assert cluster.second is None
    assert done.rows == local.rows
    np.testing.assert_array_equal(done.vectors, local.vectors)
    assert shards(tmp_path / "ray") == shards(tmp_path / "local")
    assert not list((tmp_path / "ray").glob("*/.*.part"))


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return collections(tmp_path_factory.mktemp("collections"))


def test_tar_files_in_a_bucket_are_embedded_by_workers_though_a_node_dies(
    cluster: Cluster, bucket: Path, audited: Path, tmp_path: Path
) -> None:
    spec = f"python:{audited / 'colours.py'}:Colours"
    shutil.copytree(audited / "tars", bucket / "shards")
    images = "webdataset:s3://bucket/shards"
    faces = list_shards(images)
    assert faces is not None
    load = partial(load_model, spec)
    engine = Gated(cluster.engine(), tmp_path / "gate", "EmbedShardTask", cluster.kill_second)
    done = embed_shards(load(), faces, Store(tmp_path / "ray"), Workers(engine, load),
                        LoaderConfig(batch=8))  # fmt: skip
    assert cluster.second is None
    assert "00007.tar" in done.faces.provenance["shards_not_read"]["first"][0]
    whole = tm.load_data(images)
    local = embed(load(), whole.images, whole.ids, config=LoaderConfig(batch=8))
    assert 140 < len(done.faces) == len(local.rows) < 160
    np.testing.assert_array_equal(
        done.faces.table.vectors(0, len(done.faces)),
        local.vectors,  # type: ignore[union-attr]
    )
    stored: dict[str, Any] = {"words": str(audited / "words.csv"), "k": [10, 50], "bootstraps": 0,
                              "permutations": 0, "probes": ["ranking"]}  # fmt: skip
    there = audit(spec, images, engine=cluster.engine("workers=2,cpus=0.5,size=50"),
                  store=tmp_path / "ray", **stored)  # fmt: skip
    here = by_key(audit(spec, images, **stored))
    assert there.meta["data"]["faces"]["images"] == len(local.rows)
    mine = by_key(there)
    assert set(here) <= set(mine)
    for key, row in here.items():
        if key[0] != "ndkl":
            assert mine[key]["value"] == pytest.approx(row["value"], abs=1e-5), key


SIZE = "workers=2,cpus=0.5,size=60"


def check_equal(there: Run, here: Run) -> None:
    """The same bytes; otherwise the first row that differs is shown."""
    if not there.table.equals(here.table):
        pairs = zip(there.table.to_pylist(), here.table.to_pylist(), strict=True)
        for mine, other in pairs:
            apart = {key: (mine[key], other[key]) for key in mine if mine[key] != other[key]}
            assert not apart, (mine["probe"], mine["metric"], mine["concept"], apart)
        raise AssertionError(there.table.schema.metadata)


@pytest.mark.parametrize("case", [case for case in CASES if case != "embed"])
def test_collections_are_audited_as_by_parts_though_a_worker_and_a_node_die(
    cluster: Cluster, audited: Path, tmp_path: Path, case: str
) -> None:
    """The same bytes as in this process, which `test_shards` compares with the local engine."""
    gate = tmp_path / "gate"

    def kill() -> None:
        kill_a_worker(gate)
        cluster.kill_second()

    engine = Gated(cluster.engine(SIZE), gate, CASES[case][0], kill)
    there = measure(case, audited, engine, tmp_path / "there")
    assert (gate / "open").exists()  # the job was interrupted where it was meant to be
    assert cluster.second is None
    check_equal(there, measure(case, audited, "parts:size=60", tmp_path / "here"))
    assert there.table.num_rows > 50


@pytest.mark.parametrize("case", CASES)
def test_after_a_killed_driver_finished_parts_are_not_done_again(
    cluster: Cluster, audited: Path, tmp_path: Path, case: str
) -> None:
    engine = f"ray:{SIZE},address={cluster.nodes.address}"
    store, gate = tmp_path / "store", tmp_path / "store" / "gate"
    store.mkdir()
    command = [sys.executable, "-m", "tests.engine.killing", case, str(audited), engine, str(store)]
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    driver = subprocess.Popen(command, **quiet)
    wait_for(lambda: (gate / "reached").exists())
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    workers = [Path("/proc", pid.stem) for pid in gate.glob("*.pid")]
    wait_for(lambda: not any(worker.exists() for worker in workers))
    computed = (gate / "computed").read_text().splitlines()
    shards_of_images = case == "embed"
    kept = "*/sources/*.parquet" if shards_of_images else "unfinished/*/*.part"
    finished = {path: path.stat().st_mtime_ns for path in store.glob(kept)}
    assert len(computed) == len(finished) == FREE
    (gate / "computed").unlink()
    (gate / "open").touch()
    subprocess.run(command, check=True, capture_output=True)
    again = (gate / "computed").read_text().splitlines()
    check_equal(Run.load(store / "run"), measure(case, audited, "parts:size=60", tmp_path / "here"))
    if shards_of_images:  # a worker looks at finished shards, and embeds the others
        assert len(list(store.glob(kept))) == len(again) == 8
        assert {path: path.stat().st_mtime_ns for path in finished} == finished
    else:
        assert again  # it was killed in the middle
        assert not set(computed) & set(again)
        assert not list(store.glob(kept))


@dataclass(frozen=True)
class Rendezvous:
    """Work that waits until two workers have begun, and says which GPU and cores it has."""

    place: Path

    def __call__(self) -> Any:
        return self.work

    def work(self, part: int) -> tuple[int, str, int]:
        (self.place / str(os.getpid())).touch()
        wait_for(lambda: len(list(self.place.iterdir())) >= 2)
        return os.getpid(), os.environ.get("CUDA_VISIBLE_DEVICES", ""), cores()


def test_workers_share_a_gpu(cluster: Cluster, tmp_path: Path) -> None:
    """Two on half a GPU each, both on the node that has one."""
    found = list(cluster.engine("cpus=0.5,gpus=0.5").run(Rendezvous(tmp_path), range(8)))
    assert len({pid for pid, _, _ in found}) == 2
    # and each keeps to a core, however many the machine has
    assert {(gpu, used) for _, gpu, used in found} == {("0", 1)}


def test_many_parts_share_tasks_and_keep_their_order(cluster: Cluster) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ray_engine, "TASKS", 3)
        read = [Path(f"/nowhere/{at}") if at % 7 == 3 else at for at in range(20)]
        found = list(cluster.engine().run(lambda: twice, read))
    whole = [one for one in found if not isinstance(one, FailedPart)]
    assert whole == [2 * at for at in range(20) if at % 7 != 3]
    assert ["/nowhere/3" in found[3].reason, "/nowhere/10" in found[10].reason] == [True, True]


def twice(part: int | Path) -> int:
    return len(part.read_bytes()) if isinstance(part, Path) else 2 * part


def test_a_gpu_that_no_node_has_is_said(cluster: Cluster) -> None:
    with pytest.raises(InputError, match="2 GPU, but no node of the Ray cluster has more than 1"):
        list(cluster.engine("gpus=2").run(lambda: str, ["a"]))
    with pytest.raises(InputError, match="5 CPU, but no node of the Ray cluster has more than 1"):
        list(cluster.engine("cpus=5").run(lambda: str, ["a"]))


def test_ray_prints_nothing(tmp_path: Path) -> None:
    """Neither among results, which may be JSON, nor of how Ray Data starts its actors."""
    pytest.importorskip("ray")
    place = corpus(tmp_path / "captions", 1)
    (place / "cut.parquet").unlink()
    command = [sys.executable, "-m", "tiltmeter", "captions", str(place), "--json"]
    done = subprocess.run([*command, "--engine", "ray:workers=1"], capture_output=True, text=True,
                          check=True)  # fmt: skip
    json.loads(done.stdout)
    assert done.stderr == ""


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
