"""Transfer images to the device as one tensor: files are decoded there, pixels are copied.

On a GPU, threads do this ahead of the model, each in its own stream; a batch is handed over when it
is complete.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock, local
from typing import Any

import numpy as np

from tiltmeter.engine.embedding import jpeg
from tiltmeter.engine.embedding.jpeg import JpegFile
from tiltmeter.engine.embedding.nvjpeg import batch_decoder, can_decode_batches
from tiltmeter.io.image_files import UnreadableImageError, decode

AHEAD = {"cuda": 3}  # batches on their way to a device while the model works, each by a thread
COPIERS = 4  # threads


@dataclass(frozen=True, eq=False)
class DeviceBatch:
    """A batch on the device, and the images that could not be decoded, with reasons."""

    pixels: Any  # None: no image could be decoded
    broken: dict[int, str]


class Transfer:
    """Transfers batches to a device, several at a time on a GPU."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.ahead = AHEAD.get(device, 0)
        self.movers = ThreadPoolExecutor(max(self.ahead, 1))  # threads start on first use
        self.copiers = ThreadPoolExecutor(COPIERS)
        self.decoding = Lock()  # the decoder takes one batch at a time
        self.per_thread = local()

    def start(self, prepared: Sequence[Any]) -> Callable[[], DeviceBatch]:
        """Start the transfer of a batch; the returned function waits for it."""
        if not self.ahead:
            return lambda: self.bring(prepared)
        return self.movers.submit(self.bring, prepared).result

    def bring(self, prepared: Sequence[Any]) -> DeviceBatch:
        """Files and pixels (arrays of one shape) as one tensor, in their order."""
        if self.device != "cuda":
            return self._assemble(prepared)
        import torch

        reader = torch.cuda.default_stream()
        if not hasattr(self.per_thread, "stream"):
            self.per_thread.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self.per_thread.stream):
            arrived = self._assemble(prepared)
            self.per_thread.stream.synchronize()
        if arrived.pixels is not None:
            arrived.pixels.record_stream(reader)  # keep its memory until the model has read it
        return arrived

    def _assemble(self, prepared: Sequence[Any]) -> DeviceBatch:
        import torch

        files = {
            index: array for index, array in enumerate(prepared) if isinstance(array, JpegFile)
        }
        with torch.inference_mode():
            if not files:
                return DeviceBatch(self._send(prepared), {})
            if len(files) == len(prepared) and can_decode_batches():
                try:
                    with batch_decoder() as decoder:
                        return DeviceBatch(decoder.decode(prepared, self.device), {})
                except RuntimeError as error:  # of several sizes, or one that it cannot decode
                    if out_of_memory(error):
                        raise
            ready, broken = self._decode(files)
            rest = [index for index in range(len(prepared)) if index not in files]
            if rest:
                sent = self._send([prepared[index] for index in rest])
                if sent.is_floating_point():
                    ready = {index: array.float() / 255 for index, array in ready.items()}
                ready |= zip(rest, sent, strict=True)
            pixels = torch.stack([ready[index] for index in sorted(ready)]) if ready else None
            return DeviceBatch(pixels, broken)

    def _decode(self, files: dict[int, JpegFile]) -> tuple[dict[int, Any], dict[int, str]]:
        try:
            data = [file.data for file in files.values()]
            images = jpeg.decode(data, self.device, self.decoding)
            return dict(zip(files, images, strict=True)), {}
        except RuntimeError as error:
            if out_of_memory(error):
                raise
        ready, broken = {}, {}
        for index, file in files.items():  # one is broken: find it with Pillow, one by one
            try:
                ready[index] = self._send([np.asarray(decode(file.data)).transpose(2, 0, 1)])[0]
            except UnreadableImageError as reason:
                broken[index] = str(reason)
        return ready, broken

    def _send(self, arrays: Sequence[Any]) -> Any:
        """Copy arrays to the device, through pinned memory on a GPU."""
        import torch

        if len({array.dtype for array in arrays}) > 1:  # some in bytes, some not
            arrays = [
                array / np.float32(255) if array.dtype == np.uint8 else array for array in arrays
            ]
        dtype = torch.uint8 if arrays[0].dtype == np.uint8 else torch.float32
        shape = (len(arrays), *arrays[0].shape)
        buffer = torch.empty(shape, dtype=dtype, pin_memory=self.device == "cuda")
        part = -(-len(arrays) // COPIERS) if self.ahead else len(arrays)

        def copy(start: int) -> None:
            np.stack(list(arrays[start : start + part]), out=buffer.numpy()[start : start + part])

        starts = range(0, len(arrays), part)
        list((self.copiers.map if len(starts) > 1 else map)(copy, starts))
        return buffer.to(self.device, non_blocking=True)


def out_of_memory(error: Exception) -> bool:
    """Whether memory ran out, so that a smaller batch may work."""
    return isinstance(error, MemoryError) or "out of memory" in str(error).lower()
