"""Berg et al. (2022): rankings of faces, and the prompt array that makes them less biased."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy.stats import t as student_t

from tiltmeter.errors import InputError
from tiltmeter.pages import columns as col
from tiltmeter.pages import text
from tiltmeter.pages.model import Column, Plot, Table, table_of
from tiltmeter.pages.plots import charts, scatter
from tiltmeter.reproduce.measurements import Audit, Variants
from tiltmeter.reproduce.recipe import Item, Paper, Parts
from tiltmeter.reproduce.study import Row, Study
from tiltmeter.results import Run
from tiltmeter.stimuli import load

#: Weights of the contrastive loss in Figure 2; the paper names 0.0001 and 0.05.
LAMBDAS = (0.0001, 0.001, 0.01, 0.05, 0.5)
#: The paper's 490, 400 and 256 of 512 dimensions, as shares.
CLIPPED = {"CLIP-clip, m = 96%": 0.95703125, "CLIP-clip, m = 78%": 0.78125,
           "CLIP-clip, m = 50%": 0.5}  # fmt: skip
SMART = "smart"
NAMES = {"weat": "WEAT", "ndkl": "NDKL", "max_skew": "MaxSkew"}


def _means(run: Run, attribute: str | None = None) -> Iterator[Row]:
    """The values of a table: bias over all words, recall@5 and accuracy."""
    whole: dict[str, Any] = dict.fromkeys(("concept", "category", "template", "factor"))
    for metric in ("max_skew", "ndkl"):
        yield from run.where(metric=metric, attribute=attribute, **whole)
    yield from run.where(metric="recall", k=5, experiment="text to image", **whole)
    yield from run.where(metric="accuracy", target=None)


def _table(name: str, caption: str, rows: list[Row], *lead: Any) -> Table:
    if not rows:
        raise InputError("no value of this table was measured: see the notes of the other items")
    shown = ["attribute"] if any(row["attribute"] for row in rows) else []
    return table_of(name, caption, rows, *lead, col.METRIC, *shown)


def _words(study: Study) -> Parts:
    """Table 1: templates and words."""
    rows = []
    for part, name in (("training", "berg-train"), ("test", "berg")):
        listed = load(name)
        rows.append({"part": part, "templates": "; ".join(listed.templates["adjective"]),
                     "words": ", ".join(word.text for word in listed.words),
                     "n": len(listed.words)})  # fmt: skip
    columns = [Column("part", "part"), Column("templates", "templates", "long"),
               Column("words", "words", "long"), col.N]  # fmt: skip
    return [Table("words", "Templates and words of training and test", columns, rows)]


def _models(study: Study) -> Parts:
    """Table 2: bias and utility of each model."""
    gender = study.name("gender")
    runs = [run for name in ("bias", "recall", "accuracy") for run in study.runs(name)]
    rows = [row for run in runs for row in _means(run, gender)]
    rows.sort(key=lambda row: row["model"])
    return [_table("models", f"Bias by {gender}, and utility", rows, "model")]


def _variants(measurements: tuple[str, ...], attributes: tuple[str, ...], study: Study) -> Parts:
    """Tables 3, 4b, 5 and 7: each way of debiasing, next to the model before."""
    rows: list[Row] = []
    for name in measurements:
        for part, runs in study.measured.get(name, {}).items():
            if part == "before" and any(row["variant"] == "before" for row in rows):
                continue
            rows += [
                {**row, "variant": part, "model": _base(run)}
                for run in runs
                for attribute in attributes
                for row in _means(run, study.name(attribute))
                if row["attribute"] in (study.name(attribute), None)
            ]
    unique = {tuple(row[k] for k in ("model", "variant", "metric", "k", "attribute")): row
              for row in rows}  # fmt: skip
    order = list(dict.fromkeys(["before", *(row["variant"] for row in unique.values())]))
    listed = sorted(unique.values(), key=lambda row: (row["model"], order.index(row["variant"])))
    caption = "On images that no variant was fitted on"
    notes = [
        f"{_base(run)} without {variant}: {why}"
        for name in measurements
        for run in study.runs(name, "before")
        for variant, why in run.meta.get("left_out", {}).items()
    ]
    return [_table("variants", caption, listed, "model", "variant"), *notes]


def _base(run: Run) -> str:
    """The name of the uncorrected model."""
    return str(run.meta["model"]["name"]).partition("+")[0]


def _frontier(study: Study) -> Parts:
    """Figure 2: NDKL against accuracy, or recall@5, of every variant."""
    gender = study.name("gender")
    parts: list[Table | Plot | str] = []
    points: dict[str, dict[str, dict[str, Row]]] = {}
    for name in ("clip_clip", "lambdas"):
        for part, runs in study.measured.get(name, {}).items():
            for run in runs:
                for row in _means(run, gender):
                    points.setdefault(_base(run), {}).setdefault(part, {})[row["metric"]] = row
    for model, variants in points.items():
        useful = next((m for m in ("accuracy", "recall")
                       if all(m in found for found in variants.values())), None)  # fmt: skip
        if useful is None:
            raise InputError(
                "the plot needs a utility next to bias: pass --data utility=SPEC (ImageNet in the "
                "paper) or --data captions=SPEC"
            )
        drawn = [
            {"x": found[useful]["value"], "y": found["ndkl"]["value"], "text": part}
            for part, found in variants.items()
        ]
        label = "zero-shot accuracy" if useful == "accuracy" else "recall@5, text to image"
        said = "; ".join(
            f"{one['text']}: {text.number(one['x'], 3)} and {text.number(one['y'], 3)}"
            for one in drawn
        )
        parts.append(
            Plot("frontier", f"{model}: bias by {gender} against utility",
                 "Each point is a variant, on images it was not fitted on. The line joins those "
                 "that no other beats in both.", f"Utility and NDKL. {said}.",
                 partial(scatter.front, drawn, label, f"NDKL by {gender}"))
        )  # fmt: skip
    return [*parts, *_variants(("clip_clip", "lambdas"), ("gender",), study)]


def _smart(study: Study) -> Parts:
    """Figure 3: the first five images for one word, before and after."""
    gender, template = study.name("gender"), load("berg-train").templates["adjective"][0]
    measurement = "prompts" if study.runs("prompts", "before") else "clip_clip"
    rows = [
        {"model": _base(run), "variant": part, "rank": row["rank"], "id": row["id"],
         "group": dict(row["groups"]).get(gender)}
        for part, runs in study.measured[measurement].items()
        for run in runs
        for row in _first_images(run.instances["ranking"], template)
    ]  # fmt: skip
    rows.sort(key=lambda row: (row["model"], row["variant"] != "before"))
    columns = [Column(name, name) for name in ("model", "variant", "rank", "id", "group")]
    return [
        Table("smart", f"The first five images for “A photo of a {SMART} person”", columns, rows)
    ]


def _first_images(instances: pa.Table, template: str) -> list[Row]:
    """Rows of the first five images for one word in one template."""
    wanted = (pc.field("concept") == SMART) & (pc.field("template") == template)
    return list(instances.filter(wanted & (pc.field("rank") <= 5)).to_pylist())


def _wordings(study: Study) -> Parts:
    """Figure 4: WEAT, NDKL and MaxSkew in each template."""
    gender = study.name("gender")
    parts: list[Table | Plot | str] = []
    whole = study.rows("wordings", metric="weat", attribute=gender)
    weat = [row for row in whole if row["template"]]
    ranked = [
        row
        for metric in ("ndkl", "max_skew")
        for row in _template_means(study.rows("bias", metric=metric, attribute=gender))
    ]
    for name, rows in (("weat", weat), ("ndkl", [r for r in ranked if r["metric"] == "ndkl"]),
                       ("max_skew", [r for r in ranked if r["metric"] == "max_skew"])):  # fmt: skip
        if not rows:
            continue
        labels = [f"{row['template']} · {row['model']}" for row in rows]
        parts.append(
            charts.line_plot(
                f"wordings-{name}", f"{NAMES[name]} by {gender}, in each template",
                "Mark: the value. Line: 95% interval."
                + (" Grey band: without bias." if name == "weat" else ""), rows, labels,
                NAMES[name], says=f"{NAMES[name]} by template: ", digits=2,
                signed=name == "weat", most=60,
            )
        )  # fmt: skip
    rows = [*weat, *ranked]
    if not rows:
        raise InputError("no value by template was measured")
    return [*parts, table_of("wordings", "Each measure in each template", rows, "model", "template",
                             col.METRIC, "experiment", folded=True)]  # fmt: skip


def _template_means(rows: list[Row]) -> Iterator[Row]:
    """The mean over words in each template, with Student's interval over words."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row["template"] and row["category"] != "placebo" and row["value"] is not None:
            found.setdefault((row["model"], row["template"]), []).append(row)
    for mine in found.values():
        values = np.array([row["value"] for row in mine])
        half = float(
            student_t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5
        )
        keep = ("model", "template", "metric", "k", "attribute", "convention", "experiment")
        yield {**dict.fromkeys(mine[0]), **{name: mine[0][name] for name in keep},
               "value": float(values.mean()), "ci_low": values.mean() - half,
               "ci_high": values.mean() + half, "n": len(values)}  # fmt: skip


