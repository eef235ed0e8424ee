"""BLIP-2 in the probe `propagation`: its similarity, the largest query cosine, is enough."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr

import tiltmeter as tm
from tests.models import tiny_dual
from tiltmeter.datasets.roles import Lexicon, ValenceImages
from tiltmeter.metrics.arrays import similarities, unit
from tiltmeter.metrics.retrieval import mean_value_of_top_k, top_k
from tiltmeter.probes.propagation.experiments import EXPERIMENTS
from tiltmeter.types import MultiVectorEncoder

OPTIONS = {"k": (4,), "extremes": 3, "members": 3}
TEMPLATES = ("This is", "That is", "There is", "Here is", "They are", "Those are")


def image_file(path: Path, seed: int) -> None:
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (20, 20, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


def slow_scores(similarity: np.ndarray, valence: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """SC-EAT effect and mean valence of the top 4, written from the definition."""
    order = np.argsort(valence, kind="stable")
    pleasant, unpleasant = similarity[:, order[-3:]], similarity[:, order[:3]]
    spread = np.concatenate([pleasant, unpleasant], axis=1).std(axis=1, ddof=1)
    effect = (pleasant.mean(axis=1) - unpleasant.mean(axis=1)) / spread
    top = np.argsort(-similarity, axis=1, kind="stable")[:, :4]
    return effect, valence[top].mean(axis=1)


def test_every_experiment_runs_on_its_largest_query_cosine(tmp_path: Path) -> None:
    tiny_dual.blip2(tmp_path / "model")
    model = tm.load_model(f"hf:{tmp_path / 'model'}")
    assert isinstance(model, MultiVectorEncoder)
    for number in range(24):
        group = ("Black_woman", "Black_man", "White_woman", "White_man")[number % 4]
        image_file(tmp_path / "faces" / group / f"{number:02d}.png", number)
    faces = tm.load_data(f"folder:{tmp_path / 'faces'}?parts=race_gender")
    rng = np.random.default_rng(0)
    shown = [np.uint8(rng.integers(0, 256, (20, 20, 3))) for _ in range(12)]
    from PIL import Image

    valence = ValenceImages(tuple(map(str, range(12))), rng.uniform(size=12),
                            [Image.fromarray(one) for one in shown])  # fmt: skip
    words = Lexicon(("man", "woman", "red", "dog", "cat", "nurse", "doctor", "a"),
                    rng.uniform(size=8))  # fmt: skip
    run = tm.audit(
        model, faces, data={"valence": valence, "lexicon": words}, probes=["propagation"],
        options={"propagation": OPTIONS}, permutations=5, bootstraps=5,
    )  # fmt: skip
    ran = {row["experiment"] for row in run.where(metric="rho") if row["n"]}
    assert ran == set(EXPERIMENTS)
    # the same from all pairs of the model's own head, one at a time
    files = [faces.images[row] for row in range(len(faces))]
    effects, retrieved = [], []
    for template in TEMPLATES:
        texts = [f"{template} the word {word}" for word in words.words]
        similarity = np.stack(
            [model.match([image] * len(texts), texts, head="itc") for image in files]
        )
        effect, top = slow_scores(similarity, words.valence)
        effects.append(effect)
        retrieved.append(top)
    effect, top = np.mean(effects, axis=0), np.mean(retrieved, axis=0)
    by_id = {name: at for at, name in enumerate(faces.ids)}
    table = run.instances["propagation"].to_pylist()
    for what, expected in (("1-a intrinsic", effect), ("1-a extrinsic@4", top)):
        mine = {row["id"]: row["score"] for row in table if row["experiment"] == what}
        assert len(mine) == 24
        assert [mine[name] for name in by_id] == pytest.approx(expected.tolist(), abs=1e-4)
    [row] = run.where(metric="rho", experiment="1-a", group="Black | female")
    own = [at for name, at in by_id.items() if name.startswith("Black_woman")]
    assert row["value"] == pytest.approx(spearmanr(effect[own], top[own]).statistic, abs=1e-6)


def test_images_with_several_vectors_have_no_similarity_among_them(tmp_path: Path) -> None:
    import torch
    from PIL import Image

    torch.manual_seed(1)  # with some weights every word retrieves the same images: no rho
    tiny_dual.blip2(tmp_path)

    rng = np.random.default_rng(1)
    shown = [Image.fromarray(np.uint8(rng.integers(0, 256, (20, 20, 3)))) for _ in range(9)]
    valence = ValenceImages(tuple(map(str, range(9))), rng.uniform(size=9), shown)
    words = Lexicon(("man", "woman", "red", "dog", "cat", "nurse"), rng.uniform(size=6))
    run = tm.audit(
        f"hf:{tmp_path}", data={"valence": valence, "lexicon": words}, probes=["propagation"],
        options={"propagation": {**OPTIONS, "valence_sets": "own"}}, permutations=3, bootstraps=0,
    )  # fmt: skip
    [images] = run.where(metric="rho", experiment="1*-a (own)")
    assert images["value"] is None
    assert "several vectors" in images["note"]
    [texts] = run.where(metric="rho", experiment="1*-b (own)")
    assert texts["value"] is not None


def test_the_closest_vector_counts_on_either_side_and_in_blocks() -> None:
    rng = np.random.default_rng(2)
    texts, images = unit(rng.normal(size=(15, 6))), unit(rng.normal(size=(40, 3, 6)))
    slow = np.array([[max(text @ one for one in image) for image in images] for text in texts])
    assert similarities(texts, images) == pytest.approx(slow)
    assert similarities(images, texts) == pytest.approx(slow.T)
    for queries, items, scores in ((texts, images, slow), (images, texts, slow.T)):
        order = np.argsort(-scores, axis=1)[:, :5]
        assert top_k(queries, items, 5, item_block=4, query_block=7).ids.tolist() == order.tolist()
        values = rng.normal(size=(scores.shape[1], 2))
        found = mean_value_of_top_k(queries, items, [5], values).means[:, 0]
        assert found == pytest.approx(values[order].mean(axis=1))
    with pytest.raises(tm.errors.InputError, match="several vectors"):
        similarities(images, images)
