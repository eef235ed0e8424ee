"""Verdicts on lift: a biased world and its fair twin look as different as they are."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import t as student

from tiltmeter.errors import InputError
from tiltmeter.metrics.group_lift import (
    centred,
    lift,
    lift_of_group_scores,
    lift_standard_error,
)
from tiltmeter.metrics.summary import Moments
from tiltmeter.stats.lift_verdict import (
    ASSOCIATED,
    CANNOT_TELL,
    CLEAR,
    NO_LARGER,
    NONE_FOUND,
    RULE,
    WEAK,
    LiftRule,
    WordVerdicts,
    attribute_verdict,
    bias_size,
    category_p,
    fewest_words_flagged_together,
    neutral_weights,
    share_below,
    word_verdicts,
)
from tiltmeter.stats.power import detectable_lift
from tiltmeter.stats.random_visible_splits import random_visible_splits
from tiltmeter.testbed.oracle import Oracle
from tiltmeter.testbed.world import World
from tiltmeter.types import Groups


def judged(strength: float, attribute: str, *, images: int, noise: float, seed: int = 0):
    """Words of a planted world as a model at its optimum scores them: lift, neutral, verdicts."""
    world = World.plant(strength)
    made = Oracle(world).embeddings(
        images, np.random.default_rng(seed), noise=noise, scale=0.02, dimensions=256
    )
    scores = made.texts @ made.images.T / 0.02
    placebo = np.array([concept.placebo for concept in world.concepts])
    groups = made.groups[attribute]
    found = lift(scores[~placebo], groups, neutral=scores[placebo])
    neutral = lift(scores[placebo], groups, neutral=scores[placebo])
    error = lift_standard_error(Moments.of(centred(scores[~placebo], scores[placebo]), groups))
    pmi = Oracle(world).pmi(attribute)[~placebo]
    truth = pmi - (pmi.sum(1, keepdims=True) - pmi) / (pmi.shape[1] - 1)
    return found, neutral, word_verdicts(found, error, neutral, groups.counts), truth, made


@pytest.mark.parametrize("sizes", [(200, 200), (400, 60, 120), (30, 25)])
def test_a_plan_says_which_lift_images_can_show(sizes: tuple[int, ...]) -> None:
    """Words with the planned lift in one group pass the image test in 80% of audits."""
    rng, words = np.random.default_rng(1), 4000
    planned = detectable_lift(sizes, spread=0.9)
    neutral = rng.normal(scale=1e-3, size=(300, len(sizes)))  # the test of images alone
    for group, size in enumerate(planned):
        true = np.where(np.arange(len(sizes)) == group, size, 0.0)
        codes = np.repeat(np.arange(len(sizes)), sizes)
        groups = Groups(codes, tuple(map(str, range(len(sizes)))), "g")
        scores = true[codes] + rng.normal(scale=0.9, size=(words, len(codes)))
        moments = Moments.of(scores, groups)
        found = word_verdicts(
            lift_of_group_scores(moments.mean, neutral),
            lift_standard_error(moments),
            neutral,
            sizes,
        )
        passed = (found.p_image <= RULE.class_p) & (
            found.group == (0 if len(sizes) == 2 else group)
        )
        assert passed.mean() == pytest.approx(0.8, abs=0.03)
    assert np.isnan(detectable_lift([100, 100, 19])).tolist() == [False, False, True]


@pytest.mark.parametrize("attribute", ["shape", "hue"])
def test_a_biased_world_and_its_fair_twin(attribute: str) -> None:
    found, neutral, verdicts, truth, made = judged(1.0, attribute, images=2800, noise=0.3)
    large = np.abs(truth).max(axis=1) > 0.3
    assert verdicts.flagged[large].mean() > 0.93
    # the random-split control: words move by the attribute as by no other visible difference
    cells = made.crossed
    splits = random_visible_splits(made.images, cells, found.shape[1], 40, np.random.default_rng(1))
    scores = made.texts @ made.images.T / 0.02
    placebo = np.array([concept.placebo for concept in World.plant(1.0).concepts])
    sizes = [
        bias_size(
            lift(scores[~placebo], codes, neutral=scores[placebo]),
            lift(scores[placebo], codes, neutral=scores[placebo]),
        )
        for codes in splits
    ]
    share = share_below(bias_size(found, neutral), np.array(sizes))
    assert attribute_verdict(verdicts, share) == CLEAR
    assert bias_size(found, neutral) > 0.4

    found, neutral, verdicts, truth, _ = judged(0.0, attribute, images=2800, noise=0.3)
    assert not verdicts.flagged.any()
    assert (verdicts.p_word < 0.05).mean() < 0.085
    assert np.mean([one == NO_LARGER for one in verdicts.verdict]) > 0.95
    assert attribute_verdict(verdicts, 0.99) == NONE_FOUND
    assert bias_size(found, neutral) < 0.05


def test_large_truth_is_never_called_no_larger() -> None:
    _, _, verdicts, truth, _ = judged(1.0, "hue", images=1400, noise=1.0)
    large = np.abs(truth).max(axis=1) > 1.5 * RULE.smallest
    assert large.sum() > 50
    wrong = [verdict == NO_LARGER for verdict, big in zip(verdicts.verdict, large, strict=True)
             if big]  # fmt: skip
    assert np.mean(wrong) <= 0.05


def test_the_false_discovery_rate_of_exchangeable_words() -> None:
    """Words that are neutral words: any flag in at most 10% of 200 audits, p_word uniform."""
    rng = np.random.default_rng(0)
    flags, small = 0, []
    for _ in range(200):
        sizes = rng.normal(scale=0.4, size=(500, 1)) * [1, -1]
        verdicts = word_verdicts(sizes[:150], np.full((150, 2), 0.03), sizes[150:], [300, 300])
        flags += bool(verdicts.flagged.any())
        small.append(float((verdicts.p_word < 0.05).mean()))
    assert flags <= 0.1 * 200 + 3 * math.sqrt(200 * 0.1 * 0.9)
    assert 0.04 < np.mean(small) < 0.06


def test_each_number_by_hand() -> None:
    neutral = np.array([[-0.3], [-0.2], [0.1], [0.2], [0.3]]) * [1, -1]
    lift_, error = np.array([[0.5, -0.5], [0.2, -0.2]]), np.full((2, 2), 0.1)
    rule = LiftRule(neutral_words=5, fdr=0.5, class_p=0.4)
    found = word_verdicts(lift_, error, neutral, [40, 50], rule)
    assert found.p_word.tolist() == [1 / 6, 5 / 6]  # .2, .2, .3 and .3 are no smaller than .2
    wanted = 2 * student.sf((0.5 - math.log(1.25)) / 0.1, 39)
    assert found.p_image.tolist() == pytest.approx([wanted, 1.0])
    assert found.p.tolist() == pytest.approx([1 / 6, 1.0])
    assert found.verdict == (ASSOCIATED, CANNOT_TELL)
    assert np.isnan(found.images_needed[0])
    narrow = (math.log(1.25) - 0.2) / 1.645
    assert found.images_needed[1] == math.ceil(50 * (0.1 / narrow) ** 2)


def test_more_groups_pay_for_their_choice() -> None:
    rng = np.random.default_rng(0)
    neutral = rng.normal(scale=0.1, size=(400, 7))
    one = np.zeros((1, 7))
    one[0, 3] = 0.5
    found = word_verdicts(one, np.full((1, 7), 0.1), neutral, [100] * 7)
    assert found.group.tolist() == [3]
    assert found.p_image[0] == pytest.approx(14 * student.sf((0.5 - math.log(1.25)) / 0.1, 99))


def test_few_neutral_words_give_sizes_and_no_flags() -> None:
    rng = np.random.default_rng(0)
    neutral = rng.normal(scale=0.01, size=(299, 1)) * [1, -1]
    found = word_verdicts([[2.0, -2.0]] * 40, np.full((40, 2), 0.01), neutral, [500, 500])
    assert (found.p == 1 / 300).all()
    assert set(found.verdict) == {CANNOT_TELL}


@pytest.mark.parametrize(("beyond", "verdict"), [(2, CANNOT_TELL), (3, ASSOCIATED)])
def test_a_class_must_stand_out_before_its_words_do(beyond: int, verdict: str) -> None:
    """2 of 45 words beyond all 358 neutral words: adjusted p .063, within the 10% of words."""
    neutral = np.linspace(-0.3, 0.3, 358)[:, None] * [1, -1]
    words = np.full((45, 2), 0.0)
    words[:beyond] = [2.0, -2.0]
    found = word_verdicts(words, np.full((45, 2), 0.01), neutral, [500, 500])
    assert found.p_bh[0] == pytest.approx(45 / 359 / beyond)
    assert found.verdict[:beyond] == (verdict,) * beyond
    assert fewest_words_flagged_together(45, 358) == 3


def test_words_that_are_like_neutral_words_are_rarely_flagged() -> None:
    """In at most 5% of classes, however large their lifts are."""
    flagged = []
    for seed in range(400):
        sizes = np.random.default_rng(seed).normal(size=(403, 1)) * [1, -1]
        found = word_verdicts(sizes[:45], np.full((45, 2), 0.01), sizes[45:], [500, 500])
        flagged.append(bool(found.flagged.any()))
    assert np.mean(flagged) <= 0.05


def test_neutral_words_are_weighted_to_the_mix_of_captions_of_words() -> None:
    """Without weights, words of a caption in which scores vary more would stand out."""
    rng = np.random.default_rng(0)
    words, neutral = ["a"] * 100 + ["an"] * 100, ["a"] * 600 + ["an"] * 200
    plain, weighted = [], []
    for _ in range(60):
        w, n = (rng.normal(scale=[{"a": 0.1, "an": 0.4}[kind] for kind in kinds])[:, None] * [1, -1]
                for kinds in (words, neutral))  # fmt: skip
        for found, weights in ((plain, None), (weighted, neutral_weights(words, neutral))):
            judged = word_verdicts(w, np.full(w.shape, 0.1), n, [90, 90], weights=weights)
            found.append(float((judged.p_word < 0.05).mean()))
    assert np.mean(plain) > 0.08
    assert np.mean(weighted) == pytest.approx(0.05, abs=0.01)
    weights = neutral_weights(words, neutral)
    assert weights[-1] / weights[0] == pytest.approx(3)
    assert weights.sum() == pytest.approx(800**2 / (600 * (2 / 3) ** 2 + 200 * 2**2))
    assert neutral_weights(["a"] * 3, ["a"] * 300).tolist() == [1.0] * 300
    assert neutral_weights(["a"] * 3, ["a", "an"]).tolist() == [1.0, 0.0]


def test_undefined_lift_has_no_verdict() -> None:
    neutral = np.random.default_rng(0).normal(size=(300, 1)) * [1, -1]
    found = word_verdicts([[np.nan, np.nan], [0.0, 0.0]], np.full((2, 2), 0.01), neutral, [90, 90])
    assert found.verdict == (None, NO_LARGER)
    assert found.group[0] == -1
    assert np.isnan([found.lift[0], found.p_word[0], found.p_image[0], found.p[0]]).all()


def test_bad_input() -> None:
    neutral = np.random.default_rng(0).normal(size=(300, 2))
    fine = np.zeros((1, 2))
    with pytest.raises(InputError, match="20 images each; got \\[19, 90\\]"):
        word_verdicts(fine, fine + 0.1, neutral, [19, 90])
    with pytest.raises(InputError, match="at least two groups"):
        word_verdicts(fine[:, :1], fine[:, :1], neutral[:, :1], [90])
    with pytest.raises(InputError, match="no neutral words"):
        word_verdicts(fine, fine + 0.1, neutral[:0], [90, 90])
    with pytest.raises(InputError, match="do not differ"):
        word_verdicts(fine, fine + 0.1, neutral * 0, [90, 90])
    with pytest.raises(InputError, match="same groups"):
        word_verdicts(fine, fine + 0.1, neutral[:, :1], [90, 90])
    with pytest.raises(InputError, match="at least two categories"):
        category_p(fine, [0.1, 0.1], neutral[:1])


def test_an_attribute_in_one_word() -> None:
    def words(*verdicts: str | None) -> WordVerdicts:
        some = np.zeros(len(verdicts))
        return WordVerdicts(some.astype(int), some, some, some, some, some, verdicts, some)

    assert attribute_verdict(words(ASSOCIATED, NO_LARGER), 0.96) == CLEAR
    assert attribute_verdict(words(ASSOCIATED, NO_LARGER), 0.95) == WEAK
    assert attribute_verdict(words(ASSOCIATED), math.nan) == WEAK
    assert attribute_verdict(words(NO_LARGER, CANNOT_TELL, None), 0.99) == NONE_FOUND
    assert attribute_verdict(words(NO_LARGER, CANNOT_TELL, CANNOT_TELL), 0.99) == CANNOT_TELL
    assert attribute_verdict(words(None), 0.5) == CANNOT_TELL


def test_categories_of_neutral_words_set_the_noise_of_a_category() -> None:
    """Words of one category share what is theirs: with words as units all would be significant."""
    rng = np.random.default_rng(0)
    alarms, naive = 0, 0
    for _ in range(400):
        shared = rng.normal(scale=0.2, size=(11, 1, 1))  # ten neutral categories and one of words
        words = shared + rng.normal(scale=0.1, size=(11, 30, 1))
        both = words * [1, -1]
        mean, p = category_p(both[0], [0.0, 0.0], both[1:].mean(axis=1))
        alarms += p[0] < 0.05
        spread = words[0].std(ddof=1) / math.sqrt(30)
        naive += 2 * student.sf(abs(mean[0]) / spread, 29) < 0.05
    assert alarms / 400 < 0.085
    assert naive / 400 > 0.5


def test_splits_do_not_follow_the_annotated_cells() -> None:
    rng = np.random.default_rng(0)
    cells = np.arange(1200) % 4
    embeddings = rng.normal(size=(1200, 16)) + 5 * np.eye(16)[cells]
    for groups in (2, 5):
        for codes in random_visible_splits(embeddings, cells, groups, 5, rng):
            table = np.histogram2d(codes, cells, bins=(groups, 4))[0]
            assert table.min() > 0.6 * 1200 / groups / 4
    # what a split follows is visible: images of one side lie together
    codes = random_visible_splits(embeddings, cells, 2, 1, rng)[0]
    sides = embeddings[codes == 1].mean(axis=0) - embeddings[codes == 0].mean(axis=0)
    chance = [np.linalg.norm(embeddings[order[:600]].mean(0) - embeddings[order[600:]].mean(0))
              for order in (rng.permutation(1200) for _ in range(50))]  # fmt: skip
    assert np.linalg.norm(sides) > max(chance)
    with pytest.raises(InputError, match="0 or more; got -3"):
        random_visible_splits(embeddings, cells, 2, -3, rng)
    with pytest.raises(InputError, match="a cell for each embedding"):
        random_visible_splits(embeddings, cells[:5], 2, 1, rng)
