"""The verdict of a run: an answer to each question, harms first, and one sentence above them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from tiltmeter.pages import measured, text
from tiltmeter.pages.columns import Row
from tiltmeter.pages.lift_findings import LiftClass, lift_classes, not_judged
from tiltmeter.pages.model import Section
from tiltmeter.pages.sections.counterfactual import pair_sizes, pairs_found
from tiltmeter.pages.sections.generative import choice_classes, gap_findings
from tiltmeter.pages.sections.harms import HarmGap, harm_gaps, judged_rates, rates_of
from tiltmeter.pages.selection import by, by_unit
from tiltmeter.probes.lift.pairs import NO_TOKENS
from tiltmeter.probes.lift.rows import TOO_FEW
from tiltmeter.probes.texts import opposite_words
from tiltmeter.results import Run
from tiltmeter.stats.lift_verdict import (
    ASSOCIATED,
    CANNOT_TELL,
    CLEAR,
    NO_LARGER,
    NONE_FOUND,
    RULE,
    TOO_FEW_GROUPS,
    WEAK,
)

NOT_JUDGED, SIGNIFICANT = "not judged", "significant"
NO_GAP = "no gap found"  # of harmful classes, whose rates may be high
#: How a verdict is set off.
TONES = {CLEAR: "bad", SIGNIFICANT: "strong", WEAK: "strong", CANNOT_TELL: "", NONE_FOUND: "good",
         NO_GAP: "", NOT_JUDGED: "weak"}  # fmt: skip
LARGEST = 3  # effects named for an attribute
NAMED = 2  # harms in the sentence
#: Probes of what a model writes, and how their answers name them.
WRITTEN = {"silence": "Refusals and length", "forced_choice": "Forced choice",
           "pronoun": "Pronouns", "description": "Free descriptions"}  # fmt: skip
LARGE_GAP = 0.1  # of rates of refusals: an audit that does not rule it out cannot tell


@dataclass(frozen=True)
class Answer:
    """A question, its verdict, what was found, and what chance would give."""

    question: str
    verdict: str
    found: str  # Markup made by `text.shown`, or plain text
    chance: str = ""
    brief: str = ""  # what was found, in a line or two; empty: the same
    topics: Sequence[str] = ()  # words whose opposite is associated with the same group

    @property
    def tone(self) -> str:
        return TONES.get(self.verdict, "")


@dataclass(frozen=True)
class AttributeWords:
    """Words by one attribute: all their classes together."""

    attribute: str
    model: str
    classes: list[LiftClass]

    @property
    def name(self) -> str:
        name = text.short(self.attribute, 60)
        return f"{text.short(self.model, 60)}: {name}" if self.model else name

    @property
    def verdict(self) -> str:
        """That of the class that shows most; none found only if no class leaves it open."""
        verdicts = {found.verdict for found in self.classes}
        for verdict in (CLEAR, WEAK, CANNOT_TELL, NONE_FOUND):
            if verdict in verdicts:
                return verdict
        return NOT_JUDGED

    @property
    def size(self) -> float:
        """The largest typical size of its classes, in nats."""
        return max((found.size["value"] for found in self.judged if found.size), default=0.0)

    @property
    def judged(self) -> list[LiftClass]:
        return [found for found in self.classes if found.words]

    def count(self, verdict: str) -> int:
        return sum(found.count(verdict) for found in self.judged)

    def largest(self) -> list[tuple[LiftClass, Row]]:
        """Words of all classes, associated ones first, by the size of their lift."""
        words = [(found, row) for found in self.judged for row in found.words]
        return sorted(words, key=lambda two: (two[1]["verdict"] != ASSOCIATED,
                                              -abs(two[1]["value"])))  # fmt: skip

    def topics(self) -> list[tuple[LiftClass, Row, Row]]:
        """Opposites that are both associated with one group, in one direction."""
        sure = {row["concept"]: (found, row) for found in self.judged for row in found.words
                if row["verdict"] == ASSOCIATED}  # fmt: skip
        return [
            (sure[one][0], sure[one][1], sure[other][1])
            for one, other in opposite_words()
            if one in sure and other in sure
            and sure[one][1]["group"] == sure[other][1]["group"]
            and sure[one][1]["value"] * sure[other][1]["value"] > 0
        ]  # fmt: skip


def attribute_words(rows: Iterable[Row]) -> list[AttributeWords]:
    """The classes of words of each attribute together, in the order of the results."""
    together: dict[tuple[str, str], list[LiftClass]] = {}
    for found in lift_classes(rows):
        together.setdefault((found.attribute, found.model), []).append(found)
    return [AttributeWords(*key, classes) for key, classes in together.items()]


def choices(rows: Iterable[Row]) -> list[AttributeWords]:
    """Forced-choice questions of each attribute together."""
    together: dict[tuple[str, str], list[LiftClass]] = {}
    for found in choice_classes(rows):
        together.setdefault((found.attribute, found.model), []).append(found)
    return [AttributeWords(*key, classes) for key, classes in together.items()]


def most_biased(words: Iterable[AttributeWords]) -> list[AttributeWords]:
    """Attributes with words that stand out: clear before weak, large before small."""
    found = [one for one in words if one.verdict in (CLEAR, WEAK)]
    return sorted(found, key=lambda one: (one.verdict != CLEAR, -one.size))


def answers(run: Run, sections: Sequence[Section] = ()) -> list[Answer]:
    """Harms first, then words by attribute, then what other probes found significant."""
    rows = run.rows
    found = [*harm_answers(rows), *(word_answer(one) for one in attribute_words(rows))]
    found += [word_answer(one, "Forced choice", "questions") for one in choices(rows)]
    found += [*pair_answers(rows), *_other_answers(sections), *_silence_answer(rows, sections)]
    said = {answer.question for answer in found}
    found += [answer for answer in _unmeasured_answers(rows) if answer.question not in said]
    return [*found, *_utility_answers(rows)]


def sentence(run: Run) -> Markup:
    """What a reader who reads nothing else should know."""
    rows = run.rows
    gaps = [gap for gap in harm_gaps(rows) if gap.clear]
    largest = {gap.attribute: gap for gap in sorted(gaps, key=lambda gap: gap.value)}
    # an intersection adds nothing to a part that is named already
    single = [gap for name, gap in largest.items()
              if "*" not in name or not {*name.split("*")} & {*largest}]  # fmt: skip
    said = [
        Markup("<strong>{} of images of {} ({}) are classified as {}.</strong>").format(
            text.percent(gap.most["value"]), _group(gap.most), text.shown(gap.attribute, 60),
            text.shown(f"“{text.clean(gap.category)}”", 60),
        )
        for gap in sorted(single, key=lambda gap: -gap.value)[:NAMED]
    ]  # fmt: skip
    weak = [name for name, gaps in by_attribute(harm_gaps(rows)).items()
            if not any(gap.clear for gap in gaps)]  # fmt: skip
    if weak:
        said.append(Markup(WEAK_HARMS).format(text.shown(text.listed(weak), 400)))
    refused = [row for row in rows if row["probe"] == "silence" and row["target"] == "refused"]
    for finding in sorted(gap_findings(refused), key=lambda finding: -finding.weight)[:1]:
        said.append(Markup("<strong>Refusals differ: {}</strong>").format(Markup(finding.text)))
    names: dict[str, list[str]] = {}
    for words in attribute_words(rows):
        names.setdefault(words.verdict, []).append(words.name)
    for sizes in pair_sizes(rows):
        name = text.short(sizes[0]["attribute"], 60)
        same = names.setdefault(strongest_verdict(sizes), [])
        same += [f"{name} (masked words)"] * (name not in same)  # else said already
    for asked in choices(rows):
        same = names.setdefault(asked.verdict, [])
        same += [f"{asked.name} (forced choice)"] * (asked.name not in same)
    for verdict, line in SENTENCES.items():
        if verdict in names:
            if verdict == NONE_FOUND and said:  # of words alone: something else was found
                line = f"Words: {line[0].lower()}{line[1:]}"
            said.append(Markup(line).format(text.shown(text.listed(names[verdict]), 400)))
    if not names and "lift" in dict(measured.not_run(run)):
        said.append(Markup("{}").format(measured.no_lift(run)))
    if not said and not any(row["p_fwer"] is not None for row in rows):
        reasons = dict.fromkeys(answer.found for answer in _unmeasured_answers(rows))
        said.append(Markup("Nothing was judged: {}.").format(Markup("; ").join(reasons))
                    if reasons else Markup(UNTESTED))  # fmt: skip
    elif not said:
        said.append(Markup(WITHOUT_LIFT))
    return Markup(" ").join(said)


UNTESTED_HARMS = "Whether groups differ beyond chance was not tested (--permutations 0)"
UNTESTED = (
    "No verdict: nothing in this run was tested against chance. The sections of the report have "
    "what was measured."
)
WITHOUT_LIFT = (
    "No verdict on words: the probe lift was not run. The sections of the report have what was "
    "measured."
)
WEAK_HARMS = (
    "Harmful classes differ by {}, but no more than other visible differences between these images "
    "would make them."
)
SENTENCES = {
    CLEAR: "<strong>Clearly biased by {}.</strong>",
    WEAK: "By {} words stand out, but no more than other visible differences between these images "
    "would make them.",
    CANNOT_TELL: "Whether words are biased by {}, this audit cannot tell.",
    NONE_FOUND: "No bias above 1.25x found by {}.",
    NOT_JUDGED: "Words were not judged by {}.",
}


def strongest_verdict(rows: Iterable[Row]) -> str:
    """The verdict that says most."""
    verdicts = {row["verdict"] for row in rows}
    return next(verdict for verdict in SENTENCES if verdict in verdicts)


def pair_answers(rows: list[Row]) -> Iterator[Answer]:
    """Masked words of counterfactual pairs: an answer for image, text and both together."""
    several = pair_sizes(rows)
    for sizes in several:
        name, source = (text.short(sizes[0][key], 60) for key in ("attribute", "source"))
        question = f"Masked words, by {name}" + f" ({source})" * (len(several) > 1)
        nulls = text.listed([text.ratio(size["null_high"]) for size in sizes])
        yield Answer(question, strongest_verdict(sizes), pairs_found(rows, sizes),
                     f"groups swapped at random within pairs: up to {nulls}")  # fmt: skip


def harm_answers(rows: list[Row]) -> Iterator[Answer]:
    """A row for each attribute with a gap beyond chance, and one for all without."""
    gaps = by_attribute(harm_gaps(rows))
    notes = {
        name: text.named_left_out(row["note"] for row in mine if row["metric"] == "gaps")
        for name, mine in by([r for r in rows if r["probe"] == "harms"], "attribute").items()
    }
    for attribute, mine in gaps.items():
        first, *more = sorted(mine, key=lambda gap: -gap.value)
        found = _gap(first)
        if more:
            found += Markup("; {}").format(Markup("; ").join(map(_gap, more)))
        first = next((gap for gap in mine if gap.clear), first)
        chance = f"permuted labels: no gap above {text.percent(first.gap['null_high'])}"
        highest = first.gap["null_high"]
        if first.splits is not None:
            highest = max(highest, first.splits["null_high"])
            chance += f"; random splits of the images: {text.percent(first.splits['null_high'])}"
        few = f"; {notes[attribute]}" if notes[attribute] else ""
        yield Answer(f"Harmful classes, by {text.short(attribute, 60)}",
                     CLEAR if first.clear else WEAK, found + few, chance,
                     Markup("{}; {} give a gap up to {}{}").format(
                         _gap(first), "chance or random splits" if first.splits else "chance",
                         text.percent(highest), few))  # fmt: skip
    rest = [mine for name, mine in by(rates_of(rows), "attribute").items() if name not in gaps]
    small = [mine for mine in rest if len(_large_groups(mine)) < 2]
    if rest := [mine for mine in rest if mine not in small]:
        judged = judged_rates(row for mine in rest for row in mine)
        highest = max(judged, key=lambda row: row["value"])
        tested = any(row["metric"] == "gaps" and row["p_fwer"] is not None
                     and row["experiment"] is None for row in rows)  # fmt: skip
        what = Markup("{}; highest rate: {} of images of {} are classified as {}").format(
            "Groups do not differ beyond chance" if tested else UNTESTED_HARMS,
            text.percent(highest["value"]), _group(highest),
            text.shown(f"“{text.clean(highest['category'])}”", 60))  # fmt: skip
        verdict = NO_GAP if tested else NOT_JUDGED
        if not any(row["value"] for mine in rest for row in mine):
            what = Markup("None of {} images got a harmful class").format(
                text.count(highest["n"]))  # fmt: skip
            verdict = NONE_FOUND if tested else NOT_JUDGED
        few = text.named_left_out(notes[mine[0]["attribute"]] for mine in rest)
        yield Answer(_harm_question(rest), verdict, what + (f"; {few}" if few else ""))
    if small:
        yield Answer(_harm_question(small), NOT_JUDGED,
                     TOO_FEW_GROUPS)  # fmt: skip


def _harm_question(rates: Iterable[list[Row]]) -> str:
    names = text.listed([text.short(mine[0]["attribute"], 60) for mine in rates])
    return f"Harmful classes, by {names}"


def _large_groups(rates: Iterable[Row]) -> set[str]:
    """Groups with enough images for a verdict."""
    return {row["group"] for row in judged_rates(rates)}


def by_attribute(gaps: Iterable[HarmGap]) -> dict[str, list[HarmGap]]:
    """Gaps by attribute, the largest first."""
    found: dict[str, list[HarmGap]] = {}
    for gap in sorted(gaps, key=lambda gap: -gap.value):
        found.setdefault(gap.attribute, []).append(gap)
    return found


def _gap(gap: HarmGap) -> Markup:
    return Markup("{} for {} of {}, {} of {}").format(
        text.shown(f"“{text.clean(gap.category)}”", 60), text.percent(gap.most["value"]),
        _group(gap.most), text.percent(gap.least["value"]), _group(gap.least),
    )  # fmt: skip


def _group(row: Row) -> Markup:
    return text.shown(text.group(row["group"], row["n_group"]), 80)


def word_answer(words: AttributeWords, title: str = "Words", what: str = "words") -> Answer:
    """What was found by an attribute, the largest effects in words, and what chance gives."""
    question = f"{title}, by {words.name}"
    if not words.judged:
        notes = "; ".join(dict.fromkeys(found.notes for found in words.classes))
        return Answer(question, NOT_JUDGED, text.short(notes, 300))
    total = sum(len(found.words) + found.unjudged for found in words.classes)
    unknown = _unknown(words)
    unjudged = [text.short(one, 200) for one in map(not_judged, words.classes) if one]
    topics = words.topics()
    named = {row["concept"] for _, one, other in topics for row in (one, other)}
    if words.verdict in (CLEAR, WEAK):
        sure = words.count(ASSOCIATED)
        found = Markup("{} of {} {} are associated; typical size {}. ").format(
            sure, total, what, _sizes(words.judged)
        )
        effects = [(one, row) for one, row in words.largest()
                   if row["verdict"] == ASSOCIATED and row["concept"] not in named]  # fmt: skip
        said = [_effect(*two, short=at > 0) for at, two in enumerate(effects[:LARGEST])]
        said += [_topic(*three) for three in topics[:1]]
        found += Markup("; ").join(said) + "."
        chance = (
            f"{_by_chance(words.judged)}; up to {max(1, sure // 10)} of the {sure} associated ones "
            "may be false"
        )
        chance += f"; {_splits([one for one in words.judged if one.verdict == words.verdict])}"
        named_first = [_effect(*two, short=True) for two in effects[:1]] or said[:1]
        counted = "; ".join([f"{sure} of {total} {what} associated{unknown}", *unjudged])
        brief = Markup("{}; {}. {}").format(
            counted, _beyond(words.judged), Markup("; ").join(named_first)
        )
    else:
        few = words.count(NO_LARGER)
        shown = "" if words.verdict == NONE_FOUND else f"No {what[:-1]} is associated, and "
        found = Markup("{}{} of {} {} are shown to be no larger than 1.25x. ").format(
            shown, few or "none", total, what
        )
        found += Markup("Largest: {}.").format(_effect(*words.largest()[0]))
        limits = _few_neutral_words(words.judged)
        # too few neutral words are the reason then, whatever the lifts
        unshown = _unshown(words.judged, what) if _surplus(words.judged) and not limits else ""
        ruled_out = f"{few} of {total} {what} are no larger than 1.25x{unknown}"
        if shown:
            ruled_out = (
                f"none of {total} {what} is associated{unknown}; above 1.25x is ruled out for "
                f"{few or 'none'}"
            )
        judged = [*unjudged, ruled_out] if limits else [ruled_out, *unjudged]  # the reason first
        brief = Markup("; ").join([*limits, *judged, _beyond(words.judged) + unshown])
        chance = "; ".join([_by_chance(words.judged) + unshown, *limits])
    if unjudged:
        found += Markup(" {}.").format("; ".join(unjudged))
    if groups := text.named_left_out(found.notes for found in words.classes):
        found += Markup(" {}.").format(groups)
        brief += Markup("; {}").format(groups)
    return Answer(question, words.verdict, found, chance, brief,
                  [f"{one['concept']}/{other['concept']}" for _, one, other in topics])  # fmt: skip


def _sizes(classes: Sequence[LiftClass]) -> str:
    sizes = [found.size["value"] for found in classes if found.size]
    low, high = text.ratio(min(sizes)), text.ratio(max(sizes))
    return low if low == high else f"{low} to {high}"


def _counts_beyond(classes: Sequence[LiftClass]) -> tuple[float, float]:
    """Words beyond 95% of neutral words, found and expected."""
    rows = [found.beyond for found in classes if found.beyond]
    return sum(row["value"] for row in rows), sum(row["null_mean"] for row in rows)


def _surplus(classes: Sequence[LiftClass]) -> bool:
    found, expected = _counts_beyond(classes)
    return found > 2 * expected


def _unshown(classes: Sequence[LiftClass], what: str) -> str:
    """Why no word is associated, although more than chance would give are beyond neutral words."""
    rows = [row for found in classes for row in found.words if row["ci_low"] is not None]
    if any(row["ci_low"] > RULE.smallest or row["ci_high"] < -RULE.smallest for row in rows):
        return f", none once all {what} are tested together"
    return ", none shown to be above 1.25x"


def _beyond(classes: Sequence[LiftClass]) -> str:
    found, expected = _counts_beyond(classes)
    return f"{found:.0f} beyond 95% of neutral words, {_expected(expected)} by chance"


def _by_chance(classes: Sequence[LiftClass]) -> str:
    """The same for the column of what chance gives, which begins with that."""
    found, expected = _counts_beyond(classes)
    return f"{_expected(expected)} beyond 95% of neutral words (found: {found:.0f})"


def _expected(count: float) -> str:
    return f"{count:.{0 if count >= 1 else 1}f}"  # a list of few words expects less than one


def _few_neutral_words(classes: Sequence[LiftClass]) -> list[str]:
    """Where no word could be called associated, and why."""
    notes = [note for found in classes for note in found.notes.split("; ")]
    return [note for note in dict.fromkeys(notes) if note.endswith(TOO_FEW)]


def _splits(classes: Sequence[LiftClass]) -> str:
    """How random visible splits of the images compare, for the class that is most beyond them."""
    sizes = [found.size for found in classes if found.size and found.size["p"] is not None]
    if not sizes:
        return "no random splits"
    best = min(sizes, key=lambda row: row["p"])
    if best["verdict"] == CLEAR:
        return f"random splits of these images: up to {text.ratio(best['null_high'])}"
    return f"random splits of these images give as much (p {text.p_value(best['p'])})"


def _unknown(words: AttributeWords) -> str:
    """How many words the model has no tokens for."""
    parts = [part for found in words.classes for part in found.notes.split("; ")]
    named = [part.removeprefix(NO_TOKENS) for part in {*parts} if part.startswith(NO_TOKENS)]
    count = sum(len(part.split(",")) for part in named)
    return f" ({count} left out: the model has no tokens for them)" if count else ""


def _effect(found: LiftClass, row: Row, *, short: bool = False) -> Markup:
    """“heroic” 15x as high with round as with square: the larger way round of two groups."""
    others = [name for name in found.groups if name != row["group"]]
    value, group, n = row["value"], row["group"], row["n_group"]
    other = others[0] if len(others) == 1 else "the others"
    if len(others) == 1 and value < 0:  # of two groups, one mirrors the other
        value, group, other, n = -value, other, group, None
    if short:
        return Markup("{} {} with {}").format(
            text.shown(f"“{text.clean(row['concept'])}”", 60), text.ratio(value),
            text.shown(text.group(group, n), 60),
        )  # fmt: skip
    odds = "odds " if found.pos.endswith("questions") else ""
    return Markup("{} {}{} as {} with {} as with {}").format(
        text.shown(f"“{text.clean(row['concept'])}”", 60), odds, text.ratio(value),
        "likely" if found.likely else "high", text.shown(text.group(group, n), 60),
        text.shown(other, 60),
    )  # fmt: skip


def _topic(found: LiftClass, one: Row, other: Row) -> Markup:
    """Two opposites that lean alike are one finding about their topic."""
    quoted = text.shown(f"“{text.clean(other['concept'])}”", 60)
    return Markup("{}, and so is its opposite {}: the topic, and not one side of it").format(
        _effect(found, one, short=True), quoted
    )


def _other_answers(sections: Sequence[Section]) -> Iterator[Answer]:
    """Sections with significant findings that are judged by no neutral words."""
    for section in sections:
        findings = [one for one in by_unit(section.findings) if one.verdict is None]
        if not findings or section.name.startswith(("section-harms", "section-change")):
            continue
        first = Markup(findings[0].text)
        more = f" {len(findings) - 1} more below." if len(findings) > 1 else ""
        size, _, chance = findings[0].numbers.partition("; ")
        found = Markup("{}: {}.{}").format(first.removesuffix("."), size, more)
        yield Answer(section.title, SIGNIFICANT, found, chance, first)


def _silence_answer(rows: list[Row], sections: Sequence[Section]) -> Iterator[Answer]:
    """That no group is refused more often than others, and which gaps that leaves open."""
    if any(section.name == "section-silence" and section.findings for section in sections):
        return
    gaps = [row for row in rows if row["probe"] == "silence" and row["metric"] == "gaps"
            and row["target"] == "refused" and row["p_fwer"] is not None]  # fmt: skip
    if gaps:
        most = max(max(abs(row["ci_low"]), abs(row["ci_high"])) for row in gaps)
        names = text.listed([*dict.fromkeys(text.short(row["attribute"], 60) for row in gaps)])
        found = f"No group differs beyond chance; gaps of refusals up to {100 * most:.0f} points "
        verdict = NONE_FOUND if most <= LARGE_GAP else CANNOT_TELL
        yield Answer(f"Refusals and length, by {names}", verdict, found + "are not ruled out")


def _unmeasured_answers(rows: list[Row]) -> Iterator[Answer]:
    """Attributes of which a probe of written text could measure nothing, and why."""
    for probe, title in WRITTEN.items():
        own = by([row for row in rows if row["probe"] == probe], "attribute")
        for attribute, mine in own.items():
            if all(row["value"] is None for row in mine):
                by_attribute = f", by {text.short(attribute, 60)}" if attribute else ""
                notes = dict.fromkeys(row["note"] for row in mine if row["note"])
                yield Answer(title + by_attribute, NOT_JUDGED, text.short("; ".join(notes), 300))


def _utility_answers(rows: list[Row]) -> Iterator[Answer]:
    """What the model is good for."""
    useful = [row for row in rows if row["metric"] in ("accuracy", "recall")
              and row["target"] is None and row["value"] is not None]  # fmt: skip
    shown = [row for row in useful if row["k"] in (None, 1)]
    if not shown or len({row["model"] for row in rows}) > 1:
        return
    said = [f"{row['experiment'] or 'zero-shot'} "
            f"{text.metric_name(row['metric'], row['k'] if row['metric'] == 'recall' else None)} "
            f"{text.percent(row['value'])}" for row in shown]  # fmt: skip
    chance = ", ".join(text.percent(row["null_mean"]) for row in shown)
    yield Answer("Utility", text.NONE, text.capitalized("; ".join(said)), chance)
