"""What was measured, on what, and under which choices: read off the run's record."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tiltmeter.metrics.convention import CHOICES
from tiltmeter.pages import text
from tiltmeter.results import Run

Fact = tuple[str, str]


def title(run: Run) -> str:
    """Whom, on what."""
    if run.meta.get("job") == "captions":
        return f"Captions of {text.short(run.meta['data']['captions']['name'], 80)}"
    audits = run.meta.get("panel", [run.meta])
    models = dict.fromkeys(str(one.get("model", {}).get("name", "a model")) for one in audits)
    faces = (one.get("data", {}) for one in audits)
    data = dict.fromkeys(
        str(role.get("name")) for one in faces for name, role in one.items() if name == "faces"
    )
    if not data:
        roles = sorted(run.meta.get("data", {}).items())
        data = dict.fromkeys(str(role.get("name")) for _, role in roles)
    on = f" on {_listed(data)}" if data else ""
    return f"{_listed(models)}{on}"


def date(run: Run) -> str:
    """When the audit was made; the page itself has no date, so that it can be made again."""
    return str(run.meta.get("environment", {}).get("time", ""))[:10]


def facts(run: Run) -> list[Fact]:
    """What was measured: terms and what they were here."""
    found: list[Fact] = []
    for meta in run.meta.get("panel", [run.meta]):
        found += _model(meta)
    for meta in run.meta.get("panel", [run.meta])[:1]:
        found += _data(meta)
        found += _work(meta)
    return found


def choices(run: Run) -> list[Fact]:
    """The convention, choice by choice, in words."""
    convention = run.meta.get("convention") or {}
    told = [
        (name, f"{convention[name]}: {meanings.get(convention[name], '')}")
        for name, meanings in CHOICES.items()
        if name in convention
    ]
    if "k" in convention:
        told.append(("k", ", ".join(f"{k:,}" for k in convention["k"])))
    return told


def permutations(run: Run) -> int | None:
    """How often labels were permuted, where the record tells."""
    [meta, *_] = run.meta.get("panel", [run.meta])
    return _arguments(meta).get("permutations")


def not_run(run: Run) -> list[Fact]:
    """Probes that failed or were left out, and why."""
    failed = {name: f"failed: {why}" for name, why in run.meta.get("failed", {}).items()}
    left = sorted({**run.meta.get("not_run", {}), **failed}.items())  # as in a saved record
    return [(name, text.short(why, 300)) for name, why in left]


def labels(run: Run) -> str:
    """Whose judgement the groups are."""
    if run.meta.get("job") == "captions":
        return (
            "Groups are perceived labels: the words that somebody chose for who is in a picture, "
            "not what these people would say of themselves."
        )
    return (
        "Groups are perceived labels: somebody’s judgement of a picture, not what a person would "
        "say of themselves. No picture is shown here."
    )


def record(run: Run) -> str:
    """The arguments, versions and machine, for who wants to make the run again."""
    kept = {name: run.meta[name] for name in ("arguments", "seed", "versions", "environment")
            if name in run.meta}  # fmt: skip
    whole = json.dumps(kept, indent=2, sort_keys=True, ensure_ascii=False)
    return "\n".join(text.short(line, 200) if len(line) > 200 else line
                     for line in whole.splitlines()[:200])  # fmt: skip


def _model(meta: Mapping[str, Any]) -> list[Fact]:
    model = meta.get("model")
    if not model:
        return []
    told = text.short(model.get("name"), 120)
    if weights := model.get("weights"):
        told += f" (weights {str(weights)[:12]}…)"
    found = [("model", told)]
    if debiaser := model.get("debiaser"):
        by = debiaser.get("attribute")
        rows = (debiaser.get("fitted") or {}).get("count")
        found.append(
            (
                "corrected by",
                text.short(debiaser.get("method"), 80)
                + (f" for {text.short(by, 80)}" if by else "")
                + (f", fitted on {rows:,} other rows" if rows else ""),
            )
        )
    return found


def _data(meta: Mapping[str, Any]) -> list[Fact]:
    found = []
    for role, one in sorted(meta.get("data", {}).items()):
        told = text.short(one.get("name"), 120)
        if images := one.get("images"):
            told += f", {images:,} {'images' if role == 'faces' else 'items'}"
        if isinstance(captions := one.get("captions"), int):  # of pictures with captions: a file
            told += f", {captions:,} captions"
        lost = (one.get("unreadable") or {}).get("count", 0)
        gone = ((one.get("found") or {}).get("missing") or {}).get("count", 0)
        if lost or gone:
            told += f"; {gone:,} listed pictures are not there, {lost:,} cannot be read"
        found.append((f"data: {role}", told))
    return found


def _work(meta: Mapping[str, Any]) -> list[Fact]:
    found = []
    prompts = meta.get("prompts") or {}
    if prompts.get("words"):
        told = f"{prompts['words']:,} prompts, {prompts['placebos']:,} prompts with neutral words"
        found.append(("words", told))
    if convention := meta.get("convention"):
        source = f" ({convention['source']})" if convention.get("source") else ""
        found.append(("convention", f"{convention.get('name')}{source}"))
    used = _arguments(meta)
    if "permutations" in used:
        told = f"{used['permutations']:,} of the labels, {used['bootstraps']:,} bootstrap resamples"
        found.append(("permutations", told))
    if "seed" in meta:
        found.append(("seed", str(meta["seed"])))
    if version := (meta.get("versions") or {}).get("tiltmeter"):
        found.append(("measured with", f"tiltmeter {version}"))
    return found


def _arguments(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Those that were given, and the defaults of the others."""
    arguments = meta.get("arguments") or {}
    return {**arguments.get("defaulted", {}), **arguments.get("given", {})}


def _listed(names: Mapping[str, Any], most: int = 3) -> str:
    listed = [text.short(name, 60) for name in names]
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more
