"""CounterBias: the formulas, the planted truth, and what an attack says beside a true picture."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import spearmanr

import tiltmeter as tm
from tests.conftest import write_csv
from tests.models import tiny_fused
from tests.probes.counterfactual_sources.test_sources import GENDER, SHAPE, photographs
from tiltmeter.datasets import load_data
from tiltmeter.errors import InputError
from tiltmeter.metrics.convention import get_convention
from tiltmeter.metrics.counterfactual import directed_bias
from tiltmeter.models import load_model
from tiltmeter.probes.counterfactual.measuring import (
    CounterfactualQuery,
    MaskedScores,
    measure,
    text_bias,
)
from tiltmeter.probes.counterfactual.probe import (
    OPTIONS,
    CounterfactualSources,
    ProbabilityReading,
    counterfactual,
    fewer,
)
from tiltmeter.probes.counterfactual.rows import means
from tiltmeter.probes.counterfactual.sources.parallel import ParallelImages, RedrawnScenes
from tiltmeter.probes.probe import CannotRunError
from tiltmeter.probes.texts import counterfactual_words
from tiltmeter.results import Run
from tiltmeter.stats.resampling import Resampling
from tiltmeter.testbed.oracle import Oracle, figure_mask, shape_mask
from tiltmeter.testbed.world import World

torch = pytest.importorskip("torch")

CONVENTION = get_convention("tiltmeter")
QUICK = Resampling(permutations=49, bootstraps=20)
TEMPLATES = ("The {g} is [MASK]", "A {g} who is [MASK]")


@pytest.fixture(scope="module")
def figures():
    return load_data("testbed:?images=28", role="faces")


@pytest.fixture(scope="module")
def asked(figures):
    words = counterfactual_words(figures, OPTIONS)
    return CounterfactualQuery(
        SHAPE, tuple(words["targets"]), tuple(words["targets"].values()), TEMPLATES
    )


@pytest.fixture(scope="module", params=["fusion", "stream"])
def redrawn(request, figures, asked):
    """A model, its fair twin's measurements, and its own."""
    models = [load_model(f"testbed:{request.param}{twin}") for twin in ("?twin=fair", "")]
    return models[1], *(measure(model, figures, asked, RedrawnScenes()) for model in models)


def by_target(
    found: MaskedScores, asked: CounterfactualQuery, kind: str, reading: str = "vocabulary"
):
    """Equation 7 for every target, templates averaged: a plain loop."""
    values = found.biases(asked, reading, 0.05)[kind]
    return np.array(
        [
            np.mean([directed_bias(values[:, t, at], found.first) for t in range(values.shape[1])])
            for at in range(values.shape[2])
        ]
    )


# the formulas


def by_hand() -> tuple[MaskedScores, CounterfactualQuery]:
    """One picture of a man, one of a woman; two targets, one template."""
    asked = CounterfactualQuery(
        replace(GENDER, words=("man", "woman")), ("a", "b"), ("x", "x"), ("The {g} is [MASK]",)
    )
    p = np.array([  # 4 inputs x 2 instances x 2 targets
        [[0.60, 0.2], [0.3, 0.4]], [[0.40, 0.2], [0.5, 0.4]],
        [[0.50, 0.1], [0.3, 0.5]], [[0.30, 0.1], [0.6, 0.5]],
    ])  # fmt: skip
    b = np.array([[[0.8, 0.1], [0.5, 0.4]], [[0.3, 0.5], [0.48, 0.5]]])  # own word, other word
    found = MaskedScores(
        "hand", "", np.arange(2), np.array([True, False]), np.arange(2), np.ones((2, 2)),
        np.log(p)[:, :, None], np.log(b),
    )  # fmt: skip
    return found, asked


