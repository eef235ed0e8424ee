"""The command `captions`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from tiltmeter.cli import options as common
from tiltmeter.cli.help import DATA, WORDS
from tiltmeter.cli.options import flag, option
from tiltmeter.cli.parsing import check_new
from tiltmeter.cli.progress import progress_bar


def captions(
    corpus: Annotated[
        list[str],
        typer.Argument(
            metavar="CORPUS",
            help="Files, directories or patterns: Parquet, CSV, TSV, JSONL, COCO JSON",
        ),
    ],
    column: Annotated[
        str | None,
        option("--column", "NAME", "Column with captions", DATA, default="caption, text, ..."),
    ] = None,
    against: Annotated[
        Path | None,
        option("--against", "RUN", "Saved audit (--probe lift) whose lift is compared", DATA),
    ] = None,
    duplicates: Annotated[
        str | None,
        option("--duplicates", "exact|near", "Count copies of a caption once", DATA),
    ] = None,
    strict: Annotated[
        bool, flag("--strict", "Stop at an unreadable file instead of skipping it", DATA)
    ] = False,
    words: Annotated[
        str | None,
        option(
            "--words",
            "NAME|FILE",
            "Built-in word list (list stimuli), .yaml or .csv file",
            WORDS,
            complete="stimuli",
            default="sobit, or words of RUN",
        ),
    ] = None,
    groups: Annotated[
        str | None,
        option("--groups", "FILE", "Group words, .yaml", WORDS, default="gender and race"),
    ] = None,
    seed: common.Seed = 0,
    engine: common.EngineName = "local",
    out: common.Out = None,
    force: common.Force = False,
    as_json: common.Json = False,
) -> None:
    """Audit training captions: which words occur with which groups.

    Groups are found by words in the caption, such as she or man.
    """
    from tiltmeter.corpus import audit_captions
    from tiltmeter.engine.named import engine_of
    from tiltmeter.pages import terminal

    check_new(out, force=force)
    with progress_bar(quiet=as_json) as progress:
        run = audit_captions(
            corpus,
            words=words,
            groups=groups,
            column=column,
            against=against,
            duplicates=duplicates,
            strict=strict,
            seed=seed,
            engine=engine_of(engine),
            progress=progress,
        )
    if out is not None:
        run.save(out, replace=force)
    if as_json:
        print(json.dumps({"out": out and str(out), **terminal.captions_summary(run)}, indent=2))
        return
    terminal.captions(run)
    if out is not None:
        terminal.saved(out)
