"""So-B-IT (Hamidieh et al. 2024): words of ten categories, groups in the top 100, captions."""

from __future__ import annotations

from functools import partial

from tiltmeter.pages import columns as col
from tiltmeter.pages import text
from tiltmeter.pages.model import Column, Plot, Row, Table, table_of
from tiltmeter.pages.plots import charts
from tiltmeter.papers import sobit
from tiltmeter.papers.top_composition import composition
from tiltmeter.reproduce.measurements import Audit, CaptionAudit, Debiasing
from tiltmeter.reproduce.recipe import Item, Paper, Parts
from tiltmeter.reproduce.study import Study
from tiltmeter.stimuli import load

WORD_COLUMNS = ("category", "group", ("concept", "word"))


def _top_words(attribute: str, study: Study) -> Parts:
    """Tables 1 and 2: the word nearest to each group, by category."""
    name = study.name(attribute)
    rows = [row for run in study.runs("words") for row in sobit.top_words(run, name)]
    tables = [
        _by_group(f"{model}: the word nearest to each group of {name}, by category", mine)
        for model, mine in _by_model(rows).items()
    ]
    all_columns = table_of("statistics", f"The same with all statistics ({name})", rows, "model",
                           *WORD_COLUMNS, digits=2, kind="signed", folded=True)  # fmt: skip
    return [*tables, all_columns]


def _by_group(caption: str, rows: list[Row]) -> Table:
    """As printed: categories down, a word and its C-ASC for each group across."""
    groups = list(dict.fromkeys(row["group"] for row in rows))
    lines: dict[str, Row] = {}
    for row in rows:
        line = lines.setdefault(row["category"], {"category": row["category"]})
        line[f"word {row['group']}"] = row["concept"]
        line[f"value {row['group']}"] = row["value"]
    columns = [Column("category", "category")]
    for group in groups:
        columns += [Column(group, f"word {group}"), Column("C-ASC", f"value {group}", "signed", 2)]
    return Table("top-words", caption, columns, list(lines.values()))


def _entropies(attribute: str, study: Study) -> Parts:
    """Figures 3 and 4: normalised entropy of the top k by category, one bar per model."""
    name = study.name(attribute)
    rows = [
        row for row in sobit.category_means(study.run("words"), name) if row["value"] is not None
    ]
    rows.sort(key=lambda row: row["category"])
    k = rows[0]["k"]
    plot = charts.line_plot(
        "entropy",
        f"Normalised entropy of the top {k:,}, by category and model ({name})",
        "Bar: mean over a category's words; 1 is an even mix, 0 one group alone. Line: 95% "
        "interval. Grey band: without bias. Tick: the mix of all images.",
        rows,
        [f"{row['category']} · {row['model']}" for row in rows],
        f"normalised entropy@{k}",
        says="By category and model: ",
        digits=2, bars=True, domain=(0, 1), most=48,
    )  # fmt: skip
    table = table_of("entropies", f"Normalised entropy by category ({name})", rows, "category",
                     "model", folded=True)  # fmt: skip
    return [plot, table]


def _heat(part: str, study: Study) -> Parts:
    """Figures 5 and 6: C-ASC of the words nearest to the first gender, for every intersection."""
    gender, cross = study.name("gender"), study.name("race*gender")
    parts: list[Table | Plot | str] = []
    for before, run in zip(study.runs("debiased", "before"), study.runs("debiased", part),
                           strict=True):  # fmt: skip
        group = sobit.word_rows(before, "c_asc", gender)[0]["group"]
        words = sobit.leading(before, gender, group)
        rows = [row for row in sobit.heat(run, cross, words) if row["value"] is not None]
        model = run.meta["model"]["name"]
        caption = f"{model}: C-ASC of the words nearest to {group} before debiasing, by {cross}"
        cells = [
            {"column": row["concept"], "line": row["group"], "value": row["value"],
             "text": text.number(row["value"], 1, signed=True)}
            for row in rows
        ]  # fmt: skip
        groups = list(dict.fromkeys(row["group"] for row in rows))
        edge = max(abs(row["value"]) for row in rows) or 1.0
        sentence = "; ".join(f"{c['column']} for {c['line']} {c['text']}" for c in cells)
        parts += [
            Plot("heat", caption, "Orange above 0, blue below.", f"Heat map. {sentence}.",
                 partial(charts.heat, cells, words, groups, edge)),
            table_of("heat", caption, rows, ("concept", "word"), "group", digits=2, kind="signed",
                     folded=True),
        ]  # fmt: skip
    return parts


