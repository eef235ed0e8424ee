"""One audit: a model, data, probes; results with all that is needed to make them again."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from tiltmeter.bundle.tallying import tally
from tiltmeter.datasets import load_data
from tiltmeter.datasets.roles import ROLES
from tiltmeter.debias.debiased import Debiased
from tiltmeter.embedding import SHOWN, Embedded, embed
from tiltmeter.engine.local import Pace
from tiltmeter.errors import EXPECTED, InputError, UnknownNameError, reason
from tiltmeter.gate import evidence
from tiltmeter.metrics.convention import Convention, get_convention
from tiltmeter.models import load_model
from tiltmeter.probes import PROBES
from tiltmeter.probes.probe import CannotRunError, Effort, Probe, Setting
from tiltmeter.prompting import audit_prompts
from tiltmeter.results import ProbeFailedError, Run, combined, content_hash, environment, versions
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
    options: Mapping[str, Mapping[str, Any]] | None = None,
    attributes: Sequence[str] | None = None,
    cross: Sequence[str] = (),
    convention: str | Convention = "tiltmeter",
    k: Sequence[int] | None = None,
    permutations: int = 1000,
    bootstraps: int = 400,
    seed: int = 0,
    store: str | Path | None = None,
    device: str = "auto",
    precision: str = "auto",
    trust_remote_code: bool = False,
    strict: bool = False,
    keep_vectors: bool = True,
    progress: Progress | None = None,
) -> Run:
    """Measures `model` on `faces` and returns the run.

    `model` and `faces` are objects or specs; a model `embeddings:DIR` brings its own images, and
    one of the testbed is shown figures of the world that it was trained in. `data` gives other
    roles their data, objects or specs: captions for the probe `retrieval`, utility for `zero_shot`.
    By default every probe runs whose data are there; the others are named in the run.
    Words are those the model's own table lists, else the list `words` (a shipped name or a file,
    `berg` by default) in its templates, beside placebos of the same parts of speech. `classes` is
    the list that the probe `harms` chooses from, `harms` by default; `options` are those of single
    probes, by name. Photographs are embedded, or
    read from the `store`; those that cannot be read are left out, unless `strict`.
    The run keeps the vectors that it ranked, with their ids and labels, for the gate and the
    explorer; without `keep_vectors` it keeps the counts for a bundle only.
    If a probe fails before any other has finished, its error is raised. After that a failure does
    not stop the other probes: ProbeFailedError, raised at the end, has their results (`.run`).
    """
    if not 0 <= seed < 2**63:
        raise InputError(f"the seed must be a whole number from 0 to 2^63 - 1; got {seed}")
    chosen = get_convention(convention)
    if k is not None:
        chosen = chosen.with_(k=tuple(sorted({int(one) for one in k})))
    if faces is not None and "faces" in (data or {}):
        raise InputError("faces are given twice: by --images, and by --data faces=")
    for name, one in (options or {}).items():
        if not isinstance(one, Mapping):
            raise InputError(
                f"options are given by probe, {{'counterfactual': {{'epsilon': 16}}}}; "
                f"got {one!r} for {name!r}"
            )
    given = {
        "faces": faces if isinstance(faces, str) else None,
        "probes": None if probes is None else list(probes),
        "data": {role: one for role, one in (data or {}).items() if isinstance(one, str)} or None,
        "words": words,
        "placebo": placebo,
        "templates": None if templates is None else list(templates),
        "classes": classes,
        "options": {name: dict(one) for name, one in (options or {}).items()} or None,
        "attributes": None if attributes is None else list(attributes),
        "cross": list(cross),
        "convention": get_convention(convention).name,
        "k": None if k is None else [int(one) for one in k],
        "permutations": int(permutations),
        "bootstraps": int(bootstraps),
        "seed": int(seed),
        "precision": precision,
        "strict": strict,
        "keep_vectors": keep_vectors,
    }
    spec = model if isinstance(model, str) else None
    tower: Any = model
    if isinstance(model, str):
        tower = load_model(model, device=device, trust_remote_code=trust_remote_code)
    own = own_images(spec, tower) if faces is None else faces
    given_data = {"faces": own, **(data or {})}
    chosen_probes, not_run = _choose(probes, tower, given_data)
    used = {role for one in chosen_probes.values() for role in (*one.needs, *one.takes)}
    shown: dict[str, Any] = {
        role: load_data(one, attributes=attributes, cross=cross, role=role, optional=chosen.labels)
        if isinstance(one, str)
        else one
        for role, one in given_data.items()
        if one is not None and role in used
    }
    if isinstance(tower, Debiased):
        shown = _to_judge(tower, shown)
    if "faces" in shown:
        chosen = chosen.on(shown["faces"].name, shown["faces"].groups)
    kept = None if store is None else Store(Path(store))
    seen: dict[int, Embedded] = {}  # pictures that two probes need are embedded once

    def see(one: Any) -> Embedded:
        if id(one) not in seen:
            seen[id(one)] = embed(
                tower,
                one.images,
                one.ids,
                store=kept,
                pace=Pace(precision=precision),
                strict=strict,
                progress=progress,
            )
        return seen[id(one)]

    @cache
    def prompts() -> list[Prompt]:
        return audit_prompts(tower, words, placebo, templates)

    setting = Setting(
        chosen,
        see,
        prompts,
        seed=int(seed),
        effort=Effort(int(permutations), int(bootstraps)),
        attributes=attributes,
        cross=cross,
        classes=classes,
        progress=progress or (lambda what, share: None),
        strict=strict,
    )
    configured = {  # a mistyped option is found before any probe runs
        name: probe.options_with(name, (options or {}).get(name, {}))
        for name, probe in chosen_probes.items()
    }

    def measure(name: str, probe: Probe) -> tuple[pa.Table, pa.Table, dict[str, pa.Table]]:
        """Rows and cases of a probe; and of one that ranks, what it ranked."""
        mine = replace(setting, options=configured[name])
        if not probe.ranks:
            return *probe.run(tower, shown, mine), {}
        # what is ranked is kept, for a comparison to score it again
        asked = evidence.Spoken(tower, prompts())
        to_rank = evidence.with_vectors(tower, shown["faces"])
        table, cases = probe.run(asked, {**shown, "faces": to_rank}, mine)
        ranked = setting.seen(to_rank)
        kept = evidence.tables(asked, to_rank, seen.get(id(shown["faces"]))) if keep_vectors else {}
        kept["counts"] = tally(  # for a bundle, whose numbers others can recompute
            asked,
            ranked,
            prompts=prompts(),
            attributes=setting.attributes_of(ranked),
            convention=chosen,
            seed=int(seed),
            effort=setting.effort,
            device=mine.options["device"],
        )
        return table, cases, kept

    tables: list[pa.Table] = []
    instances: dict[str, pa.Table] = {}
    vectors: dict[str, pa.Table] = {}
    failures: dict[str, Exception] = {}
    for name, probe in chosen_probes.items():
        try:
            table, cases, ranked = measure(name, probe)
        except Exception as error:  # not even a bug may cost what the others measured
            if probes is None and isinstance(error, CannotRunError):
                not_run[name] = str(error)
                continue
            if not tables:  # nothing to keep: a mistake that all probes share is told at once
                raise
            failures[name] = error
            continue
        tables.append(table)
        instances[name] = cases
        vectors |= ranked
    said = prompts() if prompts.cache_info().currsize else []
    meta = {
        "model": {
            "name": getattr(tower, "name", type(tower).__name__),
            "spec": spec,
            **getattr(tower, "provenance", {}),
        },
        "data": {
            role: {
                "name": one.name,
                **_pictures(one, setting.unreadable.get(role), seen.get(id(one))),
            }
            for role, one in shown.items()
        },
        "not_run": not_run,
        "convention": chosen.as_dict(),
        "seed": int(seed),
        "arguments": arguments(audit, given),
        "prompts": {
            "words": sum(prompt.role == "word" for prompt in said),
            "placebos": sum(prompt.role == "placebo" for prompt in said),
            "hash": content_hash([prompt.text for prompt in said]),
        },
        "versions": versions(),
        "environment": {
            **environment(),
            "device": str(getattr(tower, "device", "cpu")),
            **({} if store is None else {"store": str(Path(store).resolve())}),
        },
    }
    run = Run(combined(tables), meta, instances, vectors)
    if not failures:
        return run
    run.meta["failed"] = {name: reason(error) for name, error in failures.items()}
    bugs = [error for error in failures.values() if not isinstance(error, EXPECTED)]
    raise ProbeFailedError(run) from [*bugs, *failures.values()][0]


def arguments(function: Callable[..., Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call, split into those given and those left at their default."""
    defaults = {
        name: list(p.default) if isinstance(p.default, tuple) else p.default
        for name, p in inspect.signature(function).parameters.items()
    }
    return {
        "given": {name: value for name, value in values.items() if value != defaults[name]},
        "defaulted": {name: value for name, value in values.items() if value == defaults[name]},
    }


