"""Small images and files in the layout of the real ones."""

from __future__ import annotations

from pathlib import Path

from PIL import Image


def photo(path: Path, colour: tuple[int, int, int] = (200, 120, 40), size: int = 8) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (size, size), colour).save(path)
    return path


def photos(root: Path, *names: str) -> Path:
    for name in names:
        photo(root / name)
    return root


def text(path: Path, *lines: str, end: str = "\n", encoding: str = "utf-8") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(line + end for line in lines).encode(encoding))
    return path
