"""Printed figures: as the papers have them, and beside the runs that measured the same."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tiltmeter.metrics.convention import get_convention
from tiltmeter.papers.published import (
    Published,
    _models,
    describe,
    published,
    published_rows,
    with_published,
)
from tiltmeter.results import Run, combined, rows

NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def between(text: str, start: str, end: str) -> str:
    return text[text.index(start) : text.index(end, text.index(start))]


def printed(region: str, columns: int) -> list[list[float]]:
    """Lines that end in so many numbers; changes in brackets, and per cent signs, are left out."""
    found = []
    for line in region.splitlines():
        plain = re.sub(r"\([^)]*%\)", "", line).replace("%", "").split()
        tail = plain[-columns:]
        if len(tail) == columns and all(NUMBER.fullmatch(one) for one in tail):
            found.append([float(one) for one in tail])
    return found


def rows_of(source: str, table: str, *, change: bool = False, **more: str) -> list[list[float]]:
    """The figures of a table as they stand in the file, a line a model."""
    by_model: dict[str, list[float]] = {}
    for one in published(source):
        if (one.table, one.change) == (table, change) and all(
            getattr(one, name) == value for name, value in more.items()
        ):
            by_model.setdefault(one.model, []).append(one.printed)
    return list(by_model.values())


@pytest.fixture(scope="module")
def berg(shared: Callable[[str], Path]) -> str:
    return shared("papers/berg_prompt_array.txt").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def sobit(shared: Callable[[str], Path]) -> str:
    return shared("papers/sobit.txt").read_text(encoding="utf-8")


def test_berg_tables_2_3_and_7(berg: str) -> None:
    second = between(berg, "Table 2: Evaluation", "Table 3: Measuring")
    third = between(berg, "Table 3: Measuring", "accuracy drops to 55%")
    seventh = between(berg, "Table 7: Comparison", "Face validation set")
    for table, region, count in (("2", second, 9), ("3", third, 7), ("7", seventh, 5)):
        mine = rows_of("berg2022", table)
        assert len(mine) == count
        assert mine == printed(region, 4)


def test_berg_table_4(berg: str) -> None:
    region = between(berg, "(a) Cross-Dataset", "more than twice the gender bias")
    first, second = region.split("(b) Cross-Attribute")
    for table, part in (("4a", first), ("4b", second)):
        baseline, *after = printed(part, 4)
        assert rows_of("berg2022", table) == [baseline]
        changes = [list(map(float, NUMBER.findall(line.split(maxsplit=1)[1])))
                   for line in part.splitlines() if line.count("%") == 4]  # fmt: skip
        assert rows_of("berg2022", table, change=True) == changes
        assert changes
        assert len(after) == len(changes)


def test_berg_tables_5_and_6(berg: str) -> None:
    fifth = printed(between(berg, "Table 5: Results", "D Performance effects"), 2)
    # printed under each place of the tokens; 0 tokens is the same model twice
    assert fifth[0] == fifth[4]
    assert rows_of("berg2022", "5") == fifth[:4] + fifth[5:]
    sixth = printed(between(berg, "Table 6: Harmful", "Table 7: Comparison"), 7)
    crime, other = (rows_of("berg2022", "6", target=one) for one in ("crime", "non-human"))
    assert crime + other == sixth
    [one] = [x for x in published("berg2022") if x.table == "6" and x.model == "clip-vit-b16"
             and (x.group, x.target) == ("White", "crime")]  # fmt: skip
    assert (one.printed, one.value) == (26.9, pytest.approx(0.269))


def test_sobit_tables_1_and_2(sobit: str) -> None:
    lines = between(sobit, "Category\tWhite", "Table 1: We show").splitlines()[2:]
    cells = [line.split("\t") for line in lines if line.count("\t") == 10]
    groups = ["White", "Black", "Latino_Hispanic", "Middle Eastern", "East Asian"]
    expected = [
        (category, group, pairs[2 * at], float(pairs[2 * at + 1]))
        for category, *pairs in cells
        for at, group in enumerate(groups)
    ]
    mine = [one for one in published("sobit2024") if one.table == "1"]
    assert len(expected) == 50
    assert [(o.category, o.group, o.concept, o.value) for o in mine] == expected
    region = between(sobit, "\tAppearance\tBehavioral\tEdu.", "Table 2: We show").splitlines()
    names = region[0].split("\t")[1:]
    for group, top, values in (("Male", *region[1:3]), ("Female", *region[3:5])):
        words = re.sub(r"^.*Top Word ", "", top).split("\t")
        sizes = re.sub(r"^.*Similarity ", "", values).split("\t")
        found = [o for o in published("sobit2024") if o.table == "2" and o.group == group]
        assert [(o.category, o.concept, o.value) for o in found] == [
            (name, word, float(size)) for name, word, size in zip(names, words, sizes, strict=True)
        ]


def test_sobit_table_3(sobit: str) -> None:
    region = between(sobit, "\tMale\tFemale\t# Images", "Table 3: For each").splitlines()[1:]
    expected = []
    for line in filter(None, region):
        word, male, female, n = line.split("\t")
        both = {"male": male, "female": female}
        expected += [(word, group, float(share.rstrip("%")), int(n.replace(",", "")))
                     for group, share in both.items()]  # fmt: skip
    mine = [o for o in published("sobit2024") if o.table == "3"]
    assert [(o.concept, o.group, o.printed, o.n) for o in mine] == expected
    assert len(expected) == 14


def test_printed_changes_follow_from_the_values(berg: str) -> None:
    """The change of every debiased row is what its two values give, but for the misprint."""
    region = between(berg, "Table 3: Measuring", "accuracy drops to 55%")
    changes = [[int(one) for one in re.findall(r"\(([+-]\d+)%\)", line)]
               for line in region.splitlines()]  # fmt: skip
    changes = [line for line in changes if len(line) == 4]
    base, *others = rows_of("berg2022", "3")
    wrong = [
        (row, column)
        for row, (values, line) in enumerate(zip(others, changes, strict=True))
        for column in range(4)
        if abs(100 * (values[column] / base[column] - 1) - line[column]) > 1.1
    ]
    assert wrong == [(0, 1)]  # CLIP-clip 490: -45% is printed for .104 to .038
    assert "-63%" in next(o.note for o in published("berg2022") if o.table == "3")


WHOLE = {"fairface-val": 10954, "fairface-train": 86744, "utkface": 23705,
         "flickr30k-test": 1000, "imagenet-val": 50000, "cifar100-test": 10000}  # fmt: skip
CLIP = {"name": "clip", "spec": "hf:openai/clip-vit-base-patch16"}


def measured(one: Published, value: float, **more: object) -> Run:
    """A run that has just the row a figure asks for."""
    keys = ("probe", "metric", "experiment", "attribute", "group", "concept", "target", "k")
    known = {name: getattr(one, name) for name in keys}
    here = {**known, "model": "clip", "dataset": one.dataset, "value": value,
            "convention": one.convention, **more}  # fmt: skip
    other = {**here, "metric": "min_skew", "value": 9.0}
    table = combined([rows(1, **other), rows(1, **here)])
    theirs = get_convention(one.convention or "tiltmeter").on(one.dataset, ["gender"])
    meta = {"model": CLIP, "convention": theirs.as_dict(),
            "data": {"faces": {"name": one.dataset, "images": WHOLE.get(one.dataset, 0)}},
            "arguments": {"given": {"words": "+".join(one.words) or None}}}  # fmt: skip
    return Run(table, meta)


def printed_as(model: str, metric: str, table: str = "2", **more: str) -> Published:
    return next(o for o in published("berg2022")
                if (o.table, o.model, o.metric) == (table, model, metric)
                and all(getattr(o, name) == value for name, value in more.items()))  # fmt: skip


def baseline() -> Published:
    return printed_as("clip-vit-b16", "max_skew")


def model_of(one: Published) -> dict[str, object]:
    """What a run records of the model that a value was printed for."""
    known = _models("berg2022").get(one.model)
    if isinstance(known, list):
        return {"name": "clip", "spec": f"hf:{known[0]}"}
    settings = {name: value[0] if isinstance(value, list) else value
                for name, value in known["settings"].items()}  # fmt: skip
    fitted = known.get("fitted", "fairface-train")
    return {**CLIP, "debiaser": {"method": known["method"], "settings": settings,
                                 "attribute": "gender", "fitted": {"data": fitted}}}  # fmt: skip


def test_every_value_of_berg_can_appear() -> None:
    """All but the 14 of another paper, which does not name its model."""
    unreachable = set()
    for one in published("berg2022"):
        if one.model == "clip-audit-agarwal":
            unreachable.add(one)
            continue
        convention = "tiltmeter" if one.probe == "harms" else one.convention
        run = measured(one, 0.5, convention=convention)
        run = Run(run.table, {**run.meta, "model": model_of(one)})
        found = [(row["table"], row["published"]) for row in published_rows(run)]
        if (one.table, one.value) not in found:
            unreachable.add(one)
    assert {one.model for one in unreachable} == {"clip-audit-agarwal"}
    assert len(published("berg2022")) - len(unreachable) == 146


def test_a_correction_with_other_settings_is_not_the_papers() -> None:
    one = printed_as("clip-vit-b16+clip-clip-490", "max_skew", "3")
    run, model = measured(one, 0.1), model_of(one)
    assert [row["published"] for row in
            published_rows(Run(run.table, {**run.meta, "model": model}))] == [0.122]  # fmt: skip
    for changed in ({"settings": {"keep": 480}}, {"method": "leace"}, {"attribute": "race"},
                    {"fitted": {"data": "fairface-val"}}, {"fitted": None}):  # fmt: skip
        other = {**model, "debiaser": {**model["debiaser"], **changed}}
        assert silent(Run(run.table, {**run.meta, "model": other}))


def test_a_printed_change_is_compared_as_a_value() -> None:
    [one] = [o for o in published("berg2022") if o.change and o.table == "4b"
             and (o.metric, o.attribute) == ("max_skew", "race")]  # fmt: skip
    assert one.printed == -39.57
    assert one.value == pytest.approx(0.549 * (1 - 0.3957))


def test_a_run_stands_beside_what_was_printed() -> None:
    run = measured(baseline(), 0.231, ci_low=0.2, ci_high=0.26)
    found = published_rows(run)
    assert {row["table"] for row in found} == {"2", "3", "4a", "4b", "7"}  # the same model in each
    [row] = [row for row in found if row["table"] == "2"]
    assert (row["published"], row["measured"], row["source"]) == (0.233, 0.231, "berg2022")
    assert describe(row) == (
        "max_skew@1000 by gender (berg2022, Table 2): published .233, measured .231 (.200….260)"
    )
    assert with_published(run).table["published"].to_pylist() == [None, 0.233]


def silent(run: Run) -> bool:
    """No value of any paper is shown: not in a line, and not in the column."""
    return published_rows(run) == [] and set(
        with_published(run).table["published"].to_pylist()
    ) == {None}


@pytest.mark.parametrize(
    "model",
    [
        {"name": "clip", "spec": "hf:somebody/clip-vit-base-patch16-mine"},
        {"name": "clip", "spec": "hf:somebody/clip-vit-base-patch16"},
        {"name": "clip", "spec": "hf:/models/clip-vit-base-patch16"},
        {"name": "openai/clip-vit-base-patch16", "spec": None},
        {**CLIP, "debiaser": {"method": "subspace"}},  # a corrected model tells what is under it
        {"name": "clip", "spec": "hf:openai/clip-vit-base-patch32"},
    ],
)
def test_beside_another_model_nothing_is_shown(model: dict[str, object]) -> None:
    one = baseline()
    run = measured(one, 0.231)
    assert not silent(run)
    found = published_rows(Run(run.table, {**run.meta, "model": model}))
    assert one.value not in [row["published"] for row in found]
    assert not any(row["table"] in ("3", "4a", "4b", "7") for row in found)


@pytest.mark.parametrize(
    ("name", "images"),
    [("mine", 10954), ("fairface-val-adults", 10954), ("fairface-val", 5000),
     ("fairface-val", 10953), ("utkface", 23705)],
)  # fmt: skip
def test_beside_other_data_nothing_is_shown(name: str, images: int) -> None:
    run = measured(baseline(), 0.231, dataset=name)
    data = {"faces": {"name": name, "images": images, "found": {"rows": images}}}
    assert baseline().value not in [
        row["published"] for row in published_rows(Run(run.table, {**run.meta, "data": data}))
    ]


@pytest.mark.parametrize(
    "changed",
    [
        {"arguments": {"given": {"words": "sobit"}}},
        {"arguments": {"given": {"words": "berg+sobit"}}},
        {"arguments": {"given": {"templates": ["{}"]}}},
        {"arguments": {}},  # not known
        {"convention": replace(get_convention("berg2022"), balance="balanced").as_dict()},
        {"convention": replace(get_convention("berg2022"), images="raw").as_dict()},
    ],
)
def test_beside_other_words_or_choices_nothing_is_shown(changed: dict[str, object]) -> None:
    run = measured(baseline(), 0.231)
    assert silent(Run(run.table, {**run.meta, **changed}))
    assert silent(measured(baseline(), 0.231, category="Occupation"))
    assert silent(measured(baseline(), 0.231, convention="tiltmeter"))


def test_utkface_is_compared_without_balance() -> None:
    one = printed_as("clip-vit-b16", "max_skew", "4a", dataset="utkface")
    run = measured(one, 0.03)
    assert run.meta["convention"]["balance"] == "asis"
    assert [row["published"] for row in published_rows(run)] == [0.034]
    assert silent(Run(run.table, {**run.meta, "convention": get_convention("berg2022").as_dict()}))


def test_harms_take_the_shipped_classes_and_all_images() -> None:
    one = next(o for o in published("berg2022")
               if (o.model, o.target, o.group) == ("clip-vit-b16", "crime", "White"))  # fmt: skip
    run = measured(one, 0.2, convention="tiltmeter")
    assert [row["published"] for row in published_rows(run)] == [pytest.approx(0.269)]
    for changed in (
        {"arguments": {"given": {"classes": "mine.csv"}}},
        {"convention": get_convention("berg2022").as_dict()},  # a sample
    ):
        assert silent(Run(run.table, {**run.meta, **changed}))


def test_a_word_is_compared_in_the_papers_own_caption() -> None:
    one = next(o for o in published("sobit2024") if o.concept == "terrorist" and o.table == "2")
    run = measured(one, 0.7, convention="tiltmeter", model="h14")
    model = {"name": "h14", "spec": "open_clip:ViT-H-14/laion2b_s32b_b79k"}
    for words, shown in (("sobit", True), ("sobit+sobit-extra", True), ("mine.csv", False)):
        meta = {**run.meta, "model": model, "arguments": {"given": {"words": words}}}
        assert silent(Run(run.table, meta)) is not shown


def test_a_corpus_needs_no_model() -> None:
    one = next(o for o in published("sobit2024") if o.table == "3" and o.concept == "nurse")
    name = "laion-400m and 31 more files"
    table = measured(one, 0.32, dataset=name).table
    [row] = published_rows(
        Run(table, {"data": {"captions": {"name": name, "captions": 407_314_954}}})
    )
    assert (row["published"], row["concept"]) == (pytest.approx(0.31), "nurse")
    assert silent(Run(table, {"data": {"captions": {"name": name, "captions": 10_000}}}))


def test_every_dataset_has_its_size() -> None:
    """Without it, a part of a dataset would pass for the whole."""
    for one in published():
        assert silent(Run(rows(1, metric="x"), {"data": {"faces": {"name": one.dataset}}}))


def test_every_figure_can_be_asked_for() -> None:
    """Each names a metric and a probe, and no figure stands there twice."""
    whole = published()
    keys = [(o.source, o.table, o.model, o.dataset, o.metric, o.attribute, o.group, o.concept,
             o.category, o.target, o.change, o.k, o.experiment, o.template)
            for o in whole]  # fmt: skip
    assert len(set(keys)) == len(keys) == 578
    assert {o.probe for o in whole} == {
        "ranking", "retrieval", "zero_shot", "harms", "captions", "counterfactual", "stereotype",
        "propagation",
    }  # fmt: skip
    assert all(0 <= o.value <= 1 for o in whole if o.metric in ("group_rates", "recall"))


def test_averages_of_counterbias_are_those_of_its_templates() -> None:
    """Table 2 prints four templates and their average, for three models and six measures."""
    cells: dict[tuple[str, str, str | None], dict[str | None, float]] = {}
    for one in published("zhang2022"):
        if one.table == "2":
            of = cells.setdefault((one.model, one.metric, one.category), {})
            of[one.template] = one.printed
    assert len(cells) == 18
    wrong = []
    for key, values in cells.items():
        average = values.pop(None)
        assert len(values) == 4
        if abs(sum(values.values()) / 4 - average) > 0.011:
            wrong.append(key)
    # printed 4.84 where its templates give 4.39
    assert wrong == [("tcl", "abs_bias_L", "Occupation")]


def test_sems_table(shared: Callable[[str], Path]) -> None:
    """Recomputed figures come from our own notes on the field."""
    text = shared("FIELD.md").read_text(encoding="utf-8")
    region = between(text, "| method | B/16 gender", "So a projection can raise")
    lines = [[float(cell) for cell in line.split("|")[2:6]] for line in region.splitlines()[2:]]
    base = {name: rows_of("sem", "one protocol, many methods")[at::2]
            for at, name in enumerate(("B/16", "L/14"))}  # fmt: skip
    assert [b + ell for b, ell in zip(base["B/16"], base["L/14"], strict=True)] == lines
    assert len(lines) == 8
