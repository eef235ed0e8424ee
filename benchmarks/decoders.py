"""How far vectors of pictures decoded on a GPU lie from those that Pillow decoded."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch

from benchmarks.embed import Tower, photographs
from tiltmeter.engine.embedding.loader import LoaderConfig, embed


def main() -> None:
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        pictures = photographs(Path(folder), 64)
        broken = pictures.paths[5].read_bytes()
        pictures.paths[5].write_bytes(broken[:200] + bytes(400) + broken[600:-2] + broken[-2:])
        pictures.paths[6].write_bytes(broken[:400] + broken[-2:])
        tower, found = Tower("B/32").to("cuda"), {}
        for decode in ("cpu", "gpu"):
            (chunk,) = embed(
                tower, pictures, config=LoaderConfig(decode=decode, precision="float32")
            )
            found[decode] = chunk
            print(decode, chunk.vectors.shape, chunk.unreadable)
        same = set(found["cpu"].new) & set(found["gpu"].new)
        a, b = (
            np.stack([x.vectors[x.new.index(at)] for at in sorted(same)]) for x in found.values()
        )
        cosine = (a * b).sum(axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
        print(f"cosine of the two: least {cosine.min():.6f}, mean {cosine.mean():.6f}")


if __name__ == "__main__":
    main()