def test_hand_computed_biases():
    found, asked = by_hand()
    got = found.biases(asked, "vocabulary", 0.05)
    # (.4 - .6) / (.3 - .8); the woman's word moves by .02 only: undefined
    assert got["V"][0, 0].tolist() == pytest.approx([0.4, 0.0])
    assert np.isnan(got["V"][1]).all()
    # text is 1 and 0: (.5 - .6) / -1
    assert got["L"][0, 0].tolist() == pytest.approx([0.1, 0.1])
    assert got["L"][1, 0].tolist() == pytest.approx([0.0, -0.1])
    # the mean of both: (.3 - .6) / ((.3 + 0) / 2 - (.8 + 1) / 2)
    assert got["VL"][0, 0].tolist() == pytest.approx([0.4, 0.1 / 0.75])
    assert got["VL"][1, 0].tolist() == pytest.approx([-0.3 / 0.51, -0.1 / 0.51])
    among = found.biases(asked, "candidates", 0.05)  # .6 / .8 -> .4 / .6; .8 / .9 -> .3 / .8
    assert among["V"][0, 0, 0] == pytest.approx((0.4 / 0.6 - 0.6 / 0.8) / (0.3 / 0.8 - 0.8 / 0.9))


def test_readings_of_the_public_scripts_by_hand():
    found, asked = by_hand()
    hard = found.biases(asked, "hard", 0.05)
    # .8 of .9 is a man, .3 of .8 is none: (.4 / .6 - .6 / .8) / (0 - 1)
    assert hard["V"][0, 0, 0] == pytest.approx(0.6 / 0.8 - 0.4 / 0.6)
    relative = found.biases(asked, "relative", 0.05)
    plain = found.biases(asked, "candidates", 0.05)
    assert relative["V"][0, 0, 0] == pytest.approx(plain["V"][0, 0, 0] / (0.6 / 0.8))
    # the model reads both images as they are labelled; after a swap it misreads both
    assert np.array_equal(found.as_read().first, found.first)
    misread = replace(found, first=~found.first, bias=found.bias[..., ::-1],
                      targets=found.targets[[2, 3, 0, 1]])  # fmt: skip
    back = misread.as_read()
    assert np.array_equal(back.first, found.first)
    assert np.array_equal(back.targets, found.targets)
    assert np.array_equal(back.bias, found.bias)


def test_undefined_instances_are_counted_and_never_averaged(figures):
    found, asked = by_hand()
    from tiltmeter.probes.counterfactual.rows import bias_tables

    values = found.biases(asked, "vocabulary", 0.05)
    tables = bias_tables(found, asked, values, "vocabulary", QUICK, np.random.default_rng(0), {})
    listed = [row for table in tables for row in table.to_pylist()]
    [row] = [r for r in listed if r["metric"] == "bias_V" and r["target"] == "a"]
    assert (row["n"], row["n_undefined"]) == (1, 1)
    assert row["value"] == pytest.approx(0.4)
    [row] = [r for r in listed if r["metric"] == "bias_L" and r["target"] == "b"]
    assert row["value"] == pytest.approx((0.1 + 0.1) / 2)  # the woman's -.1 leans to men too
    [row] = [r for r in listed if r["metric"] == "abs_bias_L" and r["template"] is None]
    assert row["value"] == pytest.approx((0.05 + 0.1) / 2)


