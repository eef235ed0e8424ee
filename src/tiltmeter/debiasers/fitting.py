"""Fits a debiaser on data and gives back the corrected model: what `tiltmeter debias` does."""

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
from tiltmeter.debiasers import DEBIASERS
from tiltmeter.debiasers.debiased import Debiased
from tiltmeter.debiasers.debiaser import GIVEN_BY, Debiaser, ModelEdit
from tiltmeter.debiasers.fitted_rows import FittedRows
from tiltmeter.debiasers.group_prompts import group_texts
from tiltmeter.debiasers.pipeline import Pipeline
from tiltmeter.engine.embedding.embed import embed
from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.io.image_files import SUFFIXES, GeneratedImages, ImageFiles
from tiltmeter.metrics.arrays import to_numpy
from tiltmeter.models import load_model
from tiltmeter.store import Store
from tiltmeter.types import Array, Faces, Groups, Progress

#: Captions that the testbed's models learn from, where none are given; images and their seed.
OWN_CAPTIONS, OWN_IMAGES, OWN_SEED = 20_000, 4000, 1
#: Share of the pictures with captions that is kept from training, to see what it costs.
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
    settings: Mapping[str, Any] | None = None,
    share: float = 1.0,
    out: str | Path | None = None,
    replace: bool = False,
    store: str | Path | None = None,
    device: str = "auto",
    strict: bool = False,
    seed: int = 0,
    progress: Progress | None = None,
) -> Debiased:
    """Fits `method` and returns the corrected model; with `out` it is saved there.

    `faces` and `captions` are data or specs; which are needed hangs on the method. `attribute` is a
    label column or a crossing (`race*gender`). `prompts` are texts that name each group (a mapping
    or a YAML file, see `debias.naming`); without any, sentences are made of the groups' names.
    `edited` is a folder of edited pictures named by id, or `redraw` for scenes of the testbed.
    `settings` are the method's own. It is fitted on a random `share` of the images and remembers
    those rows: audit it on others. A killed training takes up its checkpoint, which lies beside
    `out`, when it is called again in the same way. Under torchrun or accelerate the batch is spread
    over the processes, and the first one writes.
    """
    first = _first_of_several()
    spec = model if isinstance(model, str) else getattr(model, "provenance", {}).get("spec")
    if out is not None and Path(out).exists() and not replace:
        raise InputError(f"{out} exists already: name another --out, or pass --force")
    tower = load_model(model, device=device) if isinstance(model, str) else model
    if out is not None and spec is None:
        raise InputError(
            "the model was given as an object without a spec, so it could not be found again: give "
            "its spec (debias(method, 'hf:DIR', ...)), or no `out`"
        )
    debiaser = made_from(method, settings, tower, seed) if isinstance(method, str) else method
    tell = progress or (lambda what, share: None)
    started = time.perf_counter()
    record: dict[str, Any] = {"attribute": attribute, "seed": seed}
    seen: Any = None
    groups: Groups | None = None
    vectors: Array | None = None
    needs = _needs(debiaser)
    if "labels" in needs:
        seen = _faces(faces, tower, attribute, strict, store, share, seed, tell)
        groups, vectors = seen.attribute(str(attribute)), _vectors(tower, seen)
    texts = None
    if "prompts" in needs or prompts is not None:
        names = _group_names(groups, faces, tower, attribute)
        texts = group_texts(tower.encode_texts, prompts, names, testbed=_of_testbed(tower))
    held = None
    if isinstance(debiaser, ModelEdit):
        given = _captions(captions, tower, seed)
        learned, held = _split(given, seed)
        extra: dict[str, Any] = {}
        if "edited" in inspect.signature(debiaser.fit).parameters:
            extra["edited"] = None if edited is None else _edited(edited, learned)
        if "images" in inspect.signature(debiaser.fit).parameters:
            extra["images"] = getattr(seen, "images", None)
        if out is not None and "place" in inspect.signature(debiaser.fit).parameters:
            extra["place"] = _beside(out)
        debiaser.fit(
            tower, learned, vectors=vectors, groups=groups, texts=texts, progress=tell, **extra
        )
        seen = learned if seen is None else seen
    else:
        tell("fitting", 0.5)
        debiaser.fit(vectors, groups, texts=texts)  # type: ignore[attr-defined]
    debiaser.rows_ = None if seen is None else FittedRows.of(seen)
    record["seconds"] = round(time.perf_counter() - started, 3)
    made = Debiased(tower, debiaser, record=record, spec=spec)
    if not first:
        return made
    if held is not None and len(held.texts) > 1:
        from tiltmeter.debiasers.utility_cost import prices

        tell("measuring what it costs", 0.99)
        words = {name: debiaser.settings.get(name) or () for name in ("pairs", "spared")}
        made.record["price"] = [
            one.as_dict() for one in prices(tower, made, held, seed=seed, **words)
        ]
    if out is not None:
        made.save(out, replace=replace)
        shutil.rmtree(_beside(out), ignore_errors=True)
    return made


