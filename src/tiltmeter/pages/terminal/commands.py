"""What the terminal shows of all other commands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tiltmeter.engine.embedding.embed_images import EmbeddingResult
from tiltmeter.engine.parts import duration
from tiltmeter.metrics.convention import CHOICES, Convention
from tiltmeter.pages import text
from tiltmeter.pages.model import Column, table
from tiltmeter.pages.terminal.layout import STRONGEST, show
from tiltmeter.planning.cost import BY_DRIVER, total_hours
from tiltmeter.planning.installation import CheckResult
from tiltmeter.planning.power import SPREAD, AttributePlan
from tiltmeter.stats.lift_verdict import RULE

if TYPE_CHECKING:
    from tiltmeter.engine.embedding.shards import ShardEmbeddingResult
    from tiltmeter.judge.calibration.verdict import MetricSummary
    from tiltmeter.planning.cost import CostStep, Limit


def embedded(done: EmbeddingResult, found: Sequence[str], store: Path) -> None:
    """What an embedding did."""
    lines = [
        *found,
        f"{done.new:,} images embedded at {done.rate:,.1f} per second and kept in {store}; "
        f"{len(done.rows) - done.new:,} were cached already, or are copies.",
    ]
    if done.unreadable:
        lines.append(f"{len(done.unreadable):,} could not be read and are left out:")
        lines += [f"  {reason}" for reason in list(done.unreadable.values())[:STRONGEST]]
    show(*lines, soft_wrap=True)


def embedded_shards(done: ShardEmbeddingResult, found: Sequence[str], store: Path) -> None:
    """What an embedding of a collection in shards did."""
    counts = done.counts
    rate = done.new / done.seconds if done.seconds else 0.0
    lines = [
        *found,
        f"{done.new:,} images embedded at {rate:,.1f} per second and kept in {store}; "
        f"{counts['images'] - done.new:,} were cached already, or are copies.",
    ]
    if done.unreadable:
        lines.append(f"{done.unreadable:,} could not be read and are left out:")
        lines += [f"  {reason}" for reason in done.first_unreadable]
    if counts["shards_not_read"]["count"]:
        lines.append(f"{counts['shards_not_read']['count']:,} shards could not be read to the end:")
        lines += [f"  {reason}" for reason in counts["shards_not_read"]["first"]]
    show(*lines, soft_wrap=True)


def spaces(found: Sequence[Mapping[str, Any]]) -> None:
    """What a store contains."""
    rows = [{**one, "MB": one["bytes"] / 1e6} for one in found]
    show(table("store", rows, "model", "space", Column("images", "images", "count"),
               Column("dimensions", "dimensions", "count"),
               Column("MB", "MB", "value", 1)))  # fmt: skip


def plan(
    plans: Sequence[AttributePlan],
    *,
    images: int,
    words: int,
    power: float,
    convention: Convention,
    notes: Iterable[str] = (),
) -> None:
    """Smallest detectable effects and noise floors."""
    show(
        *notes,
        f"{images:,} images; smallest effects that are detected in {power:.0%} of audits, at the "
        "5% level. Lift: a factor that images show to be above "
        f"{text.ratio(RULE.smallest)}, if scores of a word vary by {SPREAD:g} nat within a "
        "group; neutral words may require more. C-ASC, in standard deviations: of one word, and of "
        f"any of {words:,} words (Bonferroni).",
    )
    for one in plans:
        show(table(one.attribute, [vars(group) for group in one.groups], ("name", "group"),
                   Column("images", "n", "count"), Column("share", "share", "percent"),
                   Column("lift", "lift", "ratio"), Column("C-ASC", "smallest", "value"),
                   Column("C-ASC, any", "smallest_of_many", "value")))  # fmt: skip
        if few := [group.name for group in one.groups if group.lift is None]:
            show(f"  no verdict on lift, fewer than {RULE.group_images} images: {', '.join(few)}")
        for floor in one.floors:
            show(
                f"  {text.metric_name(floor.metric, floor.k)} by chance: mean {floor.mean:.3f}, "
                f"97.5% below {floor.high:.3f} ({convention.name})"
            )


def scale(steps: Sequence[CostStep], limits: Sequence[Limit], *, total: int, workers: int) -> None:
    """What each job over all images and captions takes, and what would fail first."""
    heads = {"rate": "speed of one", "together": "in all", "taken": "takes", "read": "reads",
             "stored": "keeps"}  # fmt: skip
    rows = [
        {"job": one.job, "by": "driver" if one.job in BY_DRIVER else "workers",
         "rate": f"{one.rate:,.{0 if one.rate >= 10 else 1}f} {one.unit}/s",
         "together": duration(one.worker_hours * 3600), "taken": duration(one.hours * 3600),
         "read": text.byte_size(one.read_bytes), "stored": text.byte_size(one.stored_bytes)}
        for one in steps
    ]  # fmt: skip
    shown: dict[str, Callable[[float], str]] = {
        "bytes": text.byte_size,
        "bytes per second": lambda x: f"{text.byte_size(x)}/s",
        "hours": lambda x: duration(x * 3600),
    }
    show(
        f"{total:,} images on {text.plural(workers, 'worker')}: "
        f"{duration(total_hours(steps) * 3600)}. Captions are a job of their own. Not included: "
        "the start of the cluster, and the driver's nulls and intervals, which do not depend on "
        "the number of images.",
        table("steps", rows, "job", ("by", "by"),
              *(Column(head, key, "cell") for key, head in heads.items())),
        *(f"  {one.job}: {one.source}; depends on {one.depends_on}" for one in steps),
        table("What would fail first", [
            {"name": one.name, "needed": shown[one.unit](one.needed),
             "available": shown[one.unit](one.available), "ratio": f"{one.ratio:.0%}",
             "note": one.note} for one in limits],
            ("name", "resource"), Column("needed", "needed", "cell"),
            Column("available", "available", "cell"), Column("used", "ratio", "cell"),
            Column("for", "note", "long")),
        f"{limits[0].name[0].upper()}{limits[0].name[1:]} "
        + ("is not enough." if limits[0].ratio > 1 else "would fail first; here all are enough."),
    )  # fmt: skip


def catalogue(found: Mapping[str, Mapping[str, str]]) -> None:
    """Names and what they mean."""
    lists = [(kind, "name", "what it is", names) for kind, names in found.items()]
    if list(found) == ["conventions"]:
        lists += [(f"choices for {field}", "choice", "what it means", choices)
                  for field, choices in CHOICES.items()]  # fmt: skip
    for title, name, meaning, listed in lists:
        rows = [{"name": key, "text": about} for key, about in listed.items()]
        show(table(title, rows, ("name", name), Column(meaning, "text", "long")))


def findings(found: Sequence[CheckResult]) -> None:
    """What `doctor` found."""
    signs = {True: ("ok", ""), False: ("missing", "bad"), None: ("-", "weak")}
    rows = [{"ok": signs[one.ok][0], "tone": signs[one.ok][1], "name": one.name,
             "detail": one.detail} for one in found]  # fmt: skip
    show(table("tiltmeter doctor", rows, ("ok", ""), ("name", "what"),
               Column("found", "detail", "long")))  # fmt: skip


def calibration(summaries: Sequence[MetricSummary]) -> None:
    """A line for each metric, what it means in words, and which to trust for which question."""
    from tiltmeter.pages.calibration.lift_tables import trust_table
    from tiltmeter.pages.calibration.pages import summary_table

    show(
        summary_table(summaries, intervals=False),
        "",
        *(f"{one.metric}: {one.verdict}" for one in summaries),
        trust_table(summaries, reasons=False),
    )


def calibration_saved(place: Path, lacking: Sequence[str]) -> None:
    """Where the calibration is kept, and what it lacks."""
    show(f"Kept in {place} (calibration.parquet, calibration.md, figures).", soft_wrap=True)
    if lacking:
        show(f"No plots: these need {' and '.join(lacking)}, not installed here.", soft_wrap=True)
