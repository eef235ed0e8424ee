"""An audit of more images than one machine holds: what `ranking` measures, part by part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tiltmeter.auditing import arguments, own_images, refuse_fitted_rows
from tiltmeter.datasets import load_data
from tiltmeter.debias.debiased import Debiased
from tiltmeter.embedding import embed
from tiltmeter.engine.local import Pace
from tiltmeter.engine.seam import Engine, Local
from tiltmeter.engine.vectors import Stored, Vectors, vectors_of
from tiltmeter.errors import InputError
from tiltmeter.images import Made, Pictures
from tiltmeter.metrics.convention import Convention, get_convention
from tiltmeter.models import load_model
from tiltmeter.probes import PROBES
from tiltmeter.probes.probe import Effort
from tiltmeter.probes.ranking_by_parts import ranking_by_parts
from tiltmeter.probes.reordered import reordering_of
from tiltmeter.prompting import audit_prompts, opposite_words
from tiltmeter.results import Run, content_hash, environment, versions
from tiltmeter.store import Space, Store
from tiltmeter.types import Faces, Progress


def audit_by_parts(
    model: Any,
    faces: str | Faces | None = None,
    *,
    engine: Engine | None = None,
    words: str | None = None,
    placebo: str | None = None,
    templates: Sequence[str] | None = None,
    attributes: Sequence[str] | None = None,
    cross: Sequence[str] = (),
    convention: str | Convention = "tiltmeter",
    k: Sequence[int] | None = None,
    permutations: int = 1000,
    bootstraps: int = 400,
    seed: int = 0,
    store: str | Path | None = None,
    precision: str = "auto",
    trust_remote_code: bool = False,
    strict: bool = False,
    size: int | None = None,
    progress: Progress | None = None,
) -> Run:
    """Measures what the probe `ranking` does, in one pass over the images that keeps no score.

    `model` and `faces` are objects or specs. Photographs are embedded into the `store` by the
    engine's workers, or found there. Parts of `size` images that cannot be read are left out and
    named in the run, unless `strict`. Corrected models and re-rankers are refused: `audit` takes
    them.
    """
    engine = engine or Local()
    chosen = get_convention(convention)
    if k is not None:
        chosen = chosen.with_(k=tuple(sorted({int(one) for one in k})))
    used = arguments(
        audit_by_parts,
        {
            "faces": faces if isinstance(faces, str) else None,
            "words": words,
            "placebo": placebo,
            "templates": None if templates is None else list(templates),
            "attributes": None if attributes is None else list(attributes),
            "cross": list(cross),
            "convention": get_convention(convention).name,
            "k": None if k is None else [int(one) for one in k],
            "permutations": int(permutations),
            "bootstraps": int(bootstraps),
            "seed": int(seed),
            "precision": precision,
            "strict": strict,
            "size": size,
        },
    )
    load, tower, spec = _model(model, engine, trust_remote_code)
    given = own_images(spec, tower) if faces is None else faces
    if given is None:
        raise InputError("there are no images: pass --images SPEC (tiltmeter list datasets)")
    if isinstance(given, str):
        given = load_data(
            given, attributes=attributes, cross=cross, role="faces", optional=chosen.labels
        )
    chosen = chosen.on(given.name, given.groups)
    _refuse_corrected(tower, given)
    shown, vectors, record = _vectors(
        tower, given, engine, load, store, Pace(precision=precision), strict, progress
    )
    prompts = audit_prompts(tower, words, placebo, templates)
    found = ranking_by_parts(
        tower,
        shown,
        vectors,
        prompts=prompts,
        attributes=[*(shown.groups if attributes is None else attributes), *cross],
        convention=chosen,
        engine=engine,
        seed=seed,
        effort=Effort(int(permutations), int(bootstraps)),
        size=size,
        progress=progress,
        pairs=opposite_words(),
    )
    if strict and found.failed:
        raise InputError(next(iter(found.failed.values())))
    meta = {
        "model": {
            "name": getattr(tower, "name", type(tower).__name__),
            "spec": spec,
            **getattr(tower, "provenance", {}),
        },
        "data": {
            "faces": {
                "name": shown.name,
                **shown.provenance,
                **record,
                "images": found.images,
                "parts_not_read": {str(at): reason for at, reason in found.failed.items()},
            }
        },
        "engine": engine.name,
        "not_run": {
            name: "cannot run by parts: use --engine local" for name in PROBES if name != "ranking"
        },
        "convention": chosen.as_dict(),
        "seed": int(seed),
        "arguments": used,
        "prompts": {
            "words": sum(prompt.role == "word" for prompt in prompts),
            "placebos": sum(prompt.role == "placebo" for prompt in prompts),
            "hash": content_hash([prompt.text for prompt in prompts]),
        },
        "versions": versions(),
        "environment": {
            **environment(),
            **({} if store is None else {"store": str(Path(store).resolve())}),
        },
    }
    return Run(found.table, meta, {"ranking": found.instances})


def _model(
    model: Any, engine: Engine, trust_remote_code: bool
) -> tuple[Callable[[], Any], Any, str | None]:
    """How a worker gets the model, the model here, and its spec."""
    if not isinstance(model, str):
        return partial(_itself, model), model, None
    load = partial(load_model, model, trust_remote_code=trust_remote_code)
    there = partial(load, device="cuda" if engine.gpus else "cpu")
    return there, load(device="cpu"), model


def _refuse_corrected(model: Any, faces: Faces) -> None:
    """Raises for a corrected model: neither its map of vectors nor its order is applied here."""
    if isinstance(model, Debiased):
        refuse_fitted_rows(model, {"faces": faces})
    elif reordering_of(model, faces) is None:
        return
    kind = "corrected model" if reordering_of(model, faces) is None else "re-ranker"
    raise InputError(
        f"{getattr(model, 'name', type(model).__name__)} is a {kind}, which cannot be audited by "
        "parts: use --engine local (tiltmeter.audit)"
    )


def _itself(model: Any) -> Any:
    return model


def _vectors(
    model: Any,
    faces: Faces,
    engine: Engine,
    load: Callable[[], Any],
    store: str | Path | None,
    pace: Pace,
    strict: bool,
    progress: Progress | None,
) -> tuple[Faces, Vectors, dict[str, Any]]:
    """Faces that could be seen, where their vectors lie, and how they came about."""
    if faces.vectors is not None:
        return faces, vectors_of(faces.vectors), {}
    if not isinstance(faces.images, Pictures | Made):
        raise InputError(
            f"{faces.name} has neither embeddings nor image files, which an audit by parts needs: "
            "use --engine local, or name others (--images SPEC)"
        )
    if store is None:
        raise InputError("photographs are embedded into a store first: name one (--store DIR)")
    done = embed(
        model,
        faces.images,
        faces.ids,
        store=Store(Path(store)),
        pace=pace,
        strict=strict,
        engine=engine,
        load=load,
        read=False,
        progress=progress,
    )
    assert done.kept is not None
    space = Space(Path(store).resolve() / done.kept["space"])
    return faces.only(done.rows), Stored.of(space, done.items), done.record
