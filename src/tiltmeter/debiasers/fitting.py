"""Fits a debiaser on data and returns the corrected model: what `tiltmeter debias` does."""

from __future__ import annotations

import inspect
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace as changed
from pathlib import Path
from typing import Any

import numpy as np

from tiltmeter.datasets import load_data
from tiltmeter.datasets.found_images import check_complete
from tiltmeter.datasets.shards import ShardedFaces
from tiltmeter.debiasers import DEBIASERS
from tiltmeter.debiasers.debiased import Debiased
from tiltmeter.debiasers.debiaser import GIVEN_BY, Debiaser, ModelEdit, required_attribute
from tiltmeter.debiasers.fit_on_shards import check_fits_on, fit_on_shards, load_shards
from tiltmeter.debiasers.fitted_rows import FittedRows
from tiltmeter.debiasers.group_prompts import group_texts
from tiltmeter.debiasers.pipeline import Pipeline
from tiltmeter.engine.embedding.embed_images import embed
from tiltmeter.engine.engines import Engine
from tiltmeter.engine.named import engine_with_store
from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.io.image_files import SUFFIXES, GeneratedImages, ImageFiles
from tiltmeter.metrics.arrays import to_numpy
from tiltmeter.models import load_model
from tiltmeter.store import Store
from tiltmeter.types import Array, Faces, Groups, Progress, planted_world

#: Captions that the testbed's models learn from by default; images and their seed.
DEFAULT_CAPTIONS, DEFAULT_IMAGES, DEFAULT_SEED = 20_000, 4000, 1
#: Share of the images with captions that is held out of training, to measure the utility cost.
HELD_OUT = 0.1
MOST_HELD_OUT = 1000


