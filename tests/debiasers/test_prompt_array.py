"""The prompt array: tokens, their places, the adversary, and what it does on the testbed."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tiltmeter as tm  # noqa: E402
from tests.debiasers.making import planted  # noqa: E402
from tests.models import tiny_dual  # noqa: E402
from tests.random_clip import random_clip  # noqa: E402
from tiltmeter import stimuli  # noqa: E402
from tiltmeter.datasets.roles import Utility  # noqa: E402
from tiltmeter.debiasers.adversary import Adversary, alternate  # noqa: E402
from tiltmeter.debiasers.debiased import Debiased  # noqa: E402
from tiltmeter.debiasers.fitting import debias  # noqa: E402
from tiltmeter.debiasers.prompt_array import PromptArray  # noqa: E402
from tiltmeter.debiasers.text_tower import PLACES, tower_of, tuned_parts  # noqa: E402
from tiltmeter.debiasers.utility_cost import recall  # noqa: E402
from tiltmeter.errors import InputError, UnknownNameError  # noqa: E402
from tiltmeter.metrics import METRICS  # noqa: E402
from tiltmeter.models.weights import weights_hash  # noqa: E402
from tiltmeter.testbed.captioned import draw_captioned_scenes  # noqa: E402
from tiltmeter.testbed.world import World  # noqa: E402
from tiltmeter.types import Groups  # noqa: E402

torch.set_num_threads(1)
TEXTS = ["a photo of a good person", "this person is kind", "a lawful individual"]
LONG = "a photo of a good person who is good good good kind kind kind"  # as long as can be
QUICK = {"epochs": 1, "warmup": 1, "block": 1, "batch": 32, "learning_rate": 1e-2}


@pytest.fixture(scope="module")
def dual():
    return tm.load_model("testbed:dual")


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory):
    return tm.load_model(f"hf:{random_clip(tmp_path_factory.mktemp('clip') / 'small')}")


@pytest.fixture(scope="module")
def figures(dual):
    """Figures to fit on and others to judge on, with their vectors."""
    found = []
    for seed in (1, 2):
        faces = tm.load_data(f"testbed:?images=560&seed={seed}")
        found.append((dual.encode_images(faces.images), faces.groups["shape"], faces))
    return found


@pytest.fixture(scope="module")
def pairs():
    return draw_captioned_scenes(World.plant(), 1000, np.random.default_rng(3))


def numbers(model, text: str) -> list[int]:
    ids = model.tokens([text])
    return (ids["input_ids"] if hasattr(ids, "keys") else ids)[0].tolist()


def by_hand(model, text: str, tokens: np.ndarray, place: str) -> np.ndarray:
    """One text alone, by loops and without hooks: marks, words and tokens in their order."""
    network, learned = model.network, torch.as_tensor(tokens)
    testbed = hasattr(network, "words")
    longest = network.words.place.shape[1] if testbed else 77
    room = 0 if place == "add" else len(tokens)
    ids = numbers(model, text)
    if len(ids) > longest - room:
        ids = [*ids[: longest - room - 1], ids[-1]]
    words = network.words.word if testbed else network.text_model.embeddings.token_embedding
    table = (
        network.words.place[0]
        if testbed
        else network.text_model.embeddings.position_embedding.weight
    )
    row = [("word", words.weight[one]) for one in ids]
    at = {"before_sos": 0, "appended": len(ids) - 1, "append_after_eos": len(ids)}.get(place, 1)
    if place == "add":
        for near, one in enumerate(learned, start=1):
            row[near] = ("word", row[near][1] + one)
    else:
        row[at:at] = [("learned", one) for one in learned]
    x, position = [], 0
    for kind, vector in row:
        if kind == "learned" and place == "before_sos":
            x.append(vector)
        else:
            x.append(vector + table[position])
            position += 1
    x = torch.stack(x)[None]
    if testbed:
        for layer in network.text:
            x = layer(x)
        return network.text_vector(
            network.text_norm(x)[:, at + len(learned) if place == "before_sos" else 0 :]
        )[0]
    length = x.shape[1]
    mask = torch.full((length, length), -math.inf).triu(1)[None, None]
    for layer in network.text_model.encoder.layers:
        x = layer(x, mask)
    found = network.text_projection(network.text_model.final_layer_norm(x)[0, -1])
    return found / found.norm()


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", ["dual", "clip"])
def test_tokens_stand_where_they_should(name: str, place: str, request) -> None:
    """All texts in one padded batch, against each alone by hand; the long ones lose their ends."""
    model = request.getfixturevalue(name)
    rng = np.random.default_rng(0)
    width = tower_of(model, place, 2).embedding.weight.shape[1]
    tokens = rng.normal(size=(2, width)).astype(np.float32) * 0.1
    method = PromptArray(place=place, variant="adversarial", epochs=0).fit(model)
    method.tokens_ = tokens
    texts = [*TEXTS, LONG if name == "dual" else "good person " * 40]
    with torch.no_grad():
        wanted = torch.stack([by_hand(model, text, tokens, place) for text in texts])
    found = method.apply(model).encode_texts(texts)
    assert np.abs(found - wanted.numpy()).max() < 2e-6
    assert np.abs(found - model.encode_texts(texts)).max() > 0.01
    assert len(tower_of(model, place, 2).tokenize(texts).ids[0]) <= (16 if name == "dual" else 77)


def test_zeros_that_are_added_change_nothing(dual, clip) -> None:
    for model in (dual, clip):
        method = PromptArray(place="add", start="zeros", variant="adversarial", epochs=0)
        same = method.fit(model).apply(model)
        assert np.abs(same.encode_texts(TEXTS) - model.encode_texts(TEXTS)).max() < 1e-6


KINDS = ["clip", "metaclip", "siglip2", "chinese_clip", "align", "altclip"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_token_that_is_a_word_is_that_word(kind: str, tmp_path: Path) -> None:
    """Written before a text, or put there behind the embedding layer: the same vector."""
    if kind == "clip":
        made = random_clip(tmp_path / "model")
    else:
        made = tmp_path / "model"
        getattr(tiny_dual, kind)(made)
    model = tm.load_model(f"hf:{made}")
    word = "a" if kind == "siglip2" else " a"  # which has letters alone, and no first mark
    if kind in ("chinese_clip", "align", "altclip"):
        with pytest.raises(InputError, match="reads a text at its first token"):
            tower_of(model, "before_sos", 2)
    for place, written in (
        ("after_sos", f"{2 * word}{word[:-1]}{{}}"),
        ("appended", f"{{}}{2 * word}"),
    ):
        method = PromptArray(place=place, start="a", variant="adversarial", epochs=0).fit(model)
        found = method.apply(model).encode_texts(["a man", "a woman or a man"])
        wanted = model.encode_texts([written.format(x) for x in ("a man", "a woman or a man")])
        assert np.abs(found - wanted).max() < 2e-6


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", ["dual", "clip"])
def test_no_tokens_change_nothing_to_the_bit(name: str, place: str, request) -> None:
    model = request.getfixturevalue(name)
    x, groups = planted(64, 96 if name == "dual" else 64, groups=2)
    method = PromptArray(tokens=0, place=place, variant="adversarial", **QUICK)
    same = method.fit(model, vectors=x, groups=groups).apply(model)
    assert np.array_equal(same.encode_texts(TEXTS), model.encode_texts(TEXTS))
    assert method.tokens_.shape[0] == 0


@pytest.mark.parametrize(
    ("tune", "expected"),
    [
        ("tokens", set()),
        ("text_projection", {"text_norm", "text_out"}),
        ("projection", {"text_norm", "text_out", "image_norm", "image_out"}),
        ("text:1", {"text.1"}),
        ("text", {"words", "text", "text_norm", "text_out"}),
        ("image:1+text_projection", {"image.2", "text_norm", "text_out"}),
    ],
)
def test_only_what_should_learn_learns(tune: str, expected: set[str], dual, pairs) -> None:
    faces = tm.load_data("testbed:?images=64&seed=1")
    before, start = weights_hash(dual.network), tower_of(dual, "after_sos", 2)
    first = start.start("token0", torch.Generator()).numpy()
    method = PromptArray(tune=tune, **QUICK).fit(
        dual, pairs, vectors=dual.encode_images(faces.images), groups=faces.groups["shape"],
        images=faces.images,
    )  # fmt: skip
    assert weights_hash(dual.network) == before
    assert np.abs(method.tokens_ - first).max() > 1e-3
    made = method.apply(dual)
    was = dict(dual.network.named_parameters())
    moved = {n for n, w in made.network.named_parameters() if not torch.equal(w, was[n])}
    chosen = {n for n in was if any(n == one or n.startswith(f"{one}.") for one in expected)}
    assert moved <= chosen
    # words that no caption holds, and what only adds to all scores alike, may stay
    assert len(moved) >= 0.7 * len(chosen)
    assert set(tuned_parts(dual.network, tune)) == chosen


def test_parts_of_clip_by_name(clip) -> None:
    named = set(dict(clip.network.named_parameters()))
    whole = set(tuned_parts(clip.network, "text+image"))
    assert named - whole == {"logit_scale"}
    last = tuned_parts(clip.network, "text:2")
    assert {name.split(".")[3] for name in last} == {"2", "3"}
    assert all(name.startswith("text_model.encoder.layers") for name in last)
    ends = {name.rpartition(".")[0] for name in tuned_parts(clip.network, "projection")}
    assert ends == {
        "text_projection", "visual_projection", "text_model.final_layer_norm",
        "vision_model.post_layernorm",
    }  # fmt: skip
    with pytest.raises(UnknownNameError, match="did you mean 'text'"):
        tuned_parts(clip.network, "texts")
    with pytest.raises(InputError, match="use 1 to 4"):
        tuned_parts(clip.network, "text:9")


def test_how_tokens_start(dual, clip) -> None:
    for model, word in ((dual, "person"), (clip, "ab")):
        tower = tower_of(model, "after_sos", 3)
        table = tower.embedding.weight.detach()

        def start(how: str, seed: int = 0, tower=tower):
            return tower.start(how, torch.Generator().manual_seed(seed))

        assert torch.equal(start("token0"), table[[0, 0, 0]])
        assert not start("zeros").any()
        pieces = numbers(model, word)[1:-1]
        assert torch.equal(start(word), table[[pieces[at % len(pieces)] for at in range(3)]])
        assert torch.equal(start("random"), start("random"))
        assert not torch.equal(start("random"), start("random", 1))
        assert 0.5 < float(start("random").std() / table.std()) < 2


def test_the_adversary_is_the_papers() -> None:
    net = Adversary(10, 2)
    assert [tuple(w.shape) for w in net.parameters()] == [
        (32, 10), (32,), (32, 32), (32,), (2, 32), (2,)
    ]  # fmt: skip
    for groups in (2, 7):
        squashed = Adversary(4, groups, squashed=True)
        loss = torch.nn.functional.cross_entropy
        scores = 1000 * torch.randn(500, 4, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            guess = squashed(scores)
        found = [
            float(loss(one[None], torch.tensor([label])))
            for one in guess[:100]
            for label in range(groups)
        ]
        low, high = math.log(1 + (groups - 1) / math.e), math.log(1 + (groups - 1) * math.e)
        assert low - 1e-6 <= min(found)
        assert max(found) <= high + 1e-6
    sure = Adversary(4, 2).requires_grad_(False)
    assert float(loss(sure(1e4 * scores[:50]), torch.zeros(50, dtype=torch.long))) > 10 * high


def test_turns() -> None:
    config = {"epochs": 3, "warmup": 2, "block": 4, "batch": 10, "seed": 1}
    turns = alternate(95, **config, adversarial=True)
    assert [epoch for epoch, _, _ in turns] == [e for e in range(-2, 3) for _ in range(10)]
    for epoch in range(-2, 3):
        rows = np.concatenate([rows for e, rows, _ in turns if e == epoch])
        assert sorted(rows) == list(range(95))
    models = [one for e, _, one in turns if e >= 0]
    assert not any(one for e, _, one in turns if e < 0)
    assert models == [at // 4 % 2 == 0 for at in range(30)]
    alone = alternate(95, **config, adversarial=False)
    assert all(one for _, _, one in alone)
    assert len(alone) == sum(models)  # as many steps of the model in every variant


def test_same_seed_same_bytes(dual, figures, pairs) -> None:
    x, groups, _ = figures[0]

    def fit(**kind):
        method = PromptArray(**{**QUICK, "batch": 64, **kind})
        return method.fit(dual, pairs, vectors=x[:128], groups=groups[:128])

    first, again, other = fit(), fit(), fit(seed=1)
    assert first.tokens_.tobytes() == again.tokens_.tobytes()
    assert first.log_ == again.log_
    assert first.tokens_.tobytes() != other.tokens_.tobytes()


def test_a_killed_training_reaches_the_same_tokens(dual, figures, pairs, tmp_path: Path) -> None:
    x, groups, _ = figures[0]
    data = {"vectors": x[:128], "groups": groups[:128]}
    settings = {**QUICK, "epochs": 3, "batch": 32, "checkpoint": 3}
    whole = PromptArray(**settings).fit(dual, pairs, **data)

    def killed(what: str, share: float) -> None:
        if share > 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        PromptArray(**settings).fit(dual, pairs, **data, checkpoints=tmp_path, progress=killed)
    shares: list[float] = []
    for _ in range(2):  # resumed, and then nothing is left to train
        shares.clear()
        again = PromptArray(**settings).fit(
            dual, pairs, **data, checkpoints=tmp_path, progress=lambda what, s: shares.append(s)
        )
        assert again.tokens_.tobytes() == whole.tokens_.tobytes()
        assert (again.log_, again.kept_) == (whole.log_, whole.kept_)
    assert shares == [0.0]
    with pytest.raises(InputError, match="another training"):
        PromptArray(**settings, seed=1).fit(dual, pairs, **data, checkpoints=tmp_path)


def bias(model, images, groups) -> float:
    """Mean |C-ASC| over Berg's test words and templates."""
    texts = [one.text for one in stimuli.prompts(stimuli.load("berg"))]
    return float(np.abs(METRICS["c_asc"](model.encode_texts(texts) @ images.T, groups)).mean())


