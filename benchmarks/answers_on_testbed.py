"""The probes of generative models on planted bias: `python -m benchmarks.answers_on_testbed MODEL`.

MODEL is `oracle`, or `writer` where its weights are installed; both twins are measured, over
several seeds of the images. Printed: sizes against what was planted, how often intervals and bounds
cover it, and how often the fair twin gives a finding.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import numpy as np

from tiltmeter.auditing.audit import audit
from tiltmeter.pages.report import page_of
from tiltmeter.results import Run

PROBES = ("silence", "forced_choice", "pronoun", "description")


def runs(model: str, twin: str, seeds: int, images: int) -> Iterator[Run]:
    """An audit for each seed of images and answers."""
    strength = 0.0 if twin == "fair" else 1.0
    for seed in range(seeds):
        yield audit(
            f"testbed:{model}?twin={twin}",
            f"testbed:?images={images}&strength={strength}&seed={seed}",
            probes=list(PROBES), seed=seed, permutations=400, bootstraps=50,
            options={name: {"images": images} for name in ("silence", "description")},
        )  # fmt: skip


def covered(rows: list[dict[str, Any]]) -> str:
    """Share of intervals with the planted value in them."""
    known = [row for row in rows if row["truth"] is not None and row["ci_low"] is not None
             and row["ci_high"] > row["ci_low"]]  # fmt: skip
    inside = [row["ci_low"] <= row["truth"] <= row["ci_high"] for row in known]
    return f"{np.mean(inside):.3f} of {len(inside)}" if inside else "-"


def report(found: list[Run], twin: str) -> Iterator[str]:
    """Lines to print."""
    rows = [row for run in found for row in run.table.to_pylist() if row["value"] is not None]
    for attribute in ("shape", "hue"):
        for reading in ("letters", "texts"):
            asked = [row for row in rows if row["metric"] == "choice_lift" and row["concept"]
                     and row["attribute"] == attribute
                     and row["experiment"].startswith(reading)]  # fmt: skip
            value, truth = (np.array([r[name] for r in asked]) for name in ("value", "truth"))
            slope = value @ truth / (truth @ truth) if np.abs(truth).max() > 1e-9 else np.nan
            intercept = np.abs(value - truth).mean()
            p_word = np.array([r["p_placebo"] for r in asked if r["p_placebo"] is not None])
            flags = sum(row["verdict"] == "associated" for row in asked)
            yield (
                f"{twin} forced_choice {reading} by {attribute}: slope {slope:.3f}, mean error "
                f"{intercept:.3f}, covered {covered(asked)}, p_word < .05 "
                f"{(p_word < 0.05).mean():.3f}, associated {flags} of {len(p_word)}"
            )
    for metric in ("position_effect", "pronoun_default", "pronoun_sight"):
        own = [row for row in rows if row["metric"] == metric and row["truth"] is not None]
        yield (
            f"{twin} {metric}: "
            + ", ".join(f"{row['value']:.3f}/{row['truth']:.3f}" for row in own[:4])
            + f"; covered {covered(own)}"
        )
    for probe, target in (("silence", "refused"), ("silence", "long answer"), ("silence", "words"),
                          ("forced_choice", "unknown"), ("pronoun", "log-odds"),
                          ("description", None)):  # fmt: skip
        own = [row for row in rows if row["probe"] == probe and row["metric"] == "gaps"
               and row["truth"] is not None and target in (None, row["target"])]  # fmt: skip
        errors = [abs(row["value"] - row["truth"]) for row in own]
        yield (
            f"{twin} {probe} {target or 'mentions'}: mean absolute error {np.mean(errors):.4f}, "
            f"largest planted {max(abs(row['truth']) for row in own):.3f}, covered "
            f"{covered(own)}"
        )
    low, high = ([row for row in rows if row["metric"] == name and row["truth"] is not None]
                 for name in ("gap_low", "gap_high"))  # fmt: skip
    both = [(a, b) for a, b in zip(low, high, strict=True) if b["value"] - a["value"] > 0.01]
    inside = [a["ci_low"] <= a["truth"] <= b["ci_high"] for a, b in both]
    points = [a["value"] <= a["truth"] <= b["value"] for a, b in both]
    yield (
        f"{twin} bounds (where something is refused) cover {np.mean(inside):.3f} of {len(inside)}; "
        f"their estimates alone {np.mean(points):.3f}"
    )
    findings: dict[str, int] = dict.fromkeys(PROBES, 0)
    for run in found:
        for section in page_of(run).sections:
            name = section.name.removeprefix("section-").replace("-", "_")
            verdicts = ("none found", "cannot tell")
            said = [one for one in section.findings if one.verdict not in verdicts]
            findings[name] += bool(said)
    yield f"{twin}: runs of {len(found)} with a finding: {findings}"


def main() -> None:
    """Measure both twins and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("model", nargs="?", default="oracle")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--images", type=int, default=1400)
    options = parser.parse_args()
    for twin in ("biased", "fair"):
        found = list(runs(options.model, twin, options.seeds, options.images))
        print("\n".join(report(found, twin)), flush=True)


if __name__ == "__main__":
    main()
