"""Caption choice: reference models, hand-made cases, planted tilts, and what chance would give."""

from __future__ import annotations

import itertools
import re
import shutil
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, kstest

import tiltmeter as tm
from tests.conftest import write_csv
from tests.datasets.making import text
from tiltmeter.cli import app as cli
from tiltmeter.errors import InputError
from tiltmeter.metrics.stereotype import caption_choices
from tiltmeter.pages.terminal import run as show_run
from tiltmeter.probes.probe import CannotRunError
from tiltmeter.probes.stereotype.across_models import cases as single_cases
from tiltmeter.probes.stereotype.across_models import (
    compare_choices,
    correlated,
    relevance_and_bias,
)
from tiltmeter.probes.stereotype.caption_choice import (
    IMAGE_KINDS,
    KINDS,
    CaptionCases,
    LookupMatcher,
    at_random,
    biased,
    fingerprint,
    ideal,
    other_rows,
    readings,
)
from tiltmeter.probes.stereotype.estimates import CaptionScores
from tiltmeter.probes.stereotype.probe import stereotype
from tiltmeter.probes.stereotype.shared_words import SharedWords
from tiltmeter.probes.stereotype.statistics import CaptionSets, Ratio
from tiltmeter.probes.texts import neutral_captions
from tiltmeter.results import Run
from tiltmeter.stats.resampling import Resampling
from tiltmeter.testbed.triplets import OracleMatcher, triplets
from tiltmeter.testbed.world import World
from tiltmeter.types import Groups

FEW = Resampling(permutations=199, bootstraps=100)


def made(n: int, *, sets: int | None = None, seed: int = 0, neutral: bool = True) -> CaptionCases:
    """Cases whose pictures are small arrays; `sets` of captions are shared out among them."""
    rng = np.random.default_rng(seed)
    at = np.arange(n) % (sets or n)
    captions = tuple(tuple(f"{kind}-{one}" for kind in ("s", "a", "irrelevant")) for one in at)
    pair = tuple((f"s' {one}", f"a' {one}") if neutral else None for one in at)
    return CaptionCases(
        ids=tuple(f"c{row}" for row in range(n)),
        captions=captions,
        neutral=pair,
        categories=Groups(at % 2, ("first", "second"), "category"),
        targets=tuple(f"t{one % 5}" for one in at),
        against=rng.permutation(np.arange(n) % 2).astype(bool),
        images=rng.integers(0, 255, (n, 4, 4, 3), dtype=np.uint8),
    )


def measured(model: Any, cases: CaptionCases, resampling: Resampling = FEW, seed: int = 0) -> Run:
    table, instances = stereotype(model, cases, resampling=resampling, seed=seed)
    return Run(table, {}, {"stereotype": instances})


def one(run: Run, metric: str, experiment: str = "matching", **where: Any) -> dict[str, Any]:
    where = {"category": None, **where}
    [row] = run.where(metric=metric, experiment=experiment, **where)
    return row


def planted(world: World, n: int, cells: int, seed: int = 0) -> tuple[Any, CaptionCases]:
    made = triplets(world, n, np.random.default_rng(seed), cells=cells)
    return made, CaptionCases.of(made, neutral_captions(made))


class Noise:
    """A model without any tilt, that sees a little: what fits the picture gets more."""

    name = "noise"

    def __init__(
        self, cases: CaptionCases, seed: int, sees: float = 1.0, tilt: float = 0.0
    ) -> None:
        self.ideal, self.seed, self.sees, self.tilt = ideal(cases), seed, sees, tilt

    def match(self, images: Any, texts: list[str]) -> np.ndarray:
        # the neutral form of a caption is scored nearly as the caption
        whole = [text.replace("'", "") for text in texts]
        alike, own = (at_random(self.seed).match(images, some) for some in (whole, texts))
        noise = 6 * (0.7 * alike + 0.3 * own)
        lean = np.array([text.startswith("s-") for text in texts])
        rare = np.array([text.startswith("irrelevant") for text in texts])
        return noise + self.sees * self.ideal.match(images, whole) + self.tilt * lean - 2 * rare


# --- by hand -------------------------------------------------------------------------------------


def by_hand() -> tuple[CaptionCases, LookupMatcher]:
    """Four pictures; those of c0, c1 and c3 go against the stereotype."""
    cases = replace(made(4), against=np.array([True, True, False, True]))
    logits = {"c0": (2, 1, 0, 0.5, 0.5), "c1": (0, 1, 0, 0, 1), "c2": (1, 0, 3, 1, 0),
              "c3": (1, 1, 0, 0, 2)}  # fmt: skip
    names = ("s-{}", "a-{}", "irrelevant-{}", "s' {}", "a' {}")
    told = {name.format(row[1]): x for row, xs in logits.items()
            for name, x in zip(names, xs, strict=True)}  # fmt: skip
    seen = {fingerprint(image) for image in cases.images}
    return cases, LookupMatcher(
        "told", lambda picture, text: told[text] if picture in seen else 0.0
    )


