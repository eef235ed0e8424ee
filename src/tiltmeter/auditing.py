"""One audit: a model, data, probes; results with all that is needed to make them again."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tiltmeter import stimuli
from tiltmeter.datasets import load_data
from tiltmeter.embedding import Embedded, embed
from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.images import Made, Pictures
from tiltmeter.metrics.convention import Convention, get_convention
from tiltmeter.models import load_model
from tiltmeter.probes import NEEDS, PROBES
from tiltmeter.probes.ranking import Effort
from tiltmeter.results import Run, combined, content_hash, environment, versions
from tiltmeter.store import Store
from tiltmeter.types import Faces, Progress, Prompt, TextEncoder

#: Placebo lists that ship, by the part of speech that they stand for.
PLACEBOS = {"noun": "placebo-nouns", "adjective": "placebo-adjectives"}


def audit(
    model: str | TextEncoder = "testbed:fusion",
    faces: str | Faces | None = None,
    *,
    data: Mapping[str, Any] | None = None,
    probes: Sequence[str] | None = None,
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
    `berg` by default) in its templates, beside placebos of the same parts of speech. Photographs
    are embedded, or read from the `store`; those that cannot be read are left out, unless `strict`.
    """
    if not 0 <= seed < 2**63:
        raise InputError(f"the seed must be a whole number from 0 to 2^63 - 1; got {seed}")
    chosen = get_convention(convention)
    if k is not None:
        chosen = chosen.with_(k=tuple(sorted({int(one) for one in k})))
    given = {
        "probes": None if probes is None else list(probes),
        "data": {role: one for role, one in (data or {}).items() if isinstance(one, str)} or None,
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
    for role in dict.fromkeys(NEEDS[name] for name in chosen_probes):
        one = given_data[role]
        if isinstance(one, str):
            one = load_data(one, attributes=attributes, cross=cross, role=role)
        shown[role] = one
    prompts: list[Prompt] = []
    tables, instances = [], {}
    for name in chosen_probes:
        one = shown[NEEDS[name]]
        if NEEDS[name] == "faces":
            if one.vectors is None and isinstance(one.images, Pictures | Made):
                one = shown["faces"] = see(one.images, one.ids).of(one)
            prompts = prompts or audit_prompts(tower, words, placebo, templates)
            table, instances[name] = PROBES[name](
                tower,
                one,
                prompts=prompts,
                attributes=[*(one.groups if attributes is None else attributes), *cross],
                convention=chosen,
                seed=int(seed),
                effort=Effort(int(permutations), int(bootstraps)),
                progress=progress,
            )
        else:
            found = see(one.images, one.ids)
            table, instances[name] = PROBES[name](
                tower, *_with_pictures(one, found.rows), found.vectors, dataset=one.name,
                seed=int(seed),
            )  # fmt: skip
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
        "environment": environment(),
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
        if role not in NEEDS.values():
            raise UnknownNameError("role of data", role, set(NEEDS.values()))
    chosen, reasons = [], {}
    for name in PROBES if asked is None else asked:
        if name not in PROBES:
            raise UnknownNameError("probe", name, PROBES)
        if not isinstance(model, TextEncoder):
            reasons[name] = "needs a model that gives vectors (encode_images, encode_texts)"
        elif data.get(NEEDS[name]) is None:
            option = "--images" if NEEDS[name] == "faces" else f"--data {NEEDS[name]}="
            reasons[name] = f"needs data: {option}SPEC (tiltmeter list datasets)"
        else:
            chosen.append(name)
    if reasons and (asked is not None or not chosen):
        told = "; ".join(f"{name} {reason}" for name, reason in reasons.items())
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


def audit_prompts(
    model: Any,
    words: str | None = None,
    placebo: str | None = None,
    templates: Sequence[str] | None = None,
) -> list[Prompt]:
    """The texts to show: the model's own table, or words in templates beside their placebos."""
    own = getattr(model, "prompts", None)
    if own is not None and words is None and placebo is None and templates is None:
        return list(own)
    listed = stimuli.load(words or "berg")
    prompts = stimuli.prompts(listed, templates=templates, role="word")
    if placebo is not None:
        neutral = [stimuli.load(placebo)]
    else:
        kinds = {prompt.pos for prompt in prompts}
        neutral = [stimuli.load(name) for pos, name in PLACEBOS.items() if pos in kinds]
    shown: dict[str, dict[str, None]] = {}  # templates by part of speech, in order
    for prompt in prompts:
        shown.setdefault(prompt.pos, {})[prompt.template] = None
    for source in neutral:
        for pos in dict.fromkeys(word.pos for word in source.words):
            same = [word for word in source.words if word.pos == pos]
            if pos in shown:
                prompts += stimuli.prompts(same, templates=list(shown[pos]), role="placebo")
    if placebo is not None and not any(prompt.role == "placebo" for prompt in prompts):
        known = ", ".join(sorted(pos or "none given" for pos in shown))
        raise InputError(
            f"no placebo of {placebo} can stand beside a word: the words' parts of speech are "
            f"{known}, and placebos must have the same"
        )
    return prompts
