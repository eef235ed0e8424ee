"""Lift in words: a sentence for each attribute and class of words, wherever results are shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from markupsafe import Markup

from tiltmeter.pages import text
from tiltmeter.pages.model import Column, Finding, Row
from tiltmeter.pages.selection import by
from tiltmeter.probes.lift.rows import NO_NEUTRAL
from tiltmeter.probes.lift.words import UNKNOWN
from tiltmeter.stats.lift_verdict import ASSOCIATED, CANNOT_TELL, CLEAR, NO_LARGER, NONE_FOUND, WEAK

METRICS = ("lift", "lift_size", "words_beyond")
ATTRIBUTE_VERDICTS = (CLEAR, WEAK, NONE_FOUND, CANNOT_TELL)
#: Classes of words, and the neutral words that they are judged by.
CLASSES = {
    "noun": ("nouns", "neutral person nouns"),
    "adjective": ("adjectives", "neutral adjectives"),
    "activity": ("activities", "neutral activities"),
    "noun questions": ("noun questions", "neutral questions"),
    "adjective questions": ("adjective questions", "neutral questions"),
    "concept questions": ("questions", "neutral questions"),
}
LIKELY = ("masked", "answers")  # protocols whose scores are probabilities of words


@dataclass(frozen=True)
class LiftClass:
    """What lift says of one class of words by one attribute."""

    attribute: str
    experiment: str  # CLASS, or PROTOCOL: CLASS
    words: list[Row]  # one row per word: that of the group it is judged by
    categories: list[Row]  # mean lift by group
    groups: list[str]
    size: Row | None  # None where no word was judged
    beyond: Row | None
    notes: str  # why nothing was judged, or what limits it
    model: str = ""  # named where there are several
    unjudged: int = 0  # its words, where none was judged

    @property
    def protocol(self) -> str:
        return self.experiment.rpartition(": ")[0]

    @property
    def pos(self) -> str:
        return self.experiment.rpartition(": ")[2]

    @property
    def likely(self) -> bool:
        """Whether scores are probabilities of words."""
        return self.protocol in LIKELY

    @property
    def columns(self) -> list[Column]:
        """Lift, its interval, neutral words, and what was planted."""
        planted = any(row["truth"] is not None for row in self.words)
        return [
            Column("lift", "value", "ratio"),
            Column("95% int.", ("ci_low", "ci_high"), "ratios"),
            Column("neutral", ("null_low", "null_high"), "ratios"),
            *[Column("planted", "truth", "ratio")] * planted,
        ]

    @property
    def plural(self) -> str:
        return CLASSES.get(self.pos, ("words", ""))[0]

    @property
    def reference(self) -> str:
        return CLASSES.get(self.pos, ("", "neutral words"))[1]

    @property
    def name(self) -> str:
        """shape; gender (nouns); gender (masked activities)."""
        kinds = [self.protocol] * (self.protocol not in ("", "contrastive"))
        kinds += [self.plural] * (self.pos in CLASSES)
        name = text.short(self.attribute, 60) + (f" ({' '.join(kinds)})" if kinds else "")
        return f"{text.short(self.model, 60)}: {name}" if self.model else name

    @property
    def verdict(self) -> str | None:
        return self.size["verdict"] if self.size else None

    def count(self, verdict: str) -> int:
        return Counter(row["verdict"] for row in self.words)[verdict]


def lift_classes(rows: Iterable[Row]) -> list[LiftClass]:
    """Classes of words by attribute, in the order of the results."""
    known = [row for row in rows if row["metric"] in METRICS and row["probe"] != "captions"]
    several = len({row["model"] for row in known}) > 1
    found = []
    for (model, _, attribute, experiment), mine in by(
        known, "model", "dataset", "attribute", "experiment"
    ).items():
        of_words = [row for row in mine if row["metric"] == "lift" and row["concept"]]
        single = {row["metric"]: row for row in mine if not row["category"] and not row["concept"]}
        notes = [(row["note"] or "").split("; ") for row in of_words or [single["lift"]]]
        shared = [part for part in notes[0] if part and all(part in other for other in notes)]
        unjudged = 0 if of_words else single["lift"]["n_undefined"] or 0
        found.append(
            LiftClass(
                attribute, experiment or "", [row for row in of_words if row["verdict"]],
                [row for row in mine if row["category"] and not row["concept"]],
                list(dict.fromkeys(row["group"] for row in of_words)), single.get("lift_size"),
                single.get("words_beyond"), "; ".join(shared), model if several else "",
                unjudged,
            )
        )  # fmt: skip
    return found


def not_judged(found: LiftClass) -> str:
    """How many words have no verdict, and why; empty where they have one.

    >>> not_judged(LiftClass("a", "adjective", [], [], [], None, None, NO_NEUTRAL, unjudged=2))
    '2 adjectives not judged: no neutral adjectives'
    """
    if not found.unjudged:
        return ""
    plural = found.plural
    reason = f"no neutral {plural}" if NO_NEUTRAL in found.notes else found.notes
    if found.pos == UNKNOWN:
        reason = UNKNOWN
    one = found.pos if found.pos in CLASSES else "word"
    return f"{found.unjudged:,} {one if found.unjudged == 1 else plural} not judged: {reason}"


def largest_words(found: LiftClass, many: int | None = None) -> list[Row]:
    """Words by the size of their lift, associated ones first."""
    order = sorted(
        found.words, key=lambda row: (row["verdict"] != ASSOCIATED, -abs(row["value"]))
    )  # of one size as in the results
    return order[:many]


def compared(found: LiftClass, row: Row) -> str:
    """scores nurse 2.10x as high with Female as with Male (neutral person nouns ...)."""
    others = [name for name in found.groups if name != row["group"]]
    other = text.short(others[0], 60) if len(others) == 1 else "the other groups"
    verb, way = ("finds", "likely") if found.likely else ("scores", "high")
    neutral = text.ratio_span(row["null_low"], row["null_high"])
    return (
        f"{verb} {text.short(row['concept'], 60)} {text.ratio(row['value'])} as {way} with "
        f"{text.short(row['group'], 60)} as with {other} ({found.reference} {neutral})"
    )


def finding(found: LiftClass) -> Finding:
    """The verdict of a class of words by one attribute, and what it rests on."""
    name = text.shown(found.name, 160)
    if found.size is None:
        return Finding(Markup("{}: not judged.").format(name), _sentence(found.notes), CANNOT_TELL)
    words = f"{len(found.words):,} {found.plural}"
    few = found.count(NO_LARGER)
    small = f"{few:,} of {words} {'is' if few == 1 else 'are'} no larger than 1.25x"
    sure = found.count(ASSOCIATED)
    many = f"{sure:,} of {words} {'is' if sure == 1 else 'are'} associated"
    many += " (false discoveries: at most 10%)"
    size = f"size {text.ratio(found.size['value'])}"
    if found.size["ci_low"] is not None:
        size += f" ({text.ratio_span(found.size['ci_low'], found.size['ci_high'])})"
    said = {
        CLEAR: f"{many}, more than random visible differences between these images give; {size}.",
        WEAK: f"{many}, but no more than other visible differences between these images; {size}.",
        NONE_FOUND: f"{small}.",
        CANNOT_TELL: f"none of {words} is associated, and {small}.",
    }
    sentence = Markup("{}: {}: {}").format(name, found.verdict, said[str(found.verdict)])
    return Finding(sentence, " ".join(_basis(found, size)), found.verdict)


def _basis(found: LiftClass, size: str) -> Iterable[str]:
    """The largest word, the random splits, the reference and its limits, as sentences."""
    assert found.size is not None
    for row in largest_words(found, 1):
        yield f"Largest: {compared(found, row)}."
    if found.verdict in (NONE_FOUND, CANNOT_TELL):
        yield _sentence(size)
    if found.size["null_high"] is not None:
        most = text.ratio(found.size["null_high"])
        yield f"Random visible splits of these images: up to {most} in 95% of them."
    if found.notes:
        yield _sentence(found.notes)


def chance(found: LiftClass) -> str:
    """How many words are beyond 95% of neutral words, beside what chance gives; the reference."""
    if found.beyond is None:
        return f"{found.name}: not judged: {found.notes}."
    row = found.beyond
    notes = f" ({row['note']})" if row["note"] else ""
    return (
        f"{found.name}: {row['value']:.0f} of {len(found.words):,} {found.plural} "
        f"{'has' if row['value'] == 1 else 'have'} p < .05 among {found.reference}; "
        f"{row['null_mean']:.1f} are expected by chance{notes}."
    )


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}."