def test_by_hand() -> None:
    cases, model = by_hand()
    run = measured(model, cases)
    assert one(run, "vlrs")["value"] == 75  # c2 picks the irrelevant caption
    # of three pictures against it: c0 picks the stereotype, c3 half of it
    assert one(run, "vlbs")["value"] == pytest.approx(50)
    assert one(run, "ivlas")["value"] == pytest.approx(2 * 75 * 50 / 125)
    assert one(run, "vlbs", category="first")["value"] == 100  # c0
    assert one(run, "vlbs", category="second")["value"] == 25  # c1, c3
    assert one(run, "vlbs")["n"] == 3
    # c2 fits the stereotype, and none of its choice goes the other way
    assert one(run, "vlbs_excess")["value"] == pytest.approx(50)

    def log_p(a: float, b: float) -> float:
        return -np.log1p(np.exp(b - a))

    shift = [log_p(2, 1) - log_p(0.5, 0.5), log_p(0, 1) - log_p(0, 1), log_p(1, 1) - log_p(0, 2)]
    row = one(run, "lmss", split="all")
    assert (row["value"], row["n"]) == (pytest.approx(np.mean(shift)), 3)
    assert one(run, "lmss_above_zero", split="all")["value"] == pytest.approx(2 / 3)
    # where the stereotype was picked: c0 whole, c3 half
    picked = one(run, "lmss", split="selected")
    assert picked["value"] == pytest.approx((shift[0] + shift[2] / 2) / 1.5)
    # beside a white image all captions are alike: p is 1/2
    white = [log_p(0.5, 0.5), log_p(0, 1), log_p(0, 2)]
    row = one(run, "vlss", "matching, white image", split="all")
    assert row["value"] == pytest.approx(np.mean(white) - np.log(0.5))


def test_the_three_probabilities_are_kept() -> None:
    run = measured(*reversed(by_hand()))
    [case] = single_cases(run, "matching")
    e = np.exp([2, 1, 0])
    assert case.id == "c0"
    assert list(case.probabilities.values()) == pytest.approx(e / e.sum())
    assert case.captions["stereotypical"] == "s-0"
    assert case.groups == {"category": "first", "target": "t0", "image": "anti-stereotypical"}
    assert "<- the image" in str(case).splitlines()[2]
    every = {case.id: case for case in single_cases(run, "matching", stereotyped=False)}
    assert every["c3"].pick == "stereotypical / anti-stereotypical"
    rows = run.instances["stereotype"].to_pylist()
    shifts = [row for row in rows if row["concept"] == "lmss"]
    assert {row["id"] for row in shifts} == {"c0", "c1", "c3"}  # distributions are over these
    assert np.mean([row["score"] for row in shifts]) == pytest.approx(
        one(run, "lmss", split="all")["value"]
    )
    with pytest.raises(InputError, match="no cases of 'cosine'; it has matching"):
        single_cases(run, "cosine")


@given(st.lists(st.tuples(*[st.integers(0, 2)] * 3, st.booleans()), min_size=3, max_size=12))
def test_against_a_slow_reference(drawn: list[tuple[int, int, int, bool]]) -> None:
    """Counting one by one, with parts for ties; the same in each category."""
    cases = replace(made(len(drawn)), against=np.array([row[3] for row in drawn]))
    scores = np.array([row[:3] for row in drawn], float)
    sets = CaptionSets.of(cases, 0, 0, np.random.default_rng(0))
    choice = CaptionScores(
        cases, sets, "x", {"true": scores, **dict.fromkeys(("white", "none", "wrong"))}
    )
    rows = choice.rows()
    for category in (None, "first", "second"):
        irrelevant = stereotyped = anti = count = 0.0
        for at, row in enumerate(drawn):
            if category is not None and ("first", "second")[at % 2] != category:
                continue
            top = [k for k in range(3) if row[k] == max(row[:3])]
            count += 1
            irrelevant += (2 in top) / len(top)
            anti += row[3]
            stereotyped += row[3] * (0 in top) / len(top)
        found = {r["metric"]: r for r in rows if r["experiment"] == "x"
                 and r.get("category") == category}  # fmt: skip
        assert found["vlrs"]["value"] == pytest.approx(100 * (1 - irrelevant / count))
        if anti:
            assert found["vlbs"]["value"] == pytest.approx(100 * stereotyped / anti)
        else:
            assert "goes against" in found["vlbs"]["note"]


# --- reference models ----------------------------------------------------------------------------


def of_photographs(place: Path, n: int = 40) -> CaptionCases:
    """A table in the layout of the real one, with photographs that differ."""
    from PIL import Image

    rows = [{"bias_type": ("race", "gender")[at % 2], "target": "sister", "context": "My sister is",
             "stereotype": f"My sister is caring {at // 2}",
             "anti-stereotype": f"My sister is rude {at // 2}",
             "unrelated": f"My sister is hi {at // 2}", "label": at % 3 % 2,
             "Imaeg URL": f"http://x/{at}"} for at in range(n)]  # fmt: skip
    write_csv(place / "s.csv", rows)
    (place / "p").mkdir()
    rng = np.random.default_rng(0)
    for at in range(n):
        noise = rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)
        Image.fromarray(noise).save(place / "p" / f"{at + 1}.png")
    found = tm.load_data(f"vlstereo:{place / 's.csv'}?images={place / 'p'}")
    return CaptionCases.of(found, neutral_captions(found))


@pytest.mark.parametrize("kind", ["photographs", "scenes", "arrays"])
def test_reference_models(kind: str, tmp_path: Path) -> None:
    """IDM 100/0/100, BIM 100/100/0, exactly; RAM 66.67/33.33/66.67 within chance."""
    if kind == "photographs":
        cases = of_photographs(tmp_path)
    else:
        cases = made(150) if kind == "arrays" else planted(World.plant(1.0), 150, 2)[1]
    expected = {"IDM": (100, 0, 100), "BIM": (100, 100, 0)}
    for model in (ideal(cases), biased(cases)):
        run = measured(model, cases)
        for category in (None, *cases.categories.names):
            got = tuple(one(run, m, category=category)["value"] for m in ("vlrs", "vlbs", "ivlas"))
            assert got == expected[model.name]
    run = measured(at_random(1), cases)
    for metric, chance, n in (("vlrs", 2 / 3, len(cases)), ("vlbs", 1 / 3, cases.against.sum())):
        low, high = binom.ppf([0.001, 0.999], n, chance) / n
        assert low <= one(run, metric)["value"] / 100 <= high
        assert one(run, metric)["p"] > 0.001
    assert one(run, "ivlas")["p"] > 0.001
    assert one(run, "vlrs")["null_mean"] == pytest.approx(200 / 3)