@pytest.fixture(scope="module")
def trained(dual, figures, pairs):
    x, groups, _ = figures[0]
    course = {"epochs": 16, "warmup": 6, "batch": 64, "learning_rate": 2e-3,
              "adversary_rate": 3e-3, "stop": 0.0}  # fmt: skip
    return {
        variant: PromptArray(variant=variant, **course).fit(dual, pairs, vectors=x, groups=groups)
        for variant in ("both", "adversarial")
    }


def test_bias_was_there_and_falls_on_other_figures(dual, figures, trained) -> None:
    x, groups, _ = figures[1]
    before = bias(dual, x, groups)
    assert before > 0.7
    for method in trained.values():
        assert bias(method.apply(dual), x, groups) < 0.9 * before


def test_itc_keeps_more_utility(dual, trained) -> None:
    """The paper's finding, on captions that nobody has seen."""
    held = draw_captioned_scenes(World.plant(), 400, np.random.default_rng(11))
    found = {
        name: recall(method.apply(dual), held, k=(5,))["text to image"].mean()
        for name, method in trained.items()
    }
    before = recall(dual, held, k=(5,))["text to image"].mean()
    assert before > found["both"] > found["adversarial"]


def test_early_stop_keeps_the_epoch_before(dual, figures, pairs) -> None:
    x, groups, _ = figures[0]
    course = {"variant": "adversarial", "epochs": 16, "warmup": 2, "batch": 64,
              "learning_rate": 3e-3, "adversary_rate": 3e-3, "keep": "last"}  # fmt: skip
    method = PromptArray(**course).fit(dual, pairs, vectors=x, groups=groups)
    told = [one["utility"] for one in method.log_ if "utility" in one]
    assert method.stopped_ == method.log_[-1]["epoch"]
    assert told[-1] < 0.5 * told[0] <= min(told[:-1])
    assert method.kept_ == method.stopped_ - 1
    longer = {**course, "epochs": method.stopped_, "stop": 0.0}
    kept = PromptArray(**longer).fit(dual, pairs, vectors=x, groups=groups)
    assert kept.stopped_ is None
    assert np.array_equal(kept.tokens_, method.tokens_)


