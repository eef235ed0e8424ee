"""What does a word owe to who is seen, and to who is named? (CounterBias, Zhang et al. 2022)

A target word is hidden beside a picture and a bias word: `The man is [MASK]`. How probable it is
there is compared with a counterfactual in which picture, bias word or both show the other group:
bias_V, bias_L and bias_VL of every instance, target and data set. Where the other pictures come
from is a source of `tiltmeter.counterfactuals`, so that the same table can be made with attacked
and with true ones.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tiltmeter.counterfactuals import SOURCES, Source, Swap, images_of, pixels_of
from tiltmeter.counterfactuals.words import spelled, with_masked_head
from tiltmeter.errors import InputError
from tiltmeter.images import Made, Pictures
from tiltmeter.metrics.convention import Convention
from tiltmeter.metrics.counterfactual import LEAST_CHANGE
from tiltmeter.probes.counterfactual_measuring import (
    READINGS,
    Asked,
    bias_only,
    measure,
    text_bias,
)
from tiltmeter.probes.counterfactual_rows import bias_tables, instances
from tiltmeter.probes.counterfactual_shifts import (
    comparison,
    flip_row,
    flips,
    shift_table,
    text_table,
)
from tiltmeter.probes.probe import CannotRunError, Probe, Setting
from tiltmeter.prompting import counterfactual_words
from tiltmeter.results import INSTANCES, combined
from tiltmeter.stats.resampling import Resampling
from tiltmeter.types import Faces, MaskedPredictor, Progress

GREY = 255  # levels above black: epsilon and step are told in these


def counterfactual(
    model: MaskedPredictor,
    data: Faces | None,
    *,
    asked: Asked,
    convention: Convention,
    source: Source | None = None,
    true: Source | None = None,
    curve: Mapping[str, Source] | None = None,
    beside: Sequence[MaskedPredictor] = (),
    readings: Sequence[str] = READINGS,
    noise: float = 8 / GREY,
    least_change: float = LEAST_CHANGE,
    seed: int = 0,
    resampling: Resampling | None = None,
    progress: Progress | None = None,
) -> tuple[pa.Table, pa.Table]:
    """Counterfactual bias by target and template, with all that is needed to judge it.

    `source` gives the counterfactual pictures; `true` is one to compare it with; `curve` are
    further ones, by name, whose flip rates are told. Models `beside` are measured on texts alone,
    as is `model`. Without data only that is done. Returns rows of RESULTS and of INSTANCES.
    """
    resampling = resampling or Resampling()
    model = with_masked_head(model)
    constants: dict[str, Any] = {
        "probe": "counterfactual",
        "model": getattr(model, "name", type(model).__name__),
        "dataset": getattr(data, "name", None),
        "attribute": asked.swap.attribute,
        "convention": convention.name,
        "seed": seed,
    }
    rng = np.random.default_rng(seed)
    tables, single = [], []
    sample = None
    if data is not None and source is not None:
        sample = images_of(data)[np.arange(1)]
        sized = noise if hasattr(pixels_of(model, sample), "detach") else 0.0
        found = measure(model, data, asked, source, noise=sized, seed=seed, progress=progress)
        tables.append(flips(found, constants))
        for reading in readings:
            biases = found.biases(asked, reading, least_change)
            tables += bias_tables(found, asked, biases, reading, resampling, rng, constants)
            single.append(instances(found, data, asked, biases, reading, constants))
        tables.append(shift_table(found, asked, resampling, rng, constants))
        if true is not None:
            other = measure(model, data, asked, true, seed=seed, progress=progress)
            tables.append(flips(other, constants))
            tables.append(shift_table(other, asked, resampling, rng, constants))
            tables.append(comparison(found, other, data, asked, resampling, rng, constants))
        for name, one in (curve or {}).items():
            bias = bias_only(model, data, asked, one)
            tables.append(flip_row(*bias, name, str(getattr(one, "settings", "")), constants))
    for reader in (model, *beside):
        lean, how = text_bias(reader, asked, sample)
        mine = {**constants, "model": getattr(reader, "name", type(reader).__name__)}
        tables.append(text_table(lean, how, asked, resampling, rng, mine))
    return combined(tables), combined(single, INSTANCES)


OPTIONS: dict[str, Any] = {
    "source": "auto",  # adversarial, parallel, redrawn, folder; auto: redrawn on the testbed
    "attribute": "",  # which label column; "": the one whose groups have known words
    "groups": "",  # two of its groups, the first that positive bias leans to
    "words": "",  # the bias words for them, such as man,woman
    "targets": "activities,occupations",  # word lists, or files
    "templates": "",  # with {g} and [MASK], parted by |
    "prompt": "",  # which asks for the bias word
    "labels": "",  # a table with the columns target and label: human stereotypes
    "softmax": READINGS,
    "least_change": LEAST_CHANGE,
    "epsilon": 8.0,  # grey levels, of 255
    "step": 2.0,
    "steps": 20,
    "sure": 0.9,
    "loss": "word",
    "random_start": False,
    "starts": 3,  # the picture itself, then a lighter and a darker one where that fails
    "quantise": False,
    "curve": (2.0, 4.0, 8.0, 16.0),  # further epsilons, for the flip rate; 0: none
    "truth": True,  # compare with true counterfactuals, where the data have them
    "folder": "",  # of edited pictures, for the source folder
    "store": "",  # a directory that keeps attacked pictures
    "images": 100,  # at most, evenly from both groups; 0: all
    "batch": 32,
}


def chosen_sources(
    name: str, data: Faces, options: Mapping[str, Any], seed: int
) -> tuple[Source, Source | None, dict[str, Source]]:
    """The source, a true one to compare it with, and attacks of other sizes."""
    drawn = type(data.images).__module__ == "tiltmeter.testbed.render"
    true_name = "redrawn" if drawn else "parallel" if hasattr(data, "counterparts") else None
    if name == "auto":
        name = "redrawn" if drawn else "adversarial"
    batch = options["batch"]
    if name == "folder":
        if not options["folder"]:
            raise InputError("the source folder takes the option folder=DIR, pictures named by id")
        return SOURCES[name](Path(options["folder"]), batch), None, {}
    if name != "adversarial":
        return SOURCES[name](batch), None, {}
    from tiltmeter.counterfactuals.adversarial import Adversarial, Attack

    store = Path(options["store"]) if options["store"] else None

    def attacked(epsilon: float, *, quantise: bool = options["quantise"]) -> Adversarial:
        # a larger ball is crossed in as many steps
        step = options["step"] * max(epsilon / options["epsilon"], 1)
        settings = Attack(
            epsilon / GREY, step / GREY, options["steps"], options["sure"], options["loss"],
            options["random_start"], options["starts"], quantise, seed,
        )  # fmt: skip
        return Adversarial(settings, batch, store)

    curve: dict[str, Source] = {
        f"adversarial, epsilon {epsilon:g}/255": attacked(epsilon)
        for epsilon in options["curve"]
        if epsilon not in (0, options["epsilon"])
    }
    if not options["quantise"] and options["epsilon"] >= 1:
        curve["adversarial, 8 bits"] = attacked(options["epsilon"], quantise=True)
    true = SOURCES[true_name](batch) if true_name and options["truth"] else None
    return attacked(options["epsilon"]), true, curve


def fewer(data: Faces, swap: Swap, most: int, rng: np.random.Generator) -> Faces:
    """At most so many pictures, of both groups alike; of scenes all pictures or none."""
    rows = swap.rows(data)
    if not most or len(rows) <= most:
        return data
    scenes = getattr(data, "scenes", ())
    if scenes:
        order = rng.permutation(sorted(set(scenes)))
        kept: list[int] = []
        for scene in order:
            mine = [int(row) for row in rows if scenes[row] == scene]
            if kept and len(kept) + len(mine) > most:
                break
            kept += mine
        return data.only(sorted(kept))
    first = swap.has_first(data, rows)
    sides = [rng.permutation(rows[first]), rng.permutation(rows[~first])]
    mixed = [int(row) for pair in itertools.zip_longest(*sides) for row in pair if row is not None]
    return data.only(sorted(mixed[:most]))


def _run(model: Any, data: Mapping[str, Any], setting: Setting) -> tuple[pa.Table, pa.Table]:
    options = {**OPTIONS, **setting.options}
    role = "pairs" if data.get("pairs") is not None else "faces"
    shown = data.get(role)
    try:
        words = counterfactual_words(shown, options)
    except CannotRunError:
        raise
    except InputError as error:
        raise CannotRunError(str(error)) from error
    asked = Asked(
        Swap(words["attribute"], words["groups"], words["words"], words["prompt"]),
        tuple(words["targets"]),
        tuple(words["targets"].values()),
        words["templates"],
        words["labels"],
    )
    try:
        spelled(model, asked.targets)
    except InputError as error:
        raise CannotRunError(str(error)) from error
    source: Source | None = None
    true: Source | None = None
    curve: Mapping[str, Source] = {}
    if shown is not None:
        if shown.images is None:
            raise CannotRunError(f"{shown.name} has vectors, no pictures that could be changed")
        source, true, curve = chosen_sources(options["source"], shown, options, setting.seed)
        shown = fewer(shown, asked.swap, options["images"], np.random.default_rng(setting.seed))
        if isinstance(shown.images, Pictures | Made):
            shown = shown.only(setting.readable(role, shown))
    return counterfactual(
        model,
        shown,
        asked=asked,
        convention=setting.convention,
        source=source,
        true=true,
        curve=curve,
        readings=options["softmax"],
        noise=options["epsilon"] / GREY,
        least_change=options["least_change"],
        seed=setting.seed,
        resampling=setting.resampling,
        progress=setting.progress,
    )


PROBE = Probe(
    "What does a hidden word owe to who is seen, and to who is named? (CounterBias)",
    _run,
    invited_by=("pairs",),
    takes=("faces", "pairs"),
    protocols=(MaskedPredictor,),
    options=OPTIONS,
)
