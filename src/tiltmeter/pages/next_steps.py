"""What to do next: ready commands for a run."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tiltmeter.pages import text
from tiltmeter.pages.sections.harms import HarmGap, harm_gaps
from tiltmeter.pages.verdict import AttributeWords, attribute_words, most_biased
from tiltmeter.results import Run
from tiltmeter.stats.lift_verdict import CANNOT_TELL, RULE

#: The correction with which `compare` found least that got worse: docs/debias/comparison.md.
DEBIASER, MASKED_DEBIASER = "leace", "fairvlp"


@dataclass(frozen=True)
class Step:
    """What to do, and the commands that do it."""

    text: str
    commands: tuple[str, ...]
    explained: bool = False  # in the terminal too: the commands do not speak for themselves

    def lines(self, width: int = 84) -> list[str]:
        """The commands in lines that can be copied."""
        return [line for command in self.commands for line in folded(command, width)]


def folded(command: str, width: int) -> list[str]:
    """A command in lines: it goes on after a backslash, and an option stays with its value.

    >>> print("\\n".join(folded("tiltmeter plan --images faces: --cross 'race*gender'", 40)))
    tiltmeter plan --images faces: \\
        --cross 'race*gender'
    """
    pieces: list[str] = []
    for word in map(shlex.quote, shlex.split(command)):
        last = pieces[-1] if pieces else ""
        if last.startswith("--") and " " not in last and not word.startswith("-"):
            pieces[-1] += f" {word}"
        else:
            pieces.append(word)
    lines = [""]
    for piece in pieces:
        if lines[-1].strip() and len(lines[-1]) + len(piece) > width - 2:
            lines[-1] += "\\"
            lines.append("    ")
        lines[-1] += f"{text.printable(piece)} "
    return [line.rstrip() for line in lines]


#: Options of an audit that a plan repeats, and that a comparable audit repeats.
PLAN_OPTIONS = {"attributes": "--attribute", "cross": "--cross", "k": "--k",
                "convention": "--convention"}  # fmt: skip
AUDIT_OPTIONS = {**PLAN_OPTIONS, "words": "--words", "placebo": "--placebo", "probes": "--probe",
                 "data": "--data", "limit": "--limit", "templates": "--template",
                 "articles": "--articles", "classes": "--classes", "options": "--option",
                 "permutations": "--permutations", "bootstraps": "--bootstraps",
                 "seed": "--seed"}  # fmt: skip
#: Probes that only a generative model has.
WRITTEN = ("silence", "forced_choice", "pronoun", "description")
ANSWERS = "answers"  # begins the experiments of lift, ranking and captions with such a model


def next_steps(run: Run) -> list[Step]:
    """Look closer, correct, decide what is open, keep it from getting worse, share."""
    if "model" not in run.meta or "panel" in run.meta or run.meta.get("job") == "captions":
        return []
    place = shlex.quote(str(run.meta.get("environment", {}).get("place", "RUN")))
    rows = run.rows
    words = attribute_words(rows)
    generative = _is_generative(run)  # its answers cannot be corrected, nor ranked in the browser
    correct = []
    if not generative:
        correct = [*_correct(run, [*_to_correct(words, harm_gaps(rows))], place)]
    look = Step("See who comes up first for a word", (f"tiltmeter explore {place}",))
    return [
        *correct,
        *_more_images(run, words),
        *[look] * (not generative),
        *([] if correct else [_guard(run, place)]),
        Step("Share it as a model card", (f"tiltmeter card {place}",)),
    ]  # fmt: skip


def _is_generative(run: Run) -> bool:
    return any(row["probe"] in WRITTEN or (row["experiment"] or "").startswith(ANSWERS)
               for row in run.rows)  # fmt: skip


def _to_correct(words: list[AttributeWords], gaps: list[HarmGap]) -> Iterator[str]:
    """Attributes by what was found: clear harms, then words; no intersections."""
    gaps = sorted(gaps, key=lambda gap: -gap.value)
    found = [
        *(gap.attribute for gap in gaps if gap.clear),
        *(one.attribute for one in most_biased(words)),
    ]
    return (name for name in found if "*" not in name)


def _correct(run: Run, attributes: list[str], place: str) -> Iterator[Step]:
    """Correct by the first of the attributes, and audit and compare with the same options."""
    model, images = (_argument(run, name) for name in ("spec", "faces"))
    if not attributes or model is None or "debiaser" in run.meta["model"]:
        return
    attribute, method = shlex.quote(attributes[0]), DEBIASER
    if "lift" in run.table["probe"].to_pylist() and not run.where(metric="logit_scale"):
        method = MASKED_DEBIASER  # no embeddings to correct
    data, unseen = "", ""
    if images is not None:  # half of the images to fit on, the others to audit
        data, unseen = f" --images {shlex.quote(images)}", " --unseen fair"
        half = " --share 0.5"
    else:
        half = ""
    yield Step(
        f"Correct by {text.short(attributes[0], 60)}, and check what it costs",
        (f"tiltmeter debias {method} {shlex.quote(model)}{data} --attribute {attribute}{half}"
         f"{_store(run)} --out fair",
         f"tiltmeter audit fair{data}{unseen}{_options(run, AUDIT_OPTIONS)}{_store(run)} "
         "--out after",
         f"tiltmeter compare {place} after --fail-on worse"),
    )  # fmt: skip


def _guard(run: Run, place: str) -> Step:
    """Audit the next version of the model with the same options, and compare."""
    images = _argument(run, "faces")
    data = f" --images {shlex.quote(images)}" if images is not None else ""
    out = "next" if place != "next" else "later"
    return Step(
        "Keep it from getting worse: compare with an audit of the next version",
        (f"tiltmeter audit NEXT_MODEL{data}{_options(run, AUDIT_OPTIONS)}{_store(run)} --out {out}",
         f"tiltmeter compare {place} {out} --fail-on worse"),
    )  # fmt: skip


def _more_images(run: Run, words: list[AttributeWords]) -> Iterator[Step]:
    """How many images would decide what is open."""
    needed = {row["attribute"]: row for row in run.where(metric="images_needed")
              if row["value"] is not None}  # fmt: skip
    images = _argument(run, "faces")
    spec = f" --images {shlex.quote(images)}" if images else ""
    plan = f"tiltmeter plan{spec}{_options(run, PLAN_OPTIONS)}"
    for one in [one for one in words if one.verdict == CANNOT_TELL][:1]:
        if row := needed.get(one.attribute):
            here = min(found["n_group"] for kind in one.judged for found in kind.words)
            yield Step(
                f"Decide by {text.short(one.attribute, 60)}: {text.count(row['value'])} images per "
                f"group would do for half of the open words (here: at least {text.count(here)})",
                (plan,),
                explained=True,
            )
    few = [one for one in words if one.classes[0].notes.startswith("fewer than")]  # images
    for one in few[:1]:
        yield Step(
            f"Judge by {text.short(one.attribute, 60)}: take at least {RULE.group_images} images "
            "per group, better 200",
            (plan,),
            explained=True,
        )


def _options(run: Run, flags: dict[str, str]) -> str:
    """Options that the audit was given, as one types them."""
    given = (run.meta.get("arguments") or {}).get("given", {})
    said = ""
    for name, flag in flags.items():
        values = given.get(name)
        if isinstance(values, dict):
            values = [part for key, value in values.items() for part in _assigned(key, value)]
        for value in [values] if isinstance(values, str | int) else values or ():
            said += f" {flag} {shlex.quote(str(value))}"
    return said


def _assigned(key: str, value: Any) -> list[str]:
    """Data by role, or the options of a probe.

    >>> _assigned("captions", "coco:DIR"), _assigned("lift", {"splits": "50"})
    (['captions=coco:DIR'], ['lift.splits=50'])
    """
    if isinstance(value, dict):
        return [f"{key}.{name}={own}" for name, own in value.items()]
    return [f"{key}={value}"]


def _store(run: Run) -> str:
    """Where embeddings were cached: what is there is not embedded again."""
    place = run.meta.get("environment", {}).get("store")
    if not place:
        return ""
    near = Path(place).is_relative_to(Path.cwd())
    return f" --store {shlex.quote(str(Path(place).relative_to(Path.cwd()) if near else place))}"


def _argument(run: Run, name: str) -> Any:
    """An argument of the audit, or the spec of its model."""
    if name == "spec":
        return run.meta["model"].get("spec")
    arguments = run.meta.get("arguments") or {}
    return {**arguments.get("defaulted", {}), **arguments.get("given", {})}.get(name)