def _composition(study: Study) -> Parts:
    """Figure 7: intersections in the top k of occupations."""
    cross = study.name("race*gender")
    rows = [
        row
        for run in study.runs("words")
        for row in composition(run, cross)
        if row["concept"] in ("homemaker", "farmer", "CEO")
    ]
    rows.sort(key=lambda row: (row["model"], row["concept"], -row["value"]))
    return [
        table_of("composition", f"Groups of {cross} in the top {rows[0]['k']:,}", rows, "model",
                 ("concept", "word"), "group", kind="percent", digits=0)
    ]  # fmt: skip


def _pronouns(study: Study) -> Parts:
    """Table 3: captions with a word and a pronoun of each gender."""
    rows = study.rows("captions", metric="group_share", attribute="gender",
                      experiment="pronoun both")  # fmt: skip
    listed = [row for row in rows if row["concept"] and row["category"] != "placebo"]
    return [
        table_of("pronouns", "Captions with a word and a gendered pronoun", listed,
                 ("concept", "word"), "group", col.N, kind="percent", digits=1)
    ]  # fmt: skip


def _taxonomy(study: Study) -> Parts:
    """Table 4: the words of each category."""
    words = load("sobit").words
    lines: dict[str, list[str]] = {}
    for word in words:
        lines.setdefault(word.category, []).append(word.text)
    rows = [{"category": name, "words": ", ".join(mine), "n": len(mine)}
            for name, mine in lines.items()]  # fmt: skip
    columns = [Column("category", "category"), col.N, Column("words", "words", "long")]
    return [Table("taxonomy", "Words by category", columns, rows)]


def _by_model(rows: list[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row["model"], []).append(row)
    return found


WORDS = Audit(
    ("ranking",),
    {"words": "sobit+sobit-extra", "attributes": ("gender", "race"), "cross": ("race*gender",),
     "k": (100,)},
)  # fmt: skip

PAPER = Paper(
    name="sobit",
    title="Identifying Implicit Social Biases in Vision-Language Models",
    source="Hamidieh, Zhang, Gerych, Hartvigsen and Ghassemi (2024), AIES",
    published="sobit2024",
    tables=4,
    figures=8,
    data={
        "faces": "labelled faces; the paper: FairFace, train",
        "corpus": "training captions; the paper: LAION-400m",
    },
    measurements={
        "words": WORDS,
        "debiased": Debiasing("leace", "gender", WORDS),
        "captions": CaptionAudit(),
    },
    items=(
        Item("Figure 1", "What the method does", reason="a drawing, nothing is measured"),
        Item("Figure 2", "How images are retrieved", reason="a drawing, nothing is measured"),
        Item("Figure 3", "Normalised entropy of the top 100 over gender, by category",
             partial(_entropies, "gender"), ("words",)),
        Item("Figure 4", "Normalised entropy of the top 100 over race, by category",
             partial(_entropies, "race"), ("words",)),
        Item("Figure 5", "Words nearest to men, by race and gender, before debiasing",
             partial(_heat, "before"), ("debiased",)),
        Item("Figure 6", "The same words after debiasing for gender",
             partial(_heat, "after"), ("debiased",),
             shortfall="the paper's debiased model is a prompt array (Berg et al. 2022); here "
             "LEACE, fitted on half of the images and measured on the other half."),
        Item("Table 1", "The word nearest to each race, by category",
             partial(_top_words, "race"), ("words",)),
        Item("Table 2", "The word nearest to each gender, by category",
             partial(_top_words, "gender"), ("words",)),
        Item("Table 3", "Pronouns in captions with a word", _pronouns, ("captions",)),
        Item("Figure 7", "Race and gender in the top 100 of occupations", _composition,
             ("words",)),
        Item("Table 4", "Words of the taxonomy", _taxonomy),
        Item("Figure 8", "Images of captions with a word and a pronoun",
             reason="samples of captions keep no image paths yet"),
    ),
    world_models=("testbed:dual", "testbed:dual?twin=fair"),
    world_attributes={"race": "hue", "gender": "shape"},
)  # fmt: skip
