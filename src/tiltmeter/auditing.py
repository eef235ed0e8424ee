"""One audit: a model, data, probes; results with all that is needed to make them again."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tiltmeter.datasets import load_data
from tiltmeter.datasets.roles import ROLES
from tiltmeter.embedding import Embedded, embed
from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.images import Made, Pictures
from tiltmeter.metrics.convention import Convention, get_convention
from tiltmeter.models import load_model
from tiltmeter.probes import NEEDS, PROBES, UnknownWordsError
from tiltmeter.probes.ranking import Effort
from tiltmeter.prompting import association_tests, audit_prompts, harm_prompts
from tiltmeter.results import Run, combined, content_hash, environment, versions
from tiltmeter.store import Store
from tiltmeter.types import Faces, Progress, Prompt, TextEncoder


def audit(
    model: str | TextEncoder = "testbed:fusion",
    faces: str | Faces | None = None,
    *,
    data: Mapping[str, Any] | None = None,
    probes: Sequence[str] | None = None,
    words: str | None = None,
    placebo: str | None = None,
    templates: Sequence[str] | None = None,
    classes: str | None = None,
    attributes: Sequence[str] | None = None,
    cross: Sequence[str] = (),
    convention: str | Convention = "tiltmeter",
    k: Sequence[int] | None = None,
    permutations: int = 1000,
    bootstraps: int = 400,
    seed: int = 0,
    store: str | Path | None = None,
    device: str = "auto",
    strict: bool = False,
    progress: Progress | None = None,
) -> Run:
    """Measures `model` on `faces` and returns the run.

    `model` and `faces` are objects or specs; a model `embeddings:DIR` brings its own images, and
    one of the testbed is shown figures of the world that it was trained in. `data` gives other
    roles their data, objects or specs: captions for the probe `retrieval`, utility for `zero_shot`.
    By default every probe runs whose data are there; the others are named in the run.
    Words are those the model's own table lists, else the list `words` (a shipped name or a file,
    `berg` by default) in its templates, beside placebos of the same parts of speech. `classes` is
    the list that the probe `harms` chooses from, `harms` by default. Photographs are embedded, or
    read from the `store`; those that cannot be read are left out, unless `strict`.
    """
    if not 0 <= seed < 2**63:
        raise InputError(f"the seed must be a whole number from 0 to 2^63 - 1; got {seed}")
    chosen = get_convention(convention)
    if k is not None:
        chosen = chosen.with_(k=tuple(sorted({int(one) for one in k})))
    if faces is not None and "faces" in (data or {}):
        raise InputError("faces are given twice: by --images, and by --data faces=")
    given = {
        "faces": faces if isinstance(faces, str) else None,
        "probes": None if probes is None else list(probes),
        "data": {role: one for role, one in (data or {}).items() if isinstance(one, str)} or None,
        "words": words,
        "placebo": placebo,
        "templates": None if templates is None else list(templates),
        "classes": classes,
        "attributes": None if attributes is None else list(attributes),
        "cross": list(cross),
        "convention": get_convention(convention).name,
        "k": None if k is None else [int(one) for one in k],
        "permutations": int(permutations),
        "bootstraps": int(bootstraps),
        "seed": int(seed),
        "strict": strict,
    }
    spec = model if isinstance(model, str) else None
    tower: Any = load_model(model, device=device) if isinstance(model, str) else model
    own = _own_images(spec, tower) if faces is None else faces
    given_data = {"faces": own, **(data or {})}
    chosen_probes, not_run = _choose(probes, tower, given_data)
    kept = None if store is None else Store(Path(store))

    def see(images: Any, ids: Sequence[str]) -> Embedded:
        return embed(tower, images, ids, store=kept, strict=strict, progress=progress)

    shown: dict[str, Any] = {}
    one: Any
    for role in dict.fromkeys(NEEDS[name] for name in chosen_probes):
        if role is None:
            continue
        one = given_data[role]
        if isinstance(one, str):
            one = load_data(one, attributes=attributes, cross=cross, role=role)
        shown[role] = one
    prompts: list[Prompt] = []
    tables, instances = [], {}
    for name in chosen_probes:
        role = NEEDS[name]
        one = None if role is None else shown[role]
        settings: dict[str, Any] = {
            "convention": chosen,
            "seed": int(seed),
            "effort": Effort(int(permutations), int(bootstraps)),
        }
        try:
            if role == "faces":
                if one.vectors is None and isinstance(one.images, Pictures | Made):
                    one = shown["faces"] = see(one.images, one.ids).of(one)
                if name == "harms":
                    texts = harm_prompts(classes, one)
                else:
                    texts = prompts = prompts or audit_prompts(tower, words, placebo, templates)
                table, instances[name] = PROBES[name](
                    tower,
                    one,
                    prompts=texts,
                    attributes=[*(one.groups if attributes is None else attributes), *cross],
                    progress=progress,
                    **settings,
                )
            else:
                given_to: tuple[Any, ...] = ()
                if one is not None:
                    found = see(one.images, one.ids)
                    shown[str(role)] = replace(one, provenance={**one.provenance, **found.record})
                    given_to = (*_with_pictures(one, found.rows), found.vectors)
                    settings["dataset"] = one.name
                if name in ("eat", "ieat"):
                    settings |= association_tests(name)
                table, instances[name] = PROBES[name](tower, *given_to, **settings)
        except UnknownWordsError as error:
            if probes is not None:
                raise
            not_run[name] = str(error)
            continue
        tables.append(table)
    defaults = {
        name: list(p.default) if isinstance(p.default, tuple) else p.default
        for name, p in inspect.signature(audit).parameters.items()
    }
    meta = {
        "model": {
            "name": getattr(tower, "name", type(tower).__name__),
            "spec": spec,
            **getattr(tower, "provenance", {}),
        },
        "data": {
            role: {"name": one.name, "images": len(one.ids), **one.provenance}
            for role, one in shown.items()
        },
        "not_run": not_run,
        "convention": chosen.as_dict(),
        "seed": int(seed),
        "arguments": {
            "given": {n: v for n, v in given.items() if v != defaults[n]},
            "defaulted": {n: v for n, v in given.items() if v == defaults[n]},
        },
        "prompts": {
            "words": sum(prompt.role == "word" for prompt in prompts),
            "placebos": sum(prompt.role == "placebo" for prompt in prompts),
            "hash": content_hash([prompt.text for prompt in prompts]),
        },
        "versions": versions(),
        "environment": {**environment(), "device": str(getattr(tower, "device", "cpu"))},
    }
    return Run(combined(tables), meta, instances)


def _own_images(spec: str | None, model: Any) -> str | None:
    """The images that belong to some models."""
    scheme = (spec or "").partition(":")[0]
    if scheme == "testbed":
        return f"testbed:?strength={model.provenance['strength']}"
    return spec if scheme == "embeddings" else None


def _choose(
    asked: Sequence[str] | None, model: Any, data: Mapping[str, Any]
) -> tuple[list[str], dict[str, str]]:
    """Probes that can run, and why the others cannot; one that was asked for must."""
    for role in data:
        if role not in ROLES:
            raise UnknownNameError("role of data", role, ROLES)
        if role not in NEEDS.values():
            raise InputError(f"no probe uses data of the role {role!r} yet")
    chosen, reasons = [], {}
    for name in PROBES if asked is None else asked:
        if name not in PROBES:
            raise UnknownNameError("probe", name, PROBES)
        if not isinstance(model, TextEncoder):
            reasons[name] = "needs a model that gives vectors (encode_images, encode_texts)"
        elif (needed := NEEDS[name]) is not None and data.get(needed) is None:
            option = "--images " if needed == "faces" else f"--data {needed}="
            reasons[name] = f"needs data: {option}SPEC (tiltmeter list datasets)"
        else:
            chosen.append(name)
    # words alone are no audit of a model that sees, unless they are asked for
    if reasons and (asked is not None or not any(NEEDS[name] for name in chosen)):
        together: dict[str, list[str]] = {}
        for name, reason in reasons.items():
            together.setdefault(reason, []).append(name)
        told = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in together.items())
        raise InputError(f"{getattr(model, 'name', type(model).__name__)}: {told}")
    return chosen, reasons


def _with_pictures(data: Any, rows: Sequence[int]) -> tuple[Any, ...]:
    """What a probe takes of data whose pictures of these rows could be read."""
    if hasattr(data, "classes"):
        return (data.classes[np.asarray(rows)],)
    place = {row: at for at, row in enumerate(rows)}
    known = [at for at, picture in enumerate(data.of.tolist()) if picture in place]
    return (
        [data.texts[at] for at in known],
        np.array([place[int(data.of[at])] for at in known], dtype=np.int64),
    )
