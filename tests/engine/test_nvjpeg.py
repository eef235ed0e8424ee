"""The batch decoder gives the pixels of torchvision's; what it cannot decode is left to others."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

torch = pytest.importorskip("torch")
from tiltmeter.engine.embedding import nvjpeg  # noqa: E402
from tiltmeter.engine.embedding.jpeg import (  # noqa: E402
    JpegFile,
    can_decode,
    decode,
    plain_size,
)
from tiltmeter.engine.embedding.transfer import Transfer  # noqa: E402

needs_gpu = pytest.mark.skipif(
    not torch.cuda.is_available() or not can_decode("cuda"),
    reason="needs a GPU that decodes JPEG files, and torchvision",
)


def photographs(count, size=(40, 30), **options):
    rng = np.random.default_rng(0)
    files = []
    for _ in range(count):
        small = Image.fromarray(rng.integers(0, 256, (5, 8, 3), dtype=np.uint8))
        file = io.BytesIO()
        small.resize(size).save(file, "JPEG", **options)
        files.append(JpegFile(file.getvalue(), size))
    return files


def test_without_the_library_there_is_no_decoder(monkeypatch):
    monkeypatch.setattr(nvjpeg, "library", lambda: None)
    with pytest.raises(RuntimeError, match="not loaded"):
        nvjpeg.BatchDecoder()
    assert not nvjpeg.can_decode_batches.__wrapped__()


def test_a_file_with_two_sizes_is_not_plain():
    """A decoder that believes the other size would write beyond the memory of the image."""
    (file,) = photographs(1)
    assert plain_size(file.data) == file.size
    start = file.data.index(b"\xff\xc0")
    frame = file.data[start : start + 19]  # of three channels
    assert plain_size(file.data[:start] + frame + file.data[start:]) is None


@needs_gpu
@pytest.mark.parametrize("sampling", [0, 1, 2])
def test_pixels_equal_those_of_torchvision(sampling):
    files = photographs(9, subsampling=sampling)
    decoder = nvjpeg.BatchDecoder()
    expected = torch.stack(decode([file.data for file in files], "cuda"))
    assert torch.equal(decoder.decode(files, "cuda"), expected)
    assert torch.equal(decoder.decode(files[:4], "cuda"), expected[:4])


@needs_gpu
def test_decoders_are_used_again_by_one_thread_at_a_time():
    with nvjpeg.batch_decoder() as first, nvjpeg.batch_decoder() as second:
        assert first is not second
    with nvjpeg.batch_decoder() as again:
        assert again in (first, second)


@needs_gpu
def test_broken_files_and_several_sizes_are_refused_and_then_decoded_by_others():
    files = [*photographs(3), *photographs(1, size=(64, 30))]
    decoder, broken = nvjpeg.BatchDecoder(), JpegFile(b"not a JPEG file", (40, 30))
    with pytest.raises(RuntimeError, match="of one size"):
        decoder.decode(files, "cuda")
    with pytest.raises(RuntimeError, match="failed with status"):
        decoder.decode([broken], "cuda")
    good = photographs(3)
    arrived = Transfer("cuda").bring([good[0], broken, good[2]])
    assert list(arrived.broken) == [1]
    assert arrived.pixels.shape == (2, 3, 30, 40)
    # Pillow decoded the others, which enlarges colours in another way
    assert (decoder.decode(good, "cuda")[::2].float() - arrived.pixels).abs().mean() < 8