def test_against_a_plain_loop(figures):
    """Every probability asked for one at a time, straight from the model."""
    model = load_model("testbed:stream")
    some = figures.select([0, 1, 2, 3])
    asked = CounterfactualQuery(SHAPE, ("cooking", "nurse"), ("a", "b"), TEMPLATES)
    got = measure(model, some, asked, RedrawnScenes()).biases(asked, "vocabulary", 0.05)

    def p(scene, text, word):
        return float(np.exp(model.mask_logprobs(scene, [text])[0, 0, model.pieces(word)[0]]))

    for at in range(4):
        scene = some.images[[at]]
        other = scene.redrawn(shape=1 - scene.shape)
        own, swapped = SHAPE.words[scene.shape[0]], SHAPE.words[1 - scene.shape[0]]
        b = [p(one, "a [MASK] is in the picture", own) for one in (scene, other)]
        for t, template in enumerate(TEMPLATES):
            texts = [template.replace("{g}", word) for word in (own, swapped)]
            for c, word in enumerate(asked.targets):
                before = p(scene, texts[0], word)
                v = (p(other, texts[0], word) - before) / (b[1] - b[0])
                lang = (p(scene, texts[1], word) - before) / (0 - 1)
                vl = (p(other, texts[1], word) - before) / (b[1] / 2 - (b[0] + 1) / 2)
                found = [got[kind][at, t, c] for kind in ("V", "L", "VL")]
                assert found == pytest.approx([v, lang, vl], rel=1e-4, abs=1e-7)


def test_means_are_resampled_by_cluster():
    values = np.array([[1.0], [1.0], [5.0], [5.0]])
    whole = means(values, np.array([0, 0, 1, 1]), Resampling(99, 300), np.random.default_rng(0))
    assert whole.value == 3
    assert set(whole.resampled.ravel()) == {1.0, 3.0, 5.0}  # scenes go together
    assert set(np.abs(whole.sign_flipped.ravel())) == {2.0, 3.0}
    single = means(values, np.arange(4), Resampling(99, 300), np.random.default_rng(0))
    assert len(set(single.resampled.ravel())) == 5


def test_other_order_of_groups_other_sign(figures, asked):
    model = load_model("testbed:stream")
    some = figures.select(range(12))
    turned = replace(
        asked, swap=replace(SHAPE, groups=("square", "round"), words=("block", "ball"))
    )
    here, there = (measure(model, some, one, RedrawnScenes()) for one in (asked, turned))
    for kind in ("VL", "V", "L"):
        a, b = by_target(here, asked, kind), by_target(there, turned, kind)
        assert a == pytest.approx(-b, abs=1e-9)
        assert np.abs(a).max() > 0.005


# the planted truth


def test_the_true_redraw_finds_the_planted_tilt(redrawn, figures, asked):
    """bias_V by target against the posterior of a perfect model, and none in the fair twin."""
    _, fair, found = redrawn
    world = World.plant(1.0)
    oracle, at = Oracle(world), np.array([world.index(target) for target in asked.targets])
    scenes = figures.images
    other = scenes.redrawn(shape=1 - scenes.shape)
    text = shape_mask(scenes.shape)
    p = [oracle.posterior(image=figure_mask(s), text=text, among=at) for s in (scenes, other)]
    towards = np.where(scenes.shape == 0, -1, 1)[:, None]
    truth = (towards * (p[1] - p[0])).mean(axis=0)
    lean = by_target(found, asked, "V")
    assert spearmanr(lean, truth).statistic >= 0.9
    shifts = found.shifts().mean(axis=0)
    assert spearmanr(shifts, (towards * np.log(p[1] / p[0])).mean(axis=0)).statistic >= 0.9
    # an instance at a time too
    cells = (towards * (np.exp(found.targets[1]) - np.exp(found.targets[0])).mean(axis=1)).ravel()
    assert spearmanr(cells, (towards * (p[1] - p[0])).ravel()).statistic >= 0.9
    for kind in ("VL", "V", "L"):
        there, none = (np.abs(by_target(one, asked, kind)).mean() for one in (found, fair))
        assert there > 3 * none


def test_the_true_redraw_flips_every_picture_and_noise_none(redrawn):
    _, _, found = redrawn
    assert (found.odds(0) > 0).all()
    assert (found.odds(1) < 0).all()


# attacked against true


@pytest.fixture(scope="module")
def attacked() -> Run:
    options = {
        "source": "adversarial", "epsilon": 16, "step": 4, "curve": "4", "images": 16,
        "templates": "|".join(TEMPLATES), "softmax": "vocabulary",
    }  # fmt: skip
    return tm.audit(
        "testbed:stream", "testbed:?images=28", probes=["counterfactual"],
        options={"counterfactual": options}, permutations=49, bootstraps=20,
    )  # fmt: skip