def test_the_epoch_of_the_least_bias_is_kept(trained, dual, figures) -> None:
    x, groups, _ = figures[0]
    texts = [one.text for one in stimuli.prompts(stimuli.load("berg-train"))]
    for method in trained.values():
        by_epoch = {one["epoch"]: one["bias"] for one in method.log_ if "bias" in one}
        assert by_epoch[method.kept_] == min(by_epoch.values()) < max(by_epoch.values())
        scores = method.apply(dual).encode_texts(texts) @ x.T
        found = METRICS["ndkl"](scores, groups, target="prior").mean()
        assert found == pytest.approx(by_epoch[method.kept_], abs=1e-3)


def test_accuracy_on_classes_stops_too_and_other_prompts_choose_the_epoch(dual, figures) -> None:
    """As in the authors' code: any utility stops, and all prompts choose."""
    x, groups, faces = figures[0]
    classes = Groups.from_labels([("ball", "block")[code] for code in groups.codes])
    utility = Utility(faces.ids, classes, faces.images)
    course = {"variant": "adversarial", "epochs": 2, "warmup": 1, "batch": 64,
              "learning_rate": 2e-3, "adversary_rate": 3e-3}  # fmt: skip
    whole = PromptArray(**course, keep_words="berg-train+berg").fit(
        dual, vectors=x, groups=groups, utility=utility
    )
    before, *_, last = whole.log_
    assert before["accuracy"] == 1.0
    assert {"accuracy", "bias"} <= set(last)
    texts = [one.text for one in stimuli.prompts(stimuli.load("berg"))]
    scores = whole.apply(dual).encode_texts(texts) @ x.T
    kept = next(line for line in whole.log_ if line["epoch"] == whole.kept_)
    found = METRICS["ndkl"](scores, groups, target="prior").mean()
    assert found == pytest.approx(kept["bias"], abs=1e-3)
    stopped = PromptArray(**course, stop=1.01).fit(dual, vectors=x, groups=groups, utility=utility)
    assert stopped.stopped_ == 0


