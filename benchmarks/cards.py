"""The tables of two cards, caption choice and propagation, made anew: `python -m benchmarks.cards`.

Prints each table as it stands in docs/probes/stereotype.md and docs/probes/propagation.md; a slow
test holds the cards to what this prints. `python -m benchmarks.cards stereotype` makes one card's.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

import tiltmeter as tm
from tiltmeter.probes.stereotype.caption_choice import CaptionCases
from tiltmeter.probes.stereotype.probe import stereotype
from tiltmeter.probes.texts import neutral_captions
from tiltmeter.results import Run
from tiltmeter.testbed.triplets import OracleMatcher
from tiltmeter.testbed.valence import OptimalModel
from tiltmeter.testbed.world import World

READINGS = (
    ("dual", "cosine"),
    ("fusion", "matching"),
    ("fusion", "cosine"),
    ("stream", "matching"),
)
CELLS = (0, 1, 2, 3, 4, 6)
EXPERIMENTS = ("1*-a", "1*-b", "2*-a", "2*-b", "1-a", "1-b", "2-a", "2-b")
#: Bias proper: the experiment, the metric, what the card calls it, digits.
BIAS = (
    ("1-a", "intrinsic_difference", "intrinsic", 2),
    ("1-a", "extrinsic_difference", "extrinsic (valence)", 3),
    ("1-b", "intrinsic_difference", "intrinsic", 2),
    ("1-b", "extrinsic_difference", "extrinsic (valence)", 3),
    ("2-a", "intrinsic_lean", "intrinsic `lean`", 3),
    ("2-a", "extrinsic_lean", "extrinsic `lean` (share)", 3),
    ("2-b", "intrinsic_lean", "intrinsic `lean`", 2),
    ("2-b", "extrinsic_lean", "extrinsic `lean` (share)", 2),
)


def short(value: float, digits: int) -> str:
    """A number without the 0 before its point."""
    text = f"{round(value, digits) + 0.0:.{digits}f}"
    text = text.replace("-0.", "-.") if text.startswith("-0.") else text.removeprefix("0")
    return "0" if not text.strip("-.0") and digits < 2 else text


def line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def chosen(model: str, cells: int) -> Run:
    return tm.audit(
        f"testbed:{model}",
        data={"triplets": f"testbed:triplets?images=600&cells={cells}"},
        probes=["stereotype"],
    )


def overall(run: Run, metric: str, reading: str, **more: Any) -> dict[str, Any]:
    [row] = run.where(metric=metric, experiment=reading, category=None, **more)
    return row


def with_interval(row: dict[str, Any]) -> str:
    if not row["value"]:
        return "0"
    low, high = (f"{row[edge]:.0f}".replace("-0", "0") for edge in ("ci_low", "ci_high"))
    return f"{short(row['value'], 1)} ({low}-{high})"


def stereotypes() -> Iterator[str]:
    models = dict.fromkeys(model for model, _ in READINGS)
    yield line(["cells", "perfect", "dual", "fusion, matching", "fusion, cosine", "stream"])
    for cells in CELLS:
        runs = {model: chosen(model, cells) for model in models}
        if cells == 0:
            hidden = runs
        rows = [overall(runs[model], "vlbs", reading) for model, reading in READINGS]
        yield line([str(cells), short(rows[0]["truth"], 1), *map(with_interval, rows)])
    twins = {model: chosen(f"{model}?twin=fair", 0) for model in models}
    yield line(["excess at 0 cells", "dual", "fusion, matching", "fusion, cosine", "stream"])
    for name, runs in (("biased", hidden), ("fair twin", twins)):
        rows = [overall(runs[model], "vlbs_excess", reading) for model, reading in READINGS]
        yield line([name, *map(with_interval, rows)])
    of_twins = [overall(twins[model], "vlbs", reading) for model, reading in READINGS]
    yield "vlbs of the fair twins: " + ", ".join(short(row["value"], 1) for row in of_twins)
    yield "p of the fair twins: " + ", ".join(short(row["p"], 2) for row in rows)


def worlds() -> Iterator[str]:
    """Oracles of three worlds: where does a tilt come from?"""
    yield line(["bias planted in", "lmss", "above 0", "vlss", "above 0"])
    heads = []
    for where in ("words", "images", "both"):
        world = World.plant(1.0, where=where)
        data = tm.load_data(f"testbed:triplets?images=300&cells=0&where={where}")
        cases = CaptionCases.of(data, neutral_captions(data))
        run = Run(stereotype(OracleMatcher(world), cases)[0])
        head = Run(stereotype(OracleMatcher(world, "matching"), cases)[0])
        heads.append(overall(head, "lmss", "matching", split="all")["value"])
        cells = [where]
        for metric, reading in (("lmss", "matching"), ("vlss", "matching, white image")):
            row = overall(run, metric, reading, split="all")
            share = overall(run, f"{metric}_above_zero", reading, split="all")["value"]
            mean, low, high = (short(row[name], 3) for name in ("value", "ci_low", "ci_high"))
            shown = f"{mean} ({low} to {high})"
            nought = abs(row["value"]) < 1e-9
            cells += ["0" if nought else shown, f"{share:.2f}".removeprefix("0") if share else "0"]
        yield line(cells)
    yield "lmss of a perfect matching head: " + ", ".join(short(value, 2) for value in heads)


def no_tilt_at_all() -> Iterator[str]:
    """A fair twin's shifts, and their references."""
    run = tm.audit(
        "testbed:fusion?twin=fair",
        data={"triplets": "testbed:triplets?images=300&cells=0"},
        probes=["stereotype"],
    )
    for called, metric, reading, split, digits in (
        ("lmss above 0, `all`", "lmss_above_zero", "matching", "all", 2),
        ("lmss above 0, `selected`, as in the paper", "lmss_above_zero", "matching", "selected", 2),
        ("vlss, `all`, white image", "vlss", "matching, white image", "all", 2),
        ("vlss, `all`, white image, cosine x logit scale", "vlss",
         "cosine x logit scale, white image", "all", 1),
    ):  # fmt: skip
        row = overall(run, metric, reading, split=split)
        mean, low, high, null = (
            short(row[name], digits) for name in ("value", "ci_low", "ci_high", "null_mean")
        )
        yield line([called, f"{mean} ({low} to {high})", null, short(row["p"], 2)])


