"""CounterBias and FairVLP (Zhang, Wang and Sang 2022): masked words, and training without bias."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

from tiltmeter.auditing.audit import audit
from tiltmeter.debiasers.fitting import debias
from tiltmeter.errors import InputError
from tiltmeter.pages import columns as col
from tiltmeter.pages import text
from tiltmeter.pages.model import Column, Plot, Row, Table, table_of
from tiltmeter.pages.plots import charts
from tiltmeter.pages.sections.counterfactual import quadrants
from tiltmeter.papers.fairvlp_study import (
    METHODS,
    SMALL,
    StudySize,
    fairvlp_study,
    study_rows,
    study_table,
)
from tiltmeter.probes.texts import HUMAN_LABELS
from tiltmeter.reproduce.measurements import Audit, Context, Keywords
from tiltmeter.reproduce.recipe import Item, Paper, Parts
from tiltmeter.reproduce.study import Study
from tiltmeter.results import Run, content_hash
from tiltmeter.stimuli import load

PARTS = {"VL": "image and text", "V": "image", "L": "text"}
LARGEST = 12  # instances of Figure 6


@dataclass(frozen=True)
class Backgrounds:
    """Figure 9: animals on grass and ground, any two concepts with templates of their own."""

    options: Keywords = field(
        default_factory=lambda: {
            "words": "grass,ground", "targets": "animals", "templates": "A [MASK] is on the {g}",
            "prompt": "the [MASK] in the picture", "images": 0,
        }
    )  # fmt: skip
    roles: ClassVar[tuple[str, ...]] = ("backgrounds",)
    trains: ClassVar[bool] = False
    of_models: ClassVar[bool] = True

    def measure(self, model: str, context: Context) -> dict[str, Run]:
        run = audit(
            model, context.data["backgrounds"], probes=["counterfactual"],
            options={"counterfactual": {**self.options, "groups": "grass,ground"}},
            progress=context.progress, **context.keywords,
        )  # fmt: skip
        return {"": run}


@dataclass(frozen=True)
class Fairvlp:
    """Tables 4 and 5: a model trained by each method, measured, and fine-tuned for retrieval.

    In the built-in world all methods start from the same weights and are measured with the true
    counterfactual and by the attack. Otherwise they learn from `captions` by `tiltmeter debias`.
    """

    measured: Audit
    roles: ClassVar[tuple[str, ...]] = ("pairs|faces", "captions")
    trains: ClassVar[bool] = True
    of_models: ClassVar[bool] = True

    def measure(self, model: str, context: Context) -> dict[str, Run]:
        device = context.keywords.get("device", "auto")
        if context.world and "twin=fair" in model:
            return {}  # it is a row of the biased model's tables
        if context.world:
            seed = context.keywords["seed"]
            size = replace(_size(device), seed=seed)
            results = fairvlp_study(model, methods=list(METHODS), size=size, device=device,
                                    progress=context.progress)  # fmt: skip
            table = study_table(study_rows(list(results)))
            meta = {"model": {"name": model, "spec": model}, "seed": seed}
            return {"": Run(table, meta)}
        same = {"captions": context.data["captions"], "device": device,
                "seed": context.keywords["seed"], "progress": context.progress}  # fmt: skip
        runs = {}
        for name, settings in METHODS.items():
            if settings is None or settings.get("variant") == "edited" or "images" in settings:
                continue  # these need edited images
            runs[name] = context.keep(name, partial(self._trained, name, model, context, same))
        return runs

    def _trained(self, name: str, model: str, context: Context, same: Keywords) -> Run:
        place = context.models / f"{text.slug(name)}-{content_hash(model)[:12]}"
        if not place.is_dir():
            debias("fairvlp", model, settings=METHODS[name], out=place, **same)
        run = self.measured.audit(str(place), context)
        tuned = debias("fairvlp", str(place), settings={"variant": "retrieval"},
                       out=f"{place}-retrieval", replace=True, **same)  # fmt: skip
        run.meta["recall"] = tuned.record.get("utility_cost", [])
        return run


def _size(device: str) -> StudySize:
    """The size of the study: small without a GPU, where the attack takes hours."""
    import torch

    return StudySize() if device != "cpu" and torch.cuda.is_available() else SMALL


def _templates(study: Study) -> Parts:
    """Table 1: the four templates."""
    kinds = ("Sentence w/o specification", "Sentence w/ specification",
             "Phrase w/o specification", "Phrase w/ specification")  # fmt: skip
    rows = [{"type": kind, "template": template}
            for kind, template in zip(kinds, load("counterbias").templates["target"],
                                      strict=True)]  # fmt: skip
    columns = [Column("type", "type"), Column("template", "template", "long")]
    return [Table("templates", "Templates for captions", columns, rows)]


def _by_template(study: Study) -> Parts:
    """Table 2: mean absolute bias by template, for activities and occupations."""
    rows = [row for row in study.rows("words", probe="counterfactual")
            if row["metric"].startswith("abs_bias_")]  # fmt: skip
    lines: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        key = (row["model"], row["experiment"], row["template"] or "average")
        line = lines.setdefault(key, dict(zip(("model", "images, softmax", "template"), key,
                                              strict=True)))  # fmt: skip
        line[f"{row['category']} {row['metric'][9:]}"] = row["value"]
    heads = [f"{kind} {part}" for kind in dict.fromkeys(row["category"] for row in rows)
             for part in PARTS]  # fmt: skip
    columns = [Column(name, name) for name in ("model", "images, softmax", "template")]
    columns += [Column(f"B@{head.split()[1]} {head.split()[0]}", head, "percent", 2)
                for head in heads]  # fmt: skip
    verdicts = [{**row, "swapped": row["experiment"].rpartition(", ")[2]}
                for row in study.rows("words", metric="pair_lift_size")]  # fmt: skip
    return [
        Table("verdicts", "Verdicts (ours): how many times as likely words are with one group as "
              "with the other, beyond neutral words",
              [Column("model", "model"), Column("words", "category"),
               Column("swapped", "swapped"), Column("verdict", "verdict"),
               Column("size of lift", "value", "ratio"),
               Column("95% int.", ("ci_low", "ci_high"), "ratios"),
               Column("random swaps up to", "null_high", "ratio"),
               Column("pairs", "n", "count"), Column("note", "note", "long")], verdicts),
        Table("by-template", "Mean absolute bias, by template", columns, list(lines.values())),
        table_of("statistics", "Table 2 with all statistics", rows, "model",
                 ("experiment", "images, softmax"), ("category", "words"), "template",
                 ("metric", "measure"), kind="percent", digits=2, folded=True),
        "An absolute value is above 0 without bias too: compare it with the column without bias.",
    ]  # fmt: skip


def _texts(study: Study) -> Parts:
    """Table 3: language bias without an image."""
    rows = [{**row, "experiment": row["experiment"].replace("text_only", "none")}
            for row in study.rows("words", metric="abs_text_bias")]  # fmt: skip
    return [
        table_of("texts", "Language bias without an image: mean |log P(T | first word) - log P(T | "
                 "second word)|", rows, "model", ("category", "words"), ("experiment", "image"),
                 digits=2),
    ]  # fmt: skip


def _spread(study: Study) -> Parts:
    """Figure 2: images of one target differ more than groups do."""
    rows = [row for row in study.rows("words", probe="counterfactual")
            if row["metric"] in ("spread_V", "bias_V") and row["template"] is None
            and row["value"] is not None and row["experiment"].endswith("vocabulary")
            ]  # fmt: skip
    lines: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        key = (row["model"], row["experiment"], row["target"])
        line = lines.setdefault(key, dict(zip(("model", "images, softmax", "word"), key,
                                              strict=True)))  # fmt: skip
        line[row["metric"]] = row["value"]
        line["n"] = row["n"]
    listed = sorted((line for line in lines.values() if {"spread_V", "bias_V"} <= line.keys()),
                    key=lambda line: -line["spread_V"])  # fmt: skip
    columns = [Column(name, name) for name in ("model", "images, softmax", "word")]
    columns += [Column("spread over images", "spread_V", "value"),
                Column("mean bias", "bias_V", "signed"), col.N]  # fmt: skip
    return [Table("spread", "Visual bias of single images: its standard deviation, and its mean",
                  columns, listed)]  # fmt: skip


def _stereotypes(study: Study) -> Parts:
    """Figure 5: multimodal bias of every activity, with human labels where they are known."""
    rows = [row for row in study.rows("words", metric="bias_VL", category="Activity")
            if row["template"] is None and row["value"] is not None
            and row["experiment"].endswith("vocabulary")]  # fmt: skip
    if not rows:
        raise InputError("no bias of activities was measured")
    rows.sort(key=lambda row: -row["value"])
    edge = max(max(map(abs, (row["value"], row["null_low"] or 0, row["null_high"] or 0)))
               for row in rows)  # fmt: skip
    parts: list[Table | Plot | str] = []
    for name in dict.fromkeys(row["model"] for row in rows):
        mine = [row for row in rows if row["model"] == name]
        labels = [
            row["target"] + (f" (human: {HUMAN_LABELS[row['target']]})"
                             if row["target"] in HUMAN_LABELS and not study.world else "")
            for row in mine
        ]  # fmt: skip
        parts.append(
            charts.line_plot(
                text.slug("stereotypes", name), f"{name}: multimodal bias of activities",
                "Bar: B@V-L, above 0 towards the first group. Grey band: without bias. Intervals "
                "are in the table.", [{**row, "ci_low": None, "ci_high": None} for row in mine],
                labels, "B@V-L", signed=True, most=40, bars=True, domain=(-edge, edge),
            )
        )  # fmt: skip
    measured = (row for row in study.rows("words", probe="counterfactual")
                if row["metric"].startswith("agreement_"))  # fmt: skip
    agreement = [row for row in measured if row["value"] is not None]
    if agreement:
        parts.append(
            table_of("agreement", "Agreement with human labels", agreement, "model",
                     ("experiment", "images, softmax"), ("metric", "measure"), kind="percent")
        )  # fmt: skip
    else:
        parts.append("No word has a human label, so agreement with people is undefined.")
    return [
        *parts,
        table_of("activities", "Multimodal bias of activities", rows, "model",
                 ("target", "word"), kind="signed", folded=True),
    ]  # fmt: skip


def _instances(study: Study) -> Parts:
    """Figure 6: the bias of single images."""
    tables: list[Table | Plot | str] = []
    for run in study.runs("words"):
        listed = run.instances.get("counterfactual")
        if listed is None or not len(listed):
            continue  # a model that reads texts alone
        rows = [row for row in listed.to_pylist()
                if (row["experiment"] or "").startswith("bias_VL")
                and row["experiment"].endswith("vocabulary") and row["score"] is not None
                and row["score"] == row["score"]]  # fmt: skip
        rows.sort(key=lambda row: -abs(row["score"]))
        groups = [{**row, "group": ", ".join(value for _, value in row["groups"] or ()),
                   "reading": row["experiment"].removeprefix("bias_VL, ")}
                  for row in rows[:LARGEST]]  # fmt: skip
        name = run.meta["model"]["name"]
        tables.append(
            Table(text.slug("instances", name), f"{name}: the images with the largest B@V-L",
                  [Column("image", "id"), Column("perceived group", "group"),
                   Column("word", "concept"), Column("images, softmax", "reading"),
                   Column("B@V-L", "score", "signed")], groups)
        )  # fmt: skip
    return tables


def _quadrants(study: Study) -> Parts:
    """Figure 7: visual against language bias."""
    parts: list[Table | Plot | str] = []
    for run in study.runs("words"):
        rows = [row for row in run.where(probe="counterfactual")
                if row["template"] is None and row["value"] is not None]  # fmt: skip
        name = run.meta["model"]["name"]
        for experiment in dict.fromkeys(r["experiment"] for r in rows if r["metric"] == "bias_V"):
            mine = [row for row in rows if row["experiment"] == experiment]
            for plot in quadrants(f"{name}, {experiment}", mine):
                parts.append(plot)
    counts = study.rows("words", metric="quadrant")
    return [*parts, table_of("quadrants", "Words by the sign of both biases", counts, "model",
                             ("experiment", "images, softmax"), ("category", "words"),
                             ("group", "quadrant"), digits=0)]  # fmt: skip


def _debiased(study: Study) -> Parts:
    """Table 4: bias after each method."""
    if not study.world:
        return _debiased_real(study)
    parts: list[Table | Plot | str] = []
    for run in study.runs("fairvlp"):
        rows = [row for row in run.table.to_pylist() if row["split"] == "Table 4"]
        name = run.meta["model"]["name"]
        bias = [row for row in rows if row["metric"].startswith("B@")
                and row["category"] in ("Activity", "Occupation")]  # fmt: skip
        other = [row for row in rows if row not in bias]
        parts += [
            table_of("methods", f"{name}: mean absolute bias after each method", bias,
                     ("model", "method"), ("metric", "measure"), ("category", "words"),
                     kind="percent", digits=1),
            table_of("cost", f"{name}: share of vanilla's bias, flips and utility", other,
                     ("model", "method"), ("metric", "measure"), ("category", "images"),
                     digits=3),
        ]  # fmt: skip
    return parts


def _debiased_real(study: Study) -> Parts:
    rows = [
        {**row, "method": method}
        for method in METHODS
        for row in study.rows("fairvlp", method)
        if row["metric"].startswith("abs_bias_") and row["template"] is None
    ]
    return [table_of("methods", "Mean absolute bias after each method", rows, "method",
                     ("experiment", "images, softmax"), ("metric", "measure"),
                     ("category", "words"), kind="percent", digits=2)]  # fmt: skip


def _retrieval(study: Study) -> Parts:
    """Table 5: recall after fine-tuning for retrieval."""
    if study.world:
        rows = [row for row in study.rows("fairvlp") if row["split"] == "Table 5"]
        return [table_of("recall", "Recall after fine-tuning for retrieval", rows,
                         ("model", "method"), ("metric", "measure"), kind="percent",
                         digits=1)]  # fmt: skip
    rows = [
        {"method": method, **cost}
        for method in METHODS
        for run in study.runs("fairvlp", method)
        for cost in run.meta.get("recall", ())
        if cost["metric"].startswith("recall")
    ]
    columns = [Column(name, name) for name in ("method", "metric")]
    columns += [Column("recall", "after", "percent"),
                Column("95% interval", ("after_low", "after_high"), "percents"), col.N]  # fmt: skip
    return [Table("recall", "Recall after fine-tuning, on held-out captions", columns, rows)]


def _backgrounds(study: Study) -> Parts:
    """Figure 9: animals and what they stand on."""
    rows = [row for row in study.rows("backgrounds", probe="counterfactual")
            if row["metric"] in ("bias_VL", "bias_V", "bias_L", "log_shift")
            and row["template"] is None]  # fmt: skip
    return [table_of("backgrounds", "Association of animals with grass (above 0) and ground",
                     rows, "model", ("target", "animal"), ("metric", "measure"),
                     ("experiment", "images, softmax"), kind="signed")]  # fmt: skip


WORDS = Audit(
    ("counterfactual",),
    {"options": {"counterfactual": {"images": 0}}},
    roles=("pairs|faces",),
    world={"options": {"counterfactual": {"images": 0, "batch": 256}}},
)
NO_PHOTOS = "images of people; a page shows none"
PAPER = Paper(
    name="counterbias",
    title="Counterfactually Measuring and Eliminating Social Bias in Vision-Language Pre-training "
    "Models",
    source="Zhang, Wang and Sang (2022), ACM Multimedia",
    published="zhang2022",
    tables=5,
    figures=9,
    data={
        "pairs": "people at activities and in occupations, by perceived gender; the paper: VL-Bias",
        "faces": "in place of pairs: labelled faces, each of which counts for every word",
        "captions": "images with captions to train with; the paper: MS-COCO",
        "backgrounds": "animals on grass and on ground, labelled so; the paper: its own images",
    },
    measurements={
        "words": WORDS,
        "fairvlp": Fairvlp(WORDS),
        "backgrounds": Backgrounds(),
    },
    items=(
        Item("Figure 1", "What the method compares", reason="a drawing, nothing is measured"),
        Item("Figure 2", "P(shopping) of ten images", _spread, ("words",),
             shortfall="the paper prints probabilities of ten images; here the spread of single "
             "images over each word, next to the mean."),
        Item("Figure 3", "How bias is computed", reason="a drawing, nothing is measured"),
        Item("Figure 4", "Images of VL-Bias", reason=NO_PHOTOS),
        Item("Table 1", "Templates", _templates),
        Item("Table 2", "Mean absolute bias by template", _by_template, ("words",),
             shortfall="the paper gives no settings of its attack: epsilon 8/255, 20 steps of "
             "2/255. VL-Bias itself can no longer be downloaded."),
        Item("Figure 5", "Human stereotypes, and multimodal bias of activities", _stereotypes,
             ("words",),
             shortfall="of the 19 human labels the paper's text gives one (skating, female); "
             "others need a table: audit with --option counterfactual.labels=FILE."),
        Item("Figure 6", "The bias of one image", _instances, ("words",),
             shortfall="ids and values of the largest; a page shows no faces."),
        Item("Figure 7", "Visual against language bias", _quadrants, ("words",)),
        Item("Table 3", "Language bias without an image, next to BERT", _texts, ("words",),
             shortfall="to include BERT, give it as a further model. Without an image means text "
             "alone where the network allows it (ALBEF and TCL then attend to no image tokens), "
             "otherwise a white image; the column says which."),
        Item("Figure 8", "How FairVLP trains", reason="a drawing, nothing is measured"),
        Item("Table 4", "Bias after each debiasing method", _debiased, ("fairvlp",),
             shortfall="methods continue from a trained model instead of pretraining ALBEF on "
             "MS-COCO from the start; CycleGAN is the testbed's redraw, or needs edited images. "
             "Without a GPU the training is too short to lower bias."),
        Item("Table 5", "Fine-tuned retrieval", _retrieval, ("fairvlp",),
             shortfall="the built-in world has its own captions and images; Flickr30K and MS-COCO "
             "need --data captions=SPEC, of which a tenth is held out."),
        Item("Figure 9", "Animals on grass and on ground", _backgrounds, ("backgrounds",),
             shortfall="the prompt that reads the background is ours; the paper prints none."),
    ),
    world_data={"pairs": "testbed:concepts?images=1300", "captions": "testbed:"},
    world_attributes={"gender": "shape"},
    notes=(
        "Equations 8, 10 and 11 are misprinted in the paper. Written out: "
        "[the probe](../probes/counterfactual.md).",
        "The authors' scripts read probabilities in other ways (P(B) as 0 or 1, the bias word as "
        "the model reads it, relative change, `A {g} is [MASK]`): `softmax=hard`, `own-reading`, "
        "`relative` and `templates=script` of the probe.",
        "An attack finds the direction by word, not the size: on PAIRS and a real small model its "
        "changes are 5 to 7 times those of true counterparts.",
        "The paper states no p-value or interval. The verdicts here are lift of the pairs beyond "
        "neutral words; `tiltmeter compare` tests it between two runs.",
        "FairVLP: the paper's losses are `losses=paper`, ALBEF's hard negatives and momentum are "
        "options ([FairVLP](../debias/fairvlp.md)). On the testbed dropout lowers bias more than "
        "FairVLP, at a cost of accuracy; and one modality alone moves bias to the other.",
        "Of Figure 9 the paper prints eight probabilities without a readable order: they are not "
        "among the published values.",
    ),
)  # fmt: skip