def test_l2_pulls_to_the_texts_as_they_were(dual, figures) -> None:
    x, groups, _ = figures[0]
    texts = [one.text for one in stimuli.prompts(stimuli.load("berg-train"))]
    away = {}
    for l2 in (0.0, 100.0):
        course = {"variant": "adversarial", "epochs": 4, "warmup": 2, "l2": l2, "batch": 64}
        method = PromptArray(**course, learning_rate=5e-3).fit(dual, vectors=x, groups=groups)
        moved = method.apply(dual).encode_texts(texts) - dual.encode_texts(texts)
        away[l2] = float((moved**2).sum())
    assert away[100.0] < 0.7 * away[0.0]


@pytest.mark.parametrize("tune", ["tokens", "text_projection"])
def test_saved_and_loaded_as_one_directory(tune: str, dual, pairs, tmp_path: Path) -> None:
    made = debias(
        "prompt-array", "testbed:dual", "testbed:?images=64&seed=1", attribute="shape",
        captions=pairs, settings={**QUICK, "tune": tune}, out=tmp_path / "fair", device="cpu",
    )  # fmt: skip
    again = tm.load_model(str(tmp_path / "fair"))
    assert again.name == "testbed:dual+prompt-array"
    assert np.array_equal(again.encode_texts(TEXTS), made.encode_texts(TEXTS))
    assert not np.array_equal(made.encode_texts(TEXTS), dual.encode_texts(TEXTS))
    assert again.identity == made.identity
    assert made.identity["weights"] != dual.identity["weights"]
    assert again.debiaser.log_ == made.debiaser.log_
    scenes = pairs.images[:4]
    assert np.array_equal(again.encode_images(scenes), dual.encode_images(scenes))


