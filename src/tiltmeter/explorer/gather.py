"""Data of the explorer: images with groups, and the models that rank them.

They come from a run; or from a store, with models and images given; or from models alone that have
their own images.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from tiltmeter.auditing.audit import default_images
from tiltmeter.datasets import load_data
from tiltmeter.datasets.found_images import check_complete
from tiltmeter.debiasers.debiased import Debiased
from tiltmeter.engine.embedding.embed_images import embed
from tiltmeter.engine.embedding.loader import LoaderConfig
from tiltmeter.errors import InputError
from tiltmeter.explorer.neutral import NeutralReference, chosen, neutral
from tiltmeter.explorer.ranking import Order
from tiltmeter.io.image_files import GeneratedImages, ImageFiles
from tiltmeter.judge.gate.run_embeddings import EmbeddingsUnavailableError, load_run_embeddings
from tiltmeter.metrics.arrays import matrix, to_numpy, unit
from tiltmeter.metrics.convention import Convention, get_convention
from tiltmeter.models import load_model
from tiltmeter.probes.lift.words import lift_prompts
from tiltmeter.probes.texts import audit_prompts
from tiltmeter.results import Run
from tiltmeter.store import SPACE_FILE, Store
from tiltmeter.types import Faces, Floats, Groups, Progress, Prompt, TextEncoder

#: Attributes with more groups are not offered: neither menu nor colours would be readable.
MOST_GROUPS = 64
WORDS = "sobit"  # offered to click on, unless a run or model has its own
BUILT_IN = "testbed:dual"


@dataclass(frozen=True, eq=False)
class ExplorerModel:
    """A model, and its embeddings of the images."""

    name: str
    encode_texts: Callable[[Sequence[str]], Any]
    vectors: Floats  # images x dimensions, scaled as the convention says
    order: Order | None = None  # of a re-ranker
    scale: float | None = None  # of the model's logits
    neutral: NeutralReference | None = None  # rankings of neutral words


@dataclass(frozen=True, eq=False)
class ExplorerData:
    """Everything that the page shows."""

    models: tuple[ExplorerModel, ...]
    ids: tuple[str, ...]
    groups: dict[str, Groups]  # by attribute or intersection
    name: str  # of the data
    convention: Convention
    words: dict[str, list[Prompt]] = field(default_factory=dict)  # by category, one per word
    images: Any = None  # None: images are not shown
    notes: tuple[str, ...] = ()  # caveats

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
    """Load what the explorer shows.

    Parameters
    ----------
    source : path, optional
        A run or a store.
    models : sequence of str
        Specs of models; next to a run, further models that rank the same images.
    images : str, optional
        Spec of the images. Defaults to those of the run or of the model.
    show_images : bool
        Whether images are shown, not only their ids.
    store : path, optional
        Where embeddings are cached.
    words : str, optional
        Word list to offer: a built-in name or a file.
    convention : str, optional
        Defaults to that of the run.
    device, trust_remote_code
        How models are loaded.
    strict : bool
        Fail on a missing or unreadable image instead of leaving it out.
    progress : callable, optional
        Called as `progress(what, share)`.

    Returns
    -------
    ExplorerData

    Raises
    ------
    InputError
        If the source, models and images do not fit together.
    """
    directory = None if source is None else Path(source)
    run = None if directory is None else _opened(directory, models, images)
    if directory is not None and run is None:
        store = store or directory
    specs, run_prompts = list(models), list[Prompt]()
    embedded: list[tuple[Any, Floats, Sequence[str]]] = []  # model, embeddings, ids
    load_options: dict[str, Any] = {"device": device, "trust_remote_code": trust_remote_code}
    chosen_convention = _convention(run, convention)
    first: Any = None
    if run is not None:
        first, spec = _model_of(run, load_options)
    elif not specs:
        specs = [BUILT_IN]
    further_models = [load_model(model_spec, **load_options) for model_spec in specs]
    all_models = [*([] if first is None else [first]), *further_models]
    for model in all_models:
        _check_encodes_texts(model)
    embedder = _Embedder(store, strict, progress)
    if run is not None:
        faces, run_prompts, vectors = _from_run(run, store)
        embedded.append((first, vectors, faces.ids))
        if show_images or further_models:
            embedder.owner = first.spec if isinstance(first, Debiased) else spec
            image_spec = images or _data_of(run, spec, first)
            faces = _same_rows(faces, load_data(image_spec, role="faces"), image_spec, "images")
    else:
        own_spec = images or default_images(specs[0], further_models[0])
        if own_spec is None:
            raise InputError(f"{specs[0]} has no images of its own: pass --images SPEC")
        faces = load_data(own_spec, role="faces")
        check_complete(faces, strict=strict)
    if show_images and faces.images is None:
        raise InputError(
            f"{faces.name} has no images to show, only embeddings: leave out --show-images"
        )
    for model_spec, model in zip(specs, further_models, strict=True):
        faces, vectors = embedder.embed(model, model_spec, faces)
        embedded.append((model, vectors, faces.ids))
    models_shown = [
        _explorer_model(model, _rows(x, ids, faces.ids), faces, chosen_convention)
        for model, x, ids in embedded
    ]
    model_prompts = getattr(all_models[0], "prompts", None)
    prompts = audit_prompts(all_models[0], words or (None if model_prompts else WORDS))
    groups = choosable(faces, _intersections(run))
    return ExplorerData(
        models=tuple(
            _with_neutral(shown, groups, lift_prompts(prompts, model) if shown.scale else prompts)
            for model, shown in zip(all_models, _unique_names(models_shown), strict=True)
        ),
        ids=faces.ids,
        groups=groups,
        name=faces.name,
        convention=chosen_convention,
        words=by_category(run_prompts if run_prompts and words is None else prompts),
        images=faces.images if show_images else None,
        notes=tuple(_notes(chosen_convention, all_models, faces)),
    )


def _opened(directory: Path, models: Sequence[str], images: str | None) -> Run | None:
    """The run in a directory, or None for a store; raises if something is missing."""
    if (directory / "run.json").is_file():
        run = Run.load(directory)
        if "panel" in run.meta:
            raise InputError(
                f"{directory} is a run of several models, which has no embeddings: explore a run "
                "of one of them, or pass --model SPEC several times with --images SPEC"
            )
        return run
    if not any(directory.glob(f"*/{SPACE_FILE}")):
        raise InputError(
            f"{directory} is neither a run (it has no run.json) nor a store (none of its folders "
            f"has a {SPACE_FILE})"
        )
    if not models or images is None:
        raise InputError(
            f"{directory} is a store, which has neither labels nor models: pass --model SPEC and "
            "--images SPEC"
        )
    return None


@dataclass(eq=False)
class _Embedder:
    """Embeds the same images by several models."""

    store: str | Path | None
    strict: bool
    progress: Progress | None
    owner: str | None = None  # spec of the model that supplied embeddings belong to

    def embed(self, model: Any, spec: str, faces: Faces) -> tuple[Faces, Floats]:
        """The faces that a model can embed, with its embeddings."""
        own_spec = default_images(spec, model)
        if own_spec is not None and own_spec.startswith(
            "embeddings:"
        ):  # the model is its embeddings
            own_faces = _same_rows(faces, load_data(own_spec, role="faces"), own_spec, "embeddings")
            return faces, _corrected(model, own_faces)
        if faces.vectors is not None:
            base_spec = model.spec if isinstance(model, Debiased) else spec
            self.owner = self.owner or base_spec
            if base_spec != self.owner:
                raise InputError(
                    f"the embeddings of {faces.name} are those of {self.owner}, but {spec} needs "
                    "its own: pass images (--images SPEC), or embeddings of both (embeddings:DIR)"
                )
            return faces, _corrected(model, faces)
        if isinstance(faces.images, ImageFiles | GeneratedImages):
            store = None if self.store is None else Store(Path(self.store))
            embedded = embed(model, faces.images, faces.ids, store=store, config=LoaderConfig(),
                         strict=self.strict, progress=self.progress)  # fmt: skip
            return faces.select(embedded.rows), embedded.vectors
        if faces.images is None or not hasattr(model, "encode_images"):
            raise InputError(
                f"{_name(model)} has no embeddings of {faces.name}: it needs images and a model "
                "with encode_images, or embeddings (embeddings:DIR)"
            )
        return faces, to_numpy(model.encode_images(faces.images))


def _corrected(model: Any, faces: Faces) -> Floats:
    corrected = model.corrected(faces) if isinstance(model, Debiased) else faces
    return to_numpy(corrected.vectors)


def _same_rows(faces: Faces, data: Faces, spec: str, kind: str) -> Faces:
    """The same faces, with the images and embeddings of `data`."""
    row_of = {image_id: row for row, image_id in enumerate(data.ids)}
    missing = [image_id for image_id in faces.ids if image_id not in row_of]
    if missing:
        raise InputError(
            f"{len(missing):,} of the {len(faces):,} images are not in {spec} ({missing[0]!r}): "
            f"pass {kind} of the same images"
        )
    selected = data.select([row_of[image_id] for image_id in faces.ids])
    return replace(faces, images=selected.images, vectors=selected.vectors)


def _from_run(run: Run, store: str | Path | None) -> tuple[Faces, list[Prompt], Floats]:
    """The images of a run, its words, and the embeddings that it ranked."""
    try:
        scores = load_run_embeddings(run, store=store)
    except EmbeddingsUnavailableError as error:
        raise InputError(f"this run cannot be explored: {error}. Audit again") from None
    groups = {name: Groups.from_labels(x, attribute=name) for name, x in scores.labels.items()}
    name = str(run.meta.get("data", {}).get("faces", {}).get("name", "images"))
    return Faces(tuple(scores.ids), groups, name=name), scores.prompts, scores.images


def _model_of(run: Run, load_options: dict[str, Any]) -> tuple[Any, str]:
    """The model of a run; raises if its weights have changed."""
    recorded = run.meta.get("model", {})
    spec = recorded.get("spec")
    if not spec:
        raise InputError(
            f"the run does not record how to load its model {recorded.get('name', '')!r}, which "
            "was given as an object: pass --model SPEC and --images SPEC instead of the run"
        )
    model = load_model(spec, **load_options)
    for key in ("weights", "vectors"):
        recorded_value, current = recorded.get(key), getattr(model, "provenance", {}).get(key)
        if recorded_value and current and recorded_value != current:
            raise InputError(f"{spec} has changed since the run was made: its {key} differ")
    return model, str(spec)


def _data_of(run: Run, spec: str | None, model: Any) -> str:
    """The spec of the images of a run."""
    arguments = run.meta.get("arguments", {})
    options = {**arguments.get("defaulted", {}), **arguments.get("given", {})}
    named = options.get("faces") or (options.get("data") or {}).get("faces")
    spec_found = named or default_images(spec, model)
    if not spec_found:
        raise InputError(
            "the run does not record where its images are, which were given as an object: "
            "pass --images SPEC"
        )
    return str(spec_found)


def _explorer_model(
    model: Any, vectors: Floats, faces: Faces, convention: Convention
) -> ExplorerModel:
    raw = convention.images == "raw"
    ready = matrix(vectors, "images", "images", "dimensions") if raw else unit(vectors, "images")
    ready = np.ascontiguousarray(ready, np.float32)
    order: Order | None = None
    if getattr(model, "reranks", False):
        reorder = model.reordering(faces)

        def order(scores: Floats, k: int) -> Any:
            return reorder(scores, k, None, ready)

    scale = getattr(model, "logit_scale", None)
    return ExplorerModel(_name(model), model.encode_texts, ready, order, scale)


def _with_neutral(
    model: ExplorerModel, groups: dict[str, Groups], known: Sequence[Prompt]
) -> ExplorerModel:
    if model.order is not None:  # its order is not by score
        return model
    reference = neutral(model.encode_texts, model.vectors, groups, chosen(known), model.scale)
    return replace(model, neutral=reference)


def _rows(vectors: Floats, ids: Sequence[str], kept: Sequence[str]) -> Floats:
    """The embeddings of the remaining images, if other models could not embed some."""
    if len(ids) == len(kept):
        return vectors
    row_of = {image_id: row for row, image_id in enumerate(ids)}
    return vectors[[row_of[image_id] for image_id in kept]]


def _check_encodes_texts(model: Any) -> None:
    if not isinstance(model, TextEncoder):
        raise InputError(
            f"{_name(model)} cannot embed texts (it has no encode_texts): the explorer needs a "
            "dual encoder, such as testbed:dual"
        )


def _notes(convention: Convention, models: Iterable[Any], faces: Faces) -> Iterator[str]:
    if convention.on(faces.name, faces.groups).balance != "asis":
        by = "gender" if convention.balance == "gender" else "group"
        yield (
            f"An audit with the convention {convention.name} balances images by {by}. Here all "
            "images are ranked."
        )
    for model in models:
        if isinstance(model, Debiased) and (rows := model.fitted_on(faces)):
            yield (
                f"{_name(model)} was fitted on {len(rows):,} of these images, on which it looks "
                "better than it is."
            )


def _convention(run: Run | None, name: str | None) -> Convention:
    recorded = (run.meta.get("convention") or {}).get("name") if run is not None else None
    return get_convention(name or str(recorded or "tiltmeter").partition("+")[0])


def _intersections(run: Run | None) -> list[str]:
    arguments = {} if run is None else run.meta.get("arguments", {})
    return [*arguments.get("given", {}).get("cross", []),
            *arguments.get("defaulted", {}).get("cross", [])]  # fmt: skip


def choosable(faces: Faces, requested: Iterable[str] = ()) -> dict[str, Groups]:
    """Attributes and intersections that have between two and `MOST_GROUPS` groups."""
    names = [*faces.groups, *requested, *("*".join(pair) for pair in combinations(faces.groups, 2))]
    sets: dict[frozenset[str], Groups] = {}
    for name in names:
        parts = frozenset(name.split("*"))
        if parts not in sets and parts <= set(faces.groups):
            groups = faces.attribute(name)
            if 2 <= len(groups.names) <= MOST_GROUPS:
                sets[parts] = groups
    if not sets:
        raise InputError(
            f"{faces.name} has no attribute with 2 to {MOST_GROUPS} groups; its attributes are "
            f"{', '.join(faces.groups) or 'none'}"
        )
    return {groups.attribute: groups for groups in sets.values()}


def by_category(prompts: Sequence[Prompt]) -> dict[str, list[Prompt]]:
    """Words to offer by category, each in its first template."""
    words_by_category: dict[str, dict[str, Prompt]] = {}
    for prompt in prompts:
        if prompt.role == "word":
            words = words_by_category.setdefault(prompt.category or "Words", {})
            words.setdefault(prompt.concept, prompt)
    return {category: list(words.values()) for category, words in words_by_category.items()}


def _unique_names(models: Sequence[ExplorerModel]) -> list[ExplorerModel]:
    """Models with unique names: a second one of a name gets a number."""
    used: dict[str, int] = {}
    named = []
    for model in models:
        used[model.name] = used.get(model.name, 0) + 1
        number = used[model.name]
        named.append(model if number == 1 else replace(model, name=f"{model.name} ({number})"))
    return named


def _name(model: Any) -> str:
    return str(getattr(model, "name", type(model).__name__))