def test_the_ideal_model_needs_to_see() -> None:
    """Beside a white image, none, or another's it cannot tell."""
    cases = made(60)
    run = measured(ideal(cases), cases)
    for shown in ("white image", "no image", "wrong image"):
        assert one(run, "vlbs", f"matching, {shown}")["value"] == pytest.approx(100 / 3)
    with pytest.raises(InputError, match="needs images"):
        ideal(replace(cases, images=None))


# --- what chance would give ----------------------------------------------------------------------


def test_the_null_against_all_signs() -> None:
    """Each set's part of the difference with either sign: all 2^6 ways, one by one."""
    cases = replace(made(24, sets=6, seed=3), against=np.arange(24) % 3 == 0)
    rng = np.random.default_rng(0)
    wrong = rng.integers(0, 2, 24).astype(float)
    ratio = Ratio(wrong, np.ones(24), cases.against, np.ones(24, bool),
                  CaptionSets.of(cases, 0, 4000, rng))  # fmt: skip
    pooled, parts = wrong.mean(), []
    for one_set in range(6):
        mine = [row for row in range(24) if cases.sets[row] == one_set]
        anti = sum(wrong[row] - pooled for row in mine if cases.against[row]) / 8
        fits = sum(wrong[row] - pooled for row in mine if not cases.against[row]) / 16
        parts.append(anti - fits)
    observed = wrong[cases.against].mean() - wrong[~cases.against].mean()
    assert sum(parts) == pytest.approx(observed)
    exact = [np.dot(signs, parts) * np.sqrt(6 / 5)
             for signs in itertools.product([-1, 1], repeat=6)]  # fmt: skip
    assert ratio.null is not None
    assert set(np.round(ratio.null, 9)) <= set(np.round(exact, 9))
    share = np.mean(np.abs(exact) >= abs(observed) - 1e-9)
    assert ratio.excess_row(1.0)["p"] == pytest.approx(share, abs=0.04)
    assert ratio.row(share=True)["p"] == ratio.excess_row(1.0)["p"]  # one test, two figures
    assert ratio.row(share=True)["null_mean"] == pytest.approx(pooled, abs=0.01)


def test_without_a_tilt_alarms_are_rare_and_selection_is_no_finding() -> None:
    """A model that sees some and leans nowhere: shares above 0 among its stereotypes are far above
    one half, since they were selected; the reference is just as high, and p-values are even. As in
    the released table, fewer pictures go against the stereotype than fit it."""
    p: dict[str, list[float]] = {"vlbs": [], "lmss": [], "selected": []}
    shares, references, everywhere, errors = [], [], [], []
    for seed in range(80):
        rng = np.random.default_rng(seed)
        cases = replace(made(200, sets=100, seed=seed), against=rng.uniform(size=200) < 0.33)
        texts = [(*three, *pair) for three, pair in zip(cases.captions, cases.neutral, strict=True)]
        scores = readings(Noise(cases, seed), cases, np.arange(200))["matching"]("true", texts)
        choice = CaptionScores(cases, CaptionSets.of(cases, 0, 199, rng), "matching",
                        {"true": scores, **dict.fromkeys(("white", "none", "wrong"))})  # fmt: skip
        found = {(row["metric"], row.get("split")): row
                 for row in [*choice.rows(), *choice.shift_rows(1.0, "matching")]
                 if row.get("category") is None and row["experiment"] == "matching"}  # fmt: skip
        selected = found["lmss_above_zero", "selected"]
        shares.append(selected["value"])
        references.append(selected["null_mean"])
        everywhere.append(found["lmss_above_zero", "all"]["value"])
        errors.append(found["vlbs", None]["value"])
        p["vlbs"].append(found["vlbs", None]["p"])
        p["lmss"].append(found["lmss", "all"]["p"])
        p["selected"].append(selected["p"])
    assert np.mean(errors) > 20  # it errs, although it does not lean
    assert np.mean(shares) > 0.57 > np.mean(everywhere)
    assert np.mean(shares) == pytest.approx(np.mean(references), abs=0.02)
    for values in p.values():
        assert kstest(values, "uniform").pvalue > 0.005
        assert np.mean(np.array(values) <= 0.05) <= binom.ppf(0.999, 80, 0.05) / 80


def test_the_null_of_chance_against_all_orders() -> None:
    """Each set's captions in any order, the same for all its images: all 6^4 ways, one by one."""
    cases = made(30, sets=4, seed=1)
    scores = np.random.default_rng(7).integers(0, 9, (30, 3)) + 0.0  # some ties
    scores[:8] += [0, 0, 9]  # irrelevant captions are picked too often
    sets = CaptionSets.of(cases, 0, 4000, np.random.default_rng(0))
    choice = CaptionScores(
        cases, sets, "x", {"true": scores, **dict.fromkeys(("white", "none", "wrong"))}
    )
    found = {row["metric"]: row for row in choice.rows()
             if row["experiment"] == "x" and row["category"] is None}  # fmt: skip
    exact: dict[str, list[float]] = {"vlrs": [], "ivlas": []}
    for orders in itertools.product(itertools.permutations(range(3)), repeat=4):
        turned = np.stack([scores[row, list(orders[at])] for row, at in enumerate(cases.sets)])
        exact["vlrs"].append(float(tm.metrics.vlrs(turned)))
        exact["ivlas"].append(float(tm.metrics.ivlas(turned, cases.against)))
    for metric, values in exact.items():
        row, null = found[metric], np.array(values)
        tails = ((null >= row["value"] - 1e-9).mean(), (null <= row["value"] + 1e-9).mean())
        assert row["p"] == pytest.approx(min(1.0, 2 * min(tails)), abs=0.03), metric
        assert row["null_mean"] == pytest.approx(null.mean(), abs=0.5), metric
    assert found["vlrs"]["null_mean"] == pytest.approx(200 / 3)


