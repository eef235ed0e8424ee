"""Photographs through a model: in order, resumable, whatever the files hold."""

from __future__ import annotations

import io
import random
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.conftest import ROOT
from tiltmeter.engine.embedding import jpeg, transfer
from tiltmeter.engine.embedding import loader as local
from tiltmeter.engine.embedding.embed_images import Workers, embed
from tiltmeter.engine.embedding.loader import REQUESTS, LoaderConfig
from tiltmeter.engine.embedding.loader import embed as chunks
from tiltmeter.engine.engines import LocalEngine
from tiltmeter.errors import InputError
from tiltmeter.io.filesystems import RemoteImages
from tiltmeter.io.image_files import ImageFiles
from tiltmeter.metrics.numpy_kernels import use_cores
from tiltmeter.store import Store
from tiltmeter.types import Faces, Groups

MODEL = '''
"""A model that starts fast: mean colours of nine parts of a picture."""
import time
import numpy as np

class Colours:
    name, fingerprint = "colours", "one"

    def __init__(self, pause=0.0):
        self.pause, self.seen = float(pause), 0

    def encode_images(self, images):
        time.sleep(self.pause)
        self.seen += len(images)
        small = [np.asarray(image.resize((3, 3)), np.float32).ravel() + 1 for image in images]
        return np.stack([x / np.linalg.norm(x) for x in small])
'''
torch = pytest.importorskip("torch")
space: dict = {}
exec(MODEL, space)
Colours = space["Colours"]


def album(root: Path, count: int, seed: int = 0) -> Faces:
    root.mkdir(exist_ok=True)
    rng = np.random.default_rng(seed)
    paths = []
    for at in range(count):
        paths.append(root / f"{at:04d}.png")
        if not paths[-1].exists():
            Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(paths[-1])
    return Faces(
        ids=tuple(path.name for path in paths),
        groups={"half": Groups(np.arange(count) % 2, ("even", "odd"), "half")},
        images=ImageFiles(tuple(paths), root),
    )


@dataclass(frozen=True)
class Beside:
    """An engine whose only worker is this process, with as many cores and GPUs as it says."""

    gpus: float = 0.0
    cores: int = 1
    name: str = "beside"

    def run(self, make: Any, parts: Any) -> Iterator[Any]:
        before = use_cores(self.cores)
        try:
            yield from LocalEngine().run(make, parts)
        finally:
            use_cores(before)


def shards(store: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(store.glob("*/*.npy"))}


def embedded(model, faces: Faces, *, engine=None, load=None, read=True, **options):
    workers = Workers(engine or LocalEngine(), load, read)
    return embed(model, faces.images, faces.ids, workers=workers, **options)


@pytest.mark.parametrize("workers", [0, 2])
def test_vectors_are_the_models_own_in_order(tmp_path: Path, workers: int) -> None:
    faces = album(tmp_path / "a", 90)
    done = embedded(Colours(), faces, config=LoaderConfig(batch=7, workers=workers))
    assert np.allclose(done.vectors, Colours().encode_images(list(faces.images)))
    assert done.of(faces).ids == faces.ids
    assert done.new == 90


def test_a_second_call_reads_and_a_changed_picture_is_made_again(tmp_path: Path) -> None:
    faces, store = album(tmp_path / "a", 40), Store(tmp_path / "store")
    first = embedded(Colours(), faces, store=store)
    again = embedded(model := Colours(), faces, store=store)
    assert (first.new, again.new, model.seen) == (40, 0, 0)
    assert np.array_equal(first.vectors, again.vectors)
    Image.new("RGB", (8, 8), "red").save(faces.images.paths[3])
    third = embedded(Colours(), faces, store=store)
    assert third.new == 1
    changed = np.abs(third.vectors - first.vectors).max(axis=1) > 1e-3
    assert np.flatnonzero(changed).tolist() == [3]
    other = Colours()
    other.fingerprint = "two"
    assert embedded(other, faces, store=store).new == 40


