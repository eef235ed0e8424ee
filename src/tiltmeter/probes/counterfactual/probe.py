"""Counterfactual bias of masked prediction (CounterBias, Zhang et al. 2022).

A target word is masked, given an image and a bias word: `The man is [MASK]`. Its probability is
compared with that under a counterfactual in which the image, the bias word or both show the other
group: bias_V, bias_L and bias_VL of every instance and target. Counterfactual images come from a
source of `tiltmeter.probes.counterfactual.sources`, adversarial or true.
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

from tiltmeter import stimuli
from tiltmeter.errors import InputError, TiltmeterError, UnknownNameError
from tiltmeter.io.image_files import GeneratedImages, ImageFiles
from tiltmeter.metrics.convention import Convention
from tiltmeter.metrics.counterfactual import LEAST_CHANGE
from tiltmeter.metrics.propagation import spearman
from tiltmeter.probes.counterfactual.measuring import (
    READINGS,
    CounterfactualQuery,
    bias_only,
    measure,
    targets_shown,
    text_bias,
)
from tiltmeter.probes.counterfactual.pair_lift import pair_lift_tables
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
from tiltmeter.probes.counterfactual.sources.words import check_words, with_masked_head
from tiltmeter.probes.lift.words import NEUTRAL
from tiltmeter.probes.probe import AuditContext, CannotRunError, Probe
from tiltmeter.probes.texts import counterfactual_words, target_words
from tiltmeter.results import INSTANCES, combined, rows
from tiltmeter.stats.resampling import Resampling
from tiltmeter.types import Faces, MaskedPredictor, Progress, planted_world

ACTIVITY = "activity"
GREY = 255  # levels above black: the unit of the options epsilon and step


@dataclass(frozen=True, eq=False)
class CounterfactualSources:
    """Sources of counterfactual images, and what they are compared with."""

    source: Source | None = None
    true: Source | None = None
    curve: Mapping[str, Source] = field(default_factory=dict)  # only their flip rates are measured
    noise: float = 8 / GREY  # of the control


@dataclass(frozen=True)
class ProbabilityReading:
    """How word probabilities are normalised, and further models for the texts."""

    softmax: Sequence[str] = READINGS[:2]
    least_change: float = (
        LEAST_CHANGE  # of the bias word's probability; below it an instance is undefined
    )
    note: str = ""  # which images were left out
    text_models: Sequence[MaskedPredictor] = ()  # further models that are measured on texts alone

    def __post_init__(self) -> None:
        for reading in self.softmax:
            if reading not in READINGS:
                raise UnknownNameError("softmax reading", reading, READINGS)


def counterfactual(
    model: MaskedPredictor,
    data: Faces | None,
    *,
    query: CounterfactualQuery,
    convention: Convention,
    sources: CounterfactualSources = CounterfactualSources(),  # noqa: B008
    reading: ProbabilityReading = ProbabilityReading(),  # noqa: B008
    resampling: Resampling = Resampling(),  # noqa: B008
    progress: Progress | None = None,
) -> tuple[pa.Table, pa.Table]:
    """Counterfactual bias by target and template, with controls.

    Parameters
    ----------
    model : MaskedPredictor
        The model to audit.
    data : Faces or None
        Images of the two groups; None measures texts alone.
    query : CounterfactualQuery
        The bias concept, target words and templates.
    convention : Convention
        Recorded only.
    sources : CounterfactualSources
        Sources of counterfactual images, and the size of the noise control.
    reading : ProbabilityReading
        Normalisation of probabilities, and further models to measure on texts alone.
    resampling : Resampling
        Numbers of permutations and bootstrap resamples, and the seed.
    progress : callable, optional
        Called as `progress(what, share)`.

    Returns
    -------
    tuple of pyarrow.Table
        Rows of RESULTS, and the bias of every image and target (INSTANCES).

    Raises
    ------
    InputError
        If the model has no masked head or does not know a word, or if data and sources do not
        fit together.
    """
    source, true, seed = sources.source, sources.true, resampling.seed
    if data is not None and isinstance(true, ParallelImages):
        true.pairs(data, query.swap)  # raises before the costly attack
    model = with_masked_head(model)
    constants: dict[str, Any] = {
        "probe": "counterfactual",
        "model": getattr(model, "name", type(model).__name__),
        "dataset": getattr(data, "name", None),
        "attribute": query.swap.attribute,
        "convention": convention.name,
        "seed": seed,
    }
    rng = np.random.default_rng(seed)
    tables, instance_tables = [], []
    sample = None
    if data is not None and source is not None:
        sample = images_of(data)[np.arange(1)]
        noise = sources.noise if hasattr(pixels_of(model, sample), "detach") else 0.0
        scores = measure(model, data, query, source, noise=noise, seed=seed, progress=progress)
        tables.append(
            rows(1, **constants, metric="images_measured", value=[len(set(scores.rows))],
                 n=len(scores.rows), note=reading.note or None)
        )  # fmt: skip
        tables.append(flips(scores, constants))
        lift, of_clusters = pair_lift_tables(scores, data, query, resampling, rng, constants)
        tables.append(lift)
        instance_tables.append(of_clusters)
        for softmax in reading.softmax:
            read = scores.as_read() if softmax == "own-reading" else scores
            biases = read.biases(query, softmax, reading.least_change)
            tables += bias_tables(read, query, biases, softmax, resampling, rng, constants)
            instance_tables.append(instances(read, data, query, biases, softmax, constants))
        tables.append(shift_table(scores, query, resampling, rng, constants))
        if true is not None:
            true_scores = measure(model, data, query, true, seed=seed, progress=progress)
            tables.append(flips(true_scores, constants))
            tables.append(shift_table(true_scores, query, resampling, rng, constants))
            tables.append(comparison(scores, true_scores, data, query, resampling, rng, constants))
        for name, curve_source in sources.curve.items():
            bias = bias_only(model, data, query, curve_source)
            tables.append(
                flip_row(*bias, name, str(getattr(curve_source, "settings", "")), constants)
            )
    for reader in (model, *reading.text_models):
        text_biases, image = text_bias(reader, query, sample)
        reader_constants = {**constants, "model": getattr(reader, "name", type(reader).__name__)}
        tables.append(text_table(text_biases, image, query, resampling, rng, reader_constants))
    return combined(tables), combined(instance_tables, INSTANCES)


OPTIONS: dict[str, Any] = {
    "source": "auto",  # adversarial, parallel, redrawn, folder; auto: redrawn on the testbed
    "attribute": "",  # label column; "": the one whose groups have known words
    "groups": "",  # two of its groups; positive bias is association with the first
    "words": "",  # the bias words for them, such as man,woman
    "targets": "activities,occupations",  # word lists, or files
    "templates": "",  # with {g} and [MASK], separated by |; script: A {g} is [MASK]
    "prompt": "",  # with [MASK] for the bias word
    "labels": "",  # a table with the columns target and label: human stereotypes
    "softmax": READINGS[:2],  # also hard, own-reading, relative: the public scripts
    "least_change": LEAST_CHANGE,
    "epsilon": 8.0,  # grey levels, of 255
    "step": 2.0,
    "steps": 20,
    "confidence": 0.9,
    "loss": "word",
    "random_start": False,
    "starts": 3,  # the image itself, then a lighter and a darker one if that fails
    "quantise": False,
    "curve": (2.0, 4.0, 8.0, 16.0),  # further epsilons, for the flip rate; 0: none
    "truth": True,  # compare with true counterfactuals if the data have them
    "folder": "",  # of edited images, for the source folder
    "store": "",  # directory that caches attacked images
    "images": 100,  # maximum, balanced over groups and concepts; 0: all
    "batch": 32,
}


def chosen_sources(
    name: str, data: Faces, options: Mapping[str, Any], seed: int
) -> tuple[Source, Source | None, dict[str, Source]]:
    """The source, a true source to compare it with, and attacks of other sizes."""
    is_testbed = type(data.images).__module__ == "tiltmeter.testbed.render"
    true_name = (
        "redrawn" if is_testbed else "parallel" if getattr(data, "parallel", False) else None
    )
    if name == "auto":
        name = "redrawn" if is_testbed else "adversarial"
    batch = options["batch"]
    if name == "folder":
        if not options["folder"]:
            raise InputError(
                "the source folder needs images named by id: --option counterfactual.folder=DIR"
            )
        return SOURCES[name](Path(options["folder"]), batch), None, {}
    if name != "adversarial":
        return SOURCES[name](batch), None, {}
    from tiltmeter.probes.counterfactual.sources.adversarial import AdversarialAttack, Attack

    store = Path(options["store"]) if options["store"] else None

    def attack(epsilon: float, *, quantise: bool = options["quantise"]) -> AdversarialAttack:
        # larger steps for a larger epsilon
        step = options["step"] * max(epsilon / options["epsilon"], 1)
        settings = Attack(
            epsilon / GREY, step / GREY, options["steps"], options["confidence"], options["loss"],
            options["random_start"], options["starts"], quantise, seed,
        )  # fmt: skip
        return AdversarialAttack(settings, batch, store)

    curve: dict[str, Source] = {
        f"adversarial, epsilon {epsilon:g}/255": attack(epsilon)
        for epsilon in options["curve"]
        if epsilon not in (0, options["epsilon"])
    }
    if not options["quantise"] and options["epsilon"] >= 1:
        curve["adversarial, 8 bits"] = attack(options["epsilon"], quantise=True)
    true = SOURCES[true_name](batch) if true_name and options["truth"] else None
    return attack(options["epsilon"]), true, curve


def of_targets(data: Faces, targets: Sequence[str]) -> tuple[Faces, str]:
    """Images of the target words only, and a note on those left out.

    Where images show concepts (VL-Bias), a concept that is no target word is either known and not
    requested, or misspelt, which raises `InputError`.
    """
    target_of = targets_shown(data, targets)
    if target_of is None or (target_of >= 0).all():
        return data, ""
    other_concepts = Counter(data.scenes[row] for row in np.flatnonzero(target_of < 0))  # type: ignore[attr-defined]
    counts = ", ".join(f"{name} {count:,}" for name, count in sorted(other_concepts.items()))
    known = target_words(OPTIONS["targets"])  # of VL-Bias
    if unknown := sorted(name for name in other_concepts if name.casefold() not in known):
        similar = difflib.get_close_matches(unknown[0].casefold(), sorted({*targets, *known}))
        hint = f" (did you mean {similar[0]!r}?)" if similar else ""
        raise InputError(
            f"{data.name} has images of {', '.join(map(repr, unknown))}{hint}, but no target word "
            "of that name: rename the folder, or add the word to the targets "
            f"(--option counterfactual.targets={OPTIONS['targets']},FILE)"
        )
    if (target_of < 0).all():
        raise InputError(
            f"no image of {data.name} shows a target word: the targets are {', '.join(targets)}; "
            f"the images show {counts}. Choose other targets (--option counterfactual.targets=LIST)"
        )
    return data.select(
        np.flatnonzero(target_of >= 0).tolist()
    ), f"left out (no target words): {counts}"


def fewer(data: Faces, swap: Swap, maximum: int, rng: np.random.Generator) -> Faces:
    """At most `maximum` images, balanced over groups and concepts; parallel scenes stay whole."""
    rows = swap.rows(data)
    if not maximum or len(rows) <= maximum:
        return data
    scenes = np.array(getattr(data, "scenes", ()) or [""] * len(data))[rows]
    names = rng.permutation(sorted(set(scenes)))
    if getattr(data, "parallel", False):
        kept: list[int] = []
        for scene in names:
            scene_rows = [int(row) for row in rows[scenes == scene]]
            if kept and len(kept) + len(scene_rows) > maximum:
                break
            kept += scene_rows
        return data.select(sorted(kept))
    if maximum < len(names):
        raise InputError(
            f"images={maximum} is less than one image for each of the {len(names)} concepts of "
            f"{data.name}: pass at least {len(names)}, or 0 for all images"
        )
    first = swap.has_first(data, rows)
    by_name = []
    for number, name in enumerate(names):  # every other concept starts with the second group
        sides = [rng.permutation(rows[(scenes == name) & side]) for side in (first, ~first)]
        by_name.append(_by_turns(sides[:: 1 if number % 2 == 0 else -1]))
    return data.select(sorted(_by_turns(by_name)[:maximum]))


def _by_turns(lists: Sequence[Iterable[int]]) -> list[int]:
    """Interleave lists: the first of every list, then the second, and so on."""
    return [int(row) for turn in itertools.zip_longest(*lists) for row in turn if row is not None]


def target_classes_and_neutral_words(
    model: MaskedPredictor, lists: str
) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """The class of each target word, and neutral words of these classes that the model knows.

    Activities are judged by neutral activities, nouns by neutral nouns about people. In a planted
    world all targets are icons in the same sentences: one class. Neutral words of several tokens
    would need further passes, and are left out.
    """
    pos = {word.text: word.pos for name in lists.split(",") for word in stimuli.load(name).words}
    of_world = ACTIVITY if planted_world(model) else None
    classes = tuple(of_world or kind for kind in pos.values())
    neutral = []
    for kind in dict.fromkeys(classes):
        for word in stimuli.load(NEUTRAL[kind]).words if kind in NEUTRAL else ():
            try:
                pieces = model.pieces(word.text)
            except TiltmeterError:  # not in the model's vocabulary
                continue
            if len(pieces) == 1 and word.text not in pos:
                neutral.append((word.text, kind))
    return classes, tuple(neutral)


def _run(model: Any, data: Mapping[str, Any], context: AuditContext) -> tuple[pa.Table, pa.Table]:
    options = {**OPTIONS, **context.options}
    role = "pairs" if data.get("pairs") is not None else "faces"
    images = data.get(role)
    try:
        words = counterfactual_words(images, options)
    except CannotRunError:
        raise
    except InputError as error:
        raise CannotRunError(str(error)) from error
    query = CounterfactualQuery(
        Swap(words["attribute"], words["groups"], words["words"], words["prompt"]),
        tuple(words["targets"]),
        tuple(words["targets"].values()),
        words["templates"],
        words["labels"],
        *target_classes_and_neutral_words(model, options["targets"]),
    )
    try:
        check_words(model, query.targets)
    except InputError as error:
        raise CannotRunError(str(error)) from error
    source: Source | None = None
    true: Source | None = None
    curve: Mapping[str, Source] = {}
    note = ""
    if getattr(model, "text_only", False):
        images = None  # the rows of texts alone, for equations 12 and 13
    if images is not None:
        if images.images is None:
            raise CannotRunError(f"{images.name} has embeddings and no images to change")
        source, true, curve = chosen_sources(options["source"], images, options, context.seed)
        images, note = of_targets(images, query.targets)
        available = len(query.swap.rows(images))
        images = fewer(images, query.swap, options["images"], np.random.default_rng(context.seed))
        if (sampled := len(query.swap.rows(images))) < available:
            sample_note = f"{sampled:,} of {available:,} images were sampled "
            sample_note += "(--option counterfactual.images=0 for all)"
            note = "; ".join(filter(None, [sample_note, note]))
        if isinstance(images.images, ImageFiles | GeneratedImages):
            images = images.select(context.readable(role, images))
    table, single = counterfactual(
        model,
        images,
        query=query,
        convention=context.convention,
        sources=CounterfactualSources(source, true, curve or {}, options["epsilon"] / GREY),
        reading=ProbabilityReading(options["softmax"], options["least_change"], note),
        resampling=context.resampling,
        progress=context.progress,
    )
    if images is not None and (world := planted_world(images)) and query.swap.attribute == "shape":
        table = combined([table, planted_order(table, world)])
    return table, single


def planted_order(table: pa.Table, world: Any) -> pa.Table:
    """Spearman's correlation of the words' bias by image with that of a perfect model."""
    from tiltmeter.testbed.oracle import Oracle, shape_mask

    measured = [row for row in table.to_pylist() if row["metric"] == "bias_V"
                and row["template"] is None and row["value"] is not None]  # fmt: skip
    found = []
    for experiment in dict.fromkeys(row["experiment"] for row in measured):
        words = [row for row in measured if row["experiment"] == experiment]
        targets = np.array([world.index(row["target"]) for row in words])
        seen = Oracle(world).posterior(image=shape_mask(np.array([0, 1])), among=targets)
        planted = seen[0] - seen[1]
        if len(words) < 3 or np.ptp(planted) < 1e-9:  # nothing was planted: no order to agree with
            continue
        same = {name: words[0][name] for name in
                ("probe", "model", "dataset", "attribute", "convention", "seed")}  # fmt: skip
        rho = float(spearman(np.array([row["value"] for row in words]), planted)[0])
        found.append(
            rows(1, **same, metric="spearman", experiment=f"{experiment}, bias_V against planted",
                 value=rho, ideal=1.0, n=len(words))
        )  # fmt: skip
    return combined(found)


PROBE = Probe(
    "Counterfactual bias of masked words, by image and by text (CounterBias).",
    _run,
    enabled_by=("pairs",),
    takes=("faces", "pairs"),
    protocols=(MaskedPredictor,),
    options=OPTIONS,
)