def propagated(model: Any, strength: int) -> Run:
    return tm.audit(
        model,
        f"testbed:?strength={strength}" if not isinstance(model, str) else None,
        data={
            "valence": f"testbed:valence?strength={strength}",
            "lexicon": f"testbed:lexicon?strength={strength}",
        },
        probes=["propagation"],
    )


def propagation() -> Iterator[str]:
    runs = {
        "dual": propagated("testbed:dual", 1),
        "fusion": propagated("testbed:fusion", 1),
        "oracle": propagated(OptimalModel(World.plant(1.0), noise=0.3), 1),
        "dual, fair": propagated("testbed:dual?twin=fair", 0),
        "fusion, fair": propagated("testbed:fusion?twin=fair", 0),
        "oracle, no bias": propagated(OptimalModel(World.plant(0.0), noise=0.3), 0),
    }
    yield line(["mean rho", *runs])
    for name in EXPERIMENTS:
        cells = []
        for run in runs.values():
            rho = [row["value"] for row in run.where(metric="rho", experiment=name)]
            known = [value for value in rho if value is not None]
            cells.append(short(float(np.mean(known)), 2) if known else "undefined")
        yield line([f"`{name}`", *cells])
    yield line(["bias, round minus square (`lean`: of round)", *runs])
    for name, metric, called, digits in BIAS:
        cells = []
        for run in runs.values():
            row = run.where(metric=metric, experiment=name, group="round")[0]
            half = (row["ci_high"] - row["ci_low"]) / 2
            cells.append(f"{short(row['value'], digits)} ± {short(half, digits)}")
        yield line([f"`{name}` {called}", *cells])


TABLES = {"stereotype": (stereotypes, worlds, no_tilt_at_all), "propagation": (propagation,)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cards", nargs="*", help=" or ".join(TABLES))
    asked = parser.parse_args().cards or list(TABLES)
    if unknown := set(asked) - set(TABLES):
        parser.error(f"unknown card: {', '.join(sorted(unknown))}")
    for name in asked:
        for table in TABLES[name]:
            for text in table():
                print(text, flush=True)


if __name__ == "__main__":
    main()
