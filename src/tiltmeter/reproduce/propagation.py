"""Bias propagation (Ghate et al. 2025): intrinsic associations against retrieval."""

from __future__ import annotations

from functools import partial

import numpy as np

from tiltmeter.corpus.ngrams import SINCE, ngram_counts
from tiltmeter.errors import InputError
from tiltmeter.judge.across_models import rows_across_models
from tiltmeter.metrics.propagation import spearman, spearman_p
from tiltmeter.pages import columns as col
from tiltmeter.pages import text
from tiltmeter.pages.model import Column, Plot, Row, Table, table_of
from tiltmeter.pages.sections.propagation import (
    bias_sentences,
    data_tables,
    overview,
    rho_plot,
    rho_rows,
    rho_table,
    z_plots,
)
from tiltmeter.papers.published import published
from tiltmeter.probes.propagation.experiments import EXPERIMENTS, ROLES
from tiltmeter.reproduce.measurements import Audit
from tiltmeter.reproduce.recipe import Item, Paper, Parts
from tiltmeter.reproduce.study import Study
from tiltmeter.results import combined
from tiltmeter.stimuli import load

MEASURED, SOURCE = "experiments", "ghate2025"
NOUNS = {"female": ("woman", "women"), "male": ("man", "men")}


def _named(rows: list[Row], experiments: tuple[str, ...]) -> list[Row]:
    return [row for row in rows if (row["experiment"] or "").partition(" ")[0] in experiments]


def _printed(label: str) -> list[Table]:
    """What the paper's text prints of an item, for its own models and data."""
    rows = [
        {"model": one.model, "experiment": one.experiment or "all", "metric": one.metric,
         "group": one.group, "printed": one.value, "note": one.note}
        for one in published(SOURCE)
        if one.table == label
    ]  # fmt: skip
    columns = [
        Column("model", "model"),
        Column("experiment", "experiment"),
        Column("metric", "metric"),
        Column("group", "group"),
        Column("printed", "printed", "value", 2),
        Column("note", "note", "long"),
    ]
    caption = "What the paper prints, of its own models and data (not ours)"
    return [Table("printed", caption, columns, rows)] * bool(rows)


def _rhos(label: str, experiments: tuple[str, ...], study: Study) -> Parts:
    """Figures 2 to 5: rho of each model and group; of 4 and 5 also what is bias."""
    rows = study.rows(MEASURED)
    rhos = _named(rho_rows(rows), experiments)
    if not rhos:
        notes = dict.fromkeys(row["note"] for row in _named(rows, experiments) if row["note"])
        raise InputError("; ".join(notes) or "not measured")
    parts: list[Table | Plot | str] = [*rho_plot(rhos, None), rho_table(rhos), *_printed(label)]
    if not any("*" in name for name in experiments):
        parts += _bias(rows, experiments)
    return parts


def _bias(rows: list[Row], experiments: tuple[str, ...]) -> list[Table | str]:
    """Differences between groups in what is retrieved, and a sentence for each model."""
    metric = "extrinsic_difference" if experiments[0].startswith("1") else "extrinsic_lean"
    found = [
        {**row, "groups": " minus ".join(filter(None, [row["group"], row["target"]]))}
        for row in _named(rows, experiments)
        if row["metric"] in (metric, metric.replace("extrinsic", "intrinsic"))
    ]
    columns = [
        Column("model", "model"), Column("experiment", "experiment"), Column("measure", "metric"),
        Column("groups", "groups"), Column("difference", "value", "signed"), col.INTERVAL,
        Column("p, Holm", "p_fwer", "p"), col.N,
    ]  # fmt: skip
    title = "What is bias: differences between groups, which rho does not show. Extrinsic: in "
    title += "valence" if metric == "extrinsic_difference" else "the group's share"
    table = Table("bias", title, columns, found, folded=len(found) > 40)
    return [table, *bias_sentences(_named(rows, experiments), metric)]


def _z_scores(label: str, experiments: str, study: Study) -> Parts:
    """Figures 6 and 7: mean intrinsic effect of groups, as z-scores over experiments and models."""
    tables = list(rows_across_models(study.runs(MEASURED), {"probe": "panel"}, 0))
    across = combined(tables).to_pylist() if tables else []
    rows = study.rows(MEASURED)
    single = [row for row in rows if row["metric"] == "intrinsic_z"
              and row["experiment"] == experiments]  # fmt: skip
    pooled = [{**row, "model": "all models"} for row in across if row["metric"] == "intrinsic_z"
              and row["experiment"].endswith(experiments)]  # fmt: skip
    metric = "intrinsic" if experiments.startswith("1") else "intrinsic_by_valence"
    means = [row for row in _named(rows, tuple(experiments.split(" + ")))
             if row["metric"] == metric]  # fmt: skip
    parts: list[Table | Plot | str] = [*z_plots([*pooled, *single])]
    if not parts:
        parts.append("Two groups have z-scores of 1 and -1 whatever their means are: the means "
                     "themselves are in the table.")  # fmt: skip
    table = table_of("means", "Mean intrinsic effect of each group", means, "model", "experiment",
                     "group", ("category", "queries"), kind="signed", digits=3)  # fmt: skip
    return [*parts, table, *_printed(label)]