def test_the_same_picture_twice_is_embedded_once(tmp_path: Path) -> None:
    faces = album(tmp_path / "a", 10)
    faces.images.paths[7].write_bytes(faces.images.paths[2].read_bytes())
    for store in (None, Store(tmp_path / "store")):
        done = embedded(model := Colours(), faces, store=store)
        assert model.seen == done.new == 9
        assert np.array_equal(done.vectors[7], done.vectors[2])


def test_what_cannot_be_read_is_left_out_and_named(tmp_path: Path) -> None:
    faces = album(tmp_path / "a", 12)
    faces.images.paths[4].write_bytes(b"no picture at all")
    faces.images.paths[9].unlink()
    done = embedded(Colours(), faces)
    assert list(done.unreadable) == ["0004.png", "0009.png"]
    assert len(done.of(faces)) == len(done.vectors) == 10
    assert "0004.png" not in done.of(faces).ids
    assert done.of(faces).groups["half"].counts.tolist() == [5, 5]
    with pytest.raises(InputError, match=r"0004\.png"):
        embedded(Colours(), faces, strict=True)
    for path in faces.images.paths:
        path.write_bytes(b"")
    with pytest.raises(InputError, match="none of the 12 images"):
        embedded(Colours(), faces)


def test_a_batch_too_large_is_halved_and_that_is_remembered(tmp_path: Path) -> None:
    class Small(Colours):
        sizes: list[int] = []

        def encode_images(self, images):
            self.sizes.append(len(images))
            if len(images) > 5:
                raise RuntimeError("CUDA out of memory. Tried to allocate ...")
            return super().encode_images(images)

    faces = album(tmp_path / "a", 60)
    done = embedded(model := Small(), faces, config=LoaderConfig(batch=32, workers=0))
    assert np.allclose(done.vectors, Colours().encode_images(list(faces.images)))
    assert model.sizes[:4] == [32, 16, 8, 4]
    assert set(model.sizes[3:]) <= {4}


def test_a_real_checkpoint_gives_what_it_gives_alone(tmp_path: Path) -> None:
    """Flat, noisy, narrow and wide pictures together: the engine hands pixels over whole."""
    pytest.importorskip("transformers")
    import tiltmeter as tm
    from tests.models import tiny

    tiny.clip(tmp_path / "clip")
    model = tm.load_model(f"hf:{tmp_path / 'clip'}")
    rng, paths = np.random.default_rng(0), []
    for at, (height, width) in enumerate([(32, 32), (40, 90), (90, 40), (33, 31), (64, 64)] * 8):
        flat = np.full((height, width, 3), 5 * at, np.uint8)
        noisy = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
        paths.append(tmp_path / f"{at:02d}.png")
        Image.fromarray(flat if at % 3 == 0 else noisy).save(paths[-1])
    pictures = ImageFiles(tuple(paths), tmp_path)
    expected = model.encode_images(list(pictures))
    for workers in (0, 2):
        done = embed(
            model, pictures, [p.name for p in paths], config=LoaderConfig(batch=7, workers=workers)
        )
        assert np.abs(done.vectors - expected).max() < 1e-5


def test_pixels_of_two_kinds_in_one_batch(tmp_path: Path) -> None:
    """Whole steps of 1/255 travel as bytes, others do not; both come out as they were."""
    torch = pytest.importorskip("torch")

    class Raw:
        name, fingerprint = "raw", "raw"

        def pixels(self, images):
            means = [np.asarray(image, np.float32).mean() / 255 for image in images]
            return torch.tensor(means).reshape(-1, 1, 1, 1).expand(-1, 3, 2, 2) * 1.5 - 0.2

        def encode_images(self, pixels):
            return pixels.flatten(1)

    faces = album(tmp_path / "a", 20)
    for at in (3, 4, 9):
        Image.new("RGB", (8, 8), (at * 20,) * 3).save(faces.images.paths[at])
    expected = Raw().pixels(list(faces.images)).flatten(1).numpy()
    assert np.abs(embedded(Raw(), faces).vectors - expected).max() < 1e-6


