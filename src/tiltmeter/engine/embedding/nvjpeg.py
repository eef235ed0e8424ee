"""Decode batches of JPEG files with the hardware of a GPU, through NVIDIA's nvJPEG library.

torchvision carries the library, and its own function decodes with it, but it prepares every image
by itself and takes one batch at a time. Here a batch is one call into one tensor, and several
decoders work at a time: about twice as fast, with the same pixels.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np

from tiltmeter.engine.embedding.jpeg import JpegFile

HARDWARE, RGB_PLANES = 3, 3  # NVJPEG_BACKEND_HARDWARE, NVJPEG_OUTPUT_RGB
PLANES = 4  # NVJPEG_MAX_COMPONENT
MAPS = Path("/proc/self/maps")  # files that this process has loaded, on Linux

Handle = ctypes.c_void_p


@cache
def library() -> str | None:
    """The file of the library that torchvision has loaded; None if there is none."""
    try:
        import torchvision.io  # type: ignore[import-not-found]  # noqa: F401

        files = {line.split()[-1] for line in MAPS.read_text().splitlines() if "libnvjpeg" in line}
        return min(files, default=None)
    except (ImportError, OSError):
        return None


class BatchDecoder:
    """Decodes batches of files of one size; for one thread at a time.

    Raises
    ------
    RuntimeError
        There is no library, or the GPU has no hardware for it.
    """

    def __init__(self) -> None:
        if (file := library()) is None:
            raise RuntimeError("nvJPEG is not loaded")
        self.library = ctypes.CDLL(file)
        self.handle, self.state = Handle(), Handle()
        self._call("CreateEx", HARDWARE, None, None, 0, ctypes.byref(self.handle))
        self._call("JpegStateCreate", self.handle, ctypes.byref(self.state))
        self.count = 0  # of images, which the state is prepared for

    def decode(self, files: Sequence[JpegFile], device: str) -> Any:
        """Images x 3 x height x width as bytes, on the device; complete when this returns.

        Raises
        ------
        RuntimeError
            A file is broken, of a kind that the hardware does not decode, or of another size.
        """
        import torch

        count, stream = len(files), torch.cuda.current_stream()
        sizes = {file.size for file in files}
        if len(sizes) != 1:
            raise RuntimeError(f"images of one size are decoded together; got {sorted(sizes)}")
        ((width, height),) = sizes
        if count != self.count:
            self._call("DecodeBatchedInitialize", self.handle, self.state, count, 1, RGB_PLANES)
            self.count = count
        pixels = torch.empty((count, 3, height, width), dtype=torch.uint8, device=device)
        # nvjpegImage_t of each image: where its planes are written, and the bytes of their lines
        images = np.zeros((count, 2, PLANES), np.uint64)
        images[:, 0, :3] = pixels.data_ptr() + np.arange(3 * count).reshape(-1, 3) * height * width
        images[:, 1, :3] = width
        data = (ctypes.c_char_p * count)(*(file.data for file in files))
        lengths = (ctypes.c_size_t * count)(*(len(file.data) for file in files))
        self._call(
            "DecodeBatched", self.handle, self.state, data, lengths,
            Handle(images.ctypes.data), Handle(stream.cuda_stream),
        )  # fmt: skip
        stream.synchronize()  # the files are read until then
        return pixels

    def _call(self, name: str, *given: Any) -> None:
        if status := getattr(self.library, f"nvjpeg{name}")(*given):
            raise RuntimeError(f"nvjpeg{name} failed with status {status}")


#: Decoders that no thread uses. To make one takes a quarter of a second, so they are kept.
_idle: SimpleQueue[BatchDecoder] = SimpleQueue()


@cache
def can_decode_batches() -> bool:
    """Whether this process has the library, and its GPU the hardware."""
    try:
        _idle.put(BatchDecoder())
    except RuntimeError:
        return False
    return True


@contextmanager
def batch_decoder() -> Iterator[BatchDecoder]:
    """A decoder that no other thread uses meanwhile; raises as `BatchDecoder` does."""
    try:
        decoder = _idle.get_nowait()
    except Empty:
        decoder = BatchDecoder()
    try:
        yield decoder
    finally:
        _idle.put(decoder)