CHANCE = {"vlrs": 200 / 3, "vlbs": 100 / 3, "ivlas": 200 / 3, "vlbs_excess": 0.0, "lmss": 0.0,
          "vlss": 0.0, "lmss_above_zero": 0.5, "vlss_above_zero": 0.5}  # fmt: skip


def by_chance(
    cases: CaptionCases, share: float, seed: int, draws: int, bootstraps: int
) -> CaptionScores:
    """Scores of a model without a bias: a caption has an effect of its own, the same for all images
    that have it (`share` of the variance), and the rest is noise of the image. A neutral form is
    half its caption. Beside a white image and none, all is the caption's."""
    rng = np.random.default_rng([seed, round(100 * share)])
    texts = [(*three, *(pair or three[:2]))
             for three, pair in zip(cases.captions, cases.neutral, strict=True)]  # fmt: skip
    name: dict[str, int] = {}
    at = np.array([[name.setdefault(text, len(name)) for text in row] for row in texts])
    of = np.arange(len(name))  # the caption that a text is the neutral form of, else itself
    of[at[:, 3:]] = at[:, :2]

    def alike(x: np.ndarray, of: np.ndarray) -> np.ndarray:
        own = of == np.arange(x.shape[-1])
        return np.where(own, x, np.sqrt(0.5) * (x[..., of] + x))

    def effects() -> np.ndarray:
        return alike(rng.normal(size=len(name)), of)[at]

    def noise() -> np.ndarray:
        return alike(rng.normal(size=at.shape), np.array([0, 1, 2, 0, 1]))

    def mixed(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return 2 * (np.sqrt(share) * x + np.sqrt(1 - share) * y)

    caption = effects()
    scores = {"true": mixed(caption, noise()), "wrong": mixed(caption, noise()),
              "white": mixed(caption, effects()), "none": mixed(caption, effects())}  # fmt: skip
    return CaptionScores(cases, CaptionSets.of(cases, bootstraps, draws, rng), "matching", scores)


Counted = dict[tuple[str, ...], list[bool]]  # by metric, experiment and split


def alarms(choices: Iterable[CaptionScores]) -> tuple[Counted, Counted]:
    """Of each metric over all cases: where p <= .05, and where the interval covers the truth."""
    p, covered = defaultdict(list), defaultdict(list)
    for choice in choices:
        for row in [*choice.rows(), *choice.shift_rows(1.0, "matching")]:
            if row["category"] is not None:
                continue
            key = (row["metric"], row["experiment"], row.get("split") or "")
            p[key].append(row["p"] <= 0.05)
            if row.get("split") != "selected":  # its truth is no round number
                covered[key].append(row["ci_low"] <= CHANCE[row["metric"]] <= row["ci_high"])
    return p, covered


def test_images_that_share_captions_raise_no_alarm() -> None:
    """Forty sets of one to nine images, and a model that goes by its taste in captions."""
    sizes = np.arange(40) % 5 * 2 + 1
    cases = made(40, seed=1).select(np.repeat(np.arange(40), sizes))
    cases = replace(cases, against=np.random.default_rng(0).uniform(size=len(cases)) < 0.33)
    p: dict[str, list[float]] = {"vlrs": [], "ivlas": []}
    for seed in range(150):
        choice = by_chance(cases, 0.9, seed, 199, 0)
        choice = replace(
            choice, scores={**dict.fromkeys(IMAGE_KINDS), "true": choice.scores["true"]}
        )
        for row in choice.rows():
            if row["metric"] in p and row["experiment"] == "matching" and row["category"] is None:
                p[row["metric"]].append(row["p"])
    for metric, values in p.items():
        assert kstest(values, "uniform").pvalue > 0.005, metric
        assert np.mean(np.array(values) <= 0.05) <= binom.ppf(0.999, 150, 0.05) / 150, metric


@pytest.mark.slow
def test_false_positives_and_coverage_on_the_real_table(shared: Callable[[str], Path]) -> None:
    """Of 300 models without a bias that go by captions, and 300 that go half by the image."""
    data = tm.load_data(f"vlstereo:{shared('data/vlstereoset/VLStereoSet.csv')}")
    cases = CaptionCases.of(data, neutral_captions(data))
    assert (len(cases), cases.sets.max() + 1) == (1_958, 883)
    models = [(share, seed) for share in (0.9, 0.5) for seed in range(300)]
    p, covered = alarms(by_chance(cases, *model, draws=199, bootstraps=100) for model in models)
    for key, found in p.items():  # one reading
        assert np.mean(found) <= binom.ppf(0.999, len(found), 0.05) / len(found), key
    for metric, split in sorted({(key[0], key[2]) for key in p}):
        every = [key for key in p if (key[0], key[2]) == (metric, split)]  # readings
        rate = np.mean([p[key] for key in every])
        print(f"{metric} {split}: p <= .05 in {100 * rate:.1f}%", end="")
        assert rate <= 0.065, (metric, split)
        if split != "selected":
            cover = np.mean([covered[key] for key in every])
            print(f", interval covers in {100 * cover:.1f}%", end="")
            assert cover >= 0.93, (metric, split)
        print()


def test_a_tilt_is_found() -> None:
    """The same model with a lean: vlbs beyond errors the other way, and lmss above 0."""
    cases = made(160, sets=80)
    leaning = measured(Noise(cases, 0, tilt=1.5), cases)
    excess = one(leaning, "vlbs_excess")
    assert excess["ci_low"] > 0
    assert (excess["p"], one(leaning, "vlbs")["p"]) == (pytest.approx(0.01), pytest.approx(0.01))
    assert one(leaning, "vlbs")["value"] > one(leaning, "vlbs")["null_high"]
    assert (
        one(leaning, "lmss", split="all")["value"] > one(leaning, "lmss", split="all")["null_high"]
    )


def test_pictures_that_share_captions_are_no_more_evidence() -> None:
    """Each case four times over: the interval stays as wide as that of the sets."""
    once = made(50, seed=1)
    four = np.tile(np.arange(50), 4)
    repeated = replace(once.select(four), ids=tuple(map(str, range(200))))
    model = at_random(3)
    rows = [one(measured(model, cases), "vlbs") for cases in (once, repeated)]
    width = [row["ci_high"] - row["ci_low"] for row in rows]
    assert rows[0]["value"] == rows[1]["value"]
    assert width[1] == pytest.approx(width[0], rel=0.25)
    assert [row["n"] for row in rows] == [25, 100]


# --- controls ------------------------------------------------------------------------------------


@given(st.lists(st.sampled_from("abcde"), min_size=2, max_size=30), st.integers(0, 5))
def test_another_picture_is_another(targets: list[str], seed: int) -> None:
    other = other_rows(targets, np.random.default_rng(seed))
    assert sorted(other) == list(range(len(targets)))
    assert (other != np.arange(len(targets))).all()
    if max(targets.count(one) for one in targets) * 2 <= len(targets):
        assert all(targets[at] != targets[row] for row, at in enumerate(other))


def test_a_model_of_lengths_is_found_out() -> None:
    cases = made(120, sets=60)
    rng = np.random.default_rng(0)
    longer = [tuple(text + "x" * rng.integers(0, 9) for text in three) for three in cases.captions]
    of_set = {at: longer[row] for row, at in enumerate(cases.sets)}
    cases = replace(cases, captions=tuple(of_set[at] for at in cases.sets))
    short = measured(LookupMatcher("short", lambda picture, text: -float(len(text))), cases)
    assert one(short, "shortest")["value"] == 100
    assert one(short, "shortest")["p"] == pytest.approx(0.01)
    assert one(short, "length_spearman")["value"] == pytest.approx(-1)
    assert one(short, "length_spearman")["p"] == pytest.approx(0.01)
    blind = measured(at_random(0), cases)
    assert one(blind, "shortest")["p"] > 0.01
    assert one(blind, "length_spearman")["p"] > 0.01


class ByPlace:
    """Its logits hang on where a text stands in the list."""

    name = "by place"

    def match(self, images: Any, texts: list[str]) -> np.ndarray:
        kind = np.array([len(text) % 3 for text in texts])
        return 0.5 * kind + (np.arange(len(texts)) % 2)


def test_a_model_that_goes_by_the_place_is_found_out() -> None:
    cases = made(30)
    assert one(measured(ByPlace(), cases), "position")["value"] > 20
    assert one(measured(at_random(0), cases), "position")["value"] == 0


# --- dual encoders -------------------------------------------------------------------------------


class Towers:
    """Vectors from what a picture and a text hold; a scale of its own."""

    name = "towers"
    logit_scale = 10.0

    def encode_images(self, images: Any) -> np.ndarray:
        return np.stack([self._of(fingerprint(image)) for image in images])

    def encode_texts(self, texts: Any) -> np.ndarray:
        return np.stack([self._of(text) for text in texts])

    def _of(self, name: str) -> np.ndarray:
        return np.random.default_rng(list(name.encode())).normal(size=6)


def test_cosines_at_both_scales() -> None:
    """Another scale changes probabilities and the size of shifts, no pick and no sign."""
    cases = made(40)
    run = measured(Towers(), cases)
    x, t = Towers().encode_images(cases.images), Towers().encode_texts(cases.captions[7])
    cosine = t @ x[7] / np.linalg.norm(t, axis=1) / np.linalg.norm(x[7])
    for reading, scale in (("cosine", 1.0), ("cosine x logit scale", 10.0)):
        every = {case.id: case for case in single_cases(run, reading, stereotyped=False)}
        e = np.exp(scale * cosine)
        assert list(every["c7"].probabilities.values()) == pytest.approx(e / e.sum())
        assert every["c7"].pick == KINDS[int(np.argmax(cosine))]
    small, large = (
        one(run, "lmss", way, split="all") for way in ("cosine", "cosine x logit scale")
    )
    assert abs(large["value"]) > 2 * abs(small["value"])
    shares = [one(run, "lmss_above_zero", way, split="all")["value"]
              for way in ("cosine", "cosine x logit scale")]  # fmt: skip
    assert shares[0] == shares[1]
    assert one(run, "vlbs", "cosine, no image")["note"].startswith(
        "this model cannot score captions"
    )
    assert not run.where(experiment="matching")


@pytest.mark.parametrize("kind", ["matching", "cosine"])
def test_a_wrong_picture_is_that_of_the_other_row(kind: str) -> None:
    cases = made(70)  # more than a block
    other = other_rows(cases.targets, np.random.default_rng(0))
    model = Towers() if kind == "cosine" else at_random(0)
    [way] = readings(model, cases, other).values()
    [moved] = readings(model, replace(cases, images=cases.images[other]), other).values()
    wrong = way("wrong", cases.captions)
    assert wrong == pytest.approx(moved("true", cases.captions))
    assert (np.abs(wrong - way("true", cases.captions)) > 1e-6).all()


def test_vectors_brought_along_are_used() -> None:
    cases = made(20)
    vectors = Towers().encode_images(cases.images)
    blind = replace(cases, images=None)
    whole = stereotype(Towers(), cases, resampling=FEW)[0]
    assert stereotype(Towers(), blind, vectors=vectors, resampling=FEW)[0].equals(whole)


def test_a_model_that_can_do_neither() -> None:
    with pytest.raises(InputError, match="expected match"):
        readings(object(), made(4), np.arange(4))


# --- planted tilts -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "lmss", "vlss"), [("words", 1, 0), ("images", 0, 1), ("both", 1, 1)]
)
def test_where_the_tilt_comes_from(where: str, lmss: int, vlss: int) -> None:
    """A model of captions: lmss shows a tilt of words, vlss one of pictures, and only these."""
    world = World.plant(1.0, where=where)
    _, cases = planted(world, 300, cells=0)
    run = measured(OracleMatcher(world), cases)
    for metric, way, sign in (
        ("lmss", "matching", lmss),
        ("vlss", "matching, white image", vlss),
        ("vlss", "matching, no image", vlss),
    ):
        row = one(run, metric, way, split="all")
        share = one(run, f"{metric}_above_zero", way, split="all")
        if sign:
            assert row["ci_low"] > 0
            assert row["p"] == pytest.approx(0.01)
            assert share["value"] > 0.9
        else:
            assert row["value"] == pytest.approx(0, abs=1e-9)
            assert share["value"] == 0
    # what was planted is there to see: the stereotype is picked although the icon is hidden
    assert one(run, "vlbs")["value"] > 70