def _pictures(data: Any, unreadable: list[str] | None, seen: Embedded | None) -> dict[str, Any]:
    """Of how many pictures, whence; which could not be read; the shards that hold vectors."""
    told: dict[str, Any] = {}
    if seen is not None:
        told = {"images": len(seen.rows), **data.provenance, **seen.record}
        if seen.kept is not None:
            told["vectors"] = {name: seen.kept[name] for name in ("space", "shards")}
        return told
    if unreadable is not None:
        told["unreadable"] = {"count": len(unreadable), "first": unreadable[:SHOWN]}
    count = len(getattr(data, "ids", ())) - len(unreadable or ())
    return {"images": count, **data.provenance, **told}


def _to_judge(model: Debiased, shown: dict[str, Any]) -> dict[str, Any]:
    """Data that a corrected model may be judged on; vectors brought along are corrected too."""
    refuse_fitted_rows(model, shown)
    if "faces" in shown:
        return {**shown, "faces": model.corrected(shown["faces"])}
    return shown


def refuse_fitted_rows(model: Debiased, data: Mapping[str, Any]) -> None:
    """Raises where a corrected model would be judged on rows that it was fitted on."""
    for role, one in data.items():
        if hasattr(one, "ids") and (rows := model.fitted_on(one)):
            raise InputError(
                f"{len(rows):,} of the {len(one.ids):,} rows of {role} are among those that the "
                "debiaser was fitted on, which proves nothing: audit it on others"
            )


