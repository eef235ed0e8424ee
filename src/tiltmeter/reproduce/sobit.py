"""So-B-IT (Hamidieh et al. 2024): words of ten categories, groups in the top 100, captions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from tiltmeter.errors import InputError
from tiltmeter.judge.gate import compare
from tiltmeter.pages import columns as col
from tiltmeter.pages import text
from tiltmeter.pages.model import Column, Plot, Row, Table, table_of
from tiltmeter.pages.plots import charts
from tiltmeter.pages.plots.contact_sheet import contact_sheet
from tiltmeter.pages.selection import by
from tiltmeter.pages.terminal.gate import entropies
from tiltmeter.papers import sobit
from tiltmeter.papers.top_composition import composition
from tiltmeter.reproduce.measurements import Audit, CaptionAudit, Debiasing
from tiltmeter.reproduce.recipe import Item, Paper, Parts
from tiltmeter.reproduce.study import Study
from tiltmeter.results import Run
from tiltmeter.stimuli import load

#: Table 3, in its order.
CAPTION_WORDS = ("maid", "nurse", "housekeeper", "assistant", "porter", "farmer", "CEO")
#: Figure 7.
OCCUPATIONS = ("homemaker", "maid", "farmer", "CEO")
SHOWN_WORDS = 8  # of a table or figure, where none of the paper's words was measured
GROUPS_SHOWN = 5  # of an intersection in a top k: the largest
BOOTSTRAPS = 199  # of a comparison


def _top_words(attribute: str, study: Study) -> Parts:
    """Tables 1 and 2: the word nearest to each group, by category."""
    name = study.name(attribute)
    rows = [row for run in study.runs("words") for row in sobit.top_words(run, name)]
    tables = [
        _by_group(f"{model}: the word nearest to each group of {name}, with its C-ASC", mine)
        for model, mine in by(rows, "model").items()
    ]
    whole = table_of("statistics", f"The same with all statistics ({name})", rows, "model",
                     "category", "group", ("concept", "word"), digits=2, kind="signed",
                     folded=True)  # fmt: skip
    note = (
        "Without bias some word is nearest too, and the nearest of many stands out: no verdict. "
        "Which words a model associates beyond neutral ones: `tiltmeter audit --probe lift`."
    )
    return [*tables, whole, note]


def _by_group(caption: str, rows: Sequence[Row]) -> Table:
    """As printed: categories down, for each group a word and its C-ASC."""
    lines: dict[str, Row] = {}
    for row in rows:
        line = lines.setdefault(row["category"], {"category": row["category"]})
        line[f"group {row['group']}"] = f"{row['concept']} {text.number(row['value'], 2)}"
    groups = dict.fromkeys(row["group"] for row in rows)
    columns = [Column("category", "category")]
    columns += [Column(group, f"group {group}") for group in groups]
    return Table("top-words", caption, columns, list(lines.values()))


def _entropies(attribute: str, study: Study) -> Parts:
    """Figures 3 and 4: normalised entropy of the top 100 by category, one bar per model."""
    name = study.name(attribute)
    known = {word.category for word in load("sobit").words}
    rows = [
        row
        for row in sobit.category_means(study.run("words"), name)
        if row["value"] is not None and row["category"] in known
    ]
    if not rows:
        raise InputError(f"no category has an entropy by {name}")
    lowest = {category: min(row["value"] for row in mine)
              for category, mine in by(rows, "category").items()}  # fmt: skip
    rows.sort(key=lambda row: (lowest[row["category"]], row["category"]))
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
        digits=2, bars=True, domain=(0, 1), most=56,
    )  # fmt: skip
    table = table_of("entropies", f"Normalised entropy by category ({name})", rows, "category",
                     "model", folded=True)  # fmt: skip
    return [plot, table]


def _heat(measurement: str, part: str, study: Study) -> Iterator[Plot | Table]:
    """C-ASC of the words nearest to the first gender before debiasing, for every intersection."""
    gender, cross = study.name("gender"), study.name("race*gender")
    pairs = zip(study.runs(measurement, "before"), study.runs(measurement, part), strict=True)
    for before, run in pairs:
        group = _first_gender(sobit.word_rows(before, "c_asc", gender))
        words = sobit.leading(before, gender, group)
        rows = [row for row in sobit.heat(run, cross, words) if row["value"] is not None]
        groups = list(dict.fromkeys(row["group"] for row in rows))
        cells = [
            {"column": row["concept"], "line": row["group"], "value": row["value"],
             "text": text.number(row["value"], 1, signed=True)}
            for row in rows
        ]  # fmt: skip
        edge = max((abs(row["value"]) for row in rows), default=0.0) or 1.0
        model = run.meta["model"]["name"]
        title = f"{model}: words nearest to {group}, by {cross}"
        said = "; ".join(f"{c['column']} for {c['line']} {c['text']}" for c in cells)
        yield Plot(
            "heat", title, f"C-ASC on {_count(run)} images: orange above 0, blue below.",
            f"Heat map. {said}.", partial(charts.heat, cells, words, groups, edge),
        )  # fmt: skip
        yield table_of("heat", title, rows, ("concept", "word"), "group", digits=2, kind="signed",
                       folded=True)  # fmt: skip


def _first_gender(rows: Sequence[Row]) -> str:
    """Male, as in the paper, where there is such a group."""
    groups = list(dict.fromkeys(row["group"] for row in rows))
    return str(next((group for group in groups if group.lower() == "male"), groups[0]))


def _before(study: Study) -> Parts:
    """Figure 5."""
    return list(_heat("debiased", "before", study))


def _after(study: Study) -> Parts:
    """Figure 6, and the finding that rests on it: what debiasing for gender does to race."""
    parts: list[Plot | Table | str] = []
    for measurement in ("debiased", "trained"):
        parts += list(_heat(measurement, "after", study))
        pairs = zip(study.runs(measurement, "before"), study.runs(measurement, "after"),
                    strict=True)  # fmt: skip
        for before, after in pairs:
            parts += _finding(before, after)
    return parts


def _finding(before: Run, after: Run) -> Iterator[Table | str]:
    """Entropies before and after with verdicts, and the words that changed most."""
    model = after.meta["model"]["name"]
    found = compare(before, after, bootstraps=BOOTSTRAPS)
    changed = entropies(found)
    known = {"all words", *(word.category for word in load("sobit").words)}
    numbers = ("before", "after", "change", "95% interval")
    shown = [
        {**row, **{name: row[name].replace("-", "−").replace("…", " to ") for name in numbers}}
        for row in changed.rows
        if row["words"] in known
    ]
    yield Table("entropy-change", f"{model}: {changed.caption}", changed.columns, shown)
    rows = [row for row in sobit.changes(before, after) if "*" not in row["attribute"]]
    columns = [Column("attribute", "attribute"), Column("group", "group"),
               Column("word", "concept"), Column("before", "before", "signed", 2),
               Column("after", "after", "signed", 2), Column("change", "difference", "signed", 2),
               Column("95% interval", ("ci_low", "ci_high"), "span", 2),
               Column("q", "p_bh", "p")]  # fmt: skip
    yield Table("words-changed", f"{model}: words whose C-ASC changed most", columns, rows, True)
    left_out = after.meta["data"].get("faces", {}).get("unseen", {}).get("left_out")
    if left_out:
        yield (
            f"{model}: fitted on {left_out:,} images, which are left out here and before; measured "
            f"on the other {_count(after)}."
        )


def _count(run: Run) -> str:
    return f"{run.meta['data']['faces']['images']:,}"


def _composition(study: Study) -> Parts:
    """Figure 7: intersections in the top 100 of occupations."""
    cross = study.name("race*gender")
    rows = [row for run in study.runs("words") for row in composition(run, cross) if row["concept"]]
    named = [row for row in rows if row["concept"] in OCCUPATIONS]
    rows = named or [row for row in rows if row["category"] == "Occupation"]
    ordered = sorted(rows, key=lambda row: (row["model"], row["concept"], -row["value"]))
    k = rows[0]["k"]
    plots = []
    for model, mine in by(ordered, "model").items():
        words = list(by(mine, "concept").values())[:SHOWN_WORDS]
        largest = [row for word in words for row in word[:GROUPS_SHOWN]]
        plots.append(
            charts.line_plot(
                "composition", f"{model}: groups of {cross} in the top {k:,} of occupations",
                f"Bar: share of the top {k:,}; of each word the {GROUPS_SHOWN} largest groups. "
                "Line: 95% interval. Grey band: a random ranking.",
                largest, [f"{row['concept']} · {row['group']}" for row in largest],
                f"share of the top {k:,}", says="By word and group: ", bars=True, format="%",
            )
        )  # fmt: skip
    caption = f"Every group of {cross} in the top {k:,}"
    table = table_of("composition", caption, ordered, "model", ("concept", "word"), "group",
                     kind="percent", digits=0, folded=True)  # fmt: skip
    return [*plots, table]


def _pronouns(study: Study) -> Parts:
    """Table 3: captions with a word and a pronoun of each gender."""
    parts: list[Table | str] = []
    for part in ("", "fair"):
        for run in study.runs("captions", part):
            axis = _axis(run)
            rows = [row for row in run.where(metric="group_share", experiment=f"{axis} both")
                    if row["value"] is not None]  # fmt: skip
            name = run.meta["data"]["captions"]["name"]
            caption = f"{name}: captions with a word and a {_called(axis)} of each group"
            listed = _of_words(rows, _caption_words(rows))
            parts += [
                _shares(caption, listed),
                table_of("statistics", f"{name}: every word with all statistics", rows,
                         ("concept", "word"), "group", kind="percent", digits=1, folded=True),
            ]  # fmt: skip
            parts += _duplicates(run)
    return parts


def _shares(caption: str, rows: Sequence[Row]) -> Table:
    """As printed: words down, the share of each group, and how many captions."""
    lines = []
    for mine in by(rows, "concept").values():
        line: Row = dict(mine[-1])
        line |= {f"share {row['group']}": row["value"] for row in mine}
        lines.append(line)
    groups = list(dict.fromkeys(row["group"] for row in rows))
    columns = [Column("word", "concept")]
    columns += [Column(group, f"share {group}", "percent", 1) for group in groups]
    columns += [Column("n", "n", "count"),
                Column(f"95% interval, {groups[-1]}", ("ci_low", "ci_high"), "percents", 1),
                Column("all captions", "null_mean", "percent", 1), col.P_ADJUSTED]  # fmt: skip
    return Table("pronouns", caption, columns, lines)


def _duplicates(run: Run) -> Iterator[str]:
    record = run.meta["data"]["captions"].get("duplicates")
    if record:
        yield f"{record['left_out']:,} {record['kind']} copies of captions are left out."


def _axis(run: Run) -> str:
    """What names a group: pronouns, or in the built-in world words for shapes."""
    axes = {str(row["experiment"]) for row in run.where(metric="lift")}
    return "pronoun" if "pronoun" in axes else sorted(axes)[0]


def _called(axis: str) -> str:
    return "pronoun" if axis == "pronoun" else f"word for {axis}"


def _caption_words(rows: Sequence[Row]) -> list[str]:
    """The paper's words where they occur, else those with the most captions."""
    known = {str(row["concept"]).lower(): str(row["concept"]) for row in rows}
    words = [known[word.lower()] for word in CAPTION_WORDS if word.lower() in known]
    if len(words) > len(CAPTION_WORDS) / 2:
        return words
    counts = {str(row["concept"]): row["n"] or 0 for row in rows}
    return sorted(counts, key=lambda word: (-counts[word], word))[:SHOWN_WORDS]


