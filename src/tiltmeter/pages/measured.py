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
    roles = [role for one in audits for role in sorted(one.get("data", {}).items())]
    faces = [data for name, data in roles if name == "faces"] or [data for _, data in roles]
    data = dict.fromkeys(str(one.get("name")) for one in faces)
    return _listed(models) + (f" on {_listed(data)}" if data else "")


def size(run: Run) -> str:
    """Images and words of one audit; empty where the run has none, or several audits.

    >>> from tiltmeter.results import RESULTS
    >>> meta = {"data": {"faces": {"images": 5000}}, "prompts": {"concepts": 33}}
    >>> size(Run(RESULTS.empty_table(), meta))
    '5,000 images, 33 words'
    """
    prompts, faces = run.meta.get("prompts") or {}, (run.meta.get("data") or {}).get("faces") or {}
    counts = ((faces.get("images"), "images"), (prompts.get("concepts"), "words"))
    return ", ".join(f"{count:,} {what}" for count, what in counts if count)


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


def no_lift(run: Run) -> str:
    """Why no word of the run was judged."""
    return f"No word was judged by its lift, which {dict(not_run(run))['lift']}."


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
    weights = f" (weights {str(model['weights'])[:12]}…)" if model.get("weights") else ""
    found = [("model", text.short(model.get("name"), 120) + weights)]
    if debiaser := model.get("debiaser"):
        by = debiaser.get("attribute")
        rows = (debiaser.get("fitted") or {}).get("count")
        method = text.short(debiaser.get("method"), 80)
        method += f" for {text.short(by, 80)}" if by else ""
        method += f", fitted on {rows:,} other rows" if rows else ""
        found.append(("corrected by", method))
    return found


def _data(meta: Mapping[str, Any]) -> list[Fact]:
    found = []
    for role, data in sorted(meta.get("data", {}).items()):
        about = text.short(data.get("name"), 120)
        if images := data.get("images"):
            about += f", {images:,} {'images' if role == 'faces' else 'items'}"
        if isinstance(captions := data.get("captions"), int):  # of images with captions: a file
            about += f", {captions:,} captions"
        lost = (data.get("unreadable") or {}).get("count", 0)
        gone = ((data.get("found") or {}).get("missing") or {}).get("count", 0)
        if lost or gone:
            missing = text.plural(gone, "listed image is", "listed images are")
            about += f"; {missing} missing, {lost:,} cannot be read"
        if unseen := data.get("unseen"):
            about += f"; {text.left_out(unseen)}"
        found.append((f"data: {role}", about))
    return found


def _work(meta: Mapping[str, Any]) -> list[Fact]:
    found = []
    prompts, convention = meta.get("prompts") or {}, meta.get("convention") or {}
    if words := prompts.get("words"):
        neutral = f"{prompts['placebos']:,} prompts with neutral words"
        found.append(("words", f"{words:,} prompts, {neutral}"))
    if convention:
        source = f" ({convention['source']})" if convention.get("source") else ""
        found.append(("convention", f"{convention.get('name')}{source}"))
    used = _arguments(meta)
    if "permutations" in used:
        bootstraps = f"{used['bootstraps']:,} bootstrap resamples"
        found.append(("permutations", f"{used['permutations']:,} of the labels, {bootstraps}"))
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
