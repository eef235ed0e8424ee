"""Scenes for the tests of the page, small and real."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image

from tests.conftest import write_csv
from tiltmeter.explorer.gather import ExplorerData, gather

DUAL = ("testbed:dual", "testbed:dual?twin=fair")
FIGURES = "testbed:?images=700&strength=1"


def two_models(*, show_images: bool = True) -> ExplorerData:
    """A model that leans, and its twin that does not, on figures of the built-in world."""
    return gather(None, DUAL, FIGURES, show_images=show_images)


def photographs(place: Path, count: int = 40) -> Path:
    """JPEG files with a secret in their EXIF, beside a table of labels."""
    (place / "files").mkdir(parents=True)
    rng = np.random.default_rng(0)
    rows = []
    for at in range(count):
        noise = rng.integers(0, 256, (60, 80, 3), dtype=np.uint8)
        picture = Image.fromarray(noise).resize((400, 300))
        exif = picture.getexif()
        exif[0x010E] = "SECRET-PLACE"  # ImageDescription
        picture.save(place / f"files/{at:02d}.jpg", exif=exif)
        rows.append({"id": f"p{at:02d}", "file": f"files/{at:02d}.jpg", "half": "ab"[at % 2]})
    write_csv(place / "labels.csv", rows)
    return place / "labels.csv"


@contextmanager
def served(scene: ExplorerData) -> Iterator[str]:
    """The address of a real server on a scene, in a thread of this process."""
    import uvicorn

    from tiltmeter.explorer import server as serving

    taken = serving.bind_port(None)
    port, token = taken.getsockname()[1], "token-of-the-test"
    ready = threading.Event()
    app = serving.application(scene, token=token, port=port)
    server = serving.Server(serving.server_config(app), ready.set)
    assert isinstance(server, uvicorn.Server)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [taken]}, daemon=True)
    thread.start()
    assert ready.wait(30)
    yield f"http://127.0.0.1:{port}/{token}/"
    server.should_exit = True
    thread.join(10)
    assert not thread.is_alive()