@pytest.mark.parametrize("where", ["words", "images", "both"])
def test_a_perfect_matching_head_turns_lmss_round(where: str) -> None:
    """It takes off how probable a caption is by itself, and with it the tilt of its words: where
    the target is named, a picture of that target says less. The card tells it."""
    world = World.plant(1.0, where=where)
    _, cases = planted(world, 300, cells=0)
    run = measured(OracleMatcher(world, "matching"), cases)
    assert one(run, "lmss", split="all")["ci_high"] < 0
    assert one(run, "vlrs")["value"] == one(run, "vlrs")["truth"]
    assert one(run, "vlbs")["value"] == one(run, "vlbs")["truth"]


def test_without_any_tilt_nothing_shifts() -> None:
    world = World.plant(0.0)
    _, cases = planted(world, 200, cells=0)
    for reading in ("caption", "matching"):
        run = measured(OracleMatcher(world, reading), cases)
        assert one(run, "vlbs")["value"] == pytest.approx(100 / 3)
        for metric, way in (("lmss", "matching"), ("vlss", "matching, white image")):
            assert one(run, metric, way, split="all")["value"] == pytest.approx(0, abs=1e-9)


#: Logits by which a perfect head's pick must lead before a trained one can be held to it: heads are
#: off by up to .5. Where a caption names all that the image shows, it leads by less than .2.
CLEAR = 0.5


