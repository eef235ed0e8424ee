"""What was measured, on what data, and under which convention: from the run's metadata."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tiltmeter.metrics.convention import CHOICES
from tiltmeter.pages import text
from tiltmeter.results import Run

Fact = tuple[str, str]


def title(run: Run) -> str:
    """The model and its data."""
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
    """Model, data, prompts, convention and statistics, as terms and values."""
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
    shown = [
        (name, f"{convention[name]}: {meanings.get(convention[name], '')}")
        for name, meanings in CHOICES.items()
        if name in convention
    ]
    if "k" in convention:
        shown.append(("k", ", ".join(f"{k:,}" for k in convention["k"])))
    return shown


def permutations(run: Run) -> int | None:
    """How often labels were permuted, where the metadata has it."""
    [meta, *_] = run.meta.get("panel", [run.meta])
    return _arguments(meta).get("permutations")


def not_run(run: Run) -> list[Fact]:
    """Probes that failed or were left out, and why."""
    failed = {name: f"failed: {why}" for name, why in run.meta.get("failed", {}).items()}
    left = sorted({**run.meta.get("not_run", {}), **failed}.items())  # as in a saved record
    return [(name, text.short(why, 300)) for name, why in left]


def labels(run: Run) -> str:
    """Who assigned the groups."""
    if run.meta.get("job") == "captions":
        return (
            "Groups are perceived labels: words chosen by whoever wrote the caption, not what the "
            "people in the image would say of themselves."
        )
    return (
        "Groups are perceived labels: an annotator’s judgement of an image, not what a person "
        "would say of themselves. No image is shown here."
    )


def record(run: Run) -> str:
    """The arguments, versions and machine, to reproduce the run."""
    kept = {name: run.meta[name] for name in ("arguments", "seed", "versions", "environment")
            if name in run.meta}  # fmt: skip
    whole = json.dumps(kept, indent=2, sort_keys=True, ensure_ascii=False)
    return "\n".join(text.short(line, 200) if len(line) > 200 else line
                     for line in whole.splitlines()[:200])  # fmt: skip


def _model(meta: Mapping[str, Any]) -> list[Fact]:
    model = meta.get("model")
    if not model:
        return []
    shown = text.short(model.get("name"), 120)
    if weights := model.get("weights"):
        shown += f" (weights {str(weights)[:12]}…)"
    found = [("model", shown)]
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
        shown = text.short(one.get("name"), 120)
        if images := one.get("images"):
            shown += f", {images:,} {'images' if role == 'faces' else 'items'}"
        if isinstance(captions := one.get("captions"), int):  # of images with captions: a file
            shown += f", {captions:,} captions"
        lost = (one.get("unreadable") or {}).get("count", 0)
        gone = ((one.get("found") or {}).get("missing") or {}).get("count", 0)
        if lost or gone:
            shown += f"; {gone:,} listed images are missing, {lost:,} cannot be read"
        found.append((f"data: {role}", shown))
    return found


def _work(meta: Mapping[str, Any]) -> list[Fact]:
    found = []
    prompts = meta.get("prompts") or {}
    if prompts.get("words"):
        shown = f"{prompts['words']:,} prompts, {prompts['placebos']:,} prompts with neutral words"
        found.append(("words", shown))
    if convention := meta.get("convention"):
        source = f" ({convention['source']})" if convention.get("source") else ""
        found.append(("convention", f"{convention.get('name')}{source}"))
    used = _arguments(meta)
    if "permutations" in used:
        shown = (
            f"{used['permutations']:,} of the labels, {used['bootstraps']:,} bootstrap resamples"
        )
        found.append(("permutations", shown))
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
