"""Every metric meets a known bias; a metric, or a setting, that is wrong is found out."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.command_line import tiltmeter
from tests.conftest import ROOT
from tiltmeter import metrics
from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.judge.calibration import (
    Calibration,
    calibrate,
    measurement,
    protocols,
    trained,
)
from tiltmeter.judge.calibration.settings import (
    SCALE,
    SETTINGS,
    MetricReading,
    Readings,
    Setting,
    biased_words,
)
from tiltmeter.judge.calibration.trust import QUESTIONS, which_to_trust
from tiltmeter.judge.calibration.verdict import FALSE_POSITIVES, LEVEL, MetricSummary, saturation
from tiltmeter.metrics import METRICS
from tiltmeter.pages.calibration import pages
from tiltmeter.pages.calibration import plots as figures
from tiltmeter.stats.intervals import wilson
from tiltmeter.testbed.oracle import Oracle
from tiltmeter.testbed.world import World

FAMILIES = list(dict.fromkeys(SETTINGS.values()))
FEW = {
    "doses": (0, 0.5, 1, 2), "sizes": (100, 300), "images": 300, "replicates": 4, "trained": (),
}  # fmt: skip


@pytest.fixture(scope="module")
def small() -> Calibration:
    return calibrate(["weat", "vlrs"], **FEW)


def rng(*seeds: int) -> np.random.Generator:
    return np.random.default_rng(seeds)


# --- the contract ------------------------------------------------------------------------------


def test_every_metric_has_a_setting() -> None:
    assert set(SETTINGS) == set(METRICS)


@pytest.mark.parametrize("setting", FAMILIES, ids=lambda setting: setting.__name__)
def test_a_setting_gives_readings_of_its_metrics(setting: Setting) -> None:
    mine = {name for name, of in SETTINGS.items() if of is setting}
    readings = setting(World.plant(1.0), 100, 1.0, rng(0))
    assert set(readings) == mine
    for values, ideal, truth, p, _ in readings.values():
        assert np.isfinite(values).all()
        assert np.broadcast_shapes(np.shape(ideal), values.shape) == values.shape
        assert truth is None or truth.shape == values.shape
        assert p is None or (len(p) == len(values) and ((p > 0) & (p <= 1)).all())


@pytest.mark.parametrize("name", METRICS)
def test_a_setting_asks_the_metric_itself(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*_: object, **__: object) -> None:
        raise LookupError(name)

    monkeypatch.setattr(METRICS.paths[name].replace(":", "."), asked)
    with pytest.raises(LookupError, match=name):
        SETTINGS[name](World.plant(1.0), 100, 1.0, rng(0))


# --- theorems ----------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", FAMILIES, ids=lambda setting: setting.__name__)
def test_without_tilt_no_test_fires_more_than_its_share(setting: Setting) -> None:
    fair = World.plant(0.0)
    found = [setting(fair, 200, 1.0, rng(1, one)) for one in range(40)]
    for name in found[0]:
        p = [one[name].p for one in found]
        if p[0] is None:
            assert name == "vlrs"
            continue
        fired = np.concatenate([(one <= LEVEL).mean(axis=1) for one in p])
        low, _ = wilson(fired.sum(), np.array(len(fired)))
        assert low <= FALSE_POSITIVES, name


def test_a_correlation_over_words_cries_wolf_when_words_are_shuffled() -> None:
    """Why the setting deals labels out instead: all words meet the same images."""
    from scipy.stats import spearmanr

    oracle, words, half = Oracle(World.plant(0.0)), biased_words("shape", 400), np.arange(400) < 200
    fired = 0
    for one in range(40):
        made = oracle.embeddings(400, rng(2, one), scale=SCALE)
        shape = made.groups["shape"]
        near, far = (made.images[half & (shape.codes == code)] for code in (0, 1))
        inside = metrics.sc_eat(made.texts[words], near, far)
        rest = np.flatnonzero(~half)
        outside = metrics.composition(made.texts[words] @ made.images[rest].T, shape[rest], k=40)
        fired += spearmanr(inside, outside[:, 0]).pvalue <= LEVEL
    assert fired >= 10  # of 40; 2 would be its share


def test_response_grows_with_the_dose_and_order_is_recovered() -> None:
    found = calibrate(["c_asc", "sc_eat"], sizes=(100,), replicates=4, trained=())
    for one in found.summaries:
        assert one.order is not None
        assert one.order > 0.98
    rows = found.table.to_pylist()
    assert len({row["dose"] for row in rows if row["statistic"] == "response"}) >= 9
    for name in ("c_asc", "sc_eat"):
        response = [
            r["value"] for r in rows if r["metric"] == name and r["statistic"] == "response"
        ]
        assert (np.diff(response) > 0).all()


def test_power_grows_with_the_images_and_with_the_dose() -> None:
    sizes = {"doses": (0, 1, 2), "sizes": (100, 400, 1600)}
    rows = calibrate(["c_asc"], **FEW | sizes | {"images": 1000}).table
    power = {(r["dose"], r["n"]): r["value"] for r in rows.to_pylist() if r["statistic"] == "power"}
    for dose in (0.5, 1.0):
        assert power[dose, 100] < power[dose, 400] < power[dose, 1600]
    assert all(power[0.5, n] < power[1.0, n] for n in (100, 400, 1600))


def test_standardised_metrics_are_blind_to_size_and_probabilities_are_not() -> None:
    found = calibrate(["c_asc", "max_skew", "vlbs", "counterfactual_bias", "vlss"], **FEW)
    low_noise = {one.metric: one.low_noise for one in found.summaries}
    for name in ("c_asc", "max_skew", "vlbs"):
        assert low_noise[name] == pytest.approx(1, abs=0.1)
    for name in ("counterfactual_bias", "vlss"):
        assert low_noise[name] < 0.01
    verdicts = {one.metric: one.verdict for one in found.summaries}
    assert "insensitive to scale" in verdicts["c_asc"]
    assert "low noise" not in verdicts["vlss"]


def test_a_figure_is_the_same_whatever_else_is_asked_for() -> None:
    alone = calibrate(["weat"], **FEW).table.to_pylist()
    more = calibrate(["sc_eat", "weat"], **FEW | {"doses": (0, 0.5, 1, 2, 3)}).table.to_pylist()
    kept = ("response", "false positives", "floor", "low noise", "power")
    mine = [row for row in more if row["metric"] == "weat" and row["dose"] != 3]
    assert [row for row in alone if row["statistic"] in kept] == [
        row for row in mine if row["statistic"] in kept
    ]
    other = calibrate(["weat"], **FEW, seed=1).table.to_pylist()
    assert [row["value"] for row in other] != [row["value"] for row in alone]


# --- lift by protocol --------------------------------------------------------------------------


def judged(protocol: str, dose: float, attribute: str = "hue") -> dict[str, float]:
    oracle, chance = Oracle(World.plant(dose)), rng(5)
    groups = protocols.balanced_groups(attribute, 50, chance)
    scores = protocols.SIMULATIONS[protocol](oracle, groups, chance)
    by_attribute = protocols.attribute_groups(attribute, groups)
    rows = protocols.lift_rows([protocols.judge_all(oracle.world, scores, by_attribute)], dose)
    return {row["statistic"]: row.get("value") for row in rows}


@pytest.mark.parametrize("protocol", protocols.SIMULATIONS)
def test_lift_is_the_planted_size_by_every_protocol(protocol: str) -> None:
    found = judged(protocol, 1.0)
    assert 0.95 < found["slope"] < 1.05
    assert found["spearman"] > 0.95
    assert found["power"] > 0.9
    assert found["no larger"] < 0.05
    assert 0.95 < found["exaggeration"] < 1.2
    fair = judged(protocol, 0.0)
    assert fair["flagged"] == 0
    assert 0.02 < fair["beyond neutral words"] < 0.09


def test_a_wrong_scale_shows_in_the_slope(monkeypatch: pytest.MonkeyPatch) -> None:
    half = {"cosine": lambda *given: protocols.matching(*given) / 2}
    monkeypatch.setattr(protocols, "SIMULATIONS", half)
    assert 0.4 < judged("cosine", 1.0)["slope"] < 0.6


def test_rows_of_lift_say_where_they_come_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocols, "GROUP_IMAGES", (20,))
    rows = list(protocols.simulated_rows(1, 0))
    places = {(row["protocol"], row["attribute"], row["dose"]) for row in rows}
    assert len(places) == len(protocols.SIMULATIONS) * 2 * len(protocols.DOSES)
    assert {(row["metric"], row["setting"], row["n"]) for row in rows} == {("lift", "oracle", 20)}
    assert rows == list(protocols.simulated_rows(1, 0))


def test_a_trained_model_without_bias_tells_lift_from_c_asc(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("torch")
    few = {"cosine": (trained.cosine_scores, 140, ("c_asc",))}
    monkeypatch.setattr(trained, "PROTOCOLS", few)
    rows = list(trained.trained_rows(["lift", "c_asc"], trained.TRAINED[:2], 0))
    alarms = {row["metric"]: row["value"] for row in rows if row["statistic"] == "false positives"}
    assert alarms["lift"] <= 0.01
    assert alarms["c_asc"] > 0.3
    flagged = [row["value"] for row in rows if row["statistic"] == "flagged"]
    assert max(flagged) <= 0.01
    slopes = [row["value"] for row in rows if row["statistic"] == "slope"]
    assert slopes
    assert all(0.8 < slope < 1.1 for slope in slopes)


# --- which metric to trust ---------------------------------------------------------------------


def test_every_metric_answers_a_question() -> None:
    assert {name for question in QUESTIONS for name in question.metrics} == set(METRICS)


@pytest.fixture
def c_asc(small: Calibration) -> MetricSummary:
    """As C-ASC was measured, on simulated models only."""
    return replace(
        small.summaries[0], metric="c_asc", low_noise=1.0, half_noise=1.3, floor=0.1, order=0.99
    )


def test_trust_follows_from_what_was_measured(c_asc: MetricSummary) -> None:
    associated, size, change = which_to_trust([c_asc])
    assert associated.not_trust == (("c_asc", "not measured on a trained model"),)
    assert "still 100" in size.not_trust[0][1]
    assert "when only the noise is halved" in change.not_trust[0][1]
    sound = replace(
        c_asc,
        trained_false_positives=0.04,
        trained_false_positives_low=0.03,
        low_noise=0.0,
        saturates_above=None,
    )
    associated, size, change = which_to_trust([sound])
    assert associated.trust == size.trust == ("c_asc",)
    assert "4.0% false positives on trained models" in associated.why
    broken = replace(
        sound, trained_false_positives=0.9, trained_false_positives_low=0.8, order=None
    )
    associated, size, _ = which_to_trust([broken])
    assert associated.not_trust[0][1].startswith("90.0% false positives on trained")
    assert size.not_trust == (("c_asc", "its order is undefined"),)


def test_trusted_metrics_are_said_with_their_limits(c_asc: MetricSummary) -> None:
    ranks = [replace(c_asc, metric=name) for name in ("skew", "ndkl")]
    ranks[0] = replace(
        ranks[0],
        floor=0.4,
        trained_false_positives=0.9,
        trained_false_positives_low=0.8,
        order=0.95,
    )
    [answer] = which_to_trust(ranks)
    assert answer.trust == ("skew", "ndkl")
    assert "Spearman 0.95 to " in answer.why
    assert "skew: read it next to its null: zero bias reads as 40%" in answer.why
    assert "but significant for 90% of words on trained models without bias" in answer.why


# --- settings that are wrong are found out -----------------------------------------------------

TRUTH = np.linspace(-1, 1, 40)[:, None]


def toy(change: Callable[[MetricReading], MetricReading]) -> Setting:
    """A metric that reads the dose times the truth, with a fair test, changed as told."""
    from scipy.special import ndtr

    def setting(world: World, n: int, noise: float, rng: np.random.Generator) -> Readings:
        values = world.strength * TRUTH + noise * rng.normal(size=TRUTH.shape) / np.sqrt(n)
        p = 2 * ndtr(-np.abs(values) * np.sqrt(n) / noise)
        return {"c_asc": change(MetricReading(values, 0.0, TRUTH, p))}

    return setting


def verdict(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[MetricReading], MetricReading]
) -> str:
    monkeypatch.setitem(SETTINGS, "c_asc", toy(change))
    return calibrate(["c_asc"], **FEW).summaries[0].verdict


def test_a_sound_metric_is_called_sound(monkeypatch: pytest.MonkeyPatch) -> None:
    said = verdict(monkeypatch, lambda one: one)
    assert said.startswith("recovers the order (over words, Spearman 1.00); grows over all doses; ")
    assert "at zero bias" in said
    assert "80% power at dose 1 with about 1" in said  # 1.96 / .2 squared is 96


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda one: one._replace(p=one.p / 4), "inflated false-positive rate"),
        (lambda one: one._replace(values=one.values + 3), "misleading without its null"),
        (lambda one: one._replace(truth=np.roll(TRUTH, 20)), "does not recover the order"),
        (lambda one: one._replace(values=np.tanh(3 * one.values)), "saturates above dose 0.5"),
        (lambda one: one._replace(values=2 + 0 * one.values), "does not grow with the dose"),
        (
            lambda one: one._replace(values=one.values * np.exp(-(one.values**2))),
            "rises to dose 1 and falls again",
        ),
        (lambda one: one._replace(p=None), "has no test"),
        (lambda one: one._replace(p=1 + 0 * one.p), "0% power at dose 1 with 300 images, and"),
    ],
)
def test_a_broken_one_is_called_what_it_is(
    change: Callable[[MetricReading], MetricReading], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert said in verdict(monkeypatch, change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda one: one._replace(p=one.p * 3), "between 0 and 1"),
        (lambda one: one._replace(p=one.p * np.nan), "between 0 and 1"),
        (lambda one: one._replace(truth=TRUTH[1:]), "truth of c_asc has the shape"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(
    change: Callable[[MetricReading], MetricReading], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match=message):
        verdict(monkeypatch, change)


def test_a_metric_without_a_setting_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(SETTINGS, "ndkl")
    with pytest.raises(InputError, match="ndkl has no setting"):
        calibrate(**FEW)
    monkeypatch.setitem(SETTINGS, "ndkl", SETTINGS["weat"])
    with pytest.raises(InputError, match="vectors has no reading of ndkl"):
        calibrate(["ndkl"], **FEW)


def test_undefined_is_null_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    said = verdict(monkeypatch, lambda one: one._replace(values=one.values * np.nan))
    assert said.startswith("its order is undefined; does not grow")
    for row in calibrate(["c_asc"], **FEW).table.to_pylist():
        assert row["value"] is not None or row["note"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"doses": (0, 0.5, 2)}, "with 0 and 1 among them; got 0, 0.5, 2"),
        ({"doses": (0, 1)}, "at least three"),
        ({"doses": (0, 1, 9)}, "from 0 to 3"),
        ({"doses": (0, 1, float("nan"))}, "from 0 to 3"),
        ({"sizes": (10,)}, "100 or more"),
        ({"sizes": ()}, "100 or more"),
        ({"images": 50}, "100 or more"),
        ({"replicates": 1}, "replicates must be at least 2"),
        ({"seed": -1}, "seed"),
    ],
)
def test_what_cannot_be_measured_is_refused(wrong: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        calibrate(["weat"], **FEW | wrong)
    with pytest.raises(UnknownNameError, match="did you mean 'weat'"):
        calibrate(["waet"])


def test_saturation_is_told_from_a_step_that_is_only_slow() -> None:
    assert saturation([(0, 0), (1, 1), (1.5, 1.1), (2, 2.1), (3, 3.1)]) is None
    assert saturation([(0, 0), (1, 1), (2, 0.5), (3, 0.4)]) == 1
    assert saturation([(0, 1), (1, 0.9), (2, 0.5)]) is None


# --- on disk -----------------------------------------------------------------------------------


def test_same_seed_same_bytes(small: Calibration, tmp_path: Path) -> None:
    pages.save(small, tmp_path / "a")
    pages.save(calibrate(["weat", "vlrs"], **FEW), tmp_path / "b")
    files = sorted(p.relative_to(tmp_path / "a") for p in (tmp_path / "a").rglob("*.*"))
    assert [str(file) for file in files] == [
        "calibration.md", "calibration.parquet", "figures/vlrs.svg", "figures/weat.svg",
    ]  # fmt: skip
    for file in files:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    assert Calibration.load(tmp_path / "a").table.equals(small.table)


def test_what_is_there_is_kept(small: Calibration, tmp_path: Path) -> None:
    pages.save(small, tmp_path / "mine")
    with pytest.raises(InputError, match="exists already"):
        pages.save(small, tmp_path / "mine")
    pages.save(small, tmp_path / "mine", replace=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other/thesis.txt").write_text("years of work")
    with pytest.raises(InputError, match="will not be replaced"):
        pages.save(small, tmp_path / "other", replace=True)
    with pytest.raises(InputError, match="not a calibration"):
        Calibration.load(tmp_path / "other")


def test_nothing_is_half_written(
    small: Calibration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(rows: object) -> str:
        raise RuntimeError("no picture")

    monkeypatch.setattr(figures, "svg", fails)
    with pytest.raises(RuntimeError, match="no picture"):
        pages.save(small, tmp_path / "mine")
    assert list(tmp_path.iterdir()) == []


def test_without_altair_there_are_tables(
    small: Calibration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "NEEDED", ("altair", "no_such_package"))
    assert pages.save(small, tmp_path / "mine") == ["no_such_package"]
    assert not (tmp_path / "mine/figures").exists()
    page = (tmp_path / "mine/calibration.md").read_text()
    assert "Figures need altair" in page
    assert "| weat |" in page


def test_the_documents_show_the_calibration_of_every_metric() -> None:
    place = ROOT / "docs/calibration"
    found = Calibration.load(place)
    assert {one.metric for one in found.summaries} == set(METRICS)
    assert pages.markdown(found) == (place / "calibration.md").read_text(encoding="utf-8")
    pictures = list((place / "figures").glob("*.svg"))
    assert {file.stem for file in pictures} == set(METRICS)
    assert sum(file.stat().st_size for file in pictures) < 400_000
    doses = [row["dose"] for row in found.table.to_pylist() if row["statistic"] == "response"]
    assert set(doses) == set(measurement.DOSES)


# --- the command -------------------------------------------------------------------------------


def test_the_command(tmp_path: Path) -> None:
    few = ("--metric", "weat", "--doses", "0,1,2", "--replicates", "2", "--no-trained")
    done = tiltmeter("calibrate", *few, "--out", tmp_path / "kept")
    assert done.returncode == 0, done.stderr
    assert max(len(line) for line in done.stdout.splitlines() if "Kept in" not in line) <= 80
    assert "weat: recovers the order" in done.stdout
    assert (tmp_path / "kept/figures/weat.svg").read_text().startswith("<svg")
    again = tiltmeter("calibrate", *few, "--out", tmp_path / "kept")
    assert again.returncode == 2
    assert "pass --force" in again.stderr
    machine = tiltmeter("calibrate", *few, "--json", "--out", tmp_path / "kept", "--force")
    found = json.loads(machine.stdout)
    assert found["out"] == str(tmp_path / "kept")
    assert found["metrics"][0]["metric"] == "weat"
    assert found["trust"][0]["trust"] == ["weat"]
    assert machine.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--metric", "waet"), "unknown metric 'waet'; did you mean 'weat'?"),
        (("--doses", "0,one"), "--doses takes numbers with commas between; got '0,one'"),
        (("--doses", "0,2,3"), "with 0 and 1 among them"),
        (("--replicates", "1"), "replicates must be at least 2"),
    ],
)
def test_the_command_says_what_is_wrong(arguments: tuple[str, ...], message: str) -> None:
    done = tiltmeter("calibrate", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stdout == ""