def _means(study: Study) -> Parts:
    """Section 4: every analysis in one chart, means with their references, and model size."""
    rows = study.rows(MEASURED)
    rhos = rho_rows(rows)
    means = [{**row, "experiment": row["experiment"] or "all"} for row in rows
             if row["metric"] == "rho_mean"]  # fmt: skip
    spread = {(row["model"], row["experiment"]): row["value"] for row in rows
              if row["metric"] == "rho_sd"}  # fmt: skip
    for row in means:
        row["sd"] = spread.get((row["model"], row["experiment"].replace("all", "") or None))
    columns = [
        Column("experiment", "experiment"), Column("mean rho", "value", "signed", 2),
        Column("SD", "sd", "value", 2), Column("permuted labels", "null_mean", "signed", 2),
        Column("analyses", "n", "count"),
    ]  # fmt: skip
    table = Table("means", "Mean rho by model and experiment, and the same with permuted labels",
                  [Column("model", "model"), *columns], means)  # fmt: skip
    tables = list(rows_across_models(study.runs(MEASURED), {"probe": "panel"}, 0))
    across = [row for row in (combined(tables).to_pylist() if tables else [])
              if row["metric"] in ("rho_mean", "size_trend")]  # fmt: skip
    pooled = Table("across", "Over models", [
        Column("what", "experiment"), Column("measure", "metric"),
        Column("value", "value", "signed", 2), Column("95% interval", ("ci_low", "ci_high"), "span",
                                                      2),
        Column("permuted labels", "null_mean", "signed", 2), col.P, col.N, Column("note", "note"),
    ], across)  # fmt: skip
    parts: list[Table | Plot | str] = [*overview(rhos), table]
    return [*parts, *[pooled] * bool(across), *_printed("Section 4")]


def _words(study: Study) -> Parts:
    """Table 1: templates and group words."""
    listed = load("propagation")
    groups = listed.data["groups"]
    rows = [{"type": "templates", "content": ", ".join(listed.templates["sentence"])}]
    rows += [
        {"type": f"{kind} words, {name}", "content": ", ".join(words)}
        for kind in ("gender", "race")
        for name, words in groups[kind].items()
    ]
    columns = [Column("type", "type"), Column("content", "content", "long")]
    return [Table("words", "Sentence templates and words for groups", columns, rows)]


def _data(study: Study) -> Parts:
    """The paper's table of data statistics, which its text refers to without a number."""
    return data_tables(study.rows(MEASURED))


def _experiments(study: Study) -> Parts:
    """Figure 8: the eight experiments."""
    rows = [
        {"experiment": name, "queries": ROLES[one.queries], "retrieved": ROLES[one.items],
         "intrinsic": f"SC-EAT, {one.content}",
         "extrinsic": "mean valence" if one.content == "valence" else "share of the group"}
        for name, one in EXPERIMENTS.items()
    ]  # fmt: skip
    names = ("experiment", "queries", "retrieved", "intrinsic", "extrinsic")
    return [Table("experiments", "The eight experiments", [Column(n, n) for n in names], rows)]


def _ngrams(study: Study) -> Parts:
    """Section 5: how often groups are named in books, next to their mean rho."""
    if "ngrams" not in study.data:
        raise InputError("needs data: --data ngrams=FILE[,FILE] (Google Books 2-grams)")
    rhos = [row for row in rho_rows(study.rows(MEASURED)) if row["group"]]
    phrases = {
        group: [f"{race} {noun}" for noun in NOUNS[gender]]
        for group in dict.fromkeys(row["group"] for row in rhos)
        for race, _, gender in [group.lower().partition(" | ")]
        if gender in NOUNS
    }
    if len(phrases) < 3:
        raise InputError("the groups are not of race and gender: no phrase of books names them")
    counts = ngram_counts(
        study.data["ngrams"].split(","), [one for mine in phrases.values() for one in mine]
    )
    rows: list[Row] = [
        {"group": group, "phrases": ", ".join(mine), "count": sum(counts[one] for one in mine),
         "rho": float(np.mean([row["value"] for row in rhos if row["group"] == group]))}
        for group, mine in phrases.items()
    ]  # fmt: skip
    columns = [Column("group", "group"), Column("phrases", "phrases"),
               Column(f"in books since {SINCE}", "count", "count"),
               Column("mean rho", "rho", "value", 2)]  # fmt: skip
    rho = float(spearman(*(np.array([row[name] for row in rows], float)
                           for name in ("count", "rho")))[0])  # fmt: skip
    p = text.p_value(spearman_p(rho, len(rows)))
    note = (f"Spearman's rho of count and mean rho over {len(rows)} groups: {rho:+.2f} (p {p}). "
            "So few groups show little.")  # fmt: skip
    return [Table("ngrams", "Groups in books, and their mean rho", columns, rows), note]