def debias(
    method: str | Debiaser,
    model: str | Any,
    faces: str | Faces | None = None,
    *,
    attribute: str | None = None,
    captions: Any = None,
    prompts: str | Path | Mapping[str, Sequence[str]] | None = None,
    edited: str | Path | None = None,
    utility: Any = None,
    settings: Mapping[str, Any] | None = None,
    share: float = 1.0,
    out: str | Path | None = None,
    replace: bool = False,
    store: str | Path | None = None,
    device: str = "auto",
    engine: str | Engine = "local",
    strict: bool = False,
    seed: int = 0,
    progress: Progress | None = None,
) -> Debiased:
    """Fit a debiaser and return the corrected model.

    The debiaser keeps the rows it was fitted on, and an audit refuses them. Under torchrun or
    accelerate the batch of FairVLP is spread over the processes, and the first one writes.

    Parameters
    ----------
    method
        Name of a debiaser, names of vector maps joined by +, or a debiaser object.
    model
        Model spec or model.
    faces
        Labelled images, or their spec. Which data are needed depends on the method.
    attribute
        A label column or an intersection (`race*gender`).
    captions
        Images with captions, or their spec.
    prompts
        Texts that name each group: a mapping or a YAML file, see `debiasers.group_prompts`. By
        default sentences with the groups' names.
    edited
        Folder of edited images named by id, or `redraw` for scenes of the testbed.
    utility
        Images with classes, or their spec: training stops when accuracy on them falls too far.
    settings
        Hyperparameters of the method.
    share
        Random share of the images to fit on.
    out
        Directory to save the model in. An interrupted training resumes from its checkpoint, next to
        it, when called again in the same way.
    replace
        Whether `out` may be replaced.
    store
        Directory of cached embeddings; with an engine also of finished parts of a fit.
    device
        Where the model runs.
    engine
        `parts` or `ray` fit on collections in shards, where the method learns from means and
        covariances (LEACE), from the names of groups (PBM), or from texts alone.
    strict
        Whether a missing or unreadable image is an error.
    seed
        Seed of everything random.
    progress
        Called with a line of text and the share that is done.

    Returns
    -------
    Debiased
        The corrected model.

    Raises
    ------
    InputError
        If something that the method needs is missing or out of range.

    Examples
    --------
    >>> fair = debias("leace", "testbed:dual", "testbed:?images=280", attribute="shape")
    >>> fair.name
    'testbed:dual+leace'
    """
    writes = _is_first_process()
    where = engine_with_store(engine, store)
    spec = model if isinstance(model, str) else getattr(model, "provenance", {}).get("spec")
    if out is not None and Path(out).exists() and not replace:
        raise InputError(f"{out} exists already: use another --out, or --force")
    if isinstance(model, str):
        model = load_model(model, device=device)
    if out is not None and spec is None:
        raise InputError(
            "the model has no spec, so it could not be loaded again: pass its spec "
            "(debias(method, 'hf:DIR', ...)), or no `out`"
        )
    debiaser = make_debiaser(method, settings, model, seed) if isinstance(method, str) else method
    report = progress or (lambda what, share: None)
    started = time.perf_counter()
    record: dict[str, Any] = {"attribute": attribute, "seed": seed}
    fitted_on: Any = None  # faces, or else captions
    groups: Groups | None = None
    vectors: Array | None = None
    needs = _needs(debiaser)
    if where.name != "local":
        check_fits_on(where, debiaser, str(method))
        faces = load_shards(
            faces, attribute, where, model=model, spec=spec, store=store, share=share,
            strict=strict, progress=report,
        )  # fmt: skip
        record["shards"] = len(faces.shards)
    on_shards = where.name != "local" and "labels" in needs
    if "labels" in needs and not on_shards:
        fitted_on = _faces(faces, model, attribute, strict, store, share, seed, report)
        groups, vectors = fitted_on.attribute(str(attribute)), _vectors(model, fitted_on)
    held_out = None
    if isinstance(debiaser, ModelEdit):
        captions = _captions(captions, model, seed, needed=debiaser.needs_captions)
        files = getattr(captions, "images", None)
        if store is not None and "labels" in needs and isinstance(files, ImageFiles):
            report("embedding the captions' images", 0.0)
            vectors_of = embed(model, captions.images, captions.ids, store=Store(Path(store)),
                               strict=True, progress=report)  # fmt: skip
            captions = changed(captions, vectors=vectors_of.vectors)
        utility = load_data(utility, role="utility") if isinstance(utility, str) else utility
        train, held_out = (None, None) if captions is None else _split(captions, seed)
        debiaser.fit(
            model,
            train,
            vectors=vectors,
            groups=groups,
            images=getattr(fitted_on, "images", None),
            edited=None if edited is None else _edited(edited, train),
            utility=utility,
            checkpoints=None if out is None else _checkpoints(out),
            progress=report,
        )
        fitted_on = train if fitted_on is None else fitted_on
    elif on_shards and isinstance(faces, ShardedFaces):
        fit_on_shards(debiaser, faces, str(attribute), where, report)
    else:
        texts = None
        if "prompts" in needs or prompts is not None:
            names = _group_names(groups, faces, model, attribute)
            planted = planted_world(model) is not None
            texts = group_texts(model.encode_texts, prompts, names, testbed=planted)
        report("fitting", 0.5)
        debiaser.fit(vectors, groups, texts=texts)  # type: ignore[attr-defined]
    if not on_shards:
        debiaser.rows_ = None if fitted_on is None else FittedRows.of(fitted_on)
    images = fitted_on if "labels" in needs and not on_shards else faces
    record["left_out"] = _left_out(faces=images, captions=captions, utility=utility)
    record["seconds"] = round(time.perf_counter() - started, 3)
    debiased = Debiased(model, debiaser, record=record, spec=spec)
    if not writes:
        return debiased
    if held_out is not None and len(held_out.texts) > 1:
        from tiltmeter.debiasers.utility_cost import utility_changes

        report("measuring the utility cost", 0.99)
        words = {name: getattr(debiaser, name, None) or () for name in ("pairs", "spared")}
        changes = utility_changes(model, debiased, held_out, seed=seed, **words)
        debiased.record["utility_cost"] = [change.as_dict() for change in changes]
    if out is not None:
        debiased.save(out, replace=replace)
        shutil.rmtree(_checkpoints(out), ignore_errors=True)
    return debiased