def chosen(spec: str, cells: int, n: int = 160) -> dict[str, tuple[float, float, float]]:
    """By reading: vlbs, its excess over errors the other way, and in how many per cent of the cases
    where the perfect choice is clear it is the model's too."""
    model = tm.load_model(spec, device="cpu")
    data, cases = planted(World.plant(model.provenance["strength"]), n, cells, seed=cells)
    sets = CaptionSets.of(cases, 0, 0, np.random.default_rng(0))
    found = {}
    for name, way in readings(model, cases, np.arange(n)).items():
        scores = way("true", cases.captions)
        choice = CaptionScores(cases, sets, name, {"true": scores})
        ratio = Ratio(
            choice.error_shares(scores), np.ones(n), cases.against, np.ones(n, bool), sets
        )
        found[name] = (100 * ratio.observed, 100 * (ratio.observed - ratio.other_side),
                       agreement(scores, data.best))  # fmt: skip
    return found


def agreement(scores: np.ndarray, best: np.ndarray) -> float:
    """Per cent of clear cases whose pick is the perfect one; NaN where none is clear."""
    first = np.sort(best, axis=1)
    clear = first[:, 2] - first[:, 1] >= CLEAR
    same = (caption_choices(scores) * caption_choices(best)).sum(axis=1)
    return 100 * float(same[clear].mean()) if clear.any() else np.nan


def test_a_trained_model_against_the_perfect_choice() -> None:
    """As less of the icon shows, the stereotype takes over; in the fair twin it does not."""
    hidden, some, most = (chosen("testbed:dual", cells)["cosine"] for cells in (0, 1, 6))
    for *_, agreed in (hidden, some, most):
        assert agreed > 90
    assert hidden[0] > some[0] > most[0]
    assert most[0] < 5
    fair = chosen("testbed:dual?twin=fair", 0)["cosine"]
    assert hidden[1] > 30  # the bias is there
    assert abs(fair[1]) < 20  # and here it is not, although this one errs too
    assert fair[0] > 20
    # that twin does not know this world's tilt, and agreement shows it
    data, cases = planted(World.plant(1.0), 160, 0)
    twin = readings(tm.load_model("testbed:dual?twin=fair", device="cpu"), cases, np.arange(160))
    assert agreement(twin["cosine"]("true", cases.captions), data.best) < 60


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dual", "fusion", "stream"])
def test_the_curve_of_every_trained_model(kind: str) -> None:
    for cells in (0, 1, 2, 4, 8):
        for name, (*_, agreed) in chosen(f"testbed:{kind}", cells, 400).items():
            assert agreed > 90, (name, cells)
        for name, (_, excess, _) in chosen(f"testbed:{kind}?twin=fair", cells, 400).items():
            assert abs(excess) < 15, (name, cells)


def test_an_audit_of_the_testbed() -> None:
    run = tm.audit("testbed:stream", data={"triplets": "testbed:triplets?images=160&cells=0"},
                   probes=["stereotype"], permutations=99, bootstraps=50)  # fmt: skip
    row = one(run, "vlbs")
    assert row["value"] > row["null_high"]
    assert row["truth"] is not None
    assert {r["category"] for r in run.where(metric="vlbs", experiment="matching")} == {
        None, "shape", "shape*hue"
    }  # fmt: skip
    for column in ("p", "p_bh", "p_fwer", "ci_low", "null_mean"):
        assert row[column] is not None
    assert run.meta["arguments"]["given"]["probes"] == ["stereotype"]


