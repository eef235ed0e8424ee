"""Caption choice of every model of the paper's Table 2, by the command: small, of the real classes.

VisualBERT and LXMERT take regions of 2,048 dimensions from files in the layouts of their releases.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import tiltmeter as tm  # noqa: E402
from tests.command_line import tiltmeter  # noqa: E402
from tests.conftest import write_csv  # noqa: E402
from tests.io.region_layouts import write_bottom_up, write_directory, write_lxmert  # noqa: E402
from tests.models import test_albef, tiny, tiny_fused  # noqa: E402
from tests.refusing import refused  # noqa: E402
from tiltmeter.datasets import describe  # noqa: E402
from tiltmeter.io.region_files import read_regions  # noqa: E402
from tiltmeter.probes.stereotype.across_models import cases as single_cases  # noqa: E402

COUNT, WIDTH, REGIONS = 10, 2048, 4
OPTIONS = ("--probe", "stereotype", "--permutations", "99", "--bootstraps", "39", "--no-report")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table in the layout of the real one, images of noise, and regions in three layouts."""
    root = tmp_path_factory.mktemp("stereo")
    rows = [{"bias_type": ("race", "gender")[at % 2], "target": "woman", "context": "the woman is",
             "stereotype": f"the woman is {['smart', 'red'][at % 2]} in the photo",
             "anti-stereotype": f"the woman is a {['nurse', 'doctor'][at // 5]}",
             "unrelated": "the woman is a ball of a dog", "label": at % 3 % 2,
             "Imaeg URL": f"http://x/{at}"} for at in range(COUNT)]  # fmt: skip
    write_csv(root / "s.csv", rows)
    (root / "p").mkdir()
    for at, image in enumerate(tiny.pictures(COUNT), start=1):
        image.save(root / "p" / f"{at}.png")
    rng = np.random.default_rng(0)
    features = rng.exponential(size=(COUNT + 1, REGIONS, WIDTH)).astype(np.float32)
    corner, size = rng.uniform(0, 0.5, (2, COUNT + 1, REGIONS, 2))
    boxes = np.concatenate([corner, corner + size], axis=-1)
    ids = [*map(str, range(1, COUNT + 1)), "white"]
    write_lxmert(root / "obj36.tsv", ids, features, boxes)
    write_bottom_up(root / "plain.tsv", ids[:-1], features[:-1], boxes[:-1])
    write_directory(root / "fix_100", ids, features)
    return root


def built(kind: str, root: Path) -> str:
    """A small random checkpoint; its spec."""
    to = root / kind
    to.mkdir()
    if kind == "albef":
        words = len(tiny.bert_tokenizer(to))
        size = {"image_res": test_albef.PATCH * test_albef.SIDE}
        torch.save({"model": test_albef.weights(words), "config": size}, to / "ALBEF.pth")
        return f"albef:{to / 'ALBEF.pth'}?tokenizer={to}"
    if kind == "vilt":
        tiny_fused.vilt(to, "ViltForImageAndTextRetrieval")
    else:
        {"flava": tiny_fused.flava}[kind](to)
    return f"hf:{to}"


def audited(model: str, spec: str, out: Path) -> tm.Run:
    done = tiltmeter(
        "audit", model, "--data", f"triplets={spec}", *OPTIONS, "--verbose", "--out", out
    )
    assert done.returncode == 0, done.stderr
    assert "caption choice" in done.stdout
    return tm.Run.load(out)


def value(run: tm.Run, metric: str, experiment: str, **where: Any) -> dict[str, Any]:
    [row] = run.where(metric=metric, experiment=experiment, **{"category": None, **where})
    return row


@pytest.mark.parametrize("kind", ["vilt", "flava", "albef"])
def test_models_of_pixels(kind: str, place: Path, tmp_path: Path) -> None:
    run = audited(built(kind, tmp_path), f"vlstereo:{place / 's.csv'}?images={place / 'p'}",
                  tmp_path / "run")  # fmt: skip
    readings = ("matching",) if kind == "vilt" else ("matching", "cosine")
    for reading in readings:
        for metric in ("vlrs", "vlbs", "ivlas"):
            row = value(run, metric, reading)
            assert 0 <= row["ci_low"] <= row["value"] <= row["ci_high"] + 1e-9
        assert value(run, "vlss", f"{reading}, white image", split="all")["value"] is not None


