"""Sources of counterfactual pictures: the same pictures, whichever way they come."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.models import tiny, tiny_fused
from tiltmeter.datasets import load_data
from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.models import load_model
from tiltmeter.probes.counterfactual.sources import SOURCES, Swap
from tiltmeter.probes.counterfactual.sources.folder import EditedFolder
from tiltmeter.probes.counterfactual.sources.parallel import ParallelImages, RedrawnScenes
from tiltmeter.probes.counterfactual.sources.words import (
    check_words,
    read,
    with_masked_head,
    word_logprobs,
)
from tiltmeter.testbed.render import render

torch = pytest.importorskip("torch")

SHAPE = Swap("shape", ("round", "square"), ("ball", "block"))
GENDER = Swap("gender", ("man", "woman"), ("ball", "block"))


@pytest.fixture(scope="module")
def figures():
    return load_data("testbed:?images=28", role="faces").select(range(6))


@pytest.fixture(scope="module")
def stream():
    return load_model("testbed:stream")


def photographs(place: Path, figures) -> Path:
    """Scenes of the testbed as parallel photographs: men are round, women square."""
    for name, shape in (("man", 0), ("woman", 1)):
        drawn = render(figures.images.redrawn(shape=np.full(len(figures), shape)))
        for at, picture in enumerate(drawn):
            folder = place / "status" / f"scene{at // 2}"
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(picture).save(folder / f"{('black', 'white')[at % 2]}_{name}.png")
    return place


def test_every_source_has_a_name():
    for name in SOURCES:
        assert SOURCES[name].name == name


def test_redrawn_shows_the_other_figure_in_the_same_scene(stream, figures):
    [block] = RedrawnScenes().blocks(stream, figures, SHAPE)
    assert block.rows.tolist() == list(range(6))
    wanted = render(figures.images.redrawn(shape=1 - figures.images.shape))
    assert np.array_equal(
        (block.counterfactual * 255).round().permute(0, 2, 3, 1).byte().numpy(), wanted
    )
    assert not torch.equal(block.factual, block.counterfactual)


def test_redrawn_changes_two_hues_and_leaves_the_others_out(stream):
    data = load_data("testbed:?images=28", role="faces")
    swap = Swap("hue", ("red", "blue"), ("red", "blue"), "a [MASK] ball is in the picture")
    [block] = RedrawnScenes().blocks(stream, data, swap)
    hue = data.groups["hue"]
    assert {hue.names[code] for code in hue.codes[block.rows]} == {"red", "blue"}
    # the counterfactual of the counterfactual is the picture itself
    other = np.where(data.images.hue[block.rows] == 0, 4, 0)
    back = stream.pixels(data.images[block.rows].redrawn(hue=other))
    assert torch.equal(block.counterfactual, back)


def test_parallel_photographs_are_each_others_counterfactual(stream, figures, tmp_path):
    data = load_data(f"pairs:{photographs(tmp_path, figures)}", role="pairs")
    rows, others = ParallelImages().pairs(data, GENDER)
    assert sorted(rows) == list(range(12))  # every picture once
    assert dict(zip(rows, others, strict=True)) == dict(zip(others, rows, strict=True))
    for row, other in zip(rows, others, strict=True):
        assert data.scenes[row] == data.scenes[other]
        assert data.groups["race"].codes[row] == data.groups["race"].codes[other]
        assert data.groups["gender"].codes[row] != data.groups["gender"].codes[other]
    blocks = list(ParallelImages(batch=5).blocks(stream, data, GENDER))
    assert [len(block.rows) for block in blocks] == [5, 5, 2]
    shown = torch.cat([block.counterfactual for block in blocks])
    assert torch.equal(shown, stream.pixels(data.images[others]))


def test_edited_pictures_are_found_by_id(stream, figures, tmp_path):
    drawn = render(figures.images.redrawn(shape=1 - figures.images.shape))
    for at in (0, 2, 5):  # the others were not edited
        Image.fromarray(drawn[at]).save(tmp_path / f"{figures.ids[at]}.png")
    [block] = EditedFolder(tmp_path).blocks(stream, figures, SHAPE)
    [true] = RedrawnScenes().blocks(stream, figures, SHAPE)
    assert block.rows.tolist() == [0, 2, 5]
    assert torch.equal(block.counterfactual, true.counterfactual[[0, 2, 5]])


def test_ids_with_folders_and_endings(figures, tmp_path, stream):
    data = load_data(f"pairs:{photographs(tmp_path / 'pairs', figures)}", role="pairs")
    assert "/" in data.ids[0]
    place = tmp_path / "edited" / Path(data.ids[0]).with_suffix(".jpg")
    place.parent.mkdir(parents=True)
    Image.new("RGB", (32, 32)).save(place)
    assert EditedFolder(tmp_path / "edited").pairs(data, GENDER)[0].tolist() == [0]


def test_what_a_source_cannot_do_is_said(stream, figures, tmp_path):
    with pytest.raises(InputError, match="same scene.*adversarial takes any"):
        ParallelImages().pairs(figures, SHAPE)
    data = load_data(f"pairs:{photographs(tmp_path / 'p', figures)}", role="pairs")
    with pytest.raises(InputError, match="only scenes of the testbed"):
        list(RedrawnScenes().blocks(stream, data, GENDER))
    with pytest.raises(InputError, match=r"no scene .* differ in nothing else"):
        ParallelImages().pairs(data.select([0]), GENDER)
    with pytest.raises(UnknownNameError, match="did you mean 'woman'"):
        Swap("gender", ("man", "women"), ("ball", "block")).rows(data)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"no image named by an id .* names such as figure-"):
        EditedFolder(tmp_path / "empty").pairs(figures, SHAPE)
    with pytest.raises(InputError, match="is not a folder"):
        EditedFolder(tmp_path / "none").pairs(figures, SHAPE)


def test_pictures_that_share_only_a_label_are_no_counterfactuals(tmp_path, figures):
    for gender in ("male", "female"):
        folder = tmp_path / "cooking" / gender
        folder.mkdir(parents=True)
        for at in range(10):
            Image.new("RGB", (8, 8), (at, 0, 0)).save(folder / f"{at}.png")
    data = load_data(f"vlbias:{tmp_path}", role="pairs")
    with pytest.raises(InputError, match="share a concept"):
        ParallelImages().pairs(data, Swap("gender", ("male", "female"), ("man", "woman")))


# words


def test_words_of_several_pieces_have_several_masks(tmp_path):
    tiny_fused.vilt(tmp_path)
    model = load_model(f"hf:{tmp_path}")
    assert [len(model.pieces(word)) for word in ("man", "good")] == [1, 4]
    x = model.pixels(tiny.pictures(1))
    found = read(model, x, ["the man is [MASK]"], ["man", "good", "nurse"])
    one = model.mask_logprobs(x, ["the man is [MASK]"]).detach().numpy()
    four = model.mask_logprobs(x, ["the man is [MASK] [MASK] [MASK] [MASK]"]).detach().numpy()
    assert found[0, 0] == pytest.approx(one[0, 0, model.pieces("man")[0]], abs=1e-5)
    spelt = sum(four[0, at, piece] for at, piece in enumerate(model.pieces("good")))
    assert found[0, 1] == pytest.approx(spelt, abs=1e-4)
    assert found[0, 2] == pytest.approx(one[0, 0, model.pieces("nurse")[0]], abs=1e-5)


def test_words_without_a_picture(stream):
    found = word_logprobs(stream, None, ["The ball is [MASK]"] * 2, ["cooking", "nurse"])
    assert found.shape == (2, 2)
    assert np.array_equal(found[0], found[1])


def test_words_and_models_that_do_not_fit(stream):
    with pytest.raises(InputError, match=r"'zebra' is not in the vocabulary .*leave it out"):
        check_words(stream, ["cooking", "zebra"])
    with pytest.raises(InputError, match=r"no masked head.*testbed:fusion"):
        with_masked_head(load_model("testbed:dual"))