def test_an_attack_flips_what_noise_does_not(attacked):
    rate = {row["experiment"]: row["value"] for row in attacked.where(metric="flip_rate")}
    assert rate["adversarial"] >= 0.95
    assert rate["adversarial, 8 bits"] >= 0.95
    assert rate["redrawn"] == 1.0
    assert rate["noise"] < 0.1
    assert rate["adversarial, epsilon 4/255"] < rate["adversarial"]
    [row] = attacked.where(metric="flip_rate", experiment="adversarial")
    assert row["note"].startswith("PGD, epsilon 16/255, 20 steps of 4/255 from the image itself")


def test_attacked_and_true_pictures_move_the_same_words(attacked):
    value = {
        (row["metric"], row["experiment"]): row["value"]
        for row in attacked.table.to_pylist()
        if row["group"] == "one half"
    }
    assert value["shift_pearson", "adversarial against redrawn"] > 0.5
    assert value["shift_spearman", "redrawn against redrawn"] > 0.9  # the ceiling
    assert value["shift_slope", "adversarial against redrawn"] > 0
    assert abs(value["shift_slope", "noise against redrawn"]) < 0.2


# contract


def test_rows_say_what_is_needed_to_judge_them(attacked):
    listed = attacked.where(metric="bias_V", template=None)
    assert len(listed) == 65
    for row in listed:
        assert row["probe"] == "counterfactual"
        assert row["experiment"] == "adversarial, vocabulary"
        assert row["n"] + row["n_undefined"] == 16
        assert row["ci_low"] <= row["value"] <= row["ci_high"]
        assert row["null_low"] <= row["null_mean"] <= row["null_high"]
        assert row["p"] <= row["p_fwer"] <= 1
        assert row["ideal"] == 0
    quadrants = attacked.where(metric="quadrant")
    assert sum(row["value"] for row in quadrants) <= 65
    instances = attacked.instances["counterfactual"]
    # by word; and the part of each image in mean lift, of words and of neutral words
    assert instances.num_rows == 16 * 65 * 3 + 16 * 2 * 3
    assert attacked.where(metric="agreement_VL")[0]["note"].startswith("no target")


def test_same_seed_same_bytes(attacked, tmp_path):
    options = {"images": 14, "templates": TEMPLATES[0], "softmax": "candidates"}
    made = [
        tm.audit("testbed:fusion", "testbed:?images=28", probes=["counterfactual"],
                 options={"counterfactual": options}, permutations=19, bootstraps=10)
        for _ in range(2)
    ]  # fmt: skip
    assert made[0].table.equals(made[1].table)
    assert made[0].instances["counterfactual"].equals(made[1].instances["counterfactual"])
    assert made[0].where(metric="flip_rate")[0]["experiment"] == "redrawn"  # what `auto` took


def test_parallel_photographs_give_what_redrawing_gives(figures, asked, tmp_path):
    model = load_model("testbed:stream")
    some = figures.select(range(6))
    data = load_data(f"pairs:{photographs(tmp_path, some)}", role="pairs")
    words = replace(asked, swap=replace(GENDER))
    parallel = measure(model, data, words, ParallelImages())
    drawn = measure(model, some, asked, RedrawnScenes())
    # each redrawn picture is one of the parallel ones
    known = {tuple(np.round(row, 6)) for row in parallel.targets[1][:, 0, :4]}
    assert all(tuple(np.round(row, 6)) in known for row in drawn.targets[1][:, 0, :4])
    assert len(set(parallel.clusters)) == 3  # four pictures a scene
    assert len(parallel.rows) == 12
    kept = fewer(data, words.swap, 8, np.random.default_rng(0))
    assert len(kept) == 8  # two whole scenes
    assert len(set(kept.scenes)) == 2


