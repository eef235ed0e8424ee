"""How near embedding comes to the bare forward pass: `python -m benchmarks.embed [MODEL] ...`.

A vision transformer of CLIP's sizes with random weights; 224 x 224 JPEG files made on the spot.
"""

from __future__ import annotations

import argparse
import io
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageFilter
from torch import Tensor

from tiltmeter.engine.embedding.jpeg import JpegFile, KeepsSize, plain_size
from tiltmeter.engine.embedding.loader import (
    LoaderConfig,
    _Encoder,
    _Prepare,
    _prepared,
    decoder_of,
    embed,
)
from tiltmeter.engine.embedding.transfer import Transfer
from tiltmeter.engine.embedding.workers import embed_on
from tiltmeter.engine.engines import LocalEngine
from tiltmeter.io.image_files import ImageFiles
from tiltmeter.models.network import Network
from tiltmeter.store import Store

SIZES = {
    "B/32": {"patch_size": 32},
    "L/14": {"patch_size": 14, "hidden_size": 1024, "intermediate_size": 4096,
             "num_hidden_layers": 24, "num_attention_heads": 16, "projection_dim": 768},
}  # fmt: skip


class Tower(Network):
    """CLIP's image tower with random weights."""

    def __init__(self, name: str) -> None:
        from transformers import (
            CLIPImageProcessorPil,
            CLIPVisionConfig,
            CLIPVisionModelWithProjection,
        )

        torch.manual_seed(0)
        super().__init__(CLIPVisionModelWithProjection(CLIPVisionConfig(**SIZES[name])), name, {})
        self.processor = CLIPImageProcessorPil()

    def pixels(self, images: Any) -> Tensor:
        return self.processor(list(images), return_tensors="pt", do_normalize=False)["pixel_values"]

    def encode_images(self, images: Any) -> Any:
        return self.run(lambda x: self.network(pixel_values=x).image_embeds, images, None)


def photographs(root: Path, count: int) -> ImageFiles:
    """JPEG files of blurred noise, of about the size of a photograph's, no two alike."""
    rng = np.random.default_rng(0)
    different = []
    for _ in range(64):
        noise = Image.fromarray(rng.integers(0, 256, (224, 224, 3), dtype=np.uint8))
        file = io.BytesIO()
        noise.filter(ImageFilter.GaussianBlur(1.5)).save(file, "JPEG", quality=90)
        different.append(file.getvalue())
    for at in range(count):
        one, comment = different[at % 64], b"\xff\xfe\x00\x0a%08d" % at
        (root / f"{at:06d}.jpg").write_bytes(one[:2] + comment + one[2:])
    return ImageFiles(tuple(root / f"{at:06d}.jpg" for at in range(count)), root)


