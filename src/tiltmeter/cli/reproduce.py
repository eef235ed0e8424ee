"""The command `reproduce`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from tiltmeter.cli import options as common
from tiltmeter.cli.completion import completion_of
from tiltmeter.cli.help import DATA, METHOD, OUTPUT
from tiltmeter.cli.options import flag, option
from tiltmeter.cli.parsing import data_roles
from tiltmeter.cli.progress import progress_bar


def reproduce(
    paper: Annotated[
        str,
        typer.Argument(
            metavar="PAPER",
            help="berg, sobit, ... (tiltmeter list papers)",
            autocompletion=completion_of("papers"),
        ),
    ],
    out: Annotated[
        Path,
        option("--out -o", "DIR", "Directory for the page and the runs", OUTPUT),
    ],
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL",
            help="hf:NAME, open_clip:NAME, ... (tiltmeter list models)",
            show_default="the built-in world, biased and fair",
            autocompletion=completion_of("models"),
        ),
    ] = None,
    data: Annotated[
        list[str] | None,
        option("--data", "ROLE=SPEC", "Data: faces=fairface:DIR, ...; repeatable", DATA),
    ] = None,
    train: Annotated[
        bool,
        flag("--train", "Also make what needs a network to be trained", METHOD),
    ] = False,
    permutations: common.Permutations = 1000,
    bootstraps: common.Bootstraps = 400,
    seed: common.Seed = 0,
    store: common.StorePlace = None,
    device: common.Device = "auto",
    show_images: Annotated[
        bool, flag("--show-images", "Show images of people on the page", OUTPUT)
    ] = False,
    force: common.Force = False,
    as_json: common.Json = False,
) -> None:
    """Make the tables and figures of a paper, with its numbering.

    Published values are shown next to ours where model, data, words and convention are the same.
    The same call again continues where it was interrupted.
    """
    from tiltmeter.pages.terminal.layout import show
    from tiltmeter.reproduce.runner import reproduce as run_reproduce

    with progress_bar(quiet=as_json) as progress:
        page = run_reproduce(
            paper,
            models or (),
            out=out,
            data=data_roles(data or ()),
            train=train,
            permutations=permutations,
            bootstraps=bootstraps,
            seed=seed,
            store=store,
            device=device,
            show_images=show_images,
            replace=force,
            progress=progress,
        )
    place = out / "index.html"
    if as_json:
        print(json.dumps({"out": str(out), "page": str(place), "made": page.made}, indent=2))
        return
    show(page.overview)
    show(f"Page: {place}", soft_wrap=True)
