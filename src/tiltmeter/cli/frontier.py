"""The command `frontier`: methods and strengths, bias against usefulness."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.types import Progress


def frontier(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="tiltmeter list models")],
    attribute: Annotated[
        str, typer.Option("--attribute", "-a", help="Label column, or a crossing: 'race*gender'")
    ],
    images: Annotated[
        str | None, typer.Option("--images", metavar="SPEC", help="Images with groups")
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option("--method", "-m", help="Method or A+B; again for more. Default: untrained"),
    ] = None,
    strength: Annotated[
        list[str] | None,
        typer.Option("--strength", metavar="METHOD:NAME=VALUE,...", help="Instead of its own"),
    ] = None,
    also: Annotated[
        list[str] | None,
        typer.Option("--also", metavar="SPEC", help="Other images to judge on; again for more"),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option("--data", metavar="ROLE=SPEC", help="captions=..., utility=...: usefulness"),
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option("--prompts", metavar="FILE", help="YAML: texts that name each group"),
    ] = None,
    words: Annotated[str | None, typer.Option("--words", help="Word list, or a file")] = None,
    cross: Annotated[
        list[str] | None, typer.Option("--cross", metavar="A*B", help="Default: the first two")
    ] = None,
    convention: Annotated[str, typer.Option("--convention")] = "tiltmeter",
    k: Annotated[int | None, typer.Option("--k", min=1, help="Top k")] = None,
    shares: Annotated[
        str, typer.Option("--shares", help="To fit on, to choose by, to report")
    ] = "0.5,0.25,0.25",
    loss: Annotated[
        float, typer.Option("--loss", help="Usefulness that may be given up: 0.01 is one point")
    ] = 0.01,
    probes: Annotated[
        bool, typer.Option("--probes/--no-probes", help="Ask what the vectors still tell")
    ] = True,
    permutations: Annotated[int, typer.Option(min=0, help="Relabellings for the null")] = 500,
    bootstraps: Annotated[int, typer.Option(min=0, help="Resamples for intervals")] = 200,
    all_strengths: Annotated[
        bool, typer.Option("--all", help="Show every strength, not only the chosen ones")
    ] = False,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Where to keep the run")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the run that is there")] = False,
    store: Annotated[
        Path | None, typer.Option("--store", metavar="DIR", help="Where vectors are kept")
    ] = None,
    device: Annotated[str, typer.Option("--device", help="auto, cpu or cuda")] = "auto",
    strict: Annotated[bool, typer.Option("--strict", help="Stop at an unreadable picture")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Same inputs and seed, same bytes")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines")] = False,
) -> None:
    """Sweep debiasers and their strengths: bias against usefulness, on unseen images."""
    from tiltmeter.cli.parsing import data_roles, numbers, progress_bar
    from tiltmeter.judge.frontier import frontier as run_frontier
    from tiltmeter.pages.terminal import frontier as show

    if out is not None and out.exists() and not force:
        raise InputError(f"{out} exists already: name another --out, or pass --force")
    roles = data_roles(data or ())
    if unknown := [role for role in roles if role not in ("captions", "utility")]:
        raise UnknownNameError("role of data for frontier", unknown[0], ("captions", "utility"))
    with progress_bar(quiet=as_json) as progress:
        tell: Progress = progress
        found = run_frontier(
            model,
            images,
            attribute=attribute,
            methods=method,
            strengths=strength,
            also=also or (),
            words=words,
            cross=cross,
            captions=roles.get("captions"),
            utility=roles.get("utility"),
            prompts=prompts,
            convention=convention,
            k=k,
            shares=numbers("--shares", shares),
            loss=loss,
            probes=probes,
            permutations=permutations,
            bootstraps=bootstraps,
            seed=seed,
            store=store,
            device=device,
            strict=strict,
            progress=tell,
        )
    if out is not None:
        found.save(out, replace=force)
    if as_json:
        print(json.dumps({"out": out and str(out), **show.as_json(found)}, indent=2))
    else:
        show.frontier(found, all_strengths=all_strengths)
        if out is not None:
            print(f"\nKept in {out}; one row a candidate: {out / 'instances' / 'frontier.parquet'}")