def test_any_two_concepts_in_templates_of_their_own(figures):
    """As the paper's Figure 9 does with horse and cow against grass and ground."""
    model = load_model("testbed:fusion")
    asked = CounterfactualQuery(
        replace(SHAPE, prompt="this is a [MASK]"),
        ("fishing", "sewing"),
        ("x", "x"),
        ("A photo of a {g} who is [MASK]",),
    )
    table, _ = counterfactual(model, figures.select(range(12)), query=asked, convention=CONVENTION,
                              sources=CounterfactualSources(RedrawnScenes()), resampling=QUICK,
                              reading=ProbabilityReading(["candidates"]))  # fmt: skip
    listed = table.to_pylist()
    [flip] = [r for r in listed if (r["metric"], r["experiment"]) == ("flip_rate", "redrawn")]
    assert (flip["value"], flip["n"]) == (1.0, 12)
    found = [r["value"] for r in listed if r["metric"] == "bias_V"]
    assert found[0] == pytest.approx(-found[1], abs=1e-9)  # among two, what one gains one loses
    assert abs(found[0]) > 0.01


def test_human_labels_from_a_table(tmp_path, figures):
    given = {"cooking": "block", "fishing": "Round", "nurse": "neutral"}
    write_csv(
        tmp_path / "labels.csv", [{"target": one, "label": label} for one, label in given.items()]
    )
    words = counterfactual_words(figures, {**OPTIONS, "labels": str(tmp_path / "labels.csv")})
    assert words["labels"] == {"cooking": -1, "fishing": 1}
    _, asked = by_hand()
    from tiltmeter.probes.counterfactual.rows import _agreement

    told = replace(asked, labels={"a": 1, "b": 1})
    [row] = _agreement("L", np.array([0.1, -0.2]), told, {}).to_pylist()
    assert (row["value"], row["n"], row["p"]) == (0.5, 2, 1.0)
    (tmp_path / "wrong.csv").write_text("word,label\ncooking,male\n")
    with pytest.raises(InputError, match="expected target and label"):
        counterfactual_words(figures, {**OPTIONS, "labels": str(tmp_path / "wrong.csv")})


def test_texts_alone(tmp_path, asked):
    """Equations 12 and 13: a model that sees, one that only reads, one that must see."""
    model = load_model("testbed:fusion")
    lean, how = text_bias(model, asked)
    first, second = model.mask_logprobs(None, ["The ball is [MASK]", "The block is [MASK]"])[:, 0]
    piece = model.pieces("cooking")[0]
    assert how == "text_only"
    at = asked.targets.index("cooking")
    assert lean[0, at] == pytest.approx(first[piece] - second[piece], abs=1e-5)
    for kind in ("bert", "bridgetower"):
        (tmp_path / kind).mkdir()
        getattr(tiny_fused, kind)(tmp_path / kind)
    bert, bridge = (load_model(f"hf:{tmp_path / kind}") for kind in ("bert", "bridgetower"))
    few = CounterfactualQuery(
        replace(GENDER, words=("man", "woman")), ("nurse", "doctor"), ("x", "x"), TEMPLATES
    )
    table, instances = counterfactual(
        bert,
        None,
        query=few,
        convention=CONVENTION,
        resampling=QUICK,
        reading=ProbabilityReading(text_models=[bert]),
    )
    assert table.num_rows == 2 * 3
    assert set(table["metric"].to_pylist()) == {"text_bias", "abs_text_bias"}
    assert instances.num_rows == 0
    from tests.models import tiny

    with pytest.raises(InputError, match="cannot read without an image"):
        text_bias(bridge, few)
    blank, how = text_bias(bridge, few, tiny.pictures(1))
    assert how == "blank"
    white = torch.ones_like(bridge.pixels(tiny.pictures(1)))
    one, two = (
        bridge.mask_logprobs(white, [f"The {word} is <mask>"])[0, 0].detach().numpy()
        for word in ("man", "woman")
    )
    if len(bridge.pieces("nurse")) == 1:
        piece = bridge.pieces("nurse")[0]
        assert blank[0, 0] == pytest.approx(one[piece] - two[piece], abs=1e-4)