def own_images(spec: str | None, model: Any) -> str | None:
    """The images that belong to some models."""
    spec = model.spec if isinstance(model, Debiased) else spec
    scheme = (spec or "").partition(":")[0]
    if scheme == "testbed":
        return f"testbed:?strength={model.provenance['strength']}"
    return spec if scheme == "embeddings" else None


def _choose(
    asked: Sequence[str] | None, model: Any, data: Mapping[str, Any]
) -> tuple[dict[str, Probe], dict[str, str]]:
    """Probes that can run, and why the others cannot; one that was asked for must."""
    known: dict[str, Probe] = {name: PROBES[name] for name in asked or PROBES}
    roles = {role for name in PROBES for role in (*PROBES[name].needs, *PROBES[name].takes)}
    for role in data:
        if role not in ROLES:
            raise UnknownNameError("role of data", role, ROLES)
        if role not in roles:
            raise InputError(f"no probe uses data of the role {role!r} yet")
    lacking = {
        name: probe.lacks(model, data) or (probe.waits(name, data) if asked is None else None)
        for name, probe in known.items()
    }
    reasons = {name: reason for name, reason in lacking.items() if reason}
    chosen = {name: probe for name, probe in known.items() if name not in reasons}
    # words alone are no audit of a model that sees, unless they are asked for
    if reasons and (asked or not any(probe.needs for probe in chosen.values())):
        together: dict[str, list[str]] = {}
        for name, reason in reasons.items():
            together.setdefault(reason, []).append(name)
        told = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in together.items())
        raise InputError(f"{getattr(model, 'name', type(model).__name__)}: {told}")
    return chosen, reasons
