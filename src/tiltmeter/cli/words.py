"""The command `words`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tiltmeter.cli import options as common
from tiltmeter.cli.help import DATA, WORDS
from tiltmeter.cli.options import option
from tiltmeter.errors import InputError, UnknownNameError

if TYPE_CHECKING:
    from tiltmeter.results import Run


def words(
    run: common.RunArgument,
    before: Annotated[
        Path | None,
        option("--before", "RUN", "Saved audit before debiasing: show the changes", DATA),
    ] = None,
    model: Annotated[
        str | None,
        option("--model", "NAME", "Model to show, if the run has several", DATA, default="all"),
    ] = None,
    dataset: Annotated[
        str | None,
        option("--dataset", "NAME", "Dataset to show, if the run has several", DATA),
    ] = None,
    attribute: Annotated[
        str | None,
        option("--attribute -a", "A", "Attribute or intersection to show", DATA, default="all"),
    ] = None,
    category: Annotated[
        str | None,
        option("--category -c", "NAME", "Category of words to show", WORDS, default="all"),
    ] = None,
    many: Annotated[
        int,
        option("--many", "N", "Words per group and category", WORDS, min=1),
    ] = 1,
    lexicon: Annotated[
        str | None,
        option("--lexicon", "SPEC", "Words with a valence, to mark them: lexicon:FILE", WORDS),
    ] = None,
    as_json: common.Json = False,
) -> None:
    """Show which words a run associates with which groups.

    The tables of So-B-IT, for one run or before and after debiasing.
    """
    from tiltmeter.pages.terminal import words as terminal
    from tiltmeter.papers.sobit import models, select_run
    from tiltmeter.results import Run

    loaded, earlier = Run.load(run), None if before is None else Run.load(before)
    names: list[str | None] = [*models(loaded)] if model is None else [model]
    valence = None if lexicon is None else _load_valence(lexicon)
    tables: dict[str | None, Any] = {}
    for name in names or [None]:
        chosen = select_run(loaded, model=name, dataset=dataset)
        _check_names(chosen, run, attribute=attribute, category=category)
        tables[name] = terminal.tables(
            chosen,
            before=None if earlier is None else select_run(earlier, dataset=dataset),
            attribute=attribute,
            category=category,
            valence=valence,
            many=many,
        )
    if as_json:
        print(json.dumps(tables if len(tables) > 1 else next(iter(tables.values())), indent=2))
    else:
        terminal.words(tables)


def _check_names(run: Run, place: Path, *, attribute: str | None, category: str | None) -> None:
    from tiltmeter.papers.sobit import attributes, category_of, word_rows

    known = attributes(run)
    if not known:
        raise InputError(
            f"{place} has no C-ASC of words: this command reads the probe ranking; run tiltmeter "
            "audit MODEL --images SPEC --probe ranking --out DIR",
            value=place,
        )
    if attribute is not None and attribute not in known:
        raise UnknownNameError("attribute of the run", attribute, known)
    if category is not None:
        rows = word_rows(run, "c_asc", attribute or known[0])
        categories = {category_of(row) for row in rows}
        if category not in categories:
            raise UnknownNameError("category of the run", category, categories)


def _load_valence(spec: str) -> dict[str, float]:
    from tiltmeter.datasets import load_data

    lexicon = load_data(spec, role="lexicon")
    return dict(zip(lexicon.words, map(float, lexicon.valence), strict=True))