def _first_of_several() -> bool:
    """Whether this process writes; those that torchrun started take a GPU each."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        import torch

        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    return int(os.environ.get("RANK", "0")) == 0


def made_from(
    method: str, settings: Mapping[str, Any] | None, model: Any = None, seed: int = 0
) -> Debiaser:
    """A debiaser with settings as they were typed, or as they are.

    `a+b` is a pipeline; there a setting is named with its method: `a.keep`.
    """
    if "+" in method:
        parts = [
            made_from(
                name,
                {
                    key.removeprefix(f"{name}."): value
                    for key, value in (settings or {}).items()
                    if key.startswith(f"{name}.")
                },
                model,
                seed,
            )
            for name in method.split("+")
        ]
        for key in settings or {}:
            if key.partition(".")[0] not in method.split("+"):
                raise UnknownNameError(f"setting of {method}", key, method.split("+"))
        return DEBIASERS["pipeline"](  # type: ignore[no-any-return]
            method.split("+"), [part.settings for part in parts]
        )
    kind = DEBIASERS[method]
    known = inspect.signature(kind).parameters
    chosen: dict[str, Any] = {"seed": seed} if "seed" in known else {}
    if "pairs" in known and _of_testbed(model):
        from tiltmeter.testbed.captioned import PAIRS, frame_words

        chosen |= {"pairs": PAIRS, "spared": frame_words(), "hide_bias": False}
    for name, value in (settings or {}).items():
        if name not in known:
            raise UnknownNameError(f"setting of {method}", name, known)
        chosen[name] = _typed(name, value, known[name].default, str(known[name].annotation))
    debiaser: Debiaser = kind(**chosen)
    return debiaser


def _typed(name: str, value: Any, default: Any, annotation: str = "") -> Any:
    """What was typed, as the kind of value that the default is."""
    if not isinstance(value, str) or isinstance(default, str):
        return value
    try:
        if name == "pairs":
            return [_pair(one) for one in value.split(",")]
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
        shown = "man:woman,he:she" if name == "pairs" else 1 if default is None else default
        raise InputError(f"{name} takes a value such as {shown}; got {value!r}") from None


def _pair(text: str) -> list[str]:
    first, second = text.split(":")
    return [first.strip(), second.strip()]


def _faces(
    faces: Any, model: Any, attribute: str | None, strict: bool, store: Any, share: float,
    seed: int, tell: Progress,
) -> Faces:  # fmt: skip
    """The images to fit on, with their vectors, a random share of them."""
    if faces is None and _of_testbed(model):
        strength = model.provenance["strength"]
        # not the seed of the figures that an audit shows
        faces = f"testbed:?images={OWN_IMAGES}&strength={strength}&seed={OWN_SEED + seed}"
    if faces is None or attribute is None:
        raise InputError(f"this method learns from labelled images: {GIVEN_BY['labels']}")
    if isinstance(faces, str):
        faces = load_data(faces, attributes=attribute.split("*"), role="faces")
    faces.attribute(attribute)  # an unknown one is named before the work begins
    if not 0 < share <= 1:
        raise InputError(f"share lies above 0 and is at most 1; got {share}")
    if share < 1:
        count = max(2, round(share * len(faces)))
        faces = faces.only(sorted(np.random.default_rng(seed).permutation(len(faces))[:count]))
    if faces.vectors is None and isinstance(faces.images, ImageFiles | GeneratedImages):
        kept = None if store is None else Store(Path(store))
        done = embed(model, faces.images, faces.ids, store=kept, strict=strict, progress=tell)
        faces = done.of(faces)
    return faces  # type: ignore[no-any-return]


def _vectors(model: Any, faces: Faces) -> Array:
    if faces.vectors is not None:
        return faces.vectors
    if faces.images is None or not hasattr(model, "encode_images"):
        name = getattr(model, "name", type(model).__name__)
        raise InputError(f"{faces.name} brings no vectors, and {name} cannot make them")
    return to_numpy(model.encode_images(faces.images))


def _needs(debiaser: Debiaser) -> tuple[str, ...]:
    """What a method asks for; a pipeline, what its parts ask for."""
    if not isinstance(debiaser, Pipeline):
        return debiaser.needs
    return tuple(need for part in debiaser.methods for need in DEBIASERS[part].needs)


def _group_names(
    groups: Groups | None, faces: Any, model: Any, attribute: str | None
) -> tuple[str, ...] | None:
    """The names of the groups that there are, for methods that see no labels too."""
    if groups is None and attribute is not None:
        if faces is None and _of_testbed(model):
            faces = f"testbed:?images={OWN_IMAGES}"
        if isinstance(faces, str):
            faces = load_data(faces, attributes=attribute.split("*"), role="faces")
        groups = None if faces is None else faces.attribute(attribute)
    if groups is None:
        return None
    return tuple(name for name, count in zip(groups.names, groups.counts, strict=True) if count)


def _of_testbed(model: Any) -> bool:
    return str(getattr(model, "name", "")).startswith("testbed:")


def _captions(captions: Any, model: Any, seed: int) -> Any:
    if captions is None and _of_testbed(model):
        from tiltmeter.testbed.captioned import captioned
        from tiltmeter.testbed.world import World

        world = World.plant(model.provenance["strength"])
        return captioned(world, OWN_CAPTIONS, np.random.default_rng([seed, OWN_SEED]))
    if captions is None:
        raise InputError(f"this method learns from captions: {GIVEN_BY['captions']}")
    return load_data(captions, role="captions") if isinstance(captions, str) else captions


def _split(captions: Any, seed: int) -> tuple[Any, Any]:
    """Captions to learn from, and those of other pictures, held out."""
    pictures = len(captions.ids)
    count = min(MOST_HELD_OUT, int(HELD_OUT * pictures))
    order = np.random.default_rng([seed, 3]).permutation(pictures)
    return _only(captions, np.sort(order[count:])), _only(captions, np.sort(order[:count]))


def _only(captions: Any, pictures: Any) -> Any:
    """Some of the pictures, with their captions."""
    place = {int(old): new for new, old in enumerate(pictures)}
    rows = [row for row, picture in enumerate(captions.of) if int(picture) in place]
    return changed(
        captions,
        ids=tuple(captions.ids[at] for at in pictures),
        texts=tuple(captions.texts[row] for row in rows),
        of=np.array([place[int(captions.of[row])] for row in rows], dtype=np.int64),
        images=None if captions.images is None else captions.images[pictures],
    )


def _edited(edited: str | Path, captions: Any) -> Any:
    """Edited pictures in the order of the captions' own."""
    if str(edited) == "redraw":
        if not hasattr(captions.images, "redrawn"):
            raise InputError("only scenes of the testbed can be drawn again: --edited DIR")
        return captions.images.redrawn(shape=1 - captions.images.shape)
    root = Path(edited)
    paths = []
    for one in captions.ids:
        stem = root / one
        beside = (stem, *(stem.with_suffix(suffix) for suffix in SUFFIXES))
        found = next((path for path in beside if path.is_file()), None)
        if found is None:
            raise InputError(
                f"{root} has no edited picture of {one}: expected {one}, or {stem}.png"
            )
        paths.append(found)
    return ImageFiles(tuple(paths), root)


def _beside(out: str | Path) -> Path:
    """Where the checkpoints of a training lie."""
    return Path(f"{out}.training")
