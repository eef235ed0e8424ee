"""Whatever a file holds: an upright RGB image, or Unreadable with the reason."""

from __future__ import annotations

import io
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFile

from tests.refusing import refused
from tiltmeter.io.image_files import (
    GeneratedImages,
    ImageFiles,
    UnreadableImageError,
    decode,
    resolve_all_within,
    resolve_within,
)


def noise(height: int = 24, width: int = 32) -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def png_chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def bomb(side: int) -> bytes:
    """A PNG of a few bytes that claims side x side pixels."""
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    body = zlib.compress(b"\0" * 1000)
    chunks = (png_chunk(b"IHDR", header), png_chunk(b"IDAT", body), png_chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF"])
def test_a_image_comes_as_it_is(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a"
    path.write_bytes(encoded(noise(), kind))
    for source in (path, path.read_bytes()):
        image = decode(source)
        assert image.mode == "RGB"
        assert np.array_equal(image, noise())


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP", "TIFF", "BMP"])
def test_a_cut_file_is_unreadable_or_whole_never_half(kind: str) -> None:
    whole = encoded(noise(), kind)
    expected = np.asarray(decode(whole))
    refused = 0
    for length in range(0, len(whole), max(1, len(whole) // 150)):
        try:
            image = decode(whole[:length])
        except UnreadableImageError:
            refused += 1
        else:
            assert np.array_equal(image, expected), length
    assert refused > 100


def test_a_cut_png_is_unreadable_even_if_a_library_allowed_half_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = encoded(noise(200, 200), "PNG")
    cut = tmp_path / "cut.png"
    cut.write_bytes(whole[: len(whole) // 2])
    with refused("unreadable-image", "truncated"):
        decode(cut)
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    with Image.open(cut) as half:
        half.load()  # Pillow would take it now
    with refused("unreadable-image", "truncated"):
        decode(cut)


def test_a_corrupt_jpeg_is_unreadable(tmp_path: Path) -> None:
    whole = bytearray(encoded(noise(), "JPEG"))
    tables = whole.find(b"\xff\xdb")
    whole[tables : tables + 40] = bytes(40)
    path = tmp_path / "spoilt.jpg"
    path.write_bytes(whole)
    with refused("unreadable-image", "spoilt.jpg"):
        decode(path)


def test_a_jpeg_spoilt_in_its_middle_still_counts_as_a_image() -> None:
    """JPEG has no checksum: what the documents say cannot be seen, we do not claim to see."""
    whole = bytearray(encoded(noise(64, 64), "JPEG"))
    whole[-800:-780] = bytes(20)
    smeared = decode(bytes(whole))
    assert smeared.size == (64, 64)
    assert not np.array_equal(smeared, decode(encoded(noise(64, 64), "JPEG")))


@pytest.mark.parametrize("side", [12_500, 50_000])
def test_a_bomb_is_not_decoded(tmp_path: Path, side: int) -> None:
    path = tmp_path / "bomb.png"
    path.write_bytes(bomb(side))
    with refused("unreadable-image", "150,000,000"):
        decode(path)


@pytest.mark.parametrize(
    "content",
    [b"", b"not an image", b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"%!PS-Adobe-3.0 EPSF\n"],
    ids=["empty", "text", "svg", "postscript"],
)
def test_what_is_no_image(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "face.jpg"
    path.write_bytes(content)
    with refused("unreadable-image", "face.jpg"):
        decode(path)


def test_postscript_is_never_handed_to_an_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import EpsImagePlugin

    def run(*_: object, **__: object) -> None:
        raise AssertionError("ran")

    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", run)
    with refused("unreadable-image"):
        decode(encoded(noise(), "EPS"))


def test_no_file_a_folder_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("nothing", "folder", "pipe"):
        with refused("unreadable-image", name):
            decode(tmp_path / name)


def test_cmyk() -> None:
    image = decode(encoded(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG"))
    red, green, blue = np.asarray(image)[4, 4].astype(int)
    assert image.mode == "RGB"
    assert red > 200 > 60 > max(green, blue)


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_sixteen_bits_are_scaled_not_cut_off(kind: str) -> None:
    deep = Image.fromarray(np.array([[0, 16_384, 32_768, 65_535]], dtype=np.uint16))
    assert np.asarray(decode(encoded(deep, kind)))[0, :, 0].tolist() == [0, 64, 128, 255]


def test_floats_are_scaled() -> None:
    deep = Image.fromarray(np.array([[0, 0.5, 1.0, np.nan]], dtype=np.float32))
    assert np.asarray(decode(encoded(deep, "TIFF")))[0, :, 0].tolist() == [0, 128, 255, 0]


@pytest.mark.parametrize("mode", ["RGB", "I;16"])
def test_turned_by_exif(mode: str) -> None:
    deep = (np.arange(768, dtype=np.uint16) * 80).reshape(24, 32)
    image = noise() if mode == "RGB" else Image.fromarray(deep)
    exif = Image.Exif()
    exif[0x0112] = 6  # turn right to see it upright
    upright = decode(encoded(image, "PNG"))
    turned = decode(encoded(image, "PNG", exif=exif))
    assert turned.size == (24, 32)
    assert np.array_equal(turned, np.rot90(np.asarray(upright), k=-1))


def test_of_an_animation_the_first_frame() -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "lime", "blue")]
    for kind in ("GIF", "WEBP", "PNG", "TIFF"):
        options = {"lossless": True} if kind == "WEBP" else {}
        moving = encoded(frames[0], kind, save_all=True, append_images=frames[1:], **options)
        assert np.asarray(decode(moving))[4, 4].tolist() == [255, 0, 0], kind


def test_what_is_transparent_lies_on_white() -> None:
    black = Image.new("RGBA", (4, 4), (0, 0, 0, 0))
    assert np.asarray(decode(encoded(black, "PNG"))).min() == 255
    palette = Image.new("P", (4, 4), 0)
    palette.putpalette([10, 20, 30, 40, 50, 60])
    assert np.asarray(decode(encoded(palette, "PNG", transparency=0))).min() == 255
    assert np.asarray(decode(encoded(palette, "PNG")))[0, 0].tolist() == [10, 20, 30]


@pytest.mark.parametrize("mode", ["1", "L", "P", "LA", "RGBA", "CMYK", "YCbCr", "I", "F", "I;16"])
def test_every_mode_becomes_rgb(mode: str) -> None:
    written = encoded(Image.new(mode, (5, 3)), "JPEG" if mode == "YCbCr" else "TIFF")
    assert decode(written).mode == "RGB"
    assert decode(written).size == (5, 3)


@pytest.mark.parametrize(
    "name", ["../out.png", "a/../../out.png", "a/../a/in.png", "/etc/passwd", "/", "a\0b"]
)
def test_names_that_lead_out_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "root/a").mkdir(parents=True)
    with refused("unsafe-path"):
        resolve_within(tmp_path / "root", name)
    with refused("unsafe-path"):
        list(resolve_all_within(tmp_path / "root", ["a/in.png", name]))


def test_an_absolute_path_within_the_root_is_no_other_file(tmp_path: Path) -> None:
    (tmp_path / "root/a").mkdir(parents=True)
    noise().save(tmp_path / "root/a/x.png")
    noise().save(tmp_path / "y.png")
    inside = str(tmp_path / "root/a/x.png")
    assert resolve_within(tmp_path / "root", inside) == Path(inside)
    assert list(resolve_all_within(tmp_path / "root", [inside, "a/x.png"])) == [Path(inside)] * 2
    for outside in (tmp_path / "y.png", tmp_path / "root2/x.png"):
        with refused("unsafe-path", f"root={tmp_path}"):
            resolve_within(tmp_path / "root", str(outside))
    (tmp_path / "root/link.png").symlink_to(tmp_path / "y.png")
    with refused("unsafe-path"):
        list(resolve_all_within(tmp_path / "root", [str(tmp_path / "root/link.png")]))


def test_links_that_lead_out_are_refused(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "a").mkdir(parents=True)
    (tmp_path / "out").mkdir()
    noise().save(tmp_path / "out/x.png")
    noise().save(root / "a/x.png")
    (root / "file.png").symlink_to(tmp_path / "out/x.png")
    (root / "folder").symlink_to(tmp_path / "out")
    (root / "a/inside.png").symlink_to(root / "a/x.png")
    for name in ("file.png", "folder/x.png"):
        with refused("unsafe-path", f"a link to {tmp_path / 'out'}", "cp -L"):
            list(resolve_all_within(root, [name]))
    assert list(resolve_all_within(root, ["a/inside.png", "./a/x.png"])) == [root / "a/x.png"] * 2
    (tmp_path / "link").symlink_to(root)  # the root itself may be a link
    assert resolve_within(tmp_path / "link", "a/x.png") == root / "a/x.png"


def test_images_by_row_slice_and_array(tmp_path: Path) -> None:
    for at in range(4):
        Image.new("RGB", (2, 2), (at, 0, 0)).save(tmp_path / f"{at}.png")
    files = ImageFiles(tuple(tmp_path / f"{at}.png" for at in range(4)), tmp_path)
    made = GeneratedImages(lambda row: files[row], range(4))
    for images in (files, made):
        assert len(images) == 4
        assert [p.getpixel((0, 0))[0] for p in images] == [0, 1, 2, 3]
        assert images[np.int64(-1)].getpixel((0, 0))[0] == 3
        some = [images[1:3], images[np.array([1, 2])], images[np.array([0, 1, 1, 0], bool)]]
        for part in some:
            assert [p.getpixel((0, 0))[0] for p in part] == [1, 2]
        assert images.hash(0) == images[0:1].hash(0) != images.hash(1)
        with pytest.raises(IndexError):
            images[4]
