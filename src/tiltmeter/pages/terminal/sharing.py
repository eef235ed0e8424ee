"""What the terminal shows of bundles: what was packed, and what `verify` found."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tiltmeter.judge.bundle.pack import BundleFile
from tiltmeter.judge.bundle.recompute import RecomputationResult, ValueMismatch
from tiltmeter.judge.bundle.verify import VerificationResult
from tiltmeter.pages import columns as col
from tiltmeter.pages import text
from tiltmeter.pages.model import Column, Part, Table, table
from tiltmeter.pages.terminal.layout import show

SHOWN = 20  # differences that are listed; --json has all
#: Why values are not recomputed, by probe or by metric of the ranking.
WHY = {
    "ndkl": "takes the whole ranking",
    "weat": "takes the embeddings",
    "spearman": "compares with the planted bias",
    "neutral words": "the bundle has no counts of them",
    "shares of variance": "take bootstrap resamples",
}


def bundled(done: BundleFile) -> None:
    """The parts of a bundle, what was left out, and the digest to cite."""
    manifest = done.manifest
    lines = [f"{done.path}: {len(manifest['parts']) + 2} parts, {text.size(done.size)}"]
    lines += [
        f"  {name:28} {text.size(part['size']):>9}" for name, part in manifest["parts"].items()
    ]
    if left := manifest["left_out"]:
        lines.append(f"Left out, by hash only: {', '.join(left)}.")
    if done.missing:
        lines.append(f"No longer in the run: {', '.join(done.missing)}.")
    if reason := manifest["counts"]["why_not"]:
        lines.append(f"Its values cannot be recomputed by others: {reason}.")
    lines += [
        f"Cite it:   sha256:{done.digest}",
        f"Check it:  tiltmeter verify {done.path} --digest {done.digest}",
    ]
    show(*lines, soft_wrap=True)


def verified(found: VerificationResult) -> None:
    """Whether a bundle is as packed, whether its values are right, and what was not checked."""
    parts: list[Part] = [text.short(found.title, 160)] if found.title else []
    parts += [f"✗ {text.short(part, 80)} {text.short(what, 300)}" for part, what in found.problems]
    if not found.problems:
        parts.append(f"✓ {found.parts} parts are as they were packed (SHA-256).")
    if found.recomputed is not None:
        parts += _recomputed(found.recomputed)
    elif found.not_recomputed:
        parts.append(f"– Nothing was recomputed: {text.short(found.not_recomputed, 300)}.")
    parts.append(f"Digest of the manifest: sha256:{found.digest}")
    if not found.ok:
        parts.append("The bundle is NOT what it says.")
    elif found.recomputed is not None:
        parts.append("The bundle is intact, and its values follow from its counts.")
    else:
        parts.append("The bundle is intact; it cannot show whether its values are right.")
    for part in parts:
        show(part, soft_wrap=not isinstance(part, Table))


def verified_summary(found: VerificationResult) -> dict[str, Any]:
    """The same for machines."""
    again = found.recomputed
    return {
        "ok": found.ok,
        "digest": found.digest,
        "problems": [{"part": part, "problem": problem} for part, problem in found.problems],
        "recomputed": None if again is None else dict(again.compared),
        "differences": [] if again is None else [one._asdict() for one in again.differences],
        "not_recomputed": found.not_recomputed
        if again is None
        else [{"probe": probe, "metric": metric, "rows": rows}
              for (probe, metric), rows in sorted(again.not_recomputed.items())],
    }  # fmt: skip


def _recomputed(again: RecomputationResult) -> list[Part]:
    total, wrong = sum(again.compared.values()), len(again.differences)
    listed = ", ".join(
        f"{text.metric_name(name)} {many:,}" for name, many in again.compared.items()
    )
    differ = text.plural(wrong, "number differs", "numbers differ")
    parts: list[Part] = [
        f"{'✗' if wrong else '✓'} {total:,} values were recomputed from counts ({listed}), "
        f"{again.exact_p:,} with exact p-values: {differ if wrong else 'all are the same'}."
    ]
    if again.overall:
        parts += [table("over all words", again.overall, Column("by", "attribute", width=20),
                        col.METRIC, Column("reported", "value", "value"),
                        Column("recomputed", "recomputed", "value")), ""]  # fmt: skip
    if again.differences:
        rows = [_mismatch(one) for one in again.differences[:SHOWN]]
        parts.append(
            table("differences", rows, col.METRIC, Column("by", "attribute", width=16),
                  Column("group", "group", width=20), Column("word", "word", width=40),
                  ("column", "number"), "reported", "recomputed")
        )  # fmt: skip
        if wrong > SHOWN:
            parts.append(f"... and {wrong - SHOWN:,} more (--json lists all)")
        parts.append("")
    if again.not_recomputed:
        by_probe: Counter[str] = Counter()
        for (probe, metric), many in again.not_recomputed.items():
            name = text.metric_name(metric) if probe == "ranking" else probe
            by_probe[name + (f" ({WHY[metric]})" if metric in WHY else "")] += many
        rows_left = ", ".join(f"{name} {many:,}" for name, many in by_probe.items())
        parts.append(f"Not recomputed, rows: {text.short(rows_left, 1000)}.")
    parts.append(
        "Nor are intervals and permutation p-values: they need resamples of single images."
    )
    return parts


def _mismatch(one: ValueMismatch) -> dict[str, Any]:
    word = one.concept or one.category or "all words"
    template = f" in “{one.template}”" if one.template else ""
    return {**one._asdict(), "word": word + template, "group": one.group or "",
            "reported": _shown(one.reported), "recomputed": _shown(one.recomputed)}  # fmt: skip


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return "undefined" if value is None else text.short(value, 30)