@pytest.fixture(scope="module")
def region_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("models")
    specs = {}
    for kind in ("visual_bert", "lxmert"):
        (root / kind).mkdir()
        getattr(tiny_fused, kind)(root / kind, WIDTH)
        specs[kind] = f"hf:{root / kind}"
    return specs


@pytest.mark.parametrize(
    ("kind", "layout", "white"),
    [
        ("lxmert", "obj36.tsv", "found in one"),
        ("lxmert", "plain.tsv", "features of 0"),
        ("visual_bert", "fix_100", "found in one"),
    ],
)
def test_models_of_regions(
    kind: str, layout: str, white: str, place: Path, region_models: dict[str, str], tmp_path: Path
) -> None:
    spec = f"vlstereo:{place / 's.csv'}?regions={place / layout}"
    run = audited(region_models[kind], spec, tmp_path / "run")
    for metric in ("vlrs", "vlbs", "ivlas"):
        assert 0 <= value(run, metric, "matching")["value"] <= 100
    assert value(run, "vlrs", "matching")["n"] == COUNT
    assert white in value(run, "vlrs", "matching, white image")["note"]
    assert white in value(run, "vlss", "matching, white image", split="all")["note"]
    # VisualBERT reads without regions, LXMERT cannot
    without = value(run, "vlrs", "matching, no image")
    assert (without["value"] is None) == (kind == "lxmert")
    # the probabilities are those of the model's own logits
    model = tm.load_model(region_models[kind], device="cpu")
    regions = read_regions(place / layout)
    for experiment, seen in (("matching", regions.of(["7"])),
                             ("matching, white image", regions.white_image())):  # fmt: skip
        [case] = [c for c in single_cases(run, experiment, stereotyped=False) if c.id == "7"]
        logits = np.array([model.match(seen, [text])[0] for text in case.captions.values()])
        e = np.exp(logits - logits.max())
        assert list(case.probabilities.values()) == pytest.approx(e / e.sum(), abs=1e-4)


def test_images_and_regions_of_the_same_rows(place: Path, tmp_path: Path) -> None:
    """Models of pixels and models of regions can be compared: both see the rows that have both."""
    (tmp_path / "p").mkdir()
    for at in (2, 4, 5, 9):
        (tmp_path / "p" / f"{at}.png").write_bytes((place / "p" / f"{at}.png").read_bytes())
    regions = read_regions(place / "obj36.tsv")
    keep = [at for at, name in enumerate(regions.ids) if name not in ("4", "8")]
    np.savez(tmp_path / "r.npz", features=regions.features[keep], boxes=regions.boxes[keep],
             ids=[regions.ids[at] for at in keep])  # fmt: skip
    spec = f"vlstereo:{place / 's.csv'}?images={tmp_path / 'p'}&regions={tmp_path / 'r.npz'}"
    triplets = tm.load_data(spec)
    assert triplets.ids == triplets.regions.ids == ("2", "5", "9")
    assert [path.stem for path in triplets.images.paths] == ["2", "5", "9"]
    assert triplets.provenance["found"]["without_regions"] == {"count": 1, "first": ["4"]}
    assert "1 without regions: 4" in describe(triplets)
    half = tm.load_data(f"{spec}&balanced=yes")
    assert half.ids == half.regions.ids == tuple(path.stem for path in half.images.paths)
    with refused("incomplete", "2 without regions: 4, 8"):
        whole = f"vlstereo:{place / 's.csv'}?images={place / 'p'}&regions={tmp_path / 'r.npz'}"
        tm.load_data(f"{whole}&strict=yes")


def test_regions_that_are_missing_or_of_another_detector(
    place: Path, region_models: dict[str, str], tmp_path: Path
) -> None:
    data = f"triplets=vlstereo:{place / 's.csv'}"
    done = tiltmeter("audit", region_models["lxmert"], "--data", f"{data}?images={place / 'p'}",
                     *OPTIONS)  # fmt: skip
    assert done.returncode == 2
    assert "?regions=FILE" in done.stderr
    other = tmp_path / "r.npz"
    np.savez(other, features=np.zeros((2, 4, 1024)), boxes=np.zeros((2, 4, 4)),
             ids=["1", "2"])  # fmt: skip
    done = tiltmeter("audit", region_models["lxmert"], "--data", f"{data}?regions={other}",
                     *OPTIONS)  # fmt: skip
    assert done.returncode != 0
    assert "takes regions of 2048 dimensions; these have 1024" in " ".join(done.stderr.split())
