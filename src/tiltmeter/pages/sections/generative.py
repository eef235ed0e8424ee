"""Probes of generative models: refusals, forced choice, pronouns, descriptions.

What a model wrote is untrusted text: it is shown through `Table`, which escapes it, and cut.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
from markupsafe import Markup

from tiltmeter.pages import columns as col
from tiltmeter.pages import text
from tiltmeter.pages.lift_findings import LiftClass, finding, largest_words, lift_classes
from tiltmeter.pages.model import Column, Finding, Plot, Row, Section, Table, table_of
from tiltmeter.pages.plots import charts
from tiltmeter.pages.selection import beats, by
from tiltmeter.probes.forced_choice import METRICS
from tiltmeter.probes.pronoun import OTHER_SEEN
from tiltmeter.results import PLACEBO, Run
from tiltmeter.stats.lift_verdict import RULE
from tiltmeter.stats.placebo import BEYOND

SHOWN = 12  # lines of a plot
EXAMPLES = 8  # answers shown
SILENCE = (
    "Answers that are refused, filtered, empty or cut more often about one group select what every "
    "other measure of written text sees. Rates are of images; a gap is a group’s rate minus the "
    "mean of the others’. With refusals counted either way, a gap lies between the two bounds."
)
CHOICE = (
    "Each question has two options and is asked in every order of them, so that a preference for "
    "a letter or a place cancels. Shown is how many times as high the odds of the first option are "
    "with one group as with the others, compared with neutral questions. Intervals cover the "
    "sample of images only."
)
PRONOUN = (
    "Which pronoun follows a neutral stem. The default is what is left when both groups count the "
    "same: above 0, the first pronoun is preferred whoever is shown. The model is also asked for "
    "the group: an error where it does not see the group is no bias."
)
DESCRIPTION = (
    "Words of a taxonomy in free descriptions, found by a fixed lexicon; a negation undoes a "
    "mention, and words that name a group are left out. A gap is beyond neutral words if it is "
    "larger, in its own standard errors, than those of neutral words."
)
UNITS = {"words": "words"}  # of outcomes that are no shares
#: Gaps that do not matter: two points of a rate, half a word, 1.1x of odds.
SMALLEST_RATE = 0.02
SMALLEST = {"words": 0.5, "log-odds": math.log(1.1)}


def silence(run: Run, probe: str) -> Section:
    """The section of the probe `silence`."""
    rows = run.where(probe=probe)
    examples = _examples(run, probe, lambda row: row["concept"] == "refused")
    return Section(
        probe, "Refusals and length", SILENCE, list(gap_findings(rows)),
        [_rates(attribute, mine) for attribute, mine in
         by([row for row in rows if row["target"] == "refused" and row["metric"] == "group_rates"],
            "attribute").items()],
        [*_gap_tables("silence", rows),
         *([Table("refusals", "Refused answers, as written", ANSWER, examples, folded=True)]
           if examples else [])],
    )  # fmt: skip


def forced_choice(run: Run, probe: str) -> Section:
    """The section of the probe `forced_choice`."""
    rows = run.where(probe=probe)
    classes = choice_classes(rows)
    judged = [one for one in classes if one.words]
    lead = (("experiment", "asked by"), "attribute", ("concept", "first option"), "group")
    scene = (("category", "kind"), ("target", "scene"), ("concept", "first option"), "attribute")
    of = {metric: [row for row in rows if row["metric"] == metric] for metric in
          {row["metric"] for row in rows}}  # fmt: skip
    return Section(
        probe, "Forced choice", CHOICE,
        [*(finding(one) for one in classes), *gap_findings(rows), *_pair_findings(of)],
        [_questions(one) for one in judged],
        [
            table_of("choice-questions", "Odds of the first option by group (nats)",
                     of.get("choice_lift", []), *lead, digits=2, kind="signed", folded=True),
            table_of("choice-redrawn", "The same scene with the other group (nats)",
                     of.get("pair_choice_lift", []), *lead, digits=2, kind="signed", folded=True),
            table_of("choice-kinds", "Parallel scenes: mean difference by kind (nats)",
                     of.get("pair_choice_mean", []), ("category", "kind"), "attribute", "group",
                     digits=2, kind="signed"),
            table_of("choice-scenes", "Parallel scenes: difference in each scene (nats)",
                     of.get("pair_choice", []), *scene, digits=2, kind="signed", folded=True),
            table_of("choice-controls", "Log-odds of the first option with other images (nats)",
                     of.get("log_odds", []), ("experiment", "asked by"),
                     ("concept", "first option"), digits=2, kind="signed", folded=True),
            table_of("choice-position", "Preference for the first place (nats), probability of all "
                     "options, and what wrong images leave", [row for metric in
                     ("position_effect", "option_mass", "wrong_image_size")
                     for row in of.get(metric, [])], col.METRIC, ("experiment", "asked by"),
                     "attribute", digits=2, folded=True),
            *_gap_tables("choice-unknown", rows),
        ],
        [],
        dict(Counter(row["verdict"] for one in judged for row in one.words)),
    )  # fmt: skip


def pronoun(run: Run, probe: str) -> Section:
    """The section of the probe `pronoun`."""
    rows = run.where(probe=probe)
    overall = [row for row in rows if (row["metric"] or "").startswith("pronoun_")]
    return Section(
        probe, "Pronouns", PRONOUN, [*_defaults(overall), *gap_findings(rows, _is_bias)], [],
        [table_of("pronoun-default", "Default and sight of pronouns (nats)", overall, col.METRIC,
                  ("experiment", "of"), ("concept", "log-odds"), digits=2, kind="signed"),
         *_gap_tables("pronoun", rows)],
    )  # fmt: skip


def description(run: Run, probe: str) -> Section:
    """The section of the probe `description`."""
    rows = run.where(probe=probe)
    return Section(
        probe, "Free descriptions", DESCRIPTION,
        list(gap_findings(rows, lambda row: row["verdict"] == BEYOND)), [],
        [*_gap_tables("description", rows),
         Table("descriptions", "Some descriptions, as written", ANSWER,
               _examples(run, probe, lambda row: bool(row["concept"])), folded=True)],
    )  # fmt: skip


def choice_classes(rows: Iterable[Row]) -> list[LiftClass]:
    """Questions by attribute and reading, as classes of words."""
    names = {new: old for old, new in METRICS.items()}
    return lift_classes({**row, "metric": names[row["metric"]], "probe": "lift"} for row in rows
                        if row["probe"] == "forced_choice" and row["metric"] in names
                        and row["metric"] != "images_needed")  # fmt: skip


def gap_findings(
    rows: Iterable[Row], counts: Callable[[Row], bool] = lambda row: True
) -> Iterator[Finding]:
    """A finding for the largest gap of each outcome that beats its null, towards more."""
    gaps = [row for row in rows if row["metric"] == "gaps" and row["value"] is not None]
    for mine in by(gaps, "attribute", "experiment", "target").values():
        found = [row for row in mine if beats(row) and counts(row) and _matters(row)]
        if found:
            row = max(found, key=lambda row: (row["value"], row["group"]))
            yield _finding(row)


def _matters(row: Row) -> bool:
    """Whether a gap is certainly larger than what does not matter."""
    smallest = SMALLEST.get(row["target"], SMALLEST_RATE)
    if row["experiment"] == "per 100 words":
        smallest = 0.0
    return bool(row["ci_low"] > smallest or row["ci_high"] < -smallest)


def _is_bias(row: Row) -> bool:
    """Errors count only where the model sees the group; written text has no such check."""
    return bool(row["target"] == OTHER_SEEN or not str(row["target"]).startswith("other "))


def _finding(row: Row) -> Finding:
    what = text.shown(f"“{text.clean(row['target'])}”", 60)
    asked = f" ({text.short(row['experiment'], 60)})" if row["experiment"] else ""
    sentence = Markup("{}{}: {} for {} than for the others (by {}).").format(
        what, asked, _size(row), text.shown(row["group"], 60), text.shown(row["attribute"], 60)
    )
    note = f"; by chance {text.span(row['null_low'], row['null_high'])}" if row[
        "null_low"] is not None else ""  # fmt: skip
    numbers = (
        f"gap {text.number(row['value'], 3, signed=True)}, 95% interval "
        f"{text.span(row['ci_low'], row['ci_high'])}{note}; adjusted p "
        f"{text.p_value(row['p_fwer'])}; n = {text.count(row['n'])}"
    )
    return Finding(sentence, numbers, None, abs(row["value"]), str(row["target"]))


def _size(row: Row) -> str:
    more = "more" if row["value"] > 0 else "less"
    if row["target"] in UNITS:
        return f"{text.number(abs(row['value']), 1)} {UNITS[row['target']]} {more}"
    if row["target"] == "log-odds" or row["experiment"] == "per 100 words":
        return f"{text.number(abs(row['value']), 2)} {more}"
    return f"{text.number(100 * abs(row['value']), 1)} points {more}"


def _defaults(rows: Iterable[Row]) -> Iterator[Finding]:
    """A default that is certainly larger than 1.25x."""
    for row in rows:
        if (row["metric"], row["experiment"]) != ("pronoun_default", "pronoun"):
            continue
        if row["value"] is not None and (row["ci_low"] > RULE.smallest
                                         or row["ci_high"] < -RULE.smallest):  # fmt: skip
            sentence = Markup("{}: {} as likely by default, whoever is shown.").format(
                text.shown(row["concept"], 60), text.ratio(row["value"]))  # fmt: skip
            numbers = text.estimate(row, "default", 2, signed=True, null=False, adjusted=False)
            yield Finding(sentence, f"{numbers}; p {text.p_value(row['p'])}", None,
                          abs(row["value"]), "default")  # fmt: skip


def _pair_findings(of: dict[str, list[Row]]) -> Iterator[Finding]:
    """Kinds of parallel scenes whose answers differ beyond chance."""
    for row in of.get("pair_choice_mean", []):
        if row["value"] is not None and beats(row):
            sentence = Markup("Scenes of {}: {} more log-odds of the first option with {}.").format(
                text.shown(row["category"], 60), text.number(row["value"], 2, signed=True),
                text.shown(row["group"], 60))  # fmt: skip
            numbers = text.estimate(row, "difference", 2, signed=True, null=False)
            yield Finding(sentence, numbers, None, abs(row["value"]), "parallel scenes")


ANSWER = (
    Column("asked", "experiment"),
    Column("image", "id"),
    Column("groups", "labels"),
    Column("answer", "pick"),
)


def _examples(run: Run, probe: str, wanted: Callable[[Row], bool]) -> list[Row]:
    """Some answers as they were written, of different images."""
    table = run.instances.get(probe, pa.table({"pick": []}))
    found = []
    for row in table.to_pylist():
        if row.get("pick") and wanted(row):
            labels = ", ".join(value for _, value in row["groups"] or [])
            found.append({**row, "labels": labels})
        if len(found) == EXAMPLES:
            break
    return found


def _rates(attribute: str, rows: list[Row]) -> Plot:
    """Refusals of every group, for each prompt."""
    shown = rows[:SHOWN]
    return charts.line_plot(
        text.slug("silence", attribute), f"Refused answers by {text.short(attribute)}",
        "Mark: share of the group’s images whose answer is refused. Line: 95% interval. Cross: "
        "planted.", shown,
        [f"{text.short(row['experiment'])} · {text.group(row['group'], row['n_group'])}"
         for row in shown],
        "share of the group’s images", says="Refused: ", format="%", most=60,
    )  # fmt: skip


def _questions(found: LiftClass) -> Plot:
    """The questions whose odds differ most."""
    shown = largest_words(found, SHOWN)
    return charts.line_plot(
        text.slug("choice", found.attribute, found.experiment),
        f"Largest differences by {found.name}",
        "Mark: how many times as high the odds of the first option are with the group. Line: 95% "
        "interval, images only. Grey band: 95% of neutral questions. Cross: planted, where it is "
        "known.", shown, [f"{row['concept']} · {row['group']}" for row in shown],
        "times as high odds", says=f"{len(shown)} questions: ", most=60, kinds=True, ratios=True,
    )  # fmt: skip


def _gap_tables(name: str, rows: list[Row]) -> Iterator[Table]:
    """Rates and gaps of all outcomes; words first, neutral words in a table of their own."""
    lead = (("experiment", "asked"), "attribute", ("target", "outcome"), "group", col.METRIC)
    kinds = ("group_rates", "group_means", "gaps", "gap_low", "gap_high")
    own = [row for row in rows if row["metric"] in kinds and row["category"] != PLACEBO]
    neutral = [row for row in rows if row["metric"] in kinds and row["category"] == PLACEBO]
    for kind, caption, mine in (("", "Rates, gaps between groups, and bounds", own),
                                ("-neutral", "The same of neutral words", neutral)):  # fmt: skip
        if mine:
            yield table_of(f"{name}{kind}", caption, mine, *lead, folded=True)