def _of_words(rows: Sequence[Row], words: Sequence[str]) -> list[Row]:
    return [row for word in words for row in rows if row["concept"] == word]


def _images(study: Study) -> Parts:
    """Figure 8: sample captions with a word and a pronoun, and their images where at hand."""
    parts: list[Plot | Table | str] = []
    for part in ("", "fair"):
        for run in study.runs("captions", part):
            axis, name = _axis(run), run.meta["data"]["captions"]["name"]
            shares = run.where(metric="group_share", experiment=f"{axis} both")
            words = _caption_words([row for row in shares if row["value"] is not None])
            samples = [row for row in run.instances["captions"].to_pylist()
                       if row["experiment"] == axis]  # fmt: skip
            rows = _of_words(samples, words)
            columns = col.columns_of((("concept", "word"), "group", "caption", "image"))
            title = f"{name}: random captions with a word and a {_called(axis)}"
            parts.append(Table("samples", title, columns, rows, folded=True))
            if not any(row["image"] for row in rows):
                parts.append(f"{name} has no column with a URL or path of its images.")
            elif not study.show_images:
                parts.append("Images are shown only on request: pass --show-images.")
            else:
                parts += _sheet(study, name, rows)
    return parts


def _sheet(study: Study, name: str, rows: Sequence[Row]) -> Iterator[Plot | str]:
    roots = _image_folders(study)
    lines = {
        f"{word}, {group}": [
            path for row in mine for root in roots
            if row["image"] and (path := root / row["image"]).is_file()
        ]
        for (word, group), mine in by(rows, "concept", "group").items()
    }  # fmt: skip
    sheet = contact_sheet(
        "contact-sheet", f"{name}: images of these captions",
        "Random captions with the word and the group word; images are cut to squares. Nobody has "
        "checked what they show.", {label: paths for label, paths in lines.items() if paths},
    )  # fmt: skip
    where = ", ".join(map(str, roots))
    yield sheet or f"The images of {name} are not at hand (looked in {where})."


