"""Does the bias of a model's embeddings appear in what it retrieves? (Ghate et al. 2025)

Eight experiments between pictures of people, pictures with a valence, a lexicon with valences, and
phrases that name groups. Each query has an intrinsic number (SC-EAT) and an extrinsic one (what its
top 500 are like); their rank correlation is the published measure. See propagation_experiments for
the numbers, propagation_rows for what is said of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from tiltmeter.datasets.morph import parents_of
from tiltmeter.io.image_files import GeneratedImages, ImageFiles
from tiltmeter.metrics.arrays import to_numpy
from tiltmeter.metrics.convention import Convention
from tiltmeter.probes.embeddings import image_embeddings
from tiltmeter.probes.probe import AuditContext, CannotRunError, Probe, unknown_word_cannot_run
from tiltmeter.probes.propagation.estimates import data_rows, instances, valence_rows
from tiltmeter.probes.propagation.experiments import (
    EXPERIMENTS,
    ROLES,
    ExperimentInput,
    PropagationConfig,
    measure,
)
from tiltmeter.probes.propagation.meta_analysis import pooled_rows, pooled_z
from tiltmeter.probes.propagation.rows import tabulate
from tiltmeter.probes.texts import Sentences, propagation_sentences
from tiltmeter.results import INSTANCES, combined, rows
from tiltmeter.stats.resampling import Resampling
from tiltmeter.types import (
    Array,
    Faces,
    Floats,
    Groups,
    MultiVectorEncoder,
    Progress,
    TextEncoder,
    planted_world,
)

#: Models that can take part: with one vector per image, or with several.
Encoder = TextEncoder | MultiVectorEncoder

#: Labels that mean the same as those of the group phrases.
SAME = {"woman": "female", "women": "female", "man": "male", "men": "male",
        "east asian": "asian", "southeast asian": "asian"}  # fmt: skip


def propagation(
    sides: Mapping[str, ExperimentInput],
    *,
    model: str,
    convention: Convention,
    lacking: Mapping[str, str] | None = None,
    choices: PropagationConfig | None = None,
    parameters: int | None = None,
    resampling: Resampling | None = None,
    progress: Progress | None = None,
) -> tuple[pa.Table, pa.Table]:
    """Runs the experiments whose two sides are there, and names the others.

    `sides` are vectors with what is known of them, by role: faces, valence, lexicon, groups.
    `lacking` says why a role is not there. `parameters` is the model's size, kept for tables over
    models. Returns rows of RESULTS and both numbers of every query.
    """
    resampling, progress = resampling or Resampling(), progress or (lambda what, share: None)
    choices = replace(choices or PropagationConfig(), ties=convention.ties)
    if choices.k_as == "auto":
        choices = replace(choices, k_as="count")
    why = {role: (lacking or {}).get(role, f"no {ROLES[role]}") for role in ROLES}
    everything = {"probe": "propagation", "model": model, "convention": convention.name,
                  "seed": resampling.seed}  # fmt: skip
    tables, single = [], []
    for done, (name, one) in enumerate(EXPERIMENTS.items()):
        progress(f"propagation {name}", done / len(EXPERIMENTS))
        constants = {**everything, "experiment": choices.label(name)}
        absent = [why[role] for role in (one.queries, one.items) if role not in sides]
        if not absent and choices.compares_own(name) and sides[one.queries].vectors[0].ndim == 3:
            absent = [f"{ROLES[one.queries]} have several vectors each: no similarity among them"]
        if absent:
            note = "not run: " + "; ".join(dict.fromkeys(absent))
            tables.append(rows(1, **constants, metric="rho", value=np.nan, note=note))
            continue
        queries, items = sides[one.queries], sides[one.items]
        names = dict.fromkeys(side.dataset for side in (queries, items) if side.dataset)
        # each experiment draws for itself: what else runs changes none of its numbers
        rng = np.random.default_rng([resampling.seed, done])
        measured = measure(name, queries, items, choices, rng)
        groups = measured.groups
        constants |= {"dataset": "+".join(names), "attribute": groups and groups.attribute}
        tables.append(tabulate(measured, choices, resampling, rng, constants))
        tables += valence_rows(measured, constants)
        single.append(instances(measured, constants))
    if not single:
        reasons = "; ".join(dict.fromkeys(why[role] for role in ROLES if role not in sides))
        raise CannotRunError(f"none of the eight experiments can run: {reasons}")
    tables.append(pooled_rows(combined(tables), everything))
    tables += pooled_z([combined(tables)], everything)
    tables += data_rows(sides, everything)
    if parameters:
        tables.append(rows(1, **everything, metric="parameters", value=float(parameters)))
    progress("propagation", 1.0)
    return combined(tables), combined(single, INSTANCES)


def _run(
    model: Encoder, data: Mapping[str, Any], context: AuditContext
) -> tuple[pa.Table, pa.Table]:
    options = dict(context.options)
    attribute, each = options.pop("attribute"), options.pop("each")
    choices = PropagationConfig(**options)
    faces, valence, lexicon = (data.get(role) for role in ("faces", "valence", "lexicon"))
    lacking = {
        role: f"no {ROLES[role]} ({option}SPEC)"
        for role, option, one in (("faces", "--images ", faces),
                                  ("valence", "--data valence=", valence),
                                  ("lexicon", "--data lexicon=", lexicon))
        if one is None
    }  # fmt: skip
    if len(lacking) == 3:
        raise CannotRunError("needs data: " + "; ".join(lacking.values()))
    planted = any(planted_world(one) for one in (faces, valence, lexicon))
    if planted and choices.k_as == "auto":  # its datasets are small
        choices = replace(choices, k_as="share")
    phrases = propagation_sentences(planted=planted)
    attribute = attribute or _usual(phrases, faces)
    labels = _labels(phrases, attribute)
    sides: dict[str, ExperimentInput] = {}
    if faces is not None:
        if len(_meant(faces.attribute(attribute), labels)) < 2:
            labels = {}
        try:
            one_vector = isinstance(model, TextEncoder)
            usable = context.with_embeddings(faces) if one_vector else _readable(faces, context)
            shown, notes = _balanced(usable, attribute, labels, each, context.seed)
        except CannotRunError as error:
            lacking["faces"] = str(error)
        else:
            vectors = (
                image_embeddings(model, shown)
                if isinstance(model, TextEncoder)
                else _seen(model, shown)
            )
            groups = shown.groups[attribute]
            labels = {row: name for row, name in labels.items() if name in groups.names}
            sides["faces"] = ExperimentInput(
                "faces", shown.ids, [vectors], None, groups, faces.name, notes,
                parents_of(shown.ids),
            )  # fmt: skip
    if valence is not None:
        sides["valence"] = _valence_input(model, valence, context)
    with unknown_word_cannot_run():
        if lexicon is not None:
            sides["lexicon"] = _lexicon_input(model, lexicon, planted, context.progress)
        if not labels:
            lacking["groups"] = f"no phrases that name groups by {attribute}"
        elif "faces" in sides or "valence" in sides:
            sides["groups"] = _phrases(model, phrases, labels, attribute, context.progress)
    if choices.k_as == "auto" and any(len(side) < max(choices.k) for side in sides.values()):
        choices = replace(choices, k_as="share")
        note = "k is a share of the items, as large as in the study: there are fewer than "
        note += f"{max(choices.k):,}"
        sides = {role: replace(side, notes=(*side.notes, note)) for role, side in sides.items()}
    device = str(getattr(model, "device", "cpu"))
    if device.startswith("cuda"):
        sides = {role: _moved(side, device) for role, side in sides.items()}
    table, single = propagation(
        sides,
        model=getattr(model, "name", type(model).__name__),
        lacking=lacking,
        choices=choices,
        convention=context.convention,
        parameters=_size(model),
        resampling=context.resampling,
        progress=context.progress,
    )
    world = planted_world(faces) if faces is not None and lexicon is not None else None
    return table if world is None else with_planted(table, world), single


def with_planted(table: pa.Table, world: Any) -> pa.Table:
    """Results with what a perfect model retrieves: the difference in valence of experiment 1-a."""
    from tiltmeter.testbed.language import SHAPES
    from tiltmeter.testbed.valence import retrieved_valence

    truth = table["truth"].to_pylist()
    for at, row in enumerate(table.to_pylist()):
        if (row["metric"], row["experiment"], row["attribute"]) == (
            "extrinsic_difference", "1-a", "shape",
        ):  # fmt: skip
            valence = dict(zip(SHAPES, retrieved_valence(world, row["k"]), strict=True))
            truth[at] = valence[row["group"]] - valence[row["target"]]
    place = table.column_names.index("truth")
    return table.set_column(place, table.schema.field("truth"), pa.array(truth, pa.float64()))


def _usual(phrases: Sentences, faces: Faces | None) -> str:
    """The attributes that phrases name and faces have: race*gender; of the testbed, the shape."""
    known = [name for name in phrases.labels if faces is None or name in faces.groups]
    if "shape" in known:
        return "shape"
    return "*".join(known) or next(iter(faces.groups if faces is not None else phrases.labels))


def _labels(phrases: Sentences, attribute: str) -> dict[int, str]:
    """The group of each phrase that names one."""
    parts = attribute.split("*")
    if not set(parts) <= set(phrases.labels):
        return {}
    named = zip(*(phrases.labels[part] for part in parts), strict=True)
    return {row: " | ".join(one) for row, one in enumerate(named) if all(one)}


def _meant(groups: Groups, labels: Mapping[int, str]) -> dict[str, str]:
    """The groups of faces that phrases name, as these name them."""
    known = {_plain(name): name for name in labels.values()}
    return {name: known[_plain(name)] for name in groups.names if _plain(name) in known}


def _balanced(
    faces: Faces, attribute: str, labels: Mapping[int, str], each: int, seed: int
) -> tuple[Faces, tuple[str, ...]]:
    """As many faces of every group, named as phrases name them; groups without any are left out."""
    groups, notes = faces.attribute(attribute), []
    meant = _meant(groups, labels)
    called = [meant.get(name) if meant else name for name in groups.names]
    parts = {part for name in groups.names for part in name.split(" | ")} if meant else set()
    if merged := sorted(part for part in parts if SAME.get(part.casefold()) == "asian"):
        notes.append(f"{' and '.join(merged)} stand for Asian")
    if unnamed := [name for name, one in zip(groups.names, called, strict=True) if one is None]:
        notes.append(f"no phrase names {', '.join(unnamed)}: left out")
    wanted = dict.fromkeys(labels.values() if meant else groups.names)
    found = {name: [row for row, code in enumerate(groups.codes) if called[code] == name]
             for name in wanted}  # fmt: skip
    rows = {name: np.array(at) for name, at in found.items() if len(at) > 1}
    if len(rows) < 2:
        raise CannotRunError(
            f"{faces.name} has not two groups by {attribute} of at least two faces each, but "
            + ", ".join(f"{n} ({c})" for n, c in zip(groups.names, groups.counts, strict=True))
        )
    least = min(rows, key=lambda name: len(rows[name]))
    size = min(each, len(rows[least]))
    if size < each:
        notes.append(f"{size:,} faces a group, not {each:,}: {least!r} has no more")
    rng = np.random.default_rng([seed, len(EXPERIMENTS)])
    chosen = [np.sort(rng.choice(at, size, replace=False)) for at in rows.values()]
    codes = np.repeat(np.arange(len(rows)), size)
    shown = faces.select(np.concatenate(chosen).tolist())
    return replace(shown, groups={attribute: Groups(codes, tuple(rows), attribute)}), tuple(notes)


def _plain(name: str) -> str:
    """A group's name in small letters and in the words of the phrases."""
    parts = (part.casefold() for part in name.split(" | "))
    return " | ".join(SAME.get(part, part) for part in parts)


