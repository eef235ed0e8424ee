"""What does a word owe to who is seen, and to who is named? (CounterBias, Zhang et al. 2022)

A target word is hidden beside an image and a bias word: `The man is [MASK]`. How probable it is
there is compared with a counterfactual in which image, bias word or both show the other group:
bias_V, bias_L and bias_VL of every instance, target and dataset. Where the other images come
from is a source of `tiltmeter.probes.counterfactual.sources`, so that the same table can be made
with attacked and with true ones.
"""

from __future__ import annotations

import difflib
import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.io.image_files import GeneratedImages, ImageFiles
from tiltmeter.metrics.convention import Convention
from tiltmeter.metrics.counterfactual import LEAST_CHANGE
from tiltmeter.probes.counterfactual.measuring import (
    READINGS,
    MaskedQuery,
    bias_only,
    measure,
    targets_shown,
    text_bias,
)
from tiltmeter.probes.counterfactual.rows import bias_tables, instances
from tiltmeter.probes.counterfactual.shifts import (
    comparison,
    flip_row,
    flips,
    shift_table,
    text_table,
)
from tiltmeter.probes.counterfactual.sources import SOURCES, Source, Swap, images_of, pixels_of
from tiltmeter.probes.counterfactual.sources.parallel import ParallelImages
from tiltmeter.probes.counterfactual.sources.words import spelled, with_masked_head
from tiltmeter.probes.probe import AuditContext, CannotRunError, Probe
from tiltmeter.probes.texts import counterfactual_words, target_words
from tiltmeter.results import INSTANCES, combined, rows
from tiltmeter.stats.resampling import Resampling
from tiltmeter.types import Faces, MaskedPredictor, Progress

GREY = 255  # levels above black: epsilon and step are told in these


@dataclass(frozen=True, eq=False)
class CounterfactualSources:
    """Where counterfactual images come from, and what they are compared with."""

    source: Source | None = None
    true: Source | None = None
    curve: Mapping[str, Source] = field(default_factory=dict)  # whose flip rates alone are told
    noise: float = 8 / GREY  # of the control


@dataclass(frozen=True)
class ProbabilityReading:
    """How probabilities of words are read."""

    softmax: Sequence[str] = READINGS
    least_change: float = LEAST_CHANGE  # of the bias word, else an instance is undefined
    note: str = ""  # which images were left out
    beside: Sequence[MaskedPredictor] = ()  # models that read the texts too

    def __post_init__(self) -> None:
        for reading in self.softmax:
            if reading not in READINGS:
                raise UnknownNameError("softmax reading", reading, READINGS)


def counterfactual(
    model: MaskedPredictor,
    data: Faces | None,
    *,
    asked: MaskedQuery,
    convention: Convention,
    sources: CounterfactualSources = CounterfactualSources(),  # noqa: B008
    reading: ProbabilityReading = ProbabilityReading(),  # noqa: B008
    resampling: Resampling = Resampling(),  # noqa: B008
    progress: Progress | None = None,
) -> tuple[pa.Table, pa.Table]:
    """Counterfactual bias by target and template, with all that is needed to judge it.

    Models beside (`reading`) are measured on texts alone, as is `model`. Without data only that is
    done.
    Returns rows of RESULTS and of INSTANCES.
    """
    source, true, seed = sources.source, sources.true, resampling.seed
    if data is not None and isinstance(true, ParallelImages):
        true.pairs(data, asked.swap)  # what can be refused is, before an attack is paid for
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
        sized = sources.noise if hasattr(pixels_of(model, sample), "detach") else 0.0
        found = measure(model, data, asked, source, noise=sized, seed=seed, progress=progress)
        tables.append(
            rows(1, **constants, metric="images_measured", value=[len(set(found.rows))],
                 n=len(found.rows), note=reading.note or None)
        )  # fmt: skip
        tables.append(flips(found, constants))
        for softmax in reading.softmax:
            biases = found.biases(asked, softmax, reading.least_change)
            tables += bias_tables(found, asked, biases, softmax, resampling, rng, constants)
            single.append(instances(found, data, asked, biases, softmax, constants))
        tables.append(shift_table(found, asked, resampling, rng, constants))
        if true is not None:
            other = measure(model, data, asked, true, seed=seed, progress=progress)
            tables.append(flips(other, constants))
            tables.append(shift_table(other, asked, resampling, rng, constants))
            tables.append(comparison(found, other, data, asked, resampling, rng, constants))
        for name, one in sources.curve.items():
            bias = bias_only(model, data, asked, one)
            tables.append(flip_row(*bias, name, str(getattr(one, "settings", "")), constants))
    for reader in (model, *reading.beside):
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
    "starts": 3,  # the image itself, then a lighter and a darker one where that fails
    "quantise": False,
    "curve": (2.0, 4.0, 8.0, 16.0),  # further epsilons, for the flip rate; 0: none
    "truth": True,  # compare with true counterfactuals, where the data have them
    "folder": "",  # of edited images, for the source folder
    "store": "",  # a directory that keeps attacked images
    "images": 100,  # at most, evenly from both groups and all concepts; 0: all
    "batch": 32,
}