def _image_folders(study: Study) -> list[Path]:
    """Where the images of a corpus may be: as given, or next to its files."""
    if given := study.data.get("corpus_images"):
        return [Path(given)]
    if "corpus" not in study.data:
        return [study.folder / "runs/captions/corpus"]
    place = Path(study.data["corpus"])
    return [place, place.parent]


def _taxonomy(study: Study) -> Parts:
    """Table 4: the words of each category."""
    words = load("sobit").words
    listed = by([{"category": word.category, "word": word.text} for word in words], "category")
    rows = [
        {"category": category, "n": len(mine), "words": ", ".join(row["word"] for row in mine)}
        for category, mine in listed.items()
    ]
    columns = [Column("category", "category"), col.N, Column("words", "words", "long")]
    return [
        Table("taxonomy", "Words by category", columns, rows),
        f"{len(words)} entries; the text of the paper counts 374. The words of Tables 1 and 2 that "
        "Table 4 lacks are in the list sobit-extra, and are measured too.",
    ]


WORDS = Audit(
    ("ranking",),
    {"words": "sobit+sobit-extra", "attributes": ("gender", "race"), "cross": ("race*gender",),
     "convention": "sobit2024"},
)  # fmt: skip
DRAWING = "a drawing: nothing is measured."
HALF = "on the half of the images that the debiaser was not fitted on; the paper uses all"