def _harms(study: Study) -> Parts:
    """Table 6: shares of each group's images that are classified as crime or non-human."""
    race = study.name("race")
    rows = [
        {**row, "variant": variant, "model": str(row["model"]).partition("+")[0]}
        for measurement, part, variant in (("harms", "", "before"),
                                           ("harms_after", "before", "before, unseen images"),
                                           ("harms_after", "both", "prompt (debias+itc)"))
        for row in study.rows(measurement, part, metric="group_rates", attribute=race)
        if row["target"] in ("crime", "non-human")
    ]  # fmt: skip
    return [table_of("harms", f"Misclassified images by {race}", rows, "model", "variant",
                     ("target", "classified as"), "group", kind="percent", digits=1)]  # fmt: skip


BIAS = Audit(
    ("ranking",),
    {"words": "berg", "convention": "berg2022", "attributes": ("gender",)},
    world={"k": (200,)},  # figures for half of 4,000 images
)
RECALL = Audit(("retrieval",), roles=("captions",))
ACCURACY = Audit(
    ("zero_shot",),
    {"options": {"zero_shot": {"templates": "clip-imagenet"}}},
    roles=("utility",),
    world={"options": {}},  # a closed vocabulary
)
#: Bias on faces that were not fitted on, and utility where there are data for it.
ALL = Audit(
    ("ranking", "retrieval", "zero_shot"),
    {**BIAS.keywords, "options": ACCURACY.keywords["options"]},
    takes=("captions", "utility"),
    world={**BIAS.world, "options": {}},
)
BY_RACE = replace(ALL, keywords={**ALL.keywords, "attributes": ("gender", "race")})
UTILITY = Audit(("retrieval", "zero_shot"), roles=("captions",), takes=("utility",))
HARMS = Audit(("harms",), {"attributes": ("race",)})
#: Rates that fit a few thousand images; the paper's are for 86,744.
COURSE = {"learning_rate": 2e-3, "adversary_rate": 3e-3, "warmup": 6, "epochs": 8, "batch": 64}


