"""Checks before a model is loaded: a mistake is reported at once, with what to type instead."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tiltmeter import stimuli
from tiltmeter.auditing.builtin import QUICK, THOROUGH
from tiltmeter.auditing.options import AuditOptions, DataOptions, WordOptions
from tiltmeter.datasets import list_shards, load_data
from tiltmeter.datasets.found_images import check_complete, describe_size
from tiltmeter.datasets.roles import ROLES
from tiltmeter.datasets.shards import ShardedFaces
from tiltmeter.engine.embedding.loader import PRECISIONS
from tiltmeter.engine.named import engine_of
from tiltmeter.engine.ranking.samples import checked
from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.io.specs import Spec
from tiltmeter.io.tables import image_column
from tiltmeter.metrics.summary import check_k
from tiltmeter.models import check_model
from tiltmeter.probes import PROBES
from tiltmeter.probes.probe import Probe
from tiltmeter.probes.texts import audit_prompts
from tiltmeter.types import Continuer, Faces, TextEncoder, Writer

#: Schemes of models that may bring images of their own.
WITH_IMAGES = ("debias", "embeddings", "python", "testbed")
#: Probes that rank images: k and groups must fit the images.
RANKING = ("ranking", "strength")


def check_audit(model: Any, faces: Any, options: AuditOptions) -> dict[str, Any]:
    """Check model spec, options and data, and load the data; a collection in shards is listed.

    Parameters
    ----------
    model, faces : object
        As for `audit`.
    options : AuditOptions
        All options.

    Returns
    -------
    dict
        The data that were given and that a probe uses, by role.

    Raises
    ------
    InputError, UnknownNameError
        Something is wrong; the message says what to type.
    """
    if faces is not None and "faces" in options.data.data:
        raise InputError("faces are given twice, by --images and by --data faces=; use one of them")
    given = {"faces": faces, **options.data.data}
    given = {role: source for role, source in given.items() if source is not None}
    _check_probes(options)
    _check_words(options.words)
    _check_intersections(options.data)
    if options.compute.precision not in PRECISIONS:
        raise UnknownNameError("precision", options.compute.precision, PRECISIONS)
    for name, number in (("limit", options.data.limit), ("batch_size", options.compute.batch_size)):
        if number is not None and number < 1:
            raise InputError(
                f"{name} must be 1 or more; got {number}", code="bad-option", value=number
            )
    if isinstance(model, str):
        parsed = check_model(model, device=options.compute.device)
        requested = [PROBES[name] for name in options.probes.probes or ()]
        needed = not requested or any("faces" in probe.needs for probe in requested)
        if not given and needed and parsed.scheme not in WITH_IMAGES:
            raise no_images(model)
        if "faces" not in given and parsed.scheme == "testbed":
            sizes = THOROUGH if options.data.thorough or requested else QUICK
            if _ranks(options, model):
                _check_k("the built-in world", sizes.images["faces"], {}, options)
    probes = [PROBES[name] for name in options.probes.probes or PROBES]
    data = load_roles(given, options, probes)
    if "faces" in data:
        check_faces(data["faces"], given["faces"], options, model)
    return data


def no_images(model: str) -> InputError:
    """The error for a model that nothing can be measured on."""
    return InputError(
        f"{model} comes without images: add --images SPEC, such as --images fairface:DIR or "
        "--images 'table:labels.csv?path=file' (tiltmeter list datasets)",
        code="no-images",
        value=model,
    )


def _check_probes(options: AuditOptions) -> None:
    engine = engine_of(options.compute.engine)
    options.probes.chosen  # noqa: B018  raises if the convention is unknown
    for name in options.probes.probes or ():
        if problem := PROBES[name].reason_not_on_engine(engine):
            raise InputError(f"{name} {problem}")
    for name, values in options.probes.options.items():
        chosen = PROBES[name].options_with(name, values)
        if problem := PROBES[name].reason_options_need_local(name, chosen, engine):
            raise InputError(problem, code="bad-option", value=name)
    roles = sorted({role for p in PROBES.values() for role in (*p.needs, *p.takes)})
    for role in options.data.data:
        if role not in ROLES:
            raise UnknownNameError("data role", role, ROLES)
        if role not in roles:
            raise InputError(f"no probe uses the data role {role!r}; in use: {', '.join(roles)}")


def _check_words(words: WordOptions) -> None:
    if any(words.texts):
        audit_prompts(None, *words.texts)
    if words.classes is not None:
        stimuli.load(words.classes)


def _check_intersections(options: DataOptions) -> None:
    """`--cross race*gender`, and not another way to write it."""
    for name in options.cross:
        parts = [part.strip() for part in name.replace(" x ", "*").replace(",", "*").split("*")]
        if len(parts) < 2 or not all(parts):
            raise InputError(
                f"--cross takes an intersection of two or more label columns, such as "
                f"'race*gender'; got {name!r}",
                code="bad-option",
                value=name,
            )
        if name != "*".join(parts):
            raise InputError(
                f"an intersection is written with *: --cross '{'*'.join(parts)}'; got {name!r}",
                code="bad-option",
                value=name,
            )
    for name in options.attributes or ():
        if "," in name:
            each = " ".join(f"--attribute {part.strip()}" for part in name.split(","))
            raise InputError(
                f"--attribute takes one column and can be repeated: {each}; got {name!r}",
                code="bad-option",
                value=name,
            )


def load_roles(
    sources: Mapping[str, Any], options: AuditOptions, probes: Iterable[Probe]
) -> dict[str, Any]:
    """Load the data that some probes use.

    Parameters
    ----------
    sources : mapping
        Specs or data by role; None is left out.
    options : AuditOptions
        Label columns, intersections and the limit.
    probes : iterable of Probe
        The probes.

    Returns
    -------
    dict
        Data by role.
    """
    used = {role for probe in probes for role in (*probe.needs, *probe.takes)}
    columns: dict[str, Any] = {
        "attributes": options.data.attributes,
        "cross": options.data.cross,
        "optional": options.probes.chosen.labels,
    }
    data: dict[str, Any] = {}
    for role, source in sources.items():
        if source is None or role not in used:
            continue
        loaded = source
        if isinstance(source, str):
            shards = _in_shards(source, columns, options) if role == "faces" else None
            loaded = load_data(source, role=role, **columns) if shards is None else shards
        if isinstance(loaded, ShardedFaces):
            _check_shards(loaded, options)
        check_complete(loaded, strict=options.data.strict)
        data[role] = loaded
    limit, faces = options.data.limit, data.get("faces")
    if limit is not None and isinstance(faces, Faces) and limit < len(faces):
        rng = np.random.default_rng(options.resampling.seed)
        rows = np.sort(rng.choice(len(faces), limit, replace=False))
        provenance = {**faces.provenance, "limit": {"of": len(faces), "kept": limit}}
        data["faces"] = replace(faces.select(rows.tolist()), provenance=provenance)
    return data


def _in_shards(spec: str, columns: Mapping[str, Any], options: AuditOptions) -> ShardedFaces | None:
    """The collection that a spec names, if it is in shards that the engine's workers can open.

    Images need a store for their embeddings; without one `parts` reads all rows here.
    """
    if engine_of(options.compute.engine).name == "local":
        return None
    faces = list_shards(spec, **columns)
    if faces is not None and faces.in_images and options.compute.store is None:
        return None
    return faces


def _check_shards(faces: ShardedFaces, options: AuditOptions) -> None:
    """Refuse what needs all rows in one process."""
    engine = engine_of(options.compute.engine)
    convention = options.probes.chosen.on(faces.name, tuple(faces.columns.names or ()))
    refused = {
        "--limit": options.data.limit is not None,
        "--unseen": bool(options.data.unseen),
        f"--convention {convention.name}, which balances groups,": convention.balance != "asis",
        "the local engine": engine.name == "local",
    }
    for what, used in refused.items():
        if used:
            raise InputError(
                f"{what} needs the rows of all images in one process, and those of {faces.name} "
                "stay in their shards: leave it out, or use --engine local with the spec of the "
                "images",
                code="bad-option",
                value=what,
            )


def check_faces(faces: Any, source: Any, options: AuditOptions, model: Any) -> None:
    """Images are there, groups can be compared, and k is smaller than the dataset."""
    if not isinstance(faces, Faces):
        raise InputError(
            f"faces must be a spec or images with labels; got {type(faces).__name__}: make them "
            "with tiltmeter.faces(embeddings or paths, labels)",
            value=type(faces).__name__,
        )
    if isinstance(faces, ShardedFaces) and faces.table is None:
        return  # groups are known when workers have opened the shards
    if faces.vectors is None and faces.images is None and not isinstance(faces, ShardedFaces):
        raise InputError(
            f"{faces.name} has labels but no images{_image_column(source)}",
            code="no-images",
            value=faces.name,
        )
    attributes = faces.groups if options.data.attributes is None else options.data.attributes
    groups = [faces.attribute(name) for name in (*attributes, *options.data.cross)]
    if _ranks(options, model):
        for one in groups:
            checked(one)
        _check_k(faces.name, len(faces), faces.provenance.get("found") or {}, options)


def _ranks(options: AuditOptions, model: Any) -> bool:
    """Whether k and groups must fit the images; a generative model ranks only on request."""
    if options.probes.probes is None and _is_generative(model):
        return False
    return bool({*RANKING} & {*(options.probes.probes or PROBES)})


def _is_generative(model: Any) -> bool:
    """Whether a model is known to write before it is loaded."""
    if not isinstance(model, str):
        return isinstance(model, Continuer | Writer) and not isinstance(model, TextEncoder)
    scheme, _, rest = model.partition("?")[0].partition(":")
    config = Path(rest) / "config.json"
    if scheme == "hf" and config.is_file():
        from tiltmeter.models.hf import GENERATIVE

        with suppress(ValueError, AttributeError):  # a damaged file is reported when it is loaded
            return json.loads(config.read_bytes()).get("model_type") in GENERATIVE
    return scheme == "openai" or (scheme, rest) in (("testbed", "writer"), ("testbed", "oracle"))


def _check_k(name: str, images: int, found: Mapping[str, Any], options: AuditOptions) -> None:
    """k is smaller than the dataset."""
    images = min(images, options.data.limit or images)
    size = describe_size(name, images, found)
    check_k(max(options.probes.chosen.k), images, size, below=True)


def _image_column(source: Any) -> str:
    """What to type for a table without the column of its images."""
    if not isinstance(source, str) or not source.startswith("table:"):
        return ""
    path = Spec.parse(source).rest
    sign = "&" if "?" in source else "?"
    return f": name the column of image files, {source}{sign}path={image_column(path) or 'COLUMN'}"
