"""The tables of docs/debias/comparison.md: every method on images that it has not seen.

    python -m benchmarks.debias_tables testbed
    python -m benchmarks.debias_tables again
    python -m benchmarks.debias_tables transfer
    python -m benchmarks.debias_tables fairface

`testbed` sweeps every method that needs no training, and the prompt array, for shape; `again`
repeats that of BEND and Transport on other figures, ten times for each fit. `transfer`
evaluates on other images and other attributes than were fitted on (the paper's Table 4). `fairface`
needs the labels of FairFace and minilit next to the repository, in ../shared (or next to the folder
$TILTMETER_DATA). Tables are printed as Markdown; the two fronts are drawn into docs/debias/figures.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import tiltmeter as tm
from tiltmeter.datasets import load_data
from tiltmeter.datasets.roles import Utility
from tiltmeter.debiasers.fitted_rows import FittedRows
from tiltmeter.judge.frontier import Frontier, frontier
from tiltmeter.judge.frontier.evaluation import CandidateEstimate
from tiltmeter.judge.frontier.inputs import split, unseen
from tiltmeter.judge.frontier.strengths import untrained
from tiltmeter.judge.frontier.table import CandidateResult
from tiltmeter.judge.frontier.utility import testbed_tasks
from tiltmeter.models import load_model
from tiltmeter.pages.model import Plot
from tiltmeter.pages.plots import drawing
from tiltmeter.pages.plots import scatter as clouds
from tiltmeter.testbed.captions import concept_captions
from tiltmeter.testbed.language import GROUPS, HUES, SHAPES
from tiltmeter.testbed.world import World
from tiltmeter.types import Faces, Groups, Prompt

MODEL, IMAGES, SHARES = "testbed:dual", "testbed:?images=14000&seed=1", (0.6, 0.2, 0.2)
#: What is fitted here and judged there: methods as their defaults have them, and BEND's rounds.
CARRIED = ["bend:project=no,neighbours=100,rounds=3", "bend", "clip-clip", "closed-form",
           "difference", "fairerclip", "inlp", "leace", "leace:shrink=0.001", "orth-cali",
           "orth-proj", "roboshot", "sfid", "spd", "transport"]  # fmt: skip
FIGURES = Path(__file__).parents[1] / "docs/debias/figures"
#: Figures to fit on again, by seed; how many of them, and how they are divided. Each fit is judged
#: on figures of ten other seeds: some at random of many, since all hold as many of every group.
AGAIN = {21: (28_000, (0.8, 0.1, 0.1)), 11: (14_000, SHARES), 22: (28_000, (0.8, 0.1, 0.1))}
FRESH, DRAWN, OF = range(101, 111), 2_800, 5_600
HALVES, PARTS = (0.5, 0.2, 0.3), (0.5, 0.25, 0.25)
#: The prompt array learns little here in the paper's own course (rate 2e-5, batches of 256).
COURSE = "learning_rate=0.002,adversary_rate=0.003,warmup=6,epochs=16,batch=64"
TRAINED = [f"prompt-array:{COURSE},{more}" for more in
           ("variant=both,itc=0.05", "variant=both,itc=1.0", "variant=adversarial")]  # fmt: skip


def biased_words(world: World) -> list[Prompt]:
    """The words with a planted bias, each in its first template."""
    return [
        Prompt(text, concept.name, concept.templates[0])
        for text, concept in zip(concept_captions().values(), world.concepts, strict=True)
        if not concept.placebo
    ]


def points(share: float) -> str:
    """A share in points."""
    return "" if np.isnan(share) else f"{round(100 * share, 1) + 0.0:.1f}"


def number(value: float, digits: int = 3) -> str:
    return "" if value is None or np.isnan(value) else f"{value:.{digits}f}"


def arrow(estimate: CandidateEstimate) -> str:
    """Whether a mean went up or down: the interval of its paired change excludes 0."""
    return " ↓" if estimate.change_high < 0 else " ↑" if estimate.change_low > 0 else ""


def bias_table(found: Frontier, shown: Sequence[CandidateResult]) -> None:
    """MaxSkew, NDKL and |C-ASC| by every attribute; arrows for changes beyond chance."""
    keys = [(metric, name) for metric in ("max_skew", "ndkl", "c_asc_size")
            for name in found.before.test_attributes]  # fmt: skip
    names = {"max_skew": f"MaxSkew@{found.k}", "ndkl": "NDKL", "c_asc_size": "C-ASC"}
    heads = [f"{names[metric]} {name}" for metric, name in keys]
    print(f"| method | strength | {' | '.join(heads)} |")
    print("|---" * (len(heads) + 2) + "|")
    for one in shown:
        cells = []
        for key in keys:
            figure = one.test.get(key)
            mark = "" if figure is None else arrow(figure)
            value = "" if figure is None else number(figure.value)
            if key == ("max_skew", found.attribute) and figure is not None and figure.within_null:
                value = f"**{value}**"
            cells.append(value + mark)
        print(f"| {one.candidate.method} | {one.candidate.strength} | {' | '.join(cells)} |")
    nulls = [found.before.test[key].null for key in keys]
    bands = ["" if one is None else f"{one[1]:.3f} to {one[2]:.3f}" for one in nulls]
    print(f"| permuted labels | 95% of the mean | {' | '.join(bands)} |")


def other_table(found: Frontier, shown: Sequence[CandidateResult]) -> None:
    """Utility, leakage, null band and seconds."""
    tasks, attributes = list(found.before.utility), list(found.before.leakage)
    heads = [*tasks, *(f"{probe} probe, {name}" for name in attributes
                       for probe in ("linear", "nonlinear")),
             f"MaxSkew {found.attribute}, 95% interval", "its null band", "front",
             "seconds"]  # fmt: skip
    print(f"| method | {' | '.join(heads)} |")
    print("|---" * (len(heads) + 1) + "|")
    front = {id(one) for one in found.front}
    for one in shown:
        cells = []
        for task in tasks:
            figure = one.utility.get(task)
            change = (
                "" if figure is None or one is found.before else f" ({100 * figure.change:+.1f})"
            )
            cells.append("" if figure is None else number(figure.value) + change)
        for name in attributes:
            told = one.leakage.get(name)
            cells += [number(x.accuracy) for x in told.values()] if told else ["", ""]
        bias = one.bias(found.attribute)
        null = "" if bias.null is None else f"{bias.null[1]:.3f} to {bias.null[2]:.3f}"
        cells += [f"{bias.low:.3f} to {bias.high:.3f}", null, "yes" if id(one) in front else "",
                  "" if one is found.before else number(one.seconds, 2)]  # fmt: skip
        print(f"| {one.candidate.method} | {' | '.join(cells)} |")
    majority = [f"{found.before.leakage[name]['linear'].majority:.3f}" for name in attributes]
    rest = [""] * 4
    line = [*([""] * len(tasks)), *(x for m in majority for x in (m, m)), *rest]
    print(f"| largest group | {' | '.join(line)} |")


def sweep_table(found: Frontier) -> None:
    """Every candidate: what was chosen by, and what came out."""
    print("| method | strength | validation: bias | validation: lost | test: bias | test: lost |")
    print("|---" * 6 + "|")
    for one in found.candidates:
        cost, lost = points(one.validation_cost), points(one.utility_cost)
        print(f"| {one.candidate.method} | {one.candidate.strength} "
              f"| {found.validation_bias(one):.3f} | {cost} "
              f"| {one.bias(found.attribute).value:.3f} | {lost} |")  # fmt: skip


def told(found: Frontier) -> None:
    """The choice, and what it came to."""
    best = found.best
    print(f"\nFront, on validation: {'; '.join(one.name for one in found.front)}.")
    if best is None:
        print("None is selected: each loses too much, or makes something worse by `compare`.")
        return
    bias = best.bias(found.attribute)
    assert bias.null is not None
    print(f"Chosen on validation: {best.name}: MaxSkew {bias.value:.4f}, null band "
          f"{bias.null[1]:.4f} to {bias.null[2]:.4f} (p = {bias.p:.3f}), lost "
          f"{points(best.utility_cost)} points.")  # fmt: skip
    for name, reason in found.meta["not_run"].items():
        print(f"Not run: {name}: {reason}")


def aloud(what: str, share: float) -> None:
    """Progress, for those who wait."""
    print(f"{100 * share:3.0f}% {what}", file=sys.stderr, flush=True)


def picture(found: Frontier) -> str:
    """The front as SVG: each method at its chosen strength, bias against what it lost, on test."""
    places = [
        {"x": -100 * one.utility_cost + 0.0, "y": one.bias(found.attribute).value,
         "text": one.candidate.method}
        for one in (found.before, *found.chosen.values())
        if not np.isnan(one.utility_cost)
    ]  # fmt: skip
    biased = f"mean MaxSkew@{found.k} by {found.attribute}"
    drawn = partial(clouds.front, places, "points against before", biased)
    return drawing.svg(Plot("frontier", "Bias against utility", "", "", drawn))


def printed(found: Frontier, name: str) -> None:
    FIGURES.mkdir(exist_ok=True)
    (FIGURES / name).write_text(picture(found), encoding="utf-8")
    chosen = [found.before, *found.chosen.values()]
    bias_table(found, chosen)
    print()
    other_table(found, chosen)
    print()
    sweep_table(found)
    told(found)


def testbed(*, trained: bool) -> None:
    world = World.plant(load_model(MODEL, device="cpu").provenance["strength"])
    methods = [*untrained(), *(["prompt-array"] if trained else [])]
    found = frontier(
        MODEL, IMAGES, attribute="shape", methods=methods, strengths=TRAINED if trained else None,
        words=biased_words(world), shares=SHARES,
        permutations=1000, device="cpu", progress=aloud,
    )  # fmt: skip
    printed(found, "frontier-testbed.svg")


def again() -> None:
    """BEND and Transport, fitted again and evaluated on ten other samples of figures."""
    model = load_model(MODEL, device="cpu")
    words, tasks = biased_words(World.plant(model.provenance["strength"])), testbed_tasks(model, 0)

    def shapes(images: int, seed: int, of: int | None = None) -> Faces:
        faces = load_data(f"testbed:?images={of or images}&seed={seed}", role="faces")
        some = np.random.default_rng(seed).permutation(len(faces))[:images]
        faces = faces.select(np.sort(some).tolist())
        vectors = np.asarray(model.encode_images(faces.images))
        aloud(f"figures of seed {seed}", 0)
        return replace(faces, groups={"shape": faces.groups["shape"]}, name=str(seed),
                       vectors=vectors)  # fmt: skip

    fresh = [shapes(DRAWN, seed, OF) for seed in FRESH]
    for seed, (images, shares) in AGAIN.items():
        near = [round(share * shares[0] * images / 2) for share in (0.07, 0.1)]
        found = frontier(
            model, shapes(images, seed), attribute="shape", also=fresh, tasks=tasks, words=words,
            strengths=[*(f"bend:project=no,neighbours={one},rounds=3" for one in near),
                       "transport"],
            shares=shares, permutations=500, bootstraps=0, probes=False, device="cpu",
            progress=aloud,
        )  # fmt: skip
        again_table(found, f"{shares[0] * images:,.0f} figures of seed {seed}")


def again_table(found: Frontier, fitted: str) -> None:
    """MaxSkew on each draw of figures, with its band: bold within it."""
    key, shown = ("max_skew", "shape"), list(found.chosen.values())
    print(f"\n**Fitted on {fitted}**\n\n| test seed | before |", end="")
    print("".join(f" {one.candidate.method} | its band | p |" for one in shown))
    print("|---" * (2 + 3 * len(shown)) + "|")
    for place in found.before.others:
        cells = [place, number(found.before.others[place][key].value)]
        for one in shown:
            figure = one.others[place][key]
            assert figure.null is not None
            value, (_, low, high) = number(figure.value), figure.null
            value = f"**{value}**" if figure.within_null else value
            cells += [value, f"{low:.3f} to {high:.3f}", number(figure.p)]
        print(f"| {' | '.join(cells)} |")
    print()
    for one in shown:
        held = [figures[key].within_null for figures in one.others.values()]
        mean = np.mean([figures[key].value for figures in one.others.values()])
        print(f"{one.name}: within the band {sum(held)} times of {len(held)}, mean {mean:.3f}; "
              f"points lost: {points(one.validation_cost)} on validation, "
              f"{points(one.utility_cost)} on test.",
              flush=True)  # fmt: skip


def next_to_icons(world: World, images: int, seed: int) -> Faces:
    """Figures next to icons of all concepts, whatever their group: another kind of images."""
    rng = np.random.default_rng(seed)
    group = rng.permutation(np.arange(images) % len(GROUPS))
    concept = rng.integers(0, len(world.concepts), images)
    return Faces(
        ids=tuple(f"icon-{at:05d}" for at in range(images)),
        groups={
            "shape": Groups(group // len(HUES), SHAPES, "shape"),
            "hue": Groups(group % len(HUES), HUES, "hue"),
        },
        images=world.scenes(images, rng, concept=concept, group=group, cells=16),
        name="next to icons",
    )


def percent(
    one: CandidateResult, before: CandidateResult, key: tuple[str, str], where: str | None = None
) -> str:
    after, first = (x.test if where is None else x.others[where] for x in (one, before))
    return f"{100 * (after[key].value / first[key].value - 1):+.0f}%{arrow(after[key])}"


def transfer() -> None:
    """Fitted here, judged there."""
    model = load_model(MODEL, device="cpu")
    world = World.plant(model.provenance["strength"])
    alone = load_data("testbed:?images=5600&seed=1", role="faces")
    sets = {
        "figures": replace(alone, name="figures"),
        "next to icons": next_to_icons(world, 5600, 2),
    }
    sets = {name: replace(one, vectors=np.asarray(model.encode_images(one.images)))
            for name, one in sets.items()}  # fmt: skip
    options: dict[str, Any] = {"strengths": CARRIED, "words": biased_words(world), "probes": False,
                               "tasks": testbed_tasks(model, 0),
                               "permutations": 0, "device": "cpu", "progress": aloud}  # fmt: skip
    # the same images whatever was fitted on: the part that a sweep of that set reports
    reported = {name: one.select(split(len(one), PARTS, 0)[2]) for name, one in sets.items()}
    runs = {
        name: frontier(model, one, attribute="shape", shares=PARTS, **options,
                       also=[two for other, two in reported.items() if other != name])
        for name, one in sets.items()
    }  # fmt: skip
    keys = [("max_skew", "shape"), ("ndkl", "shape")]
    heads = [f"{metric}, {place}" for metric in ("MaxSkew@100", "NDKL") for place in sets]
    print(f"| fitted on | method | {' | '.join(heads)} |")
    print("|---" * 6 + "|")
    starts = [number(runs[place].before.test[key].value) for key in keys for place in sets]
    print(f"| | before | {' | '.join(starts)} |")
    for name, found in runs.items():
        for one in found.candidates:
            cells = [percent(one, found.before, key, None if place == name else place)
                     for key in keys for place in sets]  # fmt: skip
            print(f"| {name} | {one.name} | {' | '.join(cells)} |")
    print()
    by = {"shape": runs["figures"]}
    for attribute in ("hue", "shape*hue"):
        by[attribute] = frontier(model, sets["figures"], attribute=attribute, **options)
    names = ("shape", "hue", "shape*hue")
    print("| fitted on | method | " + " | ".join(
        f"{metric}, {name}" for metric in ("MaxSkew@100", "NDKL") for name in names)
        + " | points lost |")  # fmt: skip
    print("|---" * 9 + "|")
    before = by["shape"].before
    starts = [number(before.test[metric, name].value)
              for metric in ("max_skew", "ndkl") for name in names]  # fmt: skip
    print(f"| | before | {' | '.join(starts)} | |")
    for attribute, found in by.items():
        for one in found.candidates:
            cells = [percent(one, found.before, (metric, name))
                     for metric in ("max_skew", "ndkl") for name in names]  # fmt: skip
            lost = points(one.utility_cost)
            print(f"| {attribute} | {one.name} | {' | '.join(cells)} | {lost} |")


def shared(name: str) -> Path:
    given = os.environ.get("TILTMETER_DATA")
    root = Path(given).parent if given else Path(__file__).parents[2] / "shared"
    if not (root / name).exists():
        raise SystemExit(f"{name} is missing: set TILTMETER_DATA to the folder `data` next to it")
    return root / name


def photographs() -> tuple[Any, Faces]:
    """minilit, and the labels of 5,000 photographs with its vectors."""
    home = shared("models/minilit")
    model = load_model(f"python:{home / 'minilit.py'}:MiniLiT", device="cpu")
    faces = load_data(f"fairface:{shared('data/fairface')}?split=val", role="faces")
    with (home / "fairface_val5000_files.csv").open(newline="") as file:
        place = {row["file"]: at for at, row in enumerate(csv.DictReader(file))}
    stored = np.load(home / "fairface_val5000_image_embeddings.npy")
    vectors = stored[[place[name] for name in faces.ids]]
    return model, replace(faces, vectors=vectors, images=None)


def scenes() -> Utility:
    """PAIRS: 200 generated photographs of 50 scenes, to be told apart by their names."""
    pairs = load_data(f"pairs:{shared('data/pairs')}", role="pairs")
    named = [one.replace("_", " ") for one in pairs.scenes]
    return Utility(pairs.ids, Groups.from_labels(named, attribute="scene"), pairs.images, "pairs")


def harms(model: Any, faces: Faces, found: Frontier) -> None:
    """How often each race is taken for a criminal or an animal, before and after (Table 6)."""
    fit, *rest = split(len(faces), HALVES, 0)
    others = unseen(faces.select(sorted(rest[0] + rest[1])), FittedRows.of(faces.select(fit)))
    shown: dict[str, Any] = {"before": model}
    for one in found.chosen.values():
        if one.kind == "vectors":
            shown[one.candidate.method] = tm.debias(
                one.candidate.method, model, faces.select(fit), attribute=found.attribute,
                settings=one.candidate.settings, device="cpu",
            )  # fmt: skip
    names = others.groups["race"].names
    print(f"| category | method | {' | '.join(names)} | largest gap |")
    print("|---" * (len(names) + 3) + "|")
    tables = {
        name: tm.audit(one, others, probes=["harms"], attributes=["race"], permutations=0,
                       bootstraps=0, device="cpu")
        for name, one in shown.items()
    }  # fmt: skip
    for category in ("crime", "non-human"):
        for name, run in tables.items():
            rows = [row for row in run.where(probe="harms", metric="group_rates", attribute="race",
                                             target=category) if row["group"]]  # fmt: skip
            rate = {row["group"]: 100 * row["value"] for row in rows}
            gap = max(rate.values()) - min(rate.values())
            cells = " | ".join(f"{rate[one]:.1f}" for one in names)
            print(f"| {category} | {name} | {cells} | {gap:.1f} |")


def fairface() -> None:
    model, faces = photographs()
    found = frontier(
        model, faces, attribute="gender", utility=scenes(), shares=HALVES, permutations=1000,
        cross=["race*gender"], max_cost=0.05, device="cpu", progress=aloud,
    )  # fmt: skip
    printed(found, "frontier-fairface.svg")
    print()
    harms(model, faces, found)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    asked.add_argument("table", choices=("testbed", "again", "transfer", "fairface"))
    asked.add_argument("--untrained", action="store_true", help="leave out the prompt array")
    given = asked.parse_args()
    if given.table == "testbed":
        testbed(trained=not given.untrained)
    else:
        {"again": again, "transfer": transfer, "fairface": fairface}[given.table]()


if __name__ == "__main__":
    main()