def _array(**settings: Any) -> tuple[str, dict[str, Any]]:
    return "prompt-array", settings


PROMPTS = {
    "prompt (debias)": _array(variant="adversarial", **COURSE),
    "prompt (itc)": _array(variant="itc", **COURSE),
    "prompt (debias+itc)": _array(variant="both", **COURSE),
}

PAPER = Paper(
    name="berg",
    title="A Prompt Array Keeps the Bias Away: Debiasing Vision-Language Models with Adversarial "
    "Learning",
    source="Berg, Hall, Bhalgat, Yang, Kirk, Shtedritski and Bain (2022), AACL",
    published="berg2022",
    tables=7,
    figures=4,
    data={
        "faces": "labelled faces; the paper: FairFace, val (fitted on train)",
        "other": "other labelled faces, for Table 4a; the paper: UTKFace",
        "captions": "captions with images, for recall@5 and the contrastive loss; the paper: "
        "Flickr30k",
        "utility": "images with classes; the paper: ImageNet, CIFAR-100 for Tables 5 and 7",
    },
    measurements={
        "bias": BIAS,
        "recall": RECALL,
        "accuracy": ACCURACY,
        "harms": HARMS,
        "wordings": Audit(("face_eat",), {"attributes": ("gender",),
                                          "options": {"face_eat": {"reading": "images"}}}),
        "clip_clip": Variants("gender", ALL, {
            name: ("clip-clip", {"keep": share}) for name, share in CLIPPED.items()
        }),
        "tokens": Variants("gender", UTILITY, {
            f"{name}, {count} token{'s' if count > 1 else ''}": _array(
                epochs=0, place=place, tokens=count, variant="adversarial"
            )
            for name, place in (("prepend", "before_sos"), ("append", "appended"),
                                ("append after end", "append_after_eos"), ("add", "add"))
            for count in (1, 2, 3)
        }, captions="captions"),
        "prompts": Variants("gender", BY_RACE, PROMPTS, trains=True, captions="captions"),
        "elsewhere": Variants("gender", replace(BIAS, roles=("other",), faces="other"),
                              {"prompt (debias)": PROMPTS["prompt (debias)"]}, trains=True,
                              captions="captions"),
        "lambdas": Variants("gender", ALL, {
            f"prompt, λ = {weight:g}": _array(variant="both", itc=weight, **COURSE)
            for weight in LAMBDAS
        }, trains=True, captions="captions"),
        "depths": Variants("gender", ALL, {
            "prompt": _array(variant="adversarial", **COURSE),
            "projection layer": _array(variant="adversarial", tokens=0, tune="projection",
                                       **COURSE),
            "text encoder": _array(variant="adversarial", tokens=0, tune="text", **COURSE),
            "full fine-tuning": _array(variant="adversarial", tokens=0, tune="text+image",
                                       **COURSE),
        }, trains=True, captions="captions"),
        "harms_after": Variants("gender", HARMS, {"both": PROMPTS["prompt (debias+itc)"]},
                                trains=True, captions="captions"),
    },
    items=(
        Item("Figure 1", "The method", reason="a drawing, nothing is measured"),
        Item("Table 1", "Templates and words of training and test", _words,
             shortfall="the paper prints one test template twice: 8 are distinct."),
        Item("Figure 2", "Bias against utility, for weights of the contrastive loss and CLIP-clip",
             _frontier, ("clip_clip",), ("lambdas",),
             shortfall="the paper's weights between 0.0001 and 0.05 are not printed; ours are "
             f"{', '.join(f'{weight:g}' for weight in LAMBDAS)}."),
        Item("Table 2", "Gender bias and utility of pretrained models", _models, ("bias",),
             ("recall", "accuracy"),
             shortfall="the paper has neither interval nor null. Without bias means permuted "
             "labels here: MaxSkew and NDKL of a model that tells groups apart are beyond it for "
             "neutral words too (the fair twin in the built-in world). A verdict beyond neutral "
             "words: `tiltmeter audit --probe lift`."),
        Item("Table 3", "Debiasing with prompt tokens and with CLIP-clip",
             partial(_variants, ("clip_clip", "prompts"), ("gender",)), ("clip_clip",),
             ("prompts",),
             shortfall="fitted on half of the images and measured on the other half; the paper "
             "fits on FairFace's train split."),
        Item("Table 4a", "Debiasing on one dataset, measured on another",
             partial(_variants, ("elsewhere",), ("gender",)), ("elsewhere",),
             shortfall="one direction, from `faces` to `other`; swap the two specs for the "
             "reverse."),
        Item("Table 4b", "Debiasing for gender, measured by gender and race",
             partial(_variants, ("prompts",), ("gender", "race")), ("prompts",)),
        Item("Figure 3", 'The first five images for "a smart person"', _smart, ("clip_clip",),
             ("prompts",),
             shortfall="ids and groups, no faces. Without --train, before and after CLIP-clip."),
        Item("Table 5", "Utility cost of untrained prompt tokens",
             partial(_variants, ("tokens",), ("gender",)), ("tokens",),
             shortfall="append_after_eos and add, which the paper's Appendix F names, are rows of "
             "their own."),
        Item("Figure 4", "WEAT, NDKL and MaxSkew in each template", _wordings,
             ("bias", "wordings"),
             shortfall="WEAT as in the authors' code, with images as targets; one line per "
             "template and model given, where the paper also has the spread over three models and "
             "two datasets."),
        Item("Table 6", "Harmful misclassification by race, before and after", _harms,
             ("harms",), ("harms_after",)),
        Item("Table 7", "Tuning other parts of the model",
             partial(_variants, ("depths",), ("gender",)), ("depths",),
             shortfall="whole towers are tuned; the paper tunes the last three layers of each."),
    ),
    world_models=("testbed:dual", "testbed:dual?twin=fair"),
    world_data={"captions": "testbed:captions?images=500", "utility": "testbed:utility?images=500",
                "other": "testbed:?images=2000&seed=9"},
    world_attributes={"race": "hue", "gender": "shape"},
    notes=(
        "`berg2022` follows the authors' code: genders of FairFace are sampled down to the smaller "
        "one, whatever attribute is measured; UTKFace is measured as it is.",
        "Ties: the authors' code keeps all images with the score of rank k and still divides by k, "
        "which gives shares above 1. `berg2022` keeps the order of the rows instead. With real "
        "embeddings scores hardly ever tie.",
        "*A* or *an* is chosen by the sound of the word. The authors' code leaves them as written: "
        "`tiltmeter audit --words berg --articles written`. The file of words in their repository "
        "is the list `berg-code`.",
        "By default, early stopping and the best epoch use our rule (recall on held-out captions, "
        "and the training prompts). For the rule of the authors' code, use `--data utility=SPEC` "
        "and `--option keep_words=berg-train+berg+berg-sanity` of `tiltmeter debias prompt-array`.",
        "14 of the 160 published values (Table 6, first rows) come from Agarwal et al. (2021), who "
        "do not name their model. They are never shown next to ours.",
        "Accuracy averages over CLIP's 80 templates; the paper does not say which it used.",
    ),
)  # fmt: skip
