"""What a page is about: images with groups, and the models that rank them.

It comes from a run, which says what it was measured on; or from a store, with models and images
named; or from the models alone, where they bring their images.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from tiltmeter.auditing.audit import own_images
from tiltmeter.datasets import load_data
from tiltmeter.debiasers.debiased import Debiased
from tiltmeter.engine.embedding.embed import embed
from tiltmeter.engine.embedding.loader import LoaderConfig
from tiltmeter.errors import InputError
from tiltmeter.explorer.neutral import NeutralReference, chosen, neutral
from tiltmeter.explorer.ranking import Order
from tiltmeter.io.image_files import GeneratedImages, ImageFiles
from tiltmeter.judge.gate.run_scores import EmbeddingsUnavailableError, load_scores
from tiltmeter.metrics.arrays import matrix, to_numpy, unit
from tiltmeter.metrics.convention import Convention, get_convention
from tiltmeter.models import load_model
from tiltmeter.probes.texts import audit_prompts
from tiltmeter.results import Run
from tiltmeter.store import SPACE_FILE, Store
from tiltmeter.types import Faces, Floats, Groups, Progress, Prompt, TextEncoder

#: A chooser with more groups than these helps nobody, and a gallery of so many colours neither.
MOST_GROUPS = 64
WORDS = "sobit"  # shown to click on, where a run or a model names no others
BUILT_IN = "testbed:dual"


@dataclass(frozen=True, eq=False)
class ExplorerModel:
    """A model, and its vectors of the images."""

    name: str
    encode_texts: Callable[[Sequence[str]], Any]
    vectors: Floats  # images x dimensions, as the convention wants them
    order: Order | None = None  # of a model that re-ranks
    neutral: NeutralReference | None = None  # what it makes of neutral words


@dataclass(frozen=True, eq=False)
class ExplorerData:
    """All that a page shows."""

    towers: tuple[ExplorerModel, ...]
    ids: tuple[str, ...]
    groups: dict[str, Groups]  # by attribute, intersections among them
    name: str  # of the data
    convention: Convention
    words: dict[str, list[Prompt]] = field(default_factory=dict)  # by category, one per word
    images: Any = None  # only where images may be shown
    notes: tuple[str, ...] = ()  # what a reader should know before believing the page

    def __len__(self) -> int:
        return len(self.ids)


def gather(
    source: str | Path | None = None,
    models: Sequence[str] = (),
    images: str | None = None,
    *,
    show_images: bool = False,
    store: str | Path | None = None,
    words: str | None = None,
    convention: str | None = None,
    device: str = "cpu",
    trust_remote_code: bool = False,
    strict: bool = False,
    progress: Progress | None = None,
) -> ExplorerData:
    """What `source`, a run or a store, has to show; further models rank the same images."""
    place = None if source is None else Path(source)
    run = None if place is None else _opened(place, models, images)
    if place is not None and run is None:
        store = store or place
    specs, said = list(models), list[Prompt]()
    ranked: list[tuple[Any, Floats, Sequence[str]]] = []  # model, vectors, whose these are
    about: dict[str, Any] = {"device": device, "trust_remote_code": trust_remote_code}
    agreed = _convention(run, convention)
    first: Any = None
    if run is not None:
        first, spec = _model_of(run, about)
    elif not specs:
        specs = [BUILT_IN]
    others = [load_model(one, **about) for one in specs]
    everyone = [*([] if first is None else [first]), *others]
    for model in everyone:
        _check_speaks(model)
    eyes = _Eyes(store, strict, progress)
    if run is not None:
        kept, said, vectors = _of_run(run, store)
        ranked.append((first, vectors, kept.ids))
        if show_images or others:
            eyes.whose = first.spec if isinstance(first, Debiased) else spec
            shown = images or _data_of(run, spec, first)
            kept = _same_rows(kept, load_data(shown, role="faces"), shown, "images")
    else:
        own = images or own_images(specs[0], others[0])
        if own is None:
            raise InputError(f"{specs[0]} brings no images of its own: --images SPEC")
        kept = load_data(own, role="faces")
    if show_images and kept.images is None:
        raise InputError(
            f"{kept.name} has no pictures to show, only their vectors: leave out --show-images"
        )
    for one, model in zip(specs, others, strict=True):
        kept, vectors = eyes.see(model, one, kept)
        ranked.append((model, vectors, kept.ids))
    towers = [_tower(model, _rows(x, ids, kept.ids), kept, agreed) for model, x, ids in ranked]
    listed = getattr(everyone[0], "prompts", None)
    known = audit_prompts(everyone[0], words or (None if listed else WORDS))
    groups = choosable(kept, _crossings(run))
    return ExplorerData(
        towers=tuple(_beside_neutral(tower, groups, known) for tower in _own_names(towers)),
        ids=kept.ids,
        groups=groups,
        name=kept.name,
        convention=agreed,
        words=by_category(said if said and words is None else known),
        images=kept.images if show_images else None,
        notes=tuple(_notes(agreed, everyone, kept)),
    )


def _opened(place: Path, models: Sequence[str], images: str | None) -> Run | None:
    """The run at a place; None where a store is there, and all that it lacks is named."""
    if (place / "run.json").is_file():
        run = Run.load(place)
        if "panel" in run.meta:
            raise InputError(
                f"{place} is a run of several models, which keeps no vectors: explore a run of one "
                "of them, or name --model SPEC again and again with --images SPEC"
            )
        return run
    if not any(place.glob(f"*/{SPACE_FILE}")):
        raise InputError(
            f"{place} is neither a run (it has no run.json) nor a store of vectors (no "
            f"{SPACE_FILE} in any folder of it)"
        )
    if not models or images is None:
        raise InputError(
            f"{place} is a store, which holds vectors and neither labels nor models: name them too "
            "(--model SPEC --images SPEC)"
        )
    return None


@dataclass(eq=False)
class _Eyes:
    """How models come by vectors of the same images."""

    store: str | Path | None
    strict: bool
    progress: Progress | None
    whose: str | None = None  # spec of the model that brought vectors belong to

    def see(self, model: Any, spec: str, faces: Faces) -> tuple[Faces, Floats]:
        """The faces that a model can see, and its vectors of them."""
        own = own_images(spec, model)
        if own is not None and own.startswith("embeddings:"):  # known by its vectors alone
            brought = _same_rows(faces, load_data(own, role="faces"), own, "vectors")
            return faces, _corrected(model, brought)
        if faces.vectors is not None:
            under = model.spec if isinstance(model, Debiased) else spec
            self.whose = self.whose or under
            if under != self.whose:
                raise InputError(
                    f"the vectors of {faces.name} are those of {self.whose}, and {spec} needs its "
                    "own: name pictures (--images SPEC), or vectors of either (embeddings:DIR)"
                )
            return faces, _corrected(model, faces)
        if isinstance(faces.images, ImageFiles | GeneratedImages):
            store = None if self.store is None else Store(Path(self.store))
            done = embed(model, faces.images, faces.ids, store=store, pace=LoaderConfig(),
                         strict=self.strict, progress=self.progress)  # fmt: skip
            return faces.only(done.rows), done.vectors
        if faces.images is None or not hasattr(model, "encode_images"):
            raise InputError(
                f"{_name(model)} has no vectors of {faces.name}: it needs pictures and a model "
                "that sees them (encode_images), or vectors (embeddings:DIR)"
            )
        return faces, to_numpy(model.encode_images(faces.images))


def _corrected(model: Any, faces: Faces) -> Floats:
    found = model.corrected(faces) if isinstance(model, Debiased) else faces
    return to_numpy(found.vectors)


def _same_rows(faces: Faces, data: Faces, spec: str, what: str) -> Faces:
    """The same images as `data` has them: with its images and vectors."""
    where = {one: row for row, one in enumerate(data.ids)}
    missing = [one for one in faces.ids if one not in where]
    if missing:
        raise InputError(
            f"{len(missing):,} of the {len(faces):,} images are not in {spec} ({missing[0]!r}): "
            f"name the {what} of the same images"
        )
    found = data.only([where[one] for one in faces.ids])
    return replace(faces, images=found.images, vectors=found.vectors)


def _of_run(run: Run, store: str | Path | None) -> tuple[Faces, list[Prompt], Floats]:
    """The images of a run, its words, and the vectors that it ranked."""
    try:
        found = load_scores(run, store=store)
    except EmbeddingsUnavailableError as error:
        raise InputError(
            f"this run cannot be explored: {error}. Audit again, or name where the vectors are "
            "(--store DIR)"
        ) from None
    groups = {name: Groups.from_labels(x, attribute=name) for name, x in found.labels.items()}
    name = str(run.meta.get("data", {}).get("faces", {}).get("name", "images"))
    return Faces(tuple(found.ids), groups, name=name), found.prompts, found.images


def _model_of(run: Run, about: dict[str, Any]) -> tuple[Any, str]:
    """The model of a run, which must still have the weights that it had."""
    told = run.meta.get("model", {})
    spec = told.get("spec")
    if not spec:
        raise InputError(
            f"the run does not say how to load its model {told.get('name', '')!r} again: it was "
            "given as an object. Explore it by --model SPEC --images SPEC"
        )
    model = load_model(spec, **about)
    for mark in ("weights", "vectors"):
        then, now = told.get(mark), getattr(model, "provenance", {}).get(mark)
        if then and now and then != now:
            raise InputError(f"{spec} is not what it was when the run was made: its {mark} differ")
    return model, str(spec)


def _data_of(run: Run, spec: str | None, model: Any) -> str:
    """The spec of a run's images."""
    arguments = run.meta.get("arguments", {})
    told = {**arguments.get("defaulted", {}), **arguments.get("given", {})}
    found = told.get("faces") or (told.get("data") or {}).get("faces") or own_images(spec, model)
    if not found:
        raise InputError(
            "the run does not say where its images are, since they were given as an object: "
            "--images SPEC"
        )
    return str(found)