def test_a_picture_that_cannot_be_read_is_left_out(tmp_path):
    from tests.models import tiny

    tiny_fused.vilt(tmp_path)
    for group in ("man", "woman"):
        (tmp_path / "photos" / group).mkdir(parents=True)
        for at, picture in enumerate(tiny.pictures(3)):
            picture.save(tmp_path / "photos" / group / f"{at}.png")
    (tmp_path / "words.csv").write_text("word\nnurse\ndoctor\n")
    options = {
        "targets": str(tmp_path / "words.csv"), "steps": 1, "curve": "0", "attribute": "group",
    }  # fmt: skip

    def measured(strict: bool = False) -> Run:
        return tm.audit(
            f"hf:{tmp_path}", f"folder:{tmp_path / 'photos'}", probes=["counterfactual"],
            options={"counterfactual": options}, permutations=9, bootstraps=2, strict=strict,
        )  # fmt: skip

    def pictures(run: Run) -> int:
        return len(set(run.instances["counterfactual"]["id"].to_pylist()))

    whole = measured(strict=True)
    assert pictures(whole) == whole.meta["data"]["faces"]["images"] == 6
    assert whole.meta["data"]["faces"]["unreadable"] == {"count": 0, "first": []}
    (tmp_path / "photos/man/1.png").write_bytes(b"no picture")
    fewer = measured()
    assert pictures(fewer) == fewer.meta["data"]["faces"]["images"] == 5
    assert fewer.meta["data"]["faces"]["unreadable"] == {"count": 1, "first": ["man/1.png"]}
    with pytest.raises(InputError, match=r"unreadable image: .*man/1\.png"):
        measured(strict=True)


# errors


def test_bad_input_is_told(figures):
    def ask(**how):
        given = {"swap": SHAPE, "targets": ("cooking",), "categories": ("x",),
                 "templates": TEMPLATES} | how  # fmt: skip
        return CounterfactualQuery(**given)

    with pytest.raises(InputError, match=r"has no mask: put \[MASK\]"):
        ask(templates=("The {g} is tall",))
    with pytest.raises(InputError, match=r"has 2 masks: put one \[MASK\]"):
        ask(templates=("The {g} is [MASK] [MASK]",))
    with pytest.raises(InputError, match="has no bias word"):
        ask(templates=("The figure is [MASK]",))
    with pytest.raises(InputError, match=r"has no mask"):
        ask(swap=replace(SHAPE, prompt="a figure"))
    model = load_model("testbed:stream")
    with pytest.raises(InputError, match=r"'zebra' is not in the vocabulary"):
        measure(model, figures, ask(targets=("zebra",)), RedrawnScenes())
    with pytest.raises(InputError, match=r"no masked head.*predicts masked words"):
        counterfactual(load_model("testbed:dual"), figures, query=ask(), convention=CONVENTION,
                       sources=CounterfactualSources(RedrawnScenes()))  # fmt: skip
    with pytest.raises(InputError, match="predicts masked words"):
        tm.audit("testbed:dual", figures, probes=["counterfactual"])


def test_data_without_known_words_are_told(figures):
    other = replace(figures, name="mine", groups={"hue": figures.groups["hue"]})
    with pytest.raises(CannotRunError, match="name them by the options attribute, groups"):
        tm.audit("testbed:stream", other, probes=["counterfactual"])
    given = {**OPTIONS, "groups": "red,blue", "words": "red,blue"}
    words = counterfactual_words(other, given)
    assert (words["attribute"], words["groups"]) == ("hue", ("red", "blue"))
