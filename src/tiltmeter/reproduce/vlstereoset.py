"""VLStereoSet (Zhou et al. 2022): which caption a model chooses for an image."""

from __future__ import annotations

from tiltmeter.errors import InputError
from tiltmeter.judge.across_models import rows_across_models
from tiltmeter.pages.model import Column, Row, Table, table_of
from tiltmeter.pages.sections.stereotype import (
    NAMES,
    category_table,
    excess_sentence,
    score_lines,
    scores_table,
    shift_plots,
)
from tiltmeter.probes.stereotype.across_models import cases
from tiltmeter.probes.stereotype.caption_choice import KINDS
from tiltmeter.reproduce.measurements import Audit
from tiltmeter.reproduce.recipe import Item, Paper, Parts
from tiltmeter.reproduce.study import Study
from tiltmeter.results import combined

MEASURED = "choices"
EXAMPLES = 2  # cases of Figure 3


def _images(study: Study) -> Parts:
    """Table 1: images by category, and how many go against the stereotype."""
    lines: dict[str, Row] = {}
    for line in score_lines(study.rows(MEASURED)):
        lines.setdefault(line["category"] or "all", {**line, "category": line["category"] or "all"})
    columns = [
        Column("category", "category"),
        Column("images", "n", "count"),
        Column("against the stereotype", "against", "count"),
    ]
    return [Table("images", "Images by category", columns, list(lines.values()))]


def _scores(study: Study) -> Parts:
    """Table 3: models by ivlas, the correlation of vlrs with vlbs, and what is bias of it."""
    rows = study.rows(MEASURED)
    found: list[Table | str] = [scores_table(rows), *_verdicts(rows), _statistics(rows)]
    tables = list(rows_across_models(study.runs(MEASURED), {"probe": "panel"}, 0))
    across = combined(tables).to_pylist() if tables else []
    if correlations := [row for row in across if row["metric"] == "pearson"]:
        found.append(
            table_of("correlation", "Correlation of vlrs with vlbs over models", correlations,
                     ("experiment", "reading"), kind="signed", digits=2)
        )  # fmt: skip
    else:
        found.append("A correlation of vlrs with vlbs over models needs at least three models.")
    return found


def _statistics(rows: list[Row]) -> Table:
    """Every score with its interval and null, by category too."""
    scores = [row for row in rows if row["metric"] in NAMES and row["split"] is None]
    return table_of("statistics", "The same with all statistics, and with other images", scores,
                    "model", ("experiment", "reading"), "category", "metric", digits=2,
                    folded=True)  # fmt: skip


def _verdicts(rows: list[Row]) -> list[str]:
    """A sentence for each model and reading: whether the stereotype is chosen beyond errors."""
    return [
        f"{row['model']}, {excess_sentence(row)}"
        for row in rows
        if row["metric"] == "vlbs_excess" and row["category"] is None and row["value"] is not None
        and "image" not in row["experiment"]
    ]  # fmt: skip


def _categories(study: Study) -> Parts:
    """Table 4: the scores by category."""
    return [category_table(study.rows(MEASURED))]


def _examples(study: Study) -> Parts:
    """Figure 3: cases in which models pick the stereotype although the image contradicts it."""
    rows: list[Row] = []
    for run in study.runs(MEASURED):
        readings = dict.fromkeys(
            row["experiment"] for row in run.where(metric="vlbs", category=None)
            if "image" not in row["experiment"]
        )  # fmt: skip
        for reading in readings:
            for case in cases(run, reading)[:EXAMPLES]:
                rows += [
                    {"model": case.model, "reading": reading, "id": case.id,
                     "caption": case.captions[kind], "probability": case.probabilities[kind],
                     "picked": "picked" if kind == KINDS[0] else
                     "shown" if kind == KINDS[1] else ""}
                    for kind in KINDS
                ]  # fmt: skip
    if not rows:
        raise InputError("no model picked a stereotype that the image goes against")
    columns = [
        Column("model", "model", merged=True), Column("reading", "reading", merged=True),
        Column("image", "id", merged=True), Column("caption", "caption", "long"),
        Column("probability", "probability", "value", 3),
        Column("is", "picked"),
    ]  # fmt: skip
    title = "Cases with the most probable stereotype; no image is shown"
    return [Table("cases", title, columns, rows)]