def bare(tower: Tower, count: int, batch: int, device: str) -> float:
    """Pictures a second of the forward pass alone, on tensors that lie on the device."""
    pixels = torch.rand(batch, 3, 224, 224, device=device)
    rounds = max(1, count // batch)
    with torch.inference_mode(), torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        for turn in range(rounds + 2):
            if turn == 2:  # two to warm up
                _wait(device)
                started = time.perf_counter()
            tower.encode_images(pixels)
        _wait(device)
    return rounds * batch / (time.perf_counter() - started)


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def from_arrays(tower: Tower, count: int, batch: int, device: str) -> float:
    """Pictures a second from decoded pictures in main memory, bytes as the workers give them."""
    rng = np.random.default_rng(0)
    arrays = [rng.integers(0, 256, (3, 224, 224), dtype=np.uint8) for _ in range(batch)]
    encode = _Encoder(tower, device, batch, LoaderConfig().precision_on(device))
    warm = 8 if device == "cuda" else 2

    def finish() -> None:
        ended = encode.end()
        encode.run_all()
        ended.read()

    for turn in range(max(1, count // batch) + warm):
        if turn == warm:
            finish()
            started = time.perf_counter()
        for one in arrays:
            encode.add(one)
    finish()
    return max(1, count // batch) * batch / (time.perf_counter() - started)


def as_worker(
    tower: Tower, pictures: ImageFiles, config: LoaderConfig, device: str, cores: int
) -> float:
    """Pictures a second of what a Ray worker with so many cores does, with writing to a store."""
    precision, decoder = config.precision_on(device), decoder_of(tower, config)
    decode = "gpu" if decoder == "nvjpeg" else "cpu"
    config = replace(config, precision=precision, decode=decode, cores=cores)
    with tempfile.TemporaryDirectory() as folder:
        space = Store(Path(folder)).space(tower, precision, decoder)
        started = time.perf_counter()
        for chunk in embed_on(LocalEngine(), lambda: tower, pictures, space, config, device):
            assert None not in chunk.hashes, chunk.unreadable
        seconds = time.perf_counter() - started
    return len(pictures) / seconds


def sharing(
    name: str, pictures: ImageFiles, config: LoaderConfig, device: str, workers: int
) -> float:
    """Pictures a second of several such workers of one core each, which share the GPU."""
    context = multiprocessing.get_context("spawn")
    ready = context.Barrier(workers + 1)
    shares = [pictures[at::workers] for at in range(workers)]
    running = [
        context.Process(target=_one_of_them, args=(name, some, config, device, ready))
        for some in shares
    ]
    for one in running:
        one.start()
    ready.wait()
    started = time.perf_counter()
    ready.wait()
    seconds = time.perf_counter() - started
    for one in running:
        one.join()
    return len(pictures) / seconds


def _one_of_them(
    name: str, pictures: ImageFiles, config: LoaderConfig, device: str, ready: Any
) -> None:
    torch.set_num_threads(1)
    tower = Tower(name).to(device)
    as_worker(tower, pictures[:64], config, device, 1)  # warm
    ready.wait()
    as_worker(tower, pictures, config, device, 1)
    ready.wait()


class Decoded(torch.utils.data.Dataset[Tensor]):
    """Files as research code usually reads them: decoded by Pillow, one at a time."""

    def __init__(self, paths: Sequence[Path], pixels: Callable[[Any], Tensor]) -> None:
        self.paths, self.pixels = paths, pixels

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, at: int) -> Tensor:
        with Image.open(self.paths[at]) as image:
            return self.pixels([image.convert("RGB")])[0]


def with_dataloader(
    tower: Tower, pictures: ImageFiles, batch: int, device: str, workers: int
) -> float:
    """Pictures a second of torch's DataLoader and the same forward pass."""
    loader = torch.utils.data.DataLoader(
        Decoded(pictures.paths, tower.pixels), batch, num_workers=workers, pin_memory=True
    )
    started = time.perf_counter()
    with torch.inference_mode(), torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        made = [tower.encode_images(x.to(device, non_blocking=True)).float() for x in loader]
    torch.cat(made).cpu()
    return len(pictures) / (time.perf_counter() - started)


def parts(
    tower: Tower, pictures: ImageFiles, config: LoaderConfig, device: str
) -> dict[str, float]:
    """Pictures a second of each part by itself."""
    pixels, gpu = tower.pixels, decoder_of(tower, config) == "nvjpeg"
    made = _Prepare(pictures, pixels, lambda item: False, KeepsSize(pixels) if gpu else None)
    known = _Prepare(pictures, pixels, lambda item: True, None)

    def rate(prepare: _Prepare) -> float:
        started = time.perf_counter()
        for _ in _prepared(prepare, config.workers_on(device)):
            pass
        return len(pictures) / (time.perf_counter() - started)

    found = {
        "reading and hashing": rate(known),
        "and handing over files" if gpu else "and decoding": rate(made),
    }
    if gpu:
        batch = config.batch_on(device)
        data = [path.read_bytes() for path in pictures.paths[: 16 * batch]]
        files = [JpegFile(each, plain_size(each) or (0, 0)) for each in data]
        batches = [files[at : at + batch] for at in range(0, len(files), batch)]
        transfer = Transfer(device)

        def decode_all() -> None:
            for decoded in [transfer.start(some) for some in batches]:
                decoded()

        decode_all()
        started = time.perf_counter()
        decode_all()
        found["decoding on the GPU"] = len(files) / (time.perf_counter() - started)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="*", default=["B/32"], help=", ".join(SIZES))
    parser.add_argument("--images", type=int, default=256, help="FairFace has 108501")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--workers", type=int)
    parser.add_argument("--decode", default="auto")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument(
        "--as-worker", type=int, nargs="*", default=[], metavar="CORES",
        help="and as a Ray worker does it that has so many cores: in threads, into a store",
    )  # fmt: skip
    parser.add_argument(
        "--sharing", type=int, nargs="*", default=[], metavar="WORKERS",
        help="and as many such workers do it that share the GPU, a core each",
    )  # fmt: skip
    parser.add_argument(
        "--dataloader", type=int, default=0, metavar="WORKERS",
        help="and a loop over torch's DataLoader with so many workers does it",
    )  # fmt: skip
    given = parser.parse_args(arguments)
    config = LoaderConfig(workers=given.workers, decode=given.decode, compiled=given.compile)
    batch, workers = config.batch_on(given.device), config.workers_on(given.device)
    with tempfile.TemporaryDirectory() as folder:
        pictures = photographs(Path(folder), given.images)
        size = np.mean([path.stat().st_size for path in pictures.paths[:64]])
        print(f"{given.images:,} JPEG files of 224 x 224 pixels, {size / 1024:.1f} kB each")
        some = min(given.images, 40_000)
        for name in given.models:
            tower = Tower(name).to(given.device)
            alone = bare(tower, some, batch, given.device)
            list(embed(tower, pictures[: 2 * batch], config=config))  # warm
            started = time.perf_counter()
            for _ in embed(tower, pictures, config=config):
                pass
            seconds = time.perf_counter() - started
            rate = given.images / seconds
            arrays = from_arrays(tower, some, batch, given.device)
            # before and after: machines have moods
            alone = max(alone, bare(tower, some, batch, given.device))
            print(
                f"ViT-{name} on {given.device}, batch {batch}, {workers} workers, decoded by "
                f"{decoder_of(tower, config)}{', compiled' if given.compile else ''}:\n"
                f"  bare forward pass         {alone:10,.1f} images/s\n"
                f"  from decoded pictures     {arrays:10,.1f} images/s ({arrays / alone:.0%})\n"
                f"  from JPEG files           {rate:10,.1f} images/s ({rate / alone:.0%}), "
                f"{seconds:.1f} s in all",
                flush=True,
            )
            if given.dataloader:
                there = with_dataloader(
                    tower, pictures[:some], batch, given.device, given.dataloader
                )
                what = f"DataLoader, {given.dataloader} workers"
                print(
                    f"  {what:25s} {there:10,.1f} images/s (ours {rate / there:.1f} x)", flush=True
                )
            for cores in given.as_worker:
                there = as_worker(tower, pictures, config, given.device, cores)
                what = f"as a worker, {cores} cores"
                print(f"  {what:25s} {there:10,.1f} images/s ({there / rate:.0%} of that)")
            for count in given.sharing:
                there = sharing(name, pictures, config, given.device, count)
                what = f"as {count} workers together"
                print(f"  {what:25s} {there:10,.1f} images/s ({there / rate:.0%} of that)")
            for what, speed in parts(tower, pictures[:some], config, given.device).items():
                print(f"  {what + ' alone':25s} {speed:10,.1f} images/s", flush=True)


if __name__ == "__main__":
    main()
