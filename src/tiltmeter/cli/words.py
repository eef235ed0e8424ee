"""Commands about finished runs: `words`, So-B-IT's tables of one; `compare`, two of them."""

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
    from tiltmeter.pages.terminal import words as show_words
    from tiltmeter.papers.sobit import attributes, category_of, only, word_rows
    from tiltmeter.results import Run

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


def compare(
    before: Annotated[Path, typer.Argument(metavar="BEFORE", help="A saved audit")],
    after: Annotated[Path, typer.Argument(metavar="AFTER", help="Another, of the same images")],
    fail_on: Annotated[
        str | None,
        typer.Option("--fail-on", metavar="worse", help="Exit code 1 if anything got worse"),
    ] = None,
    limits: Annotated[
        list[str] | None,
        typer.Option(
            "--max",
            metavar="LIMIT",
            help="Exit code 1 if AFTER breaks it: 'max_skew@1000\\[gender] < 0.15'; again for more",
        ),
    ] = None,
    margin: Annotated[
        float | None,
        typer.Option("--margin", help="A change that does not matter: what lies within passes"),
    ] = None,
    markdown: Annotated[
        str | None,
        typer.Option("--markdown", metavar="FILE", help="Also as Markdown; - prints that instead"),
    ] = None,
    swaps: Annotated[int, typer.Option(help="Swaps of images for p-values")] = 999,
    bootstraps: Annotated[int, typer.Option(help="Resamples for intervals")] = 400,
    seed: Annotated[int, typer.Option(min=0, help="Same runs and seed, same answer")] = 0,
    store: Annotated[
        Path | None,
        typer.Option("--store", metavar="DIR", help="Where the vectors are, if they were moved"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines")] = False,
) -> None:
    """Tell what got better, what got worse, and what cannot be told: every attribute, every word.

    Exit codes: 0 passed, 1 worse or a limit broken, 2 usage error, 3 nothing was tested.
    """
    from tiltmeter.judge.gate import Limit, gate
    from tiltmeter.judge.gate import compare as run_compare
    from tiltmeter.pages.terminal import gate as show_gate
    from tiltmeter.results import Run

    asked = [Limit.parse(one) for one in limits or ()]  # a slip is told before the work
    if fail_on not in (None, "worse"):
        raise UnknownNameError("reason to fail (--fail-on)", str(fail_on), ("worse",))
    second = Run.load(after)
    found = run_compare(
        Run.load(before),
        second,
        margin=margin,
        swaps=swaps,
        bootstraps=bootstraps,
        seed=seed,
        store=store,
    )
    decided = None
    if asked or fail_on or not found.tested:
        decided = gate(second, found, fail_on=fail_on or "never", max=asked)
    if markdown is not None:
        page = show_gate.markdown(found, decided)
        if markdown == "-":
            print(page, end="")
        else:
            Path(markdown).write_text(page, encoding="utf-8")
    if as_json:
        print(json.dumps(show_gate.summary(found, decided), indent=2))
    elif markdown != "-":
        show_gate.comparison(found, decided)
    if decided is not None and not decided:
        raise typer.Exit(3 if decided.untested else 1)