def test_without_captions_only_the_contrastive_loss_is_missing(clip) -> None:
    """The adversary learns from labelled embeddings alone."""
    x, groups = planted(64, 64, groups=2)
    faces = tm.faces(x, {"gender": [groups.names[code] for code in groups.codes]})
    few = {"epochs": 1, "tokens": 1, "warmup": 1, "words": TEXTS}
    debiased = debias("prompt-array", clip, faces, attribute="gender",
                      settings={"variant": "adversarial", **few})  # fmt: skip
    assert len(debiased.debiaser.tokens_) == 1
    assert "utility_cost" not in debiased.record
    with pytest.raises(InputError, match="captions"):
        debias("prompt-array", clip, faces, attribute="gender", settings=few)


def test_on_a_clip_of_transformers(clip, tmp_path: Path) -> None:
    """Random weights know nothing, but the label that was planted can be hidden there too."""
    x, groups = planted(512, 64, groups=2, lean=2.0)
    method = PromptArray(
        variant="adversarial", epochs=6, warmup=20, block=2, batch=64, learning_rate=3e-2,
        adversary_rate=1e-2, words=TEXTS,
    ).fit(clip, vectors=x, groups=groups)  # fmt: skip
    assert method.log_[19]["adversary's accuracy"] > 0.8
    assert method.log_[-1]["adversary's loss"] > method.log_[19]["adversary's loss"]
    place = Debiased(clip, method, spec=f"hf:{clip.name}").save(tmp_path / "fair")
    again = tm.load_model(str(place))
    assert np.array_equal(again.encode_texts(TEXTS), method.apply(clip).encode_texts(TEXTS))