def _is_first_process() -> bool:
    """Whether this process writes; those that torchrun started use a GPU each."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        import torch

        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    return int(os.environ.get("RANK", "0")) == 0


def make_debiaser(
    method: str, settings: Mapping[str, Any] | None, model: Any = None, seed: int = 0
) -> Debiaser:
    """Make a debiaser with settings as typed on the command line, or as Python values.

    Parameters
    ----------
    method
        Name of a debiaser; `a+b` is a pipeline.
    settings
        Hyperparameters by name; in a pipeline with the method's name: `a.keep`.
    model
        The model to correct: those of the testbed have words of their own.
    seed
        Seed, for methods that have one.

    Raises
    ------
    UnknownNameError
        For an unknown method or setting.
    InputError
        For a value of the wrong type.

    Examples
    --------
    >>> make_debiaser("clip-clip", {"keep": "0.5"})
    ClipClip(keep=0.5, neighbours=3)
    """
    settings = settings or {}
    if "+" in method:
        methods = method.split("+")
        for name in settings:
            if name.partition(".")[0] not in methods:
                raise UnknownNameError(f"setting of {method}", name, methods)
        steps = [
            make_debiaser(step, _settings_of(step, settings), model, seed).get_params()
            for step in methods
        ]
        return DEBIASERS["pipeline"](methods, steps)  # type: ignore[no-any-return]
    kind = DEBIASERS[method]
    known = inspect.signature(kind).parameters
    params: dict[str, Any] = {"seed": seed} if "seed" in known else {}
    if "pairs" in known and planted_world(model):
        from tiltmeter.testbed.captioned import PAIRS, frame_words

        params |= {"pairs": PAIRS, "spared": frame_words(), "hide_bias": False}
    for name, value in settings.items():
        if name not in known:
            raise UnknownNameError(f"setting of {method}", name, known)
        params[name] = _parse(name, value, known[name].default, str(known[name].annotation))
    debiaser: Debiaser = kind(**params)
    return debiaser


def _settings_of(step: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    prefix = f"{step}."
    return {k.removeprefix(prefix): v for k, v in settings.items() if k.startswith(prefix)}


def _parse(name: str, value: Any, default: Any, annotation: str = "") -> Any:
    """A typed value, as the type of the default."""
    if not isinstance(value, str) or isinstance(default, str):
        return value
    try:
        if name == "pairs":
            return [_parse_pair(pair) for pair in value.split(",")]
        if isinstance(default, tuple):
            return tuple(value.split(","))
        if isinstance(default, bool):
            return {"yes": True, "true": True, "no": False, "false": False}[value.lower()]
        if isinstance(default, float) and "/" in value:
            top, bottom = value.split("/")
            return float(top) / float(bottom)
        if default is None and annotation.startswith("int"):
            return int(value)
        return value if default is None else type(default)(value)
    except (KeyError, ValueError, ZeroDivisionError):
        example = "man:woman,he:she" if name == "pairs" else 1 if default is None else default
        raise InputError(f"{name} takes a value such as {example}; got {value!r}") from None


def _parse_pair(text: str) -> list[str]:
    first, second = text.split(":")
    return [first.strip(), second.strip()]


def _faces(
    faces: Any, model: Any, attribute: str | None, strict: bool, store: Any, share: float,
    seed: int, progress: Progress,
) -> Faces:  # fmt: skip
    """The images to fit on, with their embeddings, a random share of them."""
    if faces is None and (world := planted_world(model)):
        own = DEFAULT_SEED + seed  # not the seed of the images that an audit uses
        faces = f"testbed:?images={DEFAULT_IMAGES}&strength={world.strength}&seed={own}"
    if isinstance(faces, str):
        columns = None if attribute is None else attribute.split("*")
        faces = load_data(faces, attributes=columns, role="faces")
    attribute = required_attribute(faces, attribute)
    check_complete(faces, strict=strict)
    faces.attribute(attribute)  # an unknown one is an error before the work begins
    if not 0 < share <= 1:
        raise InputError(f"share must be above 0 and at most 1; got {share}")
    if share < 1:
        count = max(2, round(share * len(faces)))
        faces = faces.select(sorted(np.random.default_rng(seed).permutation(len(faces))[:count]))
    if faces.vectors is None and isinstance(faces.images, ImageFiles | GeneratedImages):
        cache = None if store is None else Store(Path(store))
        embedded = embed(
            model, faces.images, faces.ids, store=cache, strict=strict, progress=progress
        )
        faces = embedded.of(faces)
    return faces  # type: ignore[no-any-return]


def _vectors(model: Any, faces: Faces) -> Array:
    if faces.vectors is not None:
        return faces.vectors
    if faces.images is None or not hasattr(model, "encode_images"):
        name = getattr(model, "name", type(model).__name__)
        raise InputError(f"{faces.name} has no embeddings, and {name} cannot compute them")
    return to_numpy(model.encode_images(faces.images))


def _left_out(**data: Any) -> dict[str, Any]:
    """Missing and unreadable images by role, as an audit records them."""
    found = {}
    for role, loaded in data.items():
        provenance = getattr(loaded, "provenance", {})
        missing = (provenance.get("found") or {}).get("missing")
        faults = {"found": {"missing": missing}, "unreadable": provenance.get("unreadable")}
        if any(one and one["count"] for one in (missing, faults["unreadable"])):
            found[role] = {"name": loaded.name, **faults}
    return found


def _needs(debiaser: Debiaser) -> tuple[str, ...]:
    """What a method needs; a pipeline, what its steps need."""
    if not isinstance(debiaser, Pipeline):
        return debiaser.needs
    return tuple(need for step in debiaser.methods for need in DEBIASERS[step].needs)


def _group_names(
    groups: Groups | None, faces: Any, model: Any, attribute: str | None
) -> tuple[str, ...] | None:
    """The names of the groups that occur, also for methods that use no labels."""
    if groups is None and attribute is not None:
        if faces is None and planted_world(model):
            faces = f"testbed:?images={DEFAULT_IMAGES}"
        if isinstance(faces, str):
            faces = load_data(faces, attributes=attribute.split("*"), role="faces")
        groups = None if faces is None else faces.attribute(attribute)
    if groups is None:
        return None
    return tuple(name for name, count in zip(groups.names, groups.counts, strict=True) if count)


def _captions(captions: Any, model: Any, seed: int, *, needed: bool) -> Any:
    if captions is None and (world := planted_world(model)):
        from tiltmeter.testbed.captioned import draw_captioned_scenes
        from tiltmeter.testbed.world import World

        return draw_captioned_scenes(
            World.plant(world.strength),
            DEFAULT_CAPTIONS,
            np.random.default_rng([seed, DEFAULT_SEED]),
        )
    if captions is None and needed:
        raise InputError(f"this method learns from captions: {GIVEN_BY['captions']}")
    return load_data(captions, role="captions") if isinstance(captions, str) else captions


def _split(captions: Any, seed: int) -> tuple[Any, Any]:
    """Captions to learn from, and those of other images, held out."""
    images = len(captions.ids)
    count = min(MOST_HELD_OUT, int(HELD_OUT * images))
    order = np.random.default_rng([seed, 3]).permutation(images)
    return _of_images(captions, np.sort(order[count:])), _of_images(
        captions, np.sort(order[:count])
    )


def _of_images(captions: Any, images: Any) -> Any:
    """Some of the images, with their captions."""
    index = {int(old): new for new, old in enumerate(images)}
    rows = [row for row, image in enumerate(captions.of) if int(image) in index]
    return changed(
        captions,
        ids=tuple(captions.ids[at] for at in images),
        texts=tuple(captions.texts[row] for row in rows),
        of=np.array([index[int(captions.of[row])] for row in rows], dtype=np.int64),
        images=None if captions.images is None else captions.images[images],
        vectors=None if captions.vectors is None else captions.vectors[images],
    )


def _edited(edited: str | Path, captions: Any) -> Any:
    """Edited images in the order of the captions' own."""
    if str(edited) == "redraw":
        if not hasattr(captions.images, "redrawn"):
            raise InputError("only scenes of the testbed can be redrawn: use --edited DIR")
        return captions.images.redrawn(shape=1 - captions.images.shape)
    root = Path(edited)
    paths = []
    for image_id in captions.ids:
        stem = root / image_id
        candidates = (stem, *(stem.with_suffix(suffix) for suffix in SUFFIXES))
        path = next((path for path in candidates if path.is_file()), None)
        if path is None:
            raise InputError(
                f"{root} has no edited image of {image_id}: expected {image_id}, or {stem}.png"
            )
        paths.append(path)
    return ImageFiles(tuple(paths), root)


def _checkpoints(out: str | Path) -> Path:
    """Where the checkpoints of a training are."""
    return Path(f"{out}.training")