def _readable(faces: Faces, context: AuditContext) -> Faces:
    """Faces whose images the model can be given; a store keeps one vector per image only."""
    if isinstance(faces.images, ImageFiles | GeneratedImages):
        return faces.select(context.readable("faces", faces))
    return faces


def _seen(model: Any, data: Any) -> Floats:
    encode = getattr(model, "encode_images", None) or getattr(model, "image_vectors", None)
    if data.images is None or encode is None:
        raise CannotRunError(f"{data.name} has no images that the model can embed")
    return to_numpy(encode(data.images))


def _valence_input(model: Any, valence: Any, context: AuditContext) -> ExperimentInput:
    images, kept = valence.images, np.arange(len(valence))
    if not isinstance(images, ImageFiles | GeneratedImages):
        vectors = _seen(model, valence)
    elif isinstance(model, TextEncoder):
        found = context.embed(valence)
        kept, vectors = np.asarray(found.rows), found.vectors
    else:
        kept = np.asarray(context.readable("valence", valence))
        some: Any = images
        vectors = _seen(model, replace(valence, images=some[kept]))
    ids = tuple(valence.ids[row] for row in kept)
    return ExperimentInput(
        "valence", ids, [vectors], np.asarray(valence.valence)[kept], None, valence.name
    )


def _lexicon_input(
    model: Encoder, lexicon: Any, planted: bool, progress: Progress
) -> ExperimentInput:
    """Each word once: of a word that stands there again, the first valence is taken."""
    first = {word: row for row, word in reversed(list(enumerate(lexicon.words)))}
    kept = sorted(first.values())
    again = len(lexicon.words) - len(kept)
    notes = (f"{again:,} words stand again in {lexicon.name}: the first counts",) if again else ()
    words = [lexicon.words[row] for row in kept]
    texts = propagation_sentences(words, planted=planted).texts
    vectors = _encoded(model, texts, "lexicon", progress)
    valence = np.asarray(lexicon.valence)[kept]
    return ExperimentInput("lexicon", tuple(words), vectors, valence, None, lexicon.name, notes)