# --- real tables ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny_clip(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small random CLIP of the real class."""
    pytest.importorskip("transformers")
    from tests.models import tiny

    place = tmp_path_factory.mktemp("clip")
    tiny.clip(place)
    return f"hf:{place}"


def test_the_real_table_without_pictures(shared: Callable[[str], Path], tiny_clip: str) -> None:
    """What can run does: the choice beside a white image; the rest says what it lacks."""
    path = shared("data/vlstereoset/VLStereoSet.csv")
    run = tm.audit(tiny_clip, data={"triplets": f"vlstereo:{path}"}, probes=["stereotype"],
                   permutations=99, bootstraps=20)  # fmt: skip
    assert one(run, "vlrs", "cosine")["value"] is None
    assert "?images=DIR" in one(run, "vlrs", "cosine")["note"]
    assert "?images=DIR" in one(run, "lmss", "cosine", split="all")["note"]
    white = run.where(metric="vlbs", experiment="cosine, white image")
    counts = {row["category"]: row["n"] for row in white}
    assert counts == {None: 631, "gender": 220, "profession": 161, "race": 243, "religion": 7}
    assert all(0 <= row["ci_low"] <= row["value"] <= row["ci_high"] <= 100 for row in white)
    assert one(run, "vlrs", "cosine, white image")["n"] == 1_958


def test_the_real_table_with_some_pictures(
    shared: Callable[[str], Path], tiny_clip: str, tmp_path: Path
) -> None:
    """Photographs of other people, named by rows: one of them cannot be read."""
    path, faces = shared("data/vlstereoset/VLStereoSet.csv"), shared("data/fairface/val")
    files = sorted(faces.glob("*.jpg"))[:24]
    for at, file in enumerate(files):
        shutil.copy(file, tmp_path / f"{at * 80 + 1}.jpg")
    (tmp_path / "2.jpg").write_bytes(b"no image")
    run = tm.audit(tiny_clip, data={"triplets": f"vlstereo:{path}?images={tmp_path}"},
                   probes=["stereotype"], permutations=99, bootstraps=20)  # fmt: skip
    row = one(run, "vlrs", "cosine")
    assert row["n"] == 24
    assert one(run, "vlrs", "cosine, wrong image")["n"] == 24
    assert one(run, "lmss", "cosine", split="all")["n_undefined"] == 0
    ids = {r["id"] for r in run.instances["stereotype"].to_pylist()}
    assert ids == {str(at * 80 + 1) for at in range(24)}


def test_a_matcher_on_photographs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small random ViLT of the real class; what cannot be read is left out, and told."""
    pytest.importorskip("transformers")
    from tests.models import tiny_fused

    cases = of_photographs(tmp_path, 12)
    (tmp_path / "p" / "3.png").write_bytes(b"no image")
    (tmp_path / "vilt").mkdir()
    tiny_fused.vilt(tmp_path / "vilt", "ViltForImageAndTextRetrieval")
    data = {"triplets": f"vlstereo:{tmp_path / 's.csv'}?images={tmp_path / 'p'}"}
    run = tm.audit(f"hf:{tmp_path / 'vilt'}", probes=["stereotype"], bootstraps=20, permutations=99,
                   data=data)  # fmt: skip
    assert one(run, "vlrs")["n"] == run.meta["data"]["triplets"]["images"] == len(cases) - 1
    assert run.meta["data"]["triplets"]["unreadable"] == {"count": 1, "first": ["3"]}
    show_run(run)
    assert "1 could not be read (3)" in " ".join(capsys.readouterr().out.split())
    command = ["tiltmeter", "audit", f"hf:{tmp_path / 'vilt'}", "--probe", "stereotype",
               "--data", f"triplets={data['triplets']}", "--strict"]  # fmt: skip
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 2
    assert re.search(r"unreadable image: .*3\.png", capsys.readouterr().err)
    assert "without an image" in one(run, "vlrs", "matching, no image")["note"]
    model = tm.load_model(f"hf:{tmp_path / 'vilt'}", device="cpu")
    picture = cases.images[5]
    logits = np.array([float(model.match([picture], [text])[0]) for text in cases.captions[5]])
    every = {case.id: case for case in single_cases(run, "matching", stereotyped=False)}
    e = np.exp(logits - logits.max())
    assert "3" not in every
    assert list(every["6"].probabilities.values()) == pytest.approx(e / e.sum(), abs=1e-4)


def test_words_that_a_model_does_not_know(shared: Callable[[str], Path]) -> None:
    path = shared("data/vlstereoset/VLStereoSet.csv")
    with pytest.raises(CannotRunError, match="needs words that the model does not know"):
        tm.audit("testbed:dual", data={"triplets": f"vlstereo:{path}"}, probes=["stereotype"])


# --- several models ------------------------------------------------------------------------------


def test_mcnemar_of_two_models() -> None:
    cases = made(80)
    runs = [measured(model, cases) for model in (ideal(cases), biased(cases), at_random(5))]
    [whole, *parts] = compare_choices(runs[0], runs[1], "matching")
    assert (whole.n, whole.test.only_first, whole.test.only_second) == (40, 0, 40)
    assert whole.test.p == pytest.approx(2 * 0.5**40)
    assert whole.test.difference == 1
    assert [part.category for part in parts] == ["first", "second"]
    [same, *_] = compare_choices(runs[2], runs[2], "matching")
    assert (same.test.p, same.test.difference) == (1, 0)
    # white pictures tie for the ideal model: nothing is left to compare
    assert compare_choices(runs[0], runs[1], "matching, white image", "matching") == []
    with pytest.raises(InputError, match="different captions"):
        compare_choices(runs[0], measured(at_random(0), replace(
            cases, captions=tuple(reversed(cases.captions)))), "matching")  # fmt: skip


def test_relevance_and_bias_over_models() -> None:
    """Of the six models of the paper's Table 3, and of runs."""
    paper = {"ALBEF": (85.21, 32.30), "VisualBERT": (85.31, 38.91), "ViLT": (86.94, 41.65),
             "LXMERT": (74.22, 37.35), "CLIP": (88.04, 45.72), "FLAVA": (60.70, 28.79)}  # fmt: skip
    found = correlated(list(paper), *np.array(list(paper.values())).T)
    x, y = np.array(list(paper.values())).T
    assert found.pearson == pytest.approx(np.corrcoef(x, y)[0, 1])
    assert found.pearson > 0.6  # the paper: a positive correlation
    assert found.ci_low < 0 < found.pearson < found.ci_high  # of six models
    cases = made(60)
    runs = [measured(m, cases) for m in (ideal(cases), biased(cases), at_random(0), at_random(1))]
    over = relevance_and_bias(runs)
    assert over.models[0] == "IDM (matching)"
    assert over.vlbs[:2] == (0, 100)
    with pytest.raises(InputError, match="at least 3"):
        relevance_and_bias(runs[:2])


