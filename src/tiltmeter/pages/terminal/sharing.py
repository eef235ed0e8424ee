"""What the terminal shows of bundles: what was packed, and what a check of one found."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tiltmeter.judge.bundle.pack import BundleFile
from tiltmeter.judge.bundle.recompute import RecomputationResult, ValueMismatch
from tiltmeter.judge.bundle.verify import VerificationResult
from tiltmeter.pages import text
from tiltmeter.pages.terminal.layout import console_of, label, number, table_of

SHOWN = 20  # differences that are listed; --json has all
#: Why figures are not recomputed, by probe or by metric of the ranking.
WHY = {
    "ndkl": "takes the whole ranking",
    "weat": "takes the vectors",
    "spearman": "compares with what was planted",
    "neutral words": "the bundle has no counts of them",
    "shares of variance": "take draws",
}


def bundled(done: BundleFile) -> None:
    """The parts of a bundle, what stayed at home, and the digest to quote."""
    console = console_of(soft_wrap=True)
    parts = done.manifest["parts"]
    console.print(f"{done.path}: {len(parts) + 2} parts, {_size(done.size)}")
    for name, told in parts.items():
        console.print(f"  {name:28} {_size(told['size']):>9}")
    if left := done.manifest["left_out"]:
        console.print(f"Left out, by hash only: {', '.join(left)}.")
    if done.gone:
        console.print(f"Not in the run any more: {', '.join(done.gone)}.")
    told = done.manifest["counts"]
    if told["why_not"]:
        console.print(f"Its numbers cannot be recomputed by others: {told['why_not']}.")
    console.print(f"Quote it:  sha256:{done.digest}")
    console.print(f"Check it:  tiltmeter verify {done.path} --digest {done.digest}")


def verified(found: VerificationResult) -> None:
    """Whether a bundle is as packed, whether its numbers hold, and what was not looked at."""
    console = console_of(soft_wrap=True)
    if found.title:
        console.print(text.short(found.title, 160))
    for part, what in found.wrong:
        console.print(f"✗ {text.short(part, 80)} {text.short(what, 300)}")
    if not found.wrong:
        console.print(f"✓ {found.parts} parts are as they were packed (SHA-256).")
    again = found.recomputed
    if again is not None:
        _recomputed(again)
    elif found.not_recomputed:
        console.print(f"– Nothing was recomputed: {text.short(found.not_recomputed, 300)}.")
    console.print(f"Digest of the manifest: sha256:{found.digest}")
    if found.ok and again is not None:
        console.print("The bundle is intact, and its numbers are what its counts give.")
    elif found.ok:
        console.print("The bundle is intact; whether its numbers are right it cannot show.")
    else:
        console.print("The bundle is NOT what it says.")


def verified_summary(found: VerificationResult) -> dict[str, Any]:
    """The same for machines."""
    again = found.recomputed
    return {
        "ok": found.ok,
        "digest": found.digest,
        "wrong": [{"part": part, "what": what} for part, what in found.wrong],
        "recomputed": None if again is None else dict(again.compared),
        "differences": [] if again is None else [one._asdict() for one in again.differences],
        "not_recomputed": found.not_recomputed
        if again is None
        else [{"probe": probe, "metric": metric, "rows": rows}
              for (probe, metric), rows in sorted(again.left.items())],
    }  # fmt: skip


def _recomputed(again: RecomputationResult) -> None:
    console = console_of(soft_wrap=True)
    total, wrong = sum(again.compared.values()), len(again.differences)
    listed = ", ".join(f"{label(name, None)} {many:,}" for name, many in again.compared.items())
    mark = "✗" if wrong else "✓"
    differ = text.plural(wrong, "number differs", "numbers differ")
    console.print(
        f"{mark} {total:,} figures were recomputed from counts ({listed}), {again.exact_p:,} with "
        f"exact p-values: {differ if wrong else 'all are the same'}."
    )
    if again.overall:
        table = table_of("over all words", "by", "figure", "reported", "recomputed", left=2)
        for row in again.overall:
            table.add_row(text.short(row["attribute"], 20), label(row["metric"], row["k"]),
                          number(row["value"]), number(row["recomputed"]))  # fmt: skip
        console_of().print(table)
        console.print()
    if again.differences:
        _differences(again.differences)
    if again.left:
        by_probe: Counter[str] = Counter()
        for (probe, metric), many in again.left.items():
            told = label(metric, None) if probe == "ranking" else probe
            by_probe[told + (f" ({WHY[metric]})" if metric in WHY else "")] += many
        rows = ", ".join(f"{name} {many:,}" for name, many in by_probe.items())
        console.print(f"Not recomputed, rows: {text.short(rows, 1000)}.")
    console.print(
        "Nor are intervals, and p-values by relabelling: they take draws over single images."
    )


def _differences(found: list[ValueMismatch]) -> None:
    table = table_of("what differs", "metric", "by", "group", "word", "number", "reported",
                     "recomputed", left=5)  # fmt: skip
    for one in found[:SHOWN]:
        word = one.concept or one.category or "all words"
        template = f" in “{one.template}”" if one.template else ""
        table.add_row(label(one.metric, one.k), text.short(one.attribute, 16),
                      text.short(one.group or "", 20), text.short(word + template, 40),
                      one.column, _told(one.reported), _told(one.recomputed))  # fmt: skip
    console = console_of()
    console.print(table)
    if len(found) > SHOWN:
        console.print(f"... and {len(found) - SHOWN:,} more (--json lists all)")
    console.print()


def _told(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return "undefined" if value is None else text.short(value, 30)


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 10**6 else f"{count / 1e3:.1f} kB"