def chosen_sources(
    name: str, data: Faces, options: Mapping[str, Any], seed: int
) -> tuple[Source, Source | None, dict[str, Source]]:
    """The source, a true one to compare it with, and attacks of other sizes."""
    drawn = type(data.images).__module__ == "tiltmeter.testbed.render"
    true_name = "redrawn" if drawn else "parallel" if getattr(data, "parallel", False) else None
    if name == "auto":
        name = "redrawn" if drawn else "adversarial"
    batch = options["batch"]
    if name == "folder":
        if not options["folder"]:
            raise InputError("the source folder takes the option folder=DIR, pictures named by id")
        return SOURCES[name](Path(options["folder"]), batch), None, {}
    if name != "adversarial":
        return SOURCES[name](batch), None, {}
    from tiltmeter.probes.counterfactual.sources.adversarial import AdversarialAttack, Attack

    store = Path(options["store"]) if options["store"] else None

    def attacked(epsilon: float, *, quantise: bool = options["quantise"]) -> AdversarialAttack:
        # a larger ball is crossed in as many steps
        step = options["step"] * max(epsilon / options["epsilon"], 1)
        settings = Attack(
            epsilon / GREY, step / GREY, options["steps"], options["sure"], options["loss"],
            options["random_start"], options["starts"], quantise, seed,
        )  # fmt: skip
        return AdversarialAttack(settings, batch, store)

    curve: dict[str, Source] = {
        f"adversarial, epsilon {epsilon:g}/255": attacked(epsilon)
        for epsilon in options["curve"]
        if epsilon not in (0, options["epsilon"])
    }
    if not options["quantise"] and options["epsilon"] >= 1:
        curve["adversarial, 8 bits"] = attacked(options["epsilon"], quantise=True)
    true = SOURCES[true_name](batch) if true_name and options["truth"] else None
    return attacked(options["epsilon"]), true, curve


def of_targets(data: Faces, targets: Sequence[str]) -> tuple[Faces, str]:
    """Images of the target words alone, and what was left out; an unknown concept is refused.

    Where images show concepts (VL-Bias), one that is no target word is either known and not asked
    for, or misspelt.
    """
    shown = targets_shown(data, targets)
    if shown is None or (shown >= 0).all():
        return data, ""
    others = Counter(data.scenes[row] for row in np.flatnonzero(shown < 0))  # type: ignore[attr-defined]
    named = ", ".join(f"{name} {count:,}" for name, count in sorted(others.items()))
    known = target_words(OPTIONS["targets"])  # of VL-Bias
    if unknown := sorted(name for name in others if name.casefold() not in known):
        near = difflib.get_close_matches(unknown[0].casefold(), sorted({*targets, *known}))
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise InputError(
            f"{data.name} has images of {', '.join(map(repr, unknown))}{hint}, but no target word "
            "of that name: rename the folder, or add the word to the targets "
            f"(--option counterfactual.targets={OPTIONS['targets']},FILE)"
        )
    if (shown < 0).all():
        raise InputError(
            f"no image of {data.name} shows a target word: the targets are {', '.join(targets)}; "
            f"the images show {named}. Choose other targets (--option counterfactual.targets=LIST)"
        )
    return data.only(np.flatnonzero(shown >= 0).tolist()), f"left out, no target words: {named}"


def fewer(data: Faces, swap: Swap, most: int, rng: np.random.Generator) -> Faces:
    """At most so many images, evenly from both groups and all concepts; whole parallel scenes."""
    rows = swap.rows(data)
    if not most or len(rows) <= most:
        return data
    scenes = np.array(getattr(data, "scenes", ()) or [""] * len(data))[rows]
    names = rng.permutation(sorted(set(scenes)))
    if getattr(data, "parallel", False):
        kept: list[int] = []
        for scene in names:
            mine = [int(row) for row in rows[scenes == scene]]
            if kept and len(kept) + len(mine) > most:
                break
            kept += mine
        return data.only(sorted(kept))
    if most < len(names):
        raise InputError(
            f"images={most} is less than one image for each of the {len(names)} concepts of "
            f"{data.name}: pass at least {len(names)}, or 0 for all images"
        )
    first = swap.has_first(data, rows)
    by_name = []
    for at, name in enumerate(names):  # every other concept starts with the second group
        sides = [rng.permutation(rows[(scenes == name) & side]) for side in (first, ~first)]
        by_name.append(_by_turns(sides[:: 1 if at % 2 == 0 else -1]))
    return data.only(sorted(_by_turns(by_name)[:most]))


def _by_turns(lists: Sequence[Iterable[int]]) -> list[int]:
    """The first of every list, then the second, and so on."""
    return [int(row) for turn in itertools.zip_longest(*lists) for row in turn if row is not None]


def _run(model: Any, data: Mapping[str, Any], setting: AuditContext) -> tuple[pa.Table, pa.Table]:
    options = {**OPTIONS, **setting.options}
    role = "pairs" if data.get("pairs") is not None else "faces"
    shown = data.get(role)
    try:
        words = counterfactual_words(shown, options)
    except CannotRunError:
        raise
    except InputError as error:
        raise CannotRunError(str(error)) from error
    asked = MaskedQuery(
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
    note = ""
    if shown is not None:
        if shown.images is None:
            raise CannotRunError(f"{shown.name} has vectors, no pictures that could be changed")
        source, true, curve = chosen_sources(options["source"], shown, options, setting.seed)
        shown, note = of_targets(shown, asked.targets)
        whole = len(asked.swap.rows(shown))
        shown = fewer(shown, asked.swap, options["images"], np.random.default_rng(setting.seed))
        if (some := len(asked.swap.rows(shown))) < whole:
            drawn = f"{some:,} of {whole:,} were drawn (--option counterfactual.images=0: all)"
            note = "; ".join(filter(None, [drawn, note]))
        if isinstance(shown.images, ImageFiles | GeneratedImages):
            shown = shown.only(setting.readable(role, shown))
    return counterfactual(
        model,
        shown,
        asked=asked,
        convention=setting.convention,
        sources=CounterfactualSources(source, true, curve or {}, options["epsilon"] / GREY),
        reading=ProbabilityReading(options["softmax"], options["least_change"], note),
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