def _rho_item(number: int, title: str, experiments: tuple[str, ...]) -> Item:
    label = f"Figure {number}"
    return Item(label, title, partial(_rhos, label, experiments), (MEASURED,),
                shortfall="every rho has its interval and its reference with permuted labels. A "
                "rho says how closely retrieval follows the embeddings, not that there is "
                "bias.")  # fmt: skip


PAPER = Paper(
    name="propagation",
    title="Biases Propagate in Encoder-based Vision-Language Models",
    source="Ghate et al. (2025), Findings of ACL",
    published=SOURCE,
    tables=1,
    figures=8,
    data={
        "faces": "labelled faces; the paper: 1,000 morphs per group of the Chicago Face Database "
        "(tiltmeter morph, then folder:DIR?parts=race_gender)",
        "valence": "images with a valence; the paper: OASIS (oasis:DIR)",
        "lexicon": "words with a valence; the paper: NRC-VAD (lexicon:FILE)",
        "ngrams": "files of Google Books 2-grams, for the check of Section 5",
    },
    measurements={
        MEASURED: Audit(("propagation",), roles=(), takes=("faces", "valence", "lexicon"))
    },
    items=(
        Item("Figure 1", "The set-up", reason="a drawing, nothing is measured"),
        _rho_item(2, "Rho of 1*-a and 1*-b: valence to valence", ("1*-a", "1*-b")),
        _rho_item(3, "Rho of 2*-a and 2*-b: group to group", ("2*-a", "2*-b")),
        _rho_item(4, "Rho of 1-a and 1-b: valence of what groups retrieve", ("1-a", "1-b")),
        _rho_item(5, "Rho of 2-a and 2-b: groups in what valence retrieves", ("2-a", "2-b")),
        Item("Section 4", "All analyses, their means and model size", _means, (MEASURED,)),
        Item("Section 5", "Google Ngram: how often groups are named", _ngrams, (MEASURED,),
             shortfall="made with `--data ngrams=FILE`. The paper names no numbers; here woman and "
                       "women, man and men count."),
        Item("Data statistics", "The paper's table of its data, which has no number", _data,
             (MEASURED,)),
        Item("Table 1", "Sentence templates and group words", _words),
        Item("Figure 6", "Valence bias of groups, z-scores",
             partial(_z_scores, "Figure 6", "1-a + 1-b"), (MEASURED,),
             shortfall="the paper's sixth z-score, of Asian men, is not printed; it follows from "
             "the others (.64). Z-scores spread whether or not there is a difference."),
        Item("Figure 7", "Group bias by valence, z-scores",
             partial(_z_scores, "Figure 7", "2-a + 2-b"), (MEASURED,),
             shortfall="z-scores within each band of valence; the paper prints three numbers "
             "without their band."),
        Item("Figure 8", "The eight experiments", _experiments),
    ),
    world_data={"valence": "testbed:valence?strength=0", "lexicon": "testbed:lexicon"},
    world_attributes={"gender": "shape"},
    notes=(
        "Morphs are blends of aligned faces; the paper's are made by StyleGAN2-ADA. Morphs of one "
        "parent and phrases of one word are not independent: intervals are clustered.",
        "BLIP-2 takes part by its contrastive head: the largest of its query cosines.",
        "Means over templates are taken of both numbers of a query, then rho; "
        "`--option propagation.templates=rho_per_template` of an audit takes rho within each "
        "template, then the mean.",
        "Valence sets come from the retrieved kind; appendix C.1 reads as if 1*-a and 1*-b took "
        "the query's own: `--option propagation.valence_sets=own` of an audit.",
        "The plain p of a rho treats its two values as unrelated, which they never are; the p of "
        "permuted labels is next to it. With permuted labels 2-a still has a rho of .77 to .79 "
        "on the testbed.",
        "The paper reads larger models as propagating more. Three models are few, and a larger "
        "rho is not a larger bias.",
        "In the built-in world valence images come from its fair twin: images of the biased world "
        "are biased themselves.",
    ),
)  # fmt: skip
