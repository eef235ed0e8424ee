"""One audit: a model, data, probes; results with all that is needed to make them again."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tiltmeter import stimuli
from tiltmeter.datasets import load_data
from tiltmeter.embedding import embed
from tiltmeter.errors import InputError
from tiltmeter.images import Made, Pictures
from tiltmeter.metrics.convention import Convention, get_convention
from tiltmeter.models import load_model
from tiltmeter.probes import PROBES
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
    probes: Sequence[str] = ("ranking",),
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
    one of the testbed is shown figures of the world that it was trained in.
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
        "probes": list(probes),
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
    if faces is None:
        faces = _own_images(spec, tower)
    data = load_data(faces, attributes=attributes, cross=cross) if isinstance(faces, str) else faces
    if data.vectors is None and isinstance(data.images, Pictures | Made):
        kept = None if store is None else Store(Path(store))
        data = embed(tower, data, store=kept, strict=strict, progress=progress).faces
    prompts = audit_prompts(tower, words, placebo, templates)
    names = [*(data.groups if attributes is None else attributes), *cross]
    tables, instances = [], {}
    for name in probes:
        table, instances[name] = PROBES[name](
            tower,
            data,
            prompts=prompts,
            attributes=names,
            convention=chosen,
            seed=int(seed),
            effort=Effort(int(permutations), int(bootstraps)),
            progress=progress,
        )
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
        "data": {"name": data.name, "images": len(data), **data.provenance},
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


def _own_images(spec: str | None, model: Any) -> str:
    """The images that belong to some models."""
    scheme = (spec or "").partition(":")[0]
    if scheme == "testbed":
        return f"testbed:?strength={model.provenance['strength']}"
    if spec is None or scheme != "embeddings":
        raise InputError(
            "no images were given: pass --images SPEC, such as --images embeddings:DIR"
        )
    return spec


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
