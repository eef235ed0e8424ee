"""The attack: inside its ball to the last bit, the same for the same seed, with the right slope."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.models import tiny, tiny_fused
from tiltmeter.datasets import load_data
from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.models import load_model
from tiltmeter.probes.counterfactual.sources import SOURCES, Swap
from tiltmeter.probes.counterfactual.sources.words import read, word_logprobs

torch = pytest.importorskip("torch")

from tiltmeter.probes.counterfactual.sources.adversarial import (  # noqa: E402
    AdversarialAttack,
    Attack,
    attack,
    ball,
    eight_bits,
    noise,
    only_pixels,
    patch_of,
)

SWAP = Swap("shape", ("round", "square"), ("ball", "block"))
PROMPT = SWAP.prompt


@pytest.fixture(scope="module")
def stream():
    return load_model("testbed:stream")


@pytest.fixture(scope="module")
def figures():
    return load_data("testbed:?images=28", role="faces")


def strike(model, figures, count=6, **how):
    rows = np.arange(count)
    x = model.pixels(figures.images[rows])
    goal = SWAP.has_first(figures, rows).astype(int)
    found, steps = attack(
        model, x, goal, words=SWAP.words, prompt=PROMPT, settings=Attack(**how), rows=rows
    )
    return x, found, steps, goal


def odds(model, x, goal):
    """Log-odds of the word that each picture is to be read as."""
    found = read(model, x, [PROMPT] * len(x), SWAP.words)
    return (found[:, 1] - found[:, 0]) * (2 * goal - 1)


# theorems


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**16),
    epsilon=st.one_of(st.sampled_from([k / 255 for k in range(1, 17)]), st.floats(1e-4, 1.0)),
    on_grid=st.booleans(),
)
def test_the_ball_is_exact_and_all_pixels_are_valid(seed, epsilon, on_grid):
    x = np.random.default_rng(seed).random((2, 3, 5, 4), np.float32)
    x[0, 0, 0] = [0.0, 1.0, np.nextafter(np.float32(1), np.float32(0)), 1e-7]
    pixels = torch.as_tensor(np.round(x * 255).astype(np.float32) / 255 if on_grid else x)
    low, high = ball(pixels, epsilon)
    for edge in (low, high, noise(pixels, epsilon, seed=seed)):
        # in double precision the difference of two single ones is exact
        assert ((edge.double() - pixels.double()).abs() <= epsilon).all()
        assert edge.min() >= 0
        assert edge.max() <= 1
    assert (low <= pixels).all()
    assert (pixels <= high).all()
    free = (pixels - epsilon > 1e-6) & (pixels + epsilon < 1 - 1e-6)
    assert torch.allclose((high - low)[free], torch.tensor(2 * epsilon).float(), atol=1e-6)


@settings(max_examples=40)
@given(seed=st.integers(0, 2**16), levels=st.integers(1, 16))
def test_eight_bits_stay_in_the_ball(seed, levels):
    """On a picture of 8 bits, whole grey levels: never more than epsilon of them."""
    rng = np.random.default_rng(seed)
    grey = torch.as_tensor(rng.integers(0, 256, (2, 3, 4, 4)).astype(np.float32))
    low, high = ball(grey / 255, levels / 255)
    within = low + (high - low) * torch.as_tensor(rng.random(grey.shape, np.float32))
    found = eight_bits(within, low, high) * 255
    assert torch.allclose(found, found.round(), atol=1e-4)
    assert ((found.round() - grey).abs() <= levels).all()
    assert found.min() >= 0
    assert found.max() <= 255.001


@pytest.mark.parametrize("how", [{}, {"random_start": True}, {"quantise": True}, {"loss": "pair"}])
def test_an_attack_never_leaves_the_ball(stream, figures, how):
    for levels in (1, 9.7, 40):
        x, found, _, _ = strike(stream, figures, 3, epsilon=levels / 255, step=0.05, steps=3, **how)
        slack = 1e-6 if how.get("quantise") else 0.0
        assert ((found.double() - x.double()).abs() <= levels / 255 + slack).all()
        assert found.min() >= 0
        assert found.max() <= 1
        assert not torch.equal(found, x)


def test_padding_is_never_touched(tmp_path):
    tiny_fused.vilt(tmp_path)
    model = load_model(f"hf:{tmp_path}")
    x = model.pixels(tiny.pictures(2))
    assert x.shape[1] == 4  # pictures of two shapes: the fourth channel says what is padding
    padding = (x[:, 3:] < 0.5).expand(-1, 3, -1, -1)
    assert padding.any()
    found, _ = attack(
        model,
        x,
        [0, 1],
        words=("man", "woman"),
        prompt=PROMPT,
        settings=Attack(steps=2, confidence=2),
    )
    assert torch.equal(found[:, 3], x[:, 3])
    assert torch.equal(found[:, :3][padding], x[:, :3][padding])
    assert not torch.equal(found[:, :3][~padding], x[:, :3][~padding])
    spoilt = noise(x, 0.1)
    assert torch.equal(spoilt[:, :3][padding], x[:, :3][padding])


def test_same_seed_same_delta_in_any_batch(stream, figures):
    how = {"random_start": True, "steps": 3, "epsilon": 16 / 255}
    _, one, _, _ = strike(stream, figures, 4, **how, seed=5)
    _, again, _, _ = strike(stream, figures, 4, **how, seed=5)
    _, other, _, _ = strike(stream, figures, 4, **how, seed=6)
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    x = stream.pixels(figures.images[np.arange(4)])
    assert torch.equal(noise(x, 0.1, seed=1), noise(x, 0.1, seed=1))
    assert torch.equal(noise(x, 0.1, seed=1)[2:], noise(x[2:], 0.1, rows=[2, 3], seed=1))


# an independent reference


def test_slopes_are_those_of_small_differences(stream, figures):
    """The gradient that an attack follows, against central differences in double precision."""
    model = stream
    model.network.double()
    try:
        x = model.pixels(figures.images[np.arange(1)]).double().requires_grad_()
        with only_pixels(model):
            found = word_logprobs(model, x, [PROMPT], SWAP.words)
            [slope] = torch.autograd.grad(found[0, 1] - found[0, 0], x)
        rng = np.random.default_rng(0)
        largest = np.argsort(slope.abs().numpy().ravel())[-20:]
        for place in rng.choice(largest, 5, replace=False):
            at, step = np.unravel_index(place, x.shape), 1e-5
            ends = []
            for sign in (1, -1):
                moved = x.detach().clone()
                moved[at] += sign * step
                lp = read(model, moved, [PROMPT], SWAP.words)
                ends.append(lp[0, 1] - lp[0, 0])
            assert slope[at].item() == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-4)
    finally:
        model.network.float()


@pytest.mark.parametrize("kind", ["vilt", "flava", "bridgetower"])
def test_slopes_reach_the_pixels_of_every_kind(kind, tmp_path):
    getattr(tiny_fused, kind)(tmp_path)
    model = load_model(f"hf:{tmp_path}")
    model.network.double()
    x = model.pixels(tiny.pictures(1)).double().requires_grad_()
    text = [f"a {'[MASK]'} is in the picture"]
    with only_pixels(model):
        [slope] = torch.autograd.grad(word_logprobs(model, x, text, ["man"])[0, 0], x)
    at = np.unravel_index(int(slope.abs().argmax()), x.shape)
    ends = []
    for sign in (1, -1):
        moved = x.detach().clone()
        moved[at] += sign * 1e-5
        ends.append(read(model, moved, text, ["man"])[0, 0])
    assert slope[at].item() == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-3)
    assert slope[at].item() != 0
    assert all(weight.requires_grad for weight in model.parameters())  # as they were


def test_one_step_is_the_sign_of_the_slope(stream, figures):
    x, found, steps, goal = strike(stream, figures, 3, epsilon=0.1, step=0.01, steps=1, starts=1)
    there = x.clone().requires_grad_()
    lp = word_logprobs(stream, there, [PROMPT] * 3, SWAP.words)
    lp[torch.arange(3), torch.as_tensor(goal)].sum().backward()
    assert torch.allclose(found, (x + 0.01 * there.grad.sign()).clamp(0, 1), atol=1e-6)
    assert steps.tolist() == [1, 1, 1]


# what it does


def test_a_picture_stops_once_the_model_is_sure(stream, figures):
    sure = {"epsilon": 32 / 255, "step": 8 / 255, "steps": 24, "confidence": 0.7}
    x, found, steps, goal = strike(stream, figures, 8, **sure)
    assert (odds(stream, x, goal) < 0).all()  # read right before
    after = odds(stream, found, goal)
    early = steps.numpy() < 24
    assert early.any()
    assert (1 / (1 + np.exp(-after[early])) >= 0.7 - 1e-4).all()
    _, _, full, _ = strike(
        stream, figures, 3, epsilon=0.1, step=0.02, steps=2, confidence=2.0, starts=1
    )
    assert full.tolist() == [2, 2, 2]


@pytest.mark.parametrize("kind", ["fusion", "stream"])
def test_sixteen_grey_levels_flip_the_figures_and_noise_of_that_size_does_not(kind, figures):
    model = load_model(f"testbed:{kind}")
    how = {"epsilon": 16 / 255, "step": 4 / 255}
    x, found, steps, goal = strike(model, figures, 28, **how)
    assert (odds(model, x, goal) < 0).mean() >= 0.95  # read right before
    after = odds(model, found, goal)
    assert (after > 0).mean() >= 0.95
    assert (odds(model, noise(x, 16 / 255), goal) > 0).mean() < 0.1
    # where the picture itself would not turn, a lighter or a darker one did
    _, once, taken, _ = strike(model, figures, 28, **how, starts=1)
    stuck = odds(model, once, goal) <= 0
    assert torch.equal(found[~stuck], once[~stuck])
    assert (steps[stuck] > taken[stuck]).all()
    assert stuck.any() or kind == "stream"


def test_attacked_pictures_are_kept(stream, figures, tmp_path, monkeypatch):
    some = figures.select(range(6))
    settings_ = Attack(epsilon=16 / 255, steps=2)
    source = AdversarialAttack(settings_, batch=4, store=tmp_path)
    fresh = list(AdversarialAttack(settings_, batch=4).blocks(stream, some, SWAP))
    first = list(source.blocks(stream, some, SWAP))
    damaged = next(tmp_path.glob("*/*.npy"))
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    with pytest.warns(UserWarning, match="made again"):
        first = list(source.blocks(stream, some, SWAP))
    monkeypatch.setattr(
        "tiltmeter.probes.counterfactual.sources.adversarial.attack",
        lambda *_, **__: pytest.fail("made anew"),
    )
    again = list(source.blocks(stream, some, SWAP))
    for one, two, three in zip(fresh, first, again, strict=True):
        assert torch.equal(one.counterfactual, two.counterfactual)
        assert torch.equal(two.counterfactual, three.counterfactual)
        assert two.details["steps"].tolist() == three.details["steps"].tolist()
    other = dataclasses.replace(settings_, steps=1)  # other settings, other pictures
    with pytest.raises(pytest.fail.Exception):
        list(AdversarialAttack(other, batch=4, store=tmp_path).blocks(stream, some, SWAP))


# errors


def test_wrong_settings_are_refused():
    for how in ({"epsilon": 0}, {"epsilon": 8}, {"step": 0}, {"steps": 0}):
        with pytest.raises(InputError, match="8 grey levels are 8/255"):
            Attack(**how)
    with pytest.raises(UnknownNameError, match="loss"):
        Attack(loss="words")
    with pytest.raises(InputError, match="1 to 3 starts; got 4"):
        Attack(starts=4)
    with pytest.raises(InputError, match="less than one grey level"):
        Attack(epsilon=0.5 / 255, quantise=True)
    with pytest.raises(UnknownNameError, match="adversarial"):
        SOURCES["adversarail"]


def test_wrong_pixels_are_refused(stream, tmp_path):
    def strike_at(model, x, words=SWAP.words):
        attack(model, x, [0] * len(x), words=words, prompt=PROMPT)

    with pytest.raises(InputError, match=r"from 0 to 1.*Divide bytes"):
        strike_at(stream, torch.full((1, 3, 32, 32), 200.0))
    with pytest.raises(InputError, match="n x 3 x height x width"):
        strike_at(stream, torch.zeros(3, 32, 32))
    assert patch_of(stream) == 4
    with pytest.raises(InputError, match=r"smaller than one patch.*model.pixels"):
        strike_at(stream, torch.zeros(1, 3, 3, 3))
    tiny_fused.vilt(tmp_path)
    with pytest.raises(InputError, match="smaller than one patch of .*8 x 8"):
        strike_at(load_model(f"hf:{tmp_path}"), torch.zeros(1, 3, 4, 9), ("man", "woman"))
    with pytest.raises(InputError, match="goal must be 0 or 1"):
        attack(stream, torch.zeros(2, 3, 32, 32), [0, 2], words=SWAP.words, prompt=PROMPT)


def test_the_benchmark_runs(capsys):
    from benchmarks.attack import main

    main(["--tiny", "--device", "cpu", "--images", "2", "--steps", "2"])
    assert "attacked" in capsys.readouterr().out
