"""Images onto the device as one tensor: files are decoded there, pixels are sent there.

On a GPU some threads do this ahead of the model, so that it need not wait, each in a stream of its
own: a batch is handed over only when it lies there whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock, local
from typing import Any

import numpy as np

from tiltmeter.engine.embedding import jpeg
from tiltmeter.io.image_files import Unreadable, decode

MOVERS, COPIERS = 3, 4  # threads


@dataclass(frozen=True, eq=False)
class DeviceBatch:
    """A batch on the device, and which images could not be decoded after all, with reasons."""

    pixels: Any  # None: not one of them could
    broken: dict[int, str]


class Transfer:
    """Brings batches to a device, where it can several at a time."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.ahead = MOVERS if device == "cuda" else 0
        self.movers = ThreadPoolExecutor(max(self.ahead, 1))  # no thread starts before it is needed
        self.copiers = ThreadPoolExecutor(COPIERS)
        self.decoding = Lock()  # the decoder has room for one batch
        self.own = local()

    def start(self, prepared: Sequence[Any]) -> Callable[[], DeviceBatch]:
        """Begins to bring a batch; the answer waits for it."""
        if not self.ahead:
            return lambda: self.bring(prepared)
        return self.movers.submit(self.bring, prepared).result

    def bring(self, prepared: Sequence[Any]) -> DeviceBatch:
        """Files (bytes) and pixels (arrays of one shape) as one tensor, in their order."""
        if self.device != "cuda":
            return self._brought(prepared)
        import torch

        reader = torch.cuda.default_stream()
        if not hasattr(self.own, "stream"):
            self.own.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self.own.stream):
            arrived = self._brought(prepared)
            self.own.stream.synchronize()
        if arrived.pixels is not None:
            arrived.pixels.record_stream(reader)  # not to be given away before it was read
        return arrived

    def _brought(self, prepared: Sequence[Any]) -> DeviceBatch:
        import torch

        files = {at: one for at, one in enumerate(prepared) if isinstance(one, bytes)}
        with torch.inference_mode():
            if not files:
                return DeviceBatch(self._sent(prepared), {})
            ready, broken = self._decoded(files)
            rest = [at for at in range(len(prepared)) if at not in files]
            if rest:
                sent = self._sent([prepared[at] for at in rest])
                if sent.is_floating_point():
                    ready = {at: one.float() / 255 for at, one in ready.items()}
                ready |= zip(rest, sent, strict=True)
            pixels = torch.stack([ready[at] for at in sorted(ready)]) if ready else None
            return DeviceBatch(pixels, broken)

    def _decoded(self, files: dict[int, bytes]) -> tuple[dict[int, Any], dict[int, str]]:
        try:
            found = jpeg.decode(list(files.values()), self.device, self.decoding)
            return dict(zip(files, found, strict=True)), {}
        except RuntimeError as error:
            if out_of_memory(error):
                raise
        ready, broken = {}, {}
        for at, data in files.items():  # one of them is broken: Pillow says which, and why
            try:
                ready[at] = self._sent([np.asarray(decode(data)).transpose(2, 0, 1)])[0]
            except Unreadable as reason:
                broken[at] = str(reason)
        return ready, broken

    def _sent(self, arrays: Sequence[Any]) -> Any:
        """By way of memory that a GPU can fetch from by itself."""
        import torch

        if len({one.dtype for one in arrays}) > 1:  # some in bytes, some not
            arrays = [one / np.float32(255) if one.dtype == np.uint8 else one for one in arrays]
        kind = torch.uint8 if arrays[0].dtype == np.uint8 else torch.float32
        shape = (len(arrays), *arrays[0].shape)
        room = torch.empty(shape, dtype=kind, pin_memory=self.device == "cuda")
        part = -(-len(arrays) // COPIERS) if self.ahead else len(arrays)

        def copy(at: int) -> None:
            np.stack(list(arrays[at : at + part]), out=room.numpy()[at : at + part])

        starts = range(0, len(arrays), part)
        list((self.copiers.map if len(starts) > 1 else map)(copy, starts))
        return room.to(self.device, non_blocking=True)


def out_of_memory(error: Exception) -> bool:
    """Whether less at a time might do."""
    return isinstance(error, MemoryError) or "out of memory" in str(error).lower()