def _tower(model: Any, vectors: Floats, faces: Faces, convention: Convention) -> ExplorerModel:
    raw = convention.images == "raw"
    ready = matrix(vectors, "images", "images", "dimensions") if raw else unit(vectors, "images")
    ready = np.ascontiguousarray(ready, np.float32)
    order: Order | None = None
    if getattr(model, "reranks", False):
        shown = model.reordering(faces)

        def order(scores: Floats, k: int) -> Any:
            return shown(scores, k, None, ready)

    return ExplorerModel(_name(model), model.encode_texts, ready, order)


def _beside_neutral(
    tower: ExplorerModel, groups: dict[str, Groups], known: Sequence[Prompt]
) -> ExplorerModel:
    if tower.order is not None:  # what it shows is not in the order of its scores
        return tower
    found = neutral(tower.encode_texts, tower.vectors, groups, chosen(known))
    return replace(tower, neutral=found)


def _rows(vectors: Floats, ids: Sequence[str], kept: Sequence[str]) -> Floats:
    """The vectors of the images that are left, where another model could not see some."""
    if len(ids) == len(kept):
        return vectors
    where = {one: row for row, one in enumerate(ids)}
    return vectors[[where[one] for one in kept]]


def _check_speaks(model: Any) -> None:
    if not isinstance(model, TextEncoder):
        raise InputError(
            f"{_name(model)} gives texts no vectors (it has no encode_texts), so nothing can be "
            "typed here: the explorer takes two-tower models, such as testbed:dual"
        )


