"""Tables of a calibration: lift by protocol, and which metric to trust for which question."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from tiltmeter.judge.calibration.protocols import BINS, GROUP_IMAGES, LARGER, ORACLE, PLANTED
from tiltmeter.judge.calibration.trust import which_to_trust
from tiltmeter.judge.calibration.verdict import LEVEL, MetricSummary
from tiltmeter.pages import text
from tiltmeter.pages.model import Column, Row, Table, table
from tiltmeter.stats.lift_verdict import RULE

MOST = GROUP_IMAGES[-1]
HEADS = {"slope": "slope", "spearman": "Spearman"}
SCORES = ("model", "scores", "attribute")


def lift_tables(rows: Iterable[Row]) -> list[Table]:
    """Dose and response, false positives, power, and errors of lift by protocol."""
    rows = [
        {**row, "model": row["setting"], "scores": row["protocol"]}
        for row in rows
        if row["protocol"] and row["metric"] == "lift"
    ]
    if not rows:
        return []
    most = _with_most_images(rows)
    per_group = f"{MOST} images per group, or as many as there are"
    larger = f"{LARGER:.2f} nats or more"
    return [
        _pivot(
            f"Slope of lift against planted lift, and Spearman, by dose; {per_group}. Exact is 1.",
            [row for row in most if row["statistic"] in ("slope", "spearman")],
            lambda row: f"{HEADS[row['statistic']]}, dose {row['dose']:g}",
            lambda row: text.number(row["value"], 3),
        ),
        _pivot(
            f"Without planted bias: share of words with p_word < {LEVEL:g} ({LEVEL:.0%} expected), "
            f"and of words called associated (none expected); {per_group}.",
            [row for row in most if row["statistic"] in ("beyond neutral words", "flagged")],
            lambda row: f"p_word < {LEVEL:g}" if row["statistic"] != "flagged" else "associated",
            _share,
        ),
        _pivot(
            f"Power: share of words planted above {PLANTED:g} nats "
            f"({_times(PLANTED)}) called associated, by dose and images per group.",
            [row for row in rows if row["statistic"] == "power"],
            lambda row: f"{row['dose']:g}: {row['n']}",
            lambda row: text.percent(row["value"], 0),
        ),
        _pivot(
            "Power by planted size, over all scores, attributes and doses, by images per group.",
            _pooled([row for row in rows if row["statistic"] == "power by size"]),
            lambda row: f"{row['n']} images",
            lambda row: text.percent(row["value"], 0),
            lead=("model", "planted"),
        ),
        _pivot(
            f"Errors by images per group. Wrongly no larger: words planted at {larger} that are "
            f"called no larger than {_times(RULE.smallest)}. Exaggeration: mean size of what "
            "is called associated over its planted size.",
            _errors(rows),
            lambda row: f"{row['what']}, {row['n']}",
            lambda row: row["shown"],
            lead=("model", "dose"),
        ),
    ]  # fmt: skip


def trust_table(summaries: Sequence[MetricSummary], *, reasons: bool = True) -> Table:
    """The closing table: a line for each question, with or without the measured reasons."""
    lines = [
        {
            "question": answer.question,
            "trust": ", ".join(answer.trust) or "none",
            "why": answer.why or text.NONE,
            "not": (
                "; ".join(f"{name}: {reason}" for name, reason in answer.not_trust)
                if reasons
                else ", ".join(name for name, _ in answer.not_trust)
            )
            or text.NONE,
        }
        for answer in which_to_trust(summaries)
    ]
    why = [Column("why", "why", "long")] if reasons else []
    return table("Which metric to trust for which question", lines, "question", "trust",
                 *why, Column("do not trust", "not", "long"))  # fmt: skip


def _with_most_images(rows: Sequence[Row]) -> list[Row]:
    """Rows with the most images per group for their model, scores and attribute."""
    most: dict[tuple[object, ...], int] = {}
    for row in rows:
        key = tuple(row[name] for name in SCORES)
        most[key] = max(most.get(key, 0), row["n"] or 0)
    return [row for row in rows if row["n"] == most[tuple(row[name] for name in SCORES)]]


def _pivot(
    caption: str,
    rows: Sequence[Row],
    head: Callable[[Row], str],
    cell: Callable[[Row], str],
    *,
    lead: Sequence[str] = SCORES,
) -> Table:
    """Rows of the calibration with the same `lead` in one line, one column for each `head`."""
    lines: dict[tuple[object, ...], Row] = {}
    for row in rows:
        line = lines.setdefault(tuple(row[key] for key in lead), {key: row[key] for key in lead})
        line[head(row)] = cell(row)
    heads = dict.fromkeys(head(row) for row in rows)
    return table(caption, list(lines.values()), *lead,
                 *(Column(name, name, "cell") for name in heads))  # fmt: skip


def _times(nats: float) -> str:
    return f"{math.exp(nats):.3g}x"


def _bin(low: float) -> str:
    """The planted sizes from `low` to the next bin."""
    at = BINS.index(low) + 1
    return f"{_times(low)} to {_times(BINS[at])}" if at < len(BINS) else f"above {_times(low)}"


def _share(row: Row) -> str:
    return f"{text.percent(row['value'])} ({text.percent_span(row['ci_low'], row['ci_high'])})"


def _kind(row: Row) -> str:
    return "simulated" if row["setting"] == ORACLE else "trained"


def _pooled(rows: Sequence[Row]) -> list[Row]:
    """Shares over all words of the same kind of model, planted size and images."""
    sums: dict[tuple[str, float, int], list[float]] = {}
    for row in rows:
        if row["count"]:
            total = sums.setdefault((_kind(row), row["planted"], row["n"]), [0.0, 0])
            total[0] += row["value"] * row["count"]
            total[1] += row["count"]
    return [
        {"model": kind, "planted": _bin(planted), "n": n, "value": hits / count}
        for (kind, planted, n), (hits, count) in sums.items()
    ]  # fmt: skip


def _errors(rows: Sequence[Row]) -> list[Row]:
    """Largest error over scores and attributes."""
    found = []
    kept = [row for row in rows if row["value"] is not None]
    for what, statistic in (("wrongly no larger", "no larger"), ("exaggeration", "exaggeration")):
        by: dict[tuple[str, float, int], list[float]] = {}
        for row in kept:
            if row["statistic"] == statistic:
                by.setdefault((_kind(row), row["dose"], row["n"]), []).append(row["value"])
        for (kind, dose, n), values in by.items():
            shown = (text.percent(max(values)) if statistic == "no larger"
                     else f"{min(values):.2f} to {max(values):.2f}")  # fmt: skip
            found.append({"model": kind, "dose": f"{dose:g}", "n": n, "what": what, "shown": shown})
    return found