PAPER = Paper(
    name="sobit",
    title="Identifying Implicit Social Biases in Vision-Language Models",
    source="Hamidieh, Zhang, Gerych, Hartvigsen and Ghassemi (2024), AIES",
    published="sobit2024",
    tables=4,
    figures=8,
    data={
        "faces": "labelled faces; the paper: FairFace, train",
        "captions": "images with captions, to train a prompt array (--train)",
        "corpus": "training captions as files; the paper: LAION-400m",
        "corpus_images": "the directory of their images",
    },
    measurements={
        "words": WORDS,
        "debiased": Debiasing("leace", "gender", WORDS),
        "trained": Debiasing("prompt-array", "gender", WORDS, trains=True, captions="captions"),
        "captions": CaptionAudit(),
    },
    items=(
        Item("Figure 1", "What the method does", reason=DRAWING),
        Item("Figure 2", "How images are retrieved", reason=DRAWING),
        Item("Figure 3", "Normalised entropy of the top 100 over gender, by category and model",
             partial(_entropies, "gender"), ("words",),
             shortfall="one bar per category and model instead of groups of bars; the paper prints "
             "no values."),
        Item("Figure 4", "Normalised entropy of the top 100 over race, by category and model",
             partial(_entropies, "race"), ("words",),
             shortfall="as Figure 3."),
        Item("Figure 5", "Words nearest to men, by race and gender, before debiasing",
             _before, ("debiased",),
             shortfall=f"{HALF}. The words are the six nearest to men; the paper chose its own."),
        Item("Figure 6", "The same words after debiasing for gender",
             _after, ("debiased",), ("trained",),
             shortfall="the paper's debiased model is a prompt array (Berg et al. 2022), made here "
             "with --train; without it, LEACE. Fitted on half of the images and measured on the "
             "other half."),
        Item("Table 1", "The word nearest to each race, by category",
             partial(_top_words, "race"), ("words",),
             shortfall="all races of the data; the paper prints five of seven. Its 'Similarity' is "
             "taken for C-ASC."),
        Item("Table 2", "The word nearest to each gender, by category",
             partial(_top_words, "gender"), ("words",),
             shortfall="all categories; the paper prints six."),
        Item("Table 3", "Pronouns in captions with a word", _pronouns, ("captions",)),
        Item("Figure 7", "Race and gender in the top 100 of occupations", _composition,
             ("words",),
             shortfall="the five largest groups of each word as bars instead of pies; the paper "
             "prints one value, 'more than 50%' Indian women for homemaker."),
        Item("Table 4", "Words of the taxonomy", _taxonomy),
        Item("Figure 8", "Images of captions with a word and a pronoun", _images, ("captions",),
             shortfall="random captions, whatever their images show; the paper chose images with a "
             "face by hand. Images of people are shown with --show-images, where they are files."),
    ),
    world_models=("testbed:dual", "testbed:dual?twin=fair"),
    world_attributes={"race": "hue", "gender": "shape"},
    notes=(
        "C-ASC divides by the standard deviation with n, the convention `sobit2024`; the paper "
        "does not say which. With n - 1 (`tiltmeter`) values are smaller by a factor of "
        "sqrt((n - 1) / n).",
        "Entropy has no ideal of 1 where groups of the data are unequal: the ideal and the null "
        "band are those of the data.",
        "Entropy differs between models, but does not distinguish a biased model from a fair one: "
        "in the built-in world its mean over categories is .03 by shape and .03 by hue for the "
        "biased model, but .68 and .55 for the fair twin, whose rankings follow chance differences "
        "between figures.",
        "The word nearest to a group is the first of many: in the built-in world 10 of the fair "
        "twin's 22 by shape and 37 of its 77 by hue have both an adjusted p and a p among neutral "
        "words of at most .05 (biased model: 20 and 46), so Tables 1 and 2 give no verdict.",
        "Captions count as often as they occur, as in the paper. Copies are not independent, so "
        "p-values are too small: `tiltmeter captions --duplicates exact` or `near` counts them "
        "once.",
        "The appendix on strong and weak associations has no numbered item: "
        "`tiltmeter audit --probe strength`.",
        "The four models of the paper: OpenAI's ViT-B/32 is `hf:openai/clip-vit-base-patch32`, "
        "OpenCLIP's ViT-H/14 `open_clip:ViT-H-14/laion2b_s32b_b79k`. FaceCLIP and DebiasCLIP are "
        "checkpoints of their authors.",
    ),
)  # fmt: skip