def _phrases(
    model: Encoder,
    phrases: Sentences,
    labels: Mapping[int, str],
    attribute: str,
    progress: Progress,
) -> ExperimentInput:
    kept, names = list(labels), tuple(dict.fromkeys(labels.values()))
    groups = Groups(np.array([names.index(one) for one in labels.values()]), names, attribute)
    texts = [[some[row] for row in kept] for some in phrases.texts]
    ids = tuple(phrases.words[row] for row in kept)
    vectors = _encoded(model, texts, "groups", progress)
    clusters = tuple(phrases.clusters[row] for row in kept)
    return ExperimentInput("groups", ids, vectors, None, groups, clusters=clusters)


def _encoded(model: Encoder, texts: list[list[str]], role: str, progress: Progress) -> list[Array]:
    """Vectors of sentences, template by template."""
    encode = model.encode_texts if isinstance(model, TextEncoder) else model.text_vectors
    found = []
    for done, some in enumerate(texts):
        progress(f"propagation, {ROLES[role]}", done / len(texts))
        found.append(to_numpy(encode(some)))
    return found


def _moved(side: ExperimentInput, device: str) -> ExperimentInput:
    import torch

    vectors = [torch.as_tensor(np.ascontiguousarray(x), device=device) for x in side.vectors]
    return replace(side, vectors=vectors)


def _size(model: Any) -> int | None:
    """How many numbers the model has learned, where it tells."""
    parameters = getattr(model, "parameters", None)
    return sum(int(one.numel()) for one in parameters()) if callable(parameters) else None


PROBE = Probe(
    "Does the bias of embeddings appear in what they retrieve? Eight experiments on propagation.",
    _run,
    enabled_by=("valence", "lexicon"),
    takes=("faces", "valence", "lexicon"),
    protocols=(TextEncoder, MultiVectorEncoder),
    options={
        "k": (500,),
        "k_as": "auto",
        "attribute": "",
        "each": 1000,
        "extremes": 25,
        "members": 140,
        "valence_sets": "cross",
        "mixed": "all",
        "templates": "per_template",
    },
)