def test_mixed_precision_learns_nearly_the_same(clip) -> None:
    x, groups = planted(128, 64, groups=2)
    course = {**QUICK, "variant": "adversarial", "words": TEXTS, "epochs": 3}
    found = {
        precision: PromptArray(**course, precision=precision).fit(clip, vectors=x, groups=groups)
        for precision in ("float32", "bfloat16")
    }
    single, half = (one.tokens_ for one in found.values())
    assert single.dtype == half.dtype == np.float32
    assert not np.array_equal(single, half)
    moved = single - np.asarray(
        clip.network.text_model.embeddings.token_embedding.weight[0].detach()
    )
    assert np.abs(half - single).mean() < 0.5 * np.abs(moved).mean()


def test_what_it_refuses(dual, clip, pairs, figures) -> None:
    x, groups, _ = figures[0]
    with pytest.raises(UnknownNameError, match="did you mean 'after_sos'"):
        PromptArray(place="after-sos").fit(dual, pairs, vectors=x, groups=groups)
    with pytest.raises(UnknownNameError, match="variant"):
        PromptArray(variant="boht").fit(dual, pairs)
    with pytest.raises(InputError, match="no text tower that learned tokens"):
        PromptArray().fit(tm.load_model("testbed:stream"), pairs, vectors=x, groups=groups)
    with pytest.raises(InputError, match="captions=SPEC"):
        PromptArray().fit(dual, vectors=x, groups=groups)
    with pytest.raises(InputError, match=r"images=faces\.images"):
        PromptArray(tune="image:1").fit(dual, pairs, vectors=x, groups=groups)
    with pytest.raises(InputError, match="--images SPEC --attribute A"):
        PromptArray().fit(dual, pairs)
    with pytest.raises(InputError, match="would learn nothing"):
        PromptArray(variant="itc", itc=0.0).fit(dual, pairs)
    with pytest.raises(InputError, match="tokens must be 0 or more"):
        PromptArray(tokens=-1).fit(dual, pairs)
    with pytest.raises(UnknownNameError, match="closed vocabulary"):
        PromptArray(start="zebra").fit(dual, pairs)
