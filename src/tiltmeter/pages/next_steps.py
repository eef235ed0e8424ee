"""What to do next: ready commands for a run."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tiltmeter.pages import text
from tiltmeter.pages.sections.harms import harm_gaps
from tiltmeter.pages.verdict import AttributeWords, attribute_words, most_biased
from tiltmeter.results import Run
from tiltmeter.stats.lift_verdict import CANNOT_TELL

#: Which correction, and why: docs/debias/comparison.md has all of them on the same images.
DEBIASER, MASKED_DEBIASER = "transport", "fairvlp"


@dataclass(frozen=True)
class Step:
    """What to do, and the commands that do it."""

    text: str
    commands: tuple[str, ...]


#: Probes that only a generative model has.
WRITTEN = ("silence", "forced_choice", "pronoun", "description")


def next_steps(run: Run) -> list[Step]:
    """Look closer, correct, decide what is open, keep it from getting worse, share."""
    if "model" not in run.meta or "panel" in run.meta or run.meta.get("job") == "captions":
        return []
    place = shlex.quote(str(run.meta.get("environment", {}).get("place", "RUN")))
    rows = run.table.to_pylist()
    words = attribute_words(rows)
    return [
        *_correct(run, words, [gap.attribute for gap in harm_gaps(rows)], place),
        *_more_images(run, words),
        Step("See who comes up first for a word", (f"tiltmeter explore {place}",)),
        Step("Keep it from getting worse: compare with the next audit",
             (f"tiltmeter compare {place} NEXT --fail-on worse",)),
        Step("Share it as a model card", (f"tiltmeter card {place}",)),
    ]  # fmt: skip


def _correct(run: Run, words: list[AttributeWords], harms: list[str], place: str) -> Iterator[Step]:
    """Correct by the attribute that is most biased; an intersection stands for its parts."""
    model, images = (_argument(run, name) for name in ("spec", "faces"))
    named = [one.attribute for one in most_biased(words)]
    single = [name for name in (*named, *harms) if "*" not in name]
    if not single or model is None or "debiaser" in run.meta["model"]:
        return
    if any(row["probe"] in WRITTEN for row in run.table.to_pylist()):
        return  # no debiaser changes what a generative model writes
    attribute, method = shlex.quote(single[0]), DEBIASER
    if "lift" in run.table["probe"].to_pylist() and not run.where(metric="logit_scale"):
        method = MASKED_DEBIASER  # no embeddings to correct
    data, unseen = "", ""
    if images is not None:  # half of the images to fit on, the others to audit
        data, unseen = f" --images {shlex.quote(images)}", " --unseen fair"
        half = " --share 0.5"
    else:
        half = ""
    yield Step(
        f"Correct by {text.short(single[0], 60)}, and check what it costs",
        (f"tiltmeter debias {method} {shlex.quote(model)}{data} --attribute {attribute}{half} "
         "--out fair",
         f"tiltmeter audit fair{data}{unseen} --out after",
         f"tiltmeter compare {place} after"),
    )  # fmt: skip


def _more_images(run: Run, words: list[AttributeWords]) -> Iterator[Step]:
    """How many images would decide what is open."""
    needed = {row["attribute"]: row for row in run.where(metric="images_needed")
              if row["value"] is not None}  # fmt: skip
    undecided = [one.attribute for one in words if one.verdict == CANNOT_TELL]
    images = _argument(run, "faces")
    for attribute in undecided[:1]:
        if row := needed.get(attribute):
            spec = f" --images {shlex.quote(images)}" if images else ""
            yield Step(
                f"Decide by {text.short(attribute, 60)}: {text.count(row['value'])} images per "
                "group would do for half of the open words",
                (f"tiltmeter plan{spec}",),
            )


def _argument(run: Run, name: str) -> Any:
    """An argument of the audit, or the spec of its model."""
    if name == "spec":
        return run.meta["model"].get("spec")
    arguments = run.meta.get("arguments") or {}
    return {**arguments.get("defaulted", {}), **arguments.get("given", {})}.get(name)
