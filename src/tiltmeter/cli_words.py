"""The command `words`: So-B-IT's tables of a finished run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from tiltmeter.errors import InputError, UnknownNameError


def words(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A saved audit")],
    before: Annotated[
        Path | None,
        typer.Option("--before", metavar="RUN", help="The audit before debiasing: what changed"),
    ] = None,
    category: Annotated[
        str | None, typer.Option("--category", "-c", help="One category of words only")
    ] = None,
    attribute: Annotated[
        str | None, typer.Option("--attribute", "-a", help="One attribute or crossing only")
    ] = None,
    many: Annotated[int, typer.Option(min=1, help="Words for each group and category")] = 1,
    model: Annotated[
        str | None, typer.Option("--model", help="Of a run of several models, this one")
    ] = None,
    dataset: Annotated[
        str | None, typer.Option("--dataset", help="Of a run on several data sets, this one")
    ] = None,
    lexicon: Annotated[
        str | None,
        typer.Option("--lexicon", metavar="SPEC", help="Words with a valence, to mark them by"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines")] = False,
) -> None:
    """Show which words stand beside which groups: the tables and figures of So-B-IT."""
    from tiltmeter.results import Run
    from tiltmeter.show import words as show_words
    from tiltmeter.sobit import attributes, category_of, only, word_rows

    chosen = only(Run.load(run), model=model, dataset=dataset)
    known = attributes(chosen)
    if not known:
        raise InputError(f"{run} has no words by group: tiltmeter audit --probe ranking")
    if attribute is not None and attribute not in known:
        raise UnknownNameError("attribute of the run", attribute, known)
    if category is not None:
        rows = word_rows(chosen, "c_asc", attribute or known[0])
        categories = {category_of(row) for row in rows}
        if category not in categories:
            raise UnknownNameError("category of the run", category, categories)
    valence = None
    if lexicon is not None:
        from tiltmeter.datasets import load_data

        data = load_data(lexicon, role="lexicon")
        valence = dict(zip(data.words, map(float, data.valence), strict=True))
    found = show_words.tables(
        chosen,
        before=None if before is None else only(Run.load(before), dataset=dataset),
        attribute=attribute,
        category=category,
        valence=valence,
        many=many,
    )
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        show_words.words(found)