# --- contract ------------------------------------------------------------------------------------


def test_same_seed_same_rows() -> None:
    cases = made(40)
    first, again, other = (measured(at_random(0), cases, seed=seed).table.drop(["seed"])
                           for seed in (1, 1, 2))  # fmt: skip
    assert first.equals(again)
    assert not first.equals(other)


def test_without_draws() -> None:
    run = measured(at_random(0), made(40), Resampling(0, 0))
    assert one(run, "vlbs")["ci_method"] == "Wilson"
    assert (one(run, "vlbs")["p"], one(run, "lmss", split="all")["ci_low"]) == (None, None)


def test_what_nobody_labelled_is_undefined() -> None:
    run = measured(at_random(0), replace(made(20), against=None))
    assert one(run, "vlrs")["value"] is not None
    for metric in ("vlbs", "ivlas", "vlbs_excess"):
        assert one(run, metric)["value"] is None
        assert "do not say" in one(run, metric)["note"]
    fits = replace(made(20), against=np.zeros(20, bool))
    assert "no image goes against" in one(measured(at_random(0), fits), "vlbs")["note"]
    against = replace(made(20), against=np.ones(20, bool))
    row = one(measured(at_random(0), against), "vlbs")
    assert (row["value"] is not None, row["null_mean"]) == (True, None)


def test_captions_without_a_neutral_form_are_left_out_and_counted() -> None:
    cases = made(40)
    some = replace(cases, neutral=(None,) * 10 + cases.neutral[10:])
    row = one(measured(at_random(0), some), "lmss", split="all")
    assert row["n_undefined"] == cases.against[:10].sum()
    assert row["n"] == cases.against[10:].sum()
    assert "without a neutral form" in row["note"]
    nothing = one(measured(at_random(0), made(40, neutral=False)), "lmss", split="all")
    assert (nothing["value"], nothing["n"]) == (None, 0)


def test_a_table_of_neutral_words(tmp_path: Path) -> None:
    rows = [
        "bias_type,target,context,stereotype,anti-stereotype,unrelated,label,Image URL",
        "profession,cellist,c,A cellist is calm,A cellist is wild,A cellist is table,1,u",
        "gender,sister,c,My sister is calm,My sister is wild,My sister is table,0,u",
    ]
    data = tm.load_data(f"vlstereo:{text(tmp_path / 's.csv', *rows)}")
    sister = ("My sibling is calm", "My sibling is wild")
    assert neutral_captions(data) == [None, sister]
    own = text(tmp_path / "own.csv", "term,neutral", "cellist,person", "sister,")
    assert neutral_captions(data, str(own)) == [
        ("A person is calm", "A person is wild"),
        ("My is calm", "My is wild"),
    ]
    with pytest.raises(InputError, match="lacks the columns neutral"):
        neutral_captions(data, str(text(tmp_path / "bad.csv", "term", "x")))


def test_a_category_of_which_no_picture_is_left() -> None:
    cases = made(40)
    run = measured(at_random(0), cases.select(np.flatnonzero(cases.categories.codes == 0)))
    assert {row["category"] for row in run.where(metric="vlrs")} == {None, "first"}
    alone = measured(at_random(0), cases.select([0]))
    assert one(alone, "vlrs")["n"] == 1


def test_captions_that_are_the_same_are_refused() -> None:
    with pytest.raises(InputError, match="three different captions"):
        replace(made(2), captions=(("a", "a", "b"), ("a", "b", "c")))


def test_the_band_of_a_share_stays_within_0_and_100() -> None:
    """Few errors on a small side: the band of vlbs without bias must not start below 0."""
    rng = np.random.default_rng(0)
    words = SharedWords.of([(f"a{n}", f"b{n}", f"c{n}") for n in range(60)])
    signs = 2.0 * rng.integers(0, 2, (199, 60)) - 1
    sets = CaptionSets(np.arange(60), 60, None, signs, None, words)
    value = (np.arange(60) % 12 == 0).astype(float)
    against = np.arange(60) < 8
    ratio = Ratio(value, np.ones(60), against, np.ones(60, bool), sets)
    row = ratio.row(share=True, times=100)
    assert ratio.pooled * 100 + ratio.null.min() * 100 * 52 / 60 < 0  # the draws go below
    assert 0 <= row["null_low"] <= row["null_mean"] <= row["null_high"] <= 100