def _shifts(study: Study) -> Parts:
    """Figure 4: lmss and vlss of gender, where the model picked the stereotype."""
    category = study.name("gender")
    rows = [
        row
        for row in study.rows(MEASURED, category=category)
        if row["metric"].partition("_")[0] in ("lmss", "vlss")
    ]
    if not rows:
        raise InputError(f"no captions about {category}")
    table = table_of(
        "shifts", f"lmss and vlss of {category}; selected: images for which the model picked the "
        "stereotype, with the value that selection alone gives (by chance)", rows, "model",
        ("experiment", "reading"), "metric", ("split", "images"), kind="signed", digits=2,
    )  # fmt: skip
    plots = shift_plots(study.run(MEASURED), "selected", category, as_printed=True)
    return [*plots, table]


PAPER = Paper(
    name="vlstereoset",
    title="VLStereoSet: A Study of Stereotypical Bias in Pre-trained Vision-Language Models",
    source="Zhou, Lai and Jiang (2022), AACL-IJCNLP",
    published="zhou2022",
    tables=4,
    figures=6,
    data={
        "triplets": "images with three captions; the paper: VLStereoSet, balanced "
        "(vlstereo:CSV?images=DIR&balanced=yes, with &regions=FILE for VisualBERT and LXMERT)"
    },
    measurements={MEASURED: Audit(("stereotype",), roles=("triplets",))},
    items=(
        Item("Figure 1", "An image and its three captions", reason="an example of the data"),
        Item("Table 1", "Statistics of VLStereoSet", _images, (MEASURED,),
             shortfall="the paper's headers are permuted: its 486, 206 and 322 images are of race, "
             "gender and profession, as the released table and the steps of its Table 4 show."),
        Item("Figure 2", "How lmss and vlss are computed",
             reason="a drawing, nothing is measured"),
        Item("Table 2", "The six models", reason="a list of models, nothing is measured"),
        Item("Table 3", "vlrs, vlbs and ivlas of each model", _scores, (MEASURED,),
             shortfall="intervals, the rate of errors the other way and the excess over it are "
             "ours: a model without bias has a vlbs above 0, but no excess."),
        Item("Table 4", "The scores by category", _categories, (MEASURED,),
             shortfall="the paper's rows of ViLT fit 509 images against the stereotype, not 514."),
        Item("Figure 3", "Two examples", _examples, (MEASURED,),
             shortfall="captions and probabilities; images are shown by `tiltmeter explore` only "
             "on request. Captions of the built-in world have no articles before occupations."),
        Item("Figure 4", "Distributions of lmss and vlss, gender", _shifts, (MEASURED,),
             shortfall="the paper wrote neutral captions by hand, here a table makes them. The "
             "paper selects images where CLIP and ALBEF have picked the stereotype, which may mean "
             "both of them; here each model has its own selection."),
        Item("Figure 5", "The annotators' page", reason="a screenshot of the annotation"),
        Item("Figure 6", "The annotators' instructions", reason="a screenshot of the annotation"),
    ),
    world_data={"triplets": "testbed:triplets?images=400&cells=0"},
    world_attributes={"gender": "shape"},
    notes=(
        "The released table has URLs, not images: download them, and name them by row or by the "
        "hash of their URL. Rows without an image are left out.",
        "Label 1 means an image against the stereotype. The release does not say so; attribute "
        "words in the URLs do.",
        "VisualBERT and LXMERT take regions of a detector, from a file in the layout of their "
        "releases. The white image is the file's image `white`, or features of 0.",
        "The null of vlbs compares images and captions of two sides: difficulty and bias are "
        "confounded, and a small p does not tell them apart.",
        "Images that share their captions are not independent: nulls and intervals resample sets "
        "of captions.",
        "Neutral captions about gender keep no pronoun, name or other word of gender.",
        "The correlation of vlrs with vlbs takes each model by its contrastive reading if it has "
        "one, else by its matching head, as the paper does; of the six printed models it is .74 "
        "(-.18 to .97).",
    ),
    scores={
        "vlrs": "relevance: percentage of images for which a caption other than the irrelevant one "
        "is chosen",
        "vlbs": "bias: percentage of images against the stereotype for which the stereotype is "
        "chosen",
        "ivlas": "both in one: the harmonic mean of vlrs and 100 - vlbs",
        "lmss": "shift by the words: how much more probable the stereotype is with its target term "
        "than with a neutral one (log ratio)",
        "vlss": "shift by the image: how much more probable the caption with the neutral term is "
        "with the image than with a neutral image (log ratio)",
    },
)  # fmt: skip