def test_half_precision_is_another_space_and_still_of_length_one(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    import tiltmeter as tm

    faces, model, store = album(tmp_path / "a", 12), tm.load_model("testbed:dual"), tmp_path / "s"
    whole = embedded(model, faces, store=Store(store))
    half = embedded(model, faces, store=Store(store), config=LoaderConfig(precision="bfloat16"))
    assert whole.new == half.new == 12
    assert 0 < np.abs(whole.vectors - half.vectors).max() < 0.05
    assert np.allclose(np.linalg.norm(half.vectors, axis=1), 1, atol=1e-6)
    assert (whole.record["precision"], half.record["precision"]) == ("float32", "bfloat16")
    assert whole.record["images_hash"] == half.record["images_hash"]


def test_a_worker_that_dies_is_reported(tmp_path: Path) -> None:
    class Deadly(Colours):
        def pixels(self, images):
            import os

            os._exit(1)

    with pytest.raises(InputError, match="a process that decodes images died"):
        embedded(Deadly(), album(tmp_path / "a", 40), config=LoaderConfig(workers=1))


def test_an_error_of_the_model_is_not_taken_for_memory(tmp_path: Path) -> None:
    class Broken(Colours):
        def encode_images(self, images):
            raise RuntimeError("shapes do not fit")

    with pytest.raises(RuntimeError, match="shapes do not fit"):
        embedded(Broken(), album(tmp_path / "a", 3))


def test_a_slow_model_is_saved_after_every_batch(tmp_path: Path) -> None:
    """Fewer images are saved together, in the same batches: the embeddings are the same."""
    faces = album(tmp_path / "a", 25)
    config = LoaderConfig(chunk=10, batch=4, workers=0)
    whole, slow = (
        list(chunks(Colours(), faces.images, config=replace(config, seconds=seconds)))
        for seconds in (60, 0)
    )
    assert [chunk.start for chunk in whole] == [0, 10, 20]
    assert [chunk.start for chunk in slow] == [0, 4, 8, 10, 14, 18, 20, 24]
    before, after = (np.concatenate([c.vectors for c in found]) for found in (whole, slow))
    assert np.array_equal(before, after)


@pytest.mark.parametrize("ahead", [1, 3])
def test_chunks_do_not_depend_on_batches_that_are_on_their_way(
    tmp_path: Path, monkeypatch, ahead: int
) -> None:
    pictures = album(tmp_path / "pictures", 23).images
    Path(pictures.paths[7]).write_bytes(b"no picture")
    config = LoaderConfig(batch=4, chunk=10, workers=0)
    one_by_one = list(chunks(Colours(), pictures, config=config))
    monkeypatch.setitem(transfer.AHEAD, "cpu", ahead)
    in_flight = list(chunks(Colours(), pictures, config=config))
    assert [len(chunk.hashes) for chunk in in_flight] == [10, 10, 3]
    for found, expected in zip(in_flight, one_by_one, strict=True):
        assert (found.hashes, found.new) == (expected.hashes, expected.new)
        assert found.unreadable == expected.unreadable
        np.testing.assert_array_equal(found.vectors, expected.vectors)


def test_chunks_do_not_depend_on_what_is_known_elsewhere(tmp_path: Path) -> None:
    faces = album(tmp_path / "a", 50)
    known = {faces.images.hash(at) for at in range(10, 20)}
    found = list(
        chunks(Colours(), faces.images, known=known.__contains__, config=LoaderConfig(chunk=10))
    )
    assert [chunk.start for chunk in found] == [0, 10, 20, 30, 40]
    assert [len(chunk.new) for chunk in found] == [10, 0, 10, 10, 10]
    assert found[1].vectors is None


WORK = """
import sys
from pathlib import Path
sys.path.insert(0, str(Path(sys.argv[1])))
from tests.engine.test_embedding import Colours, album, embedded
from tiltmeter.engine.embedding.loader import LoaderConfig
from tiltmeter.store import Store
root = Path(sys.argv[2])
embedded(Colours(pause=0.01), album(root / "album", 320), store=Store(root / "killed"),
         config=LoaderConfig(batch=8, workers=1, chunk=16))
"""


def killed(root: Path, times: int, rng: random.Random) -> int:
    """Runs an embedding that is killed so many times, then one to its end; how often it had run."""
    command = [sys.executable, "-c", WORK, str(ROOT), str(root)]
    hits = 0
    for _ in range(times):
        process = subprocess.Popen(command, stderr=subprocess.PIPE)
        store, before = root / "killed", len(list((root / "killed").rglob("*.parquet")))
        deadline = time.monotonic() + 20
        # wait until it writes, then some moments more: most kills then fall into the work
        while process.poll() is None and time.monotonic() < deadline:
            if len(list(store.rglob("*.parquet"))) > before:
                break
            time.sleep(0.002)
        time.sleep(rng.uniform(0, 0.05))
        hits += process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait()
    subprocess.run(command, check=True)
    return hits


def check_killed(root: Path, times: int) -> None:
    faces = album(root / "album", 320)
    assert killed(root, times, random.Random(0)) >= min(times // 2, 5)
    kept = Store(root / "killed").spaces()[0]
    assert list(kept.problems()) == []
    items = [faces.images.hash(at) for at in range(320)]
    whole = Store(root / "whole")
    for chunk in chunks(Colours(), faces.images, config=LoaderConfig(batch=8, workers=0, chunk=16)):
        whole.space(Colours()).add([items[at] for at in chunk.new], chunk.vectors)
    undisturbed = whole.space(Colours())
    assert np.array_equal(kept.vectors(items), undisturbed.vectors(items))
    # nothing was embedded twice, and the shards are the same to the byte
    assert sum(len(kept.items(shard)) for shard in kept.shards()) == 320
    assert kept.shards() == undisturbed.shards()
    for shard in kept.shards():
        name = f"{shard}.npy"
        assert (kept.path / name).read_bytes() == (undisturbed.path / name).read_bytes()


def test_killed_a_few_times(tmp_path: Path) -> None:
    check_killed(tmp_path, 3)


@pytest.mark.slow
def test_killed_fifty_times(tmp_path: Path) -> None:
    check_killed(tmp_path, 50)


def test_two_writers_at_once(tmp_path: Path) -> None:
    album(tmp_path / "album", 320)
    command = [sys.executable, "-c", WORK, str(ROOT), str(tmp_path)]
    both = [subprocess.Popen(command) for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    kept = Store(tmp_path / "killed").spaces()[0]
    assert list(kept.problems()) == []
    assert len(kept) == 320


class Tensors:
    """A model that takes tensors, as those with a network do: mean colours of nine parts."""

    name, fingerprint = "tensors", "one"

    def pixels(self, images):
        cut = [image.crop((0, 0, 24, 24)) for image in images]
        return torch.from_numpy(np.stack(cut)).permute(0, 3, 1, 2) / 255

    def encode_images(self, pixels):
        parts = torch.nn.functional.adaptive_avg_pool2d(pixels, 3).flatten(1) + 1
        return torch.nn.functional.normalize(parts, dim=-1)


def test_what_a_gpu_decodes_keeps_its_place(tmp_path: Path, monkeypatch) -> None:
    """The files that go to a GPU, here decoded by Pillow: all others go the usual way."""
    rng = np.random.default_rng(0)
    for at in range(40):
        size = (24, 24) if at % 3 else (30, 26)  # the model would cut these
        noise = Image.fromarray(rng.integers(0, 256, (*size[::-1], 3), dtype=np.uint8))
        noise.save(tmp_path / f"{at:02d}.jpg", quality=95)
    whole = (tmp_path / "05.jpg").read_bytes()
    table = whole.index(b"\xff\xc4") + 5  # how to unpack it: nonsense, which only decoding shows
    (tmp_path / "05.jpg").write_bytes(whole[:table] + b"\xff" * 16 + whole[table + 16 :])
    (tmp_path / "07.jpg").write_bytes(whole[:-300])  # half a picture
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.open(tmp_path / "10.jpg").save(tmp_path / "10.jpg", exif=exif)
    pictures = ImageFiles(tuple(sorted(tmp_path.glob("*.jpg"))), tmp_path)
    seen = []

    def decode_some(files):
        seen.extend(files)
        made = [np.asarray(Image.open(io.BytesIO(file))) for file in files]
        return [torch.from_numpy(one.copy()).permute(2, 0, 1) for one in made]

    def nvjpeg(files, device, alone=None):
        try:
            return decode_some(files)
        except OSError as error:
            raise RuntimeError("nvjpeg: bad file") from error

    monkeypatch.setattr(local, "can_decode", lambda device: True)
    monkeypatch.setattr(jpeg, "decode", nvjpeg)
    monkeypatch.setattr(local, "FILES", 8)  # so that there are several blocks
    found, ids = {}, [path.name for path in pictures.paths]
    config, store = (
        LoaderConfig(batch=7, workers=2, chunk=8, precision="float32"),
        Store(tmp_path / "store"),
    )
    for decode in ("cpu", "gpu"):
        done = embed(Tensors(), pictures, ids, config=replace(config, decode=decode))
        found[decode] = done
        assert set(done.unreadable) == {"05.jpg", "07.jpg"}
        # the same of a worker of an engine that has GPUs
        there = embed(Tensors(), pictures, ids, config=replace(config, decode=decode), store=store,
                      workers=Workers(Beside(gpus=1), Tensors))  # fmt: skip
        assert there.unreadable == done.unreadable
        assert there.record == done.record
        assert np.array_equal(there.vectors, done.vectors)
    assert len(seen) > 40
    assert found["cpu"].rows == found["gpu"].rows
    assert found["cpu"].unreadable == found["gpu"].unreadable
    assert np.abs(found["cpu"].vectors - found["gpu"].vectors).max() < 1e-6
    assert found["gpu"].record["decoder"] == "nvjpeg"
    # other pixels, another space
    kept = {store.space(Tensors(), "float32", decoder).path for decoder in ("pillow", "nvjpeg")}
    assert {space.path for space in store.spaces()} == kept
    assert len(kept) == 2


def test_a_gpu_to_decode_on_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--device cuda"):
        embedded(Tensors(), album(tmp_path, 3), config=LoaderConfig(decode="gpu"))


@pytest.mark.parametrize("gpus", [0, 1])  # with one, several chunks are a part
def test_threads_of_a_worker_write_the_same_shards(tmp_path: Path, gpus: int) -> None:
    pytest.importorskip("transformers")
    import tiltmeter as tm
    from tests.random_clip import random_clip

    spec = f"hf:{random_clip(tmp_path / 'clip')}"
    faces = album(tmp_path / "a", 150)
    faces.images.paths[70].write_bytes(b"no picture at all")
    faces.images.paths[120].unlink()
    config = LoaderConfig(batch=8, chunk=32, workers=0, precision="float32", decode="cpu")
    here = embedded(tm.load_model(spec), faces, store=Store(tmp_path / "here"), config=config)
    assert list(here.unreadable) == ["0070.png", "0120.png"]
    seen: set[int] = set()

    def load() -> Any:
        model = tm.load_model(spec)
        make = model.pixels
        model.pixels = lambda images: seen.add(threading.get_ident()) or make(images)
        return model

    for workers in (0, 3):
        seen.clear()
        store = tmp_path / f"with {workers}"
        done = embedded(tm.load_model(spec), faces, store=Store(store), engine=Beside(gpus=gpus),
                        load=load, config=replace(config, workers=workers))  # fmt: skip
        assert shards(store) == shards(tmp_path / "here")
        assert len(shards(store)) == 5
        assert (done.rows, done.unreadable, done.new) == (here.rows, here.unreadable, here.new)
        assert np.array_equal(done.vectors, here.vectors)
        # in this process, where nothing was forked, and beside the one that runs the model
        assert (threading.get_ident() in seen) == (workers == 0)


def test_an_error_in_a_thread_is_raised(tmp_path: Path) -> None:
    class Odd(ImageFiles):
        def read(self, at: int) -> bytes:
            if at == 50:
                raise ZeroDivisionError("a mistake of ours")
            return super().read(at)

    faces, before = album(tmp_path / "a", 90), list(warnings.filters)
    odd = Odd(faces.images.paths, faces.images.root)
    with pytest.raises(ZeroDivisionError, match="a mistake of ours"):
        embed(Colours(), odd, faces.ids, config=LoaderConfig(workers=3, cores=2))
    assert warnings.filters == before  # which decoding changes, in all threads at once


def test_a_worker_has_as_many_threads_as_keep_it_busy(tmp_path: Path) -> None:
    faces = album(tmp_path / "a", 40)

    def threads(pictures: Any, device: str, **given: int) -> int:
        prepare = local._Prepare(pictures, Tensors().pixels, lambda item: False, None)
        return local._workers(prepare, device, LoaderConfig(**{"cores": 1, **given}))

    far = RemoteImages.at([("s3://bucket/a.jpg", 0, -1)])
    assert threads(faces.images, "cuda") == threads(faces.images, "cuda", cores=8) == 1
    assert [threads(faces.images, "cpu", cores=cores) for cores in (1, 8)] == [0, 1]
    assert threads(far, "cuda") == threads(far, "cpu") == REQUESTS
    assert threads(far, "cuda", workers=2) == 2


def test_a_worker_decodes_as_its_space_is_named_or_not_at_all(tmp_path: Path, monkeypatch) -> None:
    faces, gpu = album(tmp_path / "a", 5), Beside(gpus=1)
    work = partial(embedded, Tensors(), faces, store=Store(tmp_path / "store"), load=Tensors)

    def nothing(files: Any, device: str) -> Any:
        raise RuntimeError("nvjpeg: not built with CUDA")

    monkeypatch.setattr(jpeg, "find_spec", lambda name: None)
    assert work(engine=gpu).record["decoder"] == "pillow"  # there is no torchvision here
    with pytest.raises(InputError, match="torchvision"):
        work(engine=gpu, config=LoaderConfig(decode="gpu"))
    monkeypatch.setattr(jpeg, "find_spec", lambda name: name)
    with pytest.raises(InputError, match=r"ray:gpus=1"):
        work(engine=Beside(), config=LoaderConfig(decode="gpu"))
    assert work(engine=Beside()).record["decoder"] == "pillow"
    assert work(engine=gpu, config=LoaderConfig(decode="cpu")).record["decoder"] == "pillow"
    plain = embedded(Colours(), faces, store=Store(tmp_path / "store"), load=Colours, engine=gpu)
    assert plain.record["decoder"] == "pillow"  # it takes no tensors
    with pytest.raises(InputError, match="on the workers; or use --decode cpu"):
        work(engine=gpu)  # whose worker finds its model on no GPU
    monkeypatch.setattr(local, "can_decode", lambda device: True)
    monkeypatch.setattr(jpeg, "decode", nothing)
    with pytest.raises(InputError, match=r"cannot decode on its GPU \(nvjpeg: not built"):
        work(engine=gpu)


def test_a_device_that_workers_are_not_on_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    from typer.testing import CliRunner

    from tiltmeter.cli.app import app

    place = str(tmp_path / "store")
    given = ["embed", "testbed:dual", "--images", "testbed:?images=28", "--store", place]
    for device, engine in (("cuda", "ray"), ("cpu", "ray:gpus=1")):
        told = CliRunner().invoke(app, [*given, "--device", device, "--engine", engine])
        assert isinstance(told.exception, InputError)
        assert f"--device {device}, but workers of --engine ray" in str(told.exception)