def _notes(convention: Convention, models: Iterable[Any], faces: Faces) -> Iterator[str]:
    if convention.on(faces.name, faces.groups).balance != "asis":
        by = "gender" if convention.balance == "gender" else "group"
        yield (
            f"An audit under {convention.name} draws as many images of each {by} as the smallest "
            "has. Here all images are ranked."
        )
    for model in models:
        if isinstance(model, Debiased) and (rows := model.fitted_on(faces)):
            yield (
                f"{_name(model)} was corrected on {len(rows):,} of these images: on them it looks "
                "better than it is."
            )


def _convention(run: Run | None, name: str | None) -> Convention:
    told = (run.meta.get("convention") or {}).get("name") if run is not None else None
    return get_convention(name or str(told or "tiltmeter").partition("+")[0])


def _crossings(run: Run | None) -> list[str]:
    arguments = {} if run is None else run.meta.get("arguments", {})
    return [*arguments.get("given", {}).get("cross", []),
            *arguments.get("defaulted", {}).get("cross", [])]  # fmt: skip


def choosable(faces: Faces, asked: Iterable[str] = ()) -> dict[str, Groups]:
    """Attributes and intersections that have between two and `MOST_GROUPS` groups."""
    names = [*faces.groups, *asked, *("*".join(pair) for pair in combinations(faces.groups, 2))]
    sets: dict[frozenset[str], Groups] = {}
    for name in names:
        parts = frozenset(name.split("*"))
        if parts not in sets and parts <= set(faces.groups):
            groups = faces.attribute(name)
            if 2 <= len(groups.names) <= MOST_GROUPS:
                sets[parts] = groups
    if not sets:
        raise InputError(
            f"{faces.name} has no labels to compare groups by: two to {MOST_GROUPS} groups of an "
            f"attribute are needed; it has {', '.join(faces.groups) or 'none'}"
        )
    return {groups.attribute: groups for groups in sets.values()}


def by_category(prompts: Sequence[Prompt]) -> dict[str, list[Prompt]]:
    """Words to click on, each in the first of its templates."""
    found: dict[str, dict[str, Prompt]] = {}
    for prompt in prompts:
        if prompt.role == "word":
            words = found.setdefault(prompt.category or "Words", {})
            words.setdefault(prompt.concept, prompt)
    return {category: list(words.values()) for category, words in found.items()}


def _own_names(towers: Sequence[ExplorerModel]) -> list[ExplorerModel]:
    """Towers that a reader can tell apart: a second one of a name gets a number."""
    taken: dict[str, int] = {}
    named = []
    for tower in towers:
        taken[tower.name] = taken.get(tower.name, 0) + 1
        many = taken[tower.name]
        named.append(tower if many == 1 else replace(tower, name=f"{tower.name} ({many})"))
    return named


def _name(model: Any) -> str:
    return str(getattr(model, "name", type(model).__name__))
