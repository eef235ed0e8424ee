"""The command `frontier`."""

from __future__ import annotations

import json
from typing import Annotated

from tiltmeter.cli import options as common
from tiltmeter.cli.help import DATA, METHOD, OUTPUT, STATISTICS
from tiltmeter.cli.options import flag, option
from tiltmeter.cli.parsing import check_new, data_roles, numbers
from tiltmeter.cli.progress import progress_bar


def frontier(
    model: common.ModelArgument,
    attribute: Annotated[
        str,
        option("--attribute -a", "A", "Label column, or an intersection: 'race*gender'", DATA),
    ],
    images: common.Images = None,
    also: Annotated[
        list[str] | None,
        option(
            "--also", "SPEC", "Other images to evaluate on; repeatable", DATA, complete="datasets"
        ),
    ] = None,
    data: Annotated[
        list[str] | None,
        option("--data", "ROLE=SPEC", "Data to measure utility: captions=..., utility=...", DATA),
    ] = None,
    cross: Annotated[
        list[str] | None,
        option(
            "--cross",
            "race*gender",
            "Intersection of label columns; repeatable",
            DATA,
            default="the first two",
        ),
    ] = None,
    shares: Annotated[
        str,
        option("--shares", "P,P,P", "Shares of the images to fit, select and report on", DATA),
    ] = "0.5,0.25,0.25",
    strict: common.Strict = False,
    words: common.WordList = None,
    prompts: common.Prompts = None,
    method: Annotated[
        list[str] | None,
        option(
            "--method -m",
            "NAME",
            "Debiaser, or a pipeline A+B; repeatable",
            METHOD,
            default="all that need no training",
            complete="debiasers",
        ),
    ] = None,
    strength: Annotated[
        list[str] | None,
        option(
            "--strength",
            "NAME:OPTION=X,Y",
            "Strengths of a debiaser; repeatable",
            METHOD,
            default="the debiaser's",
        ),
    ] = None,
    max_cost: Annotated[
        float,
        option("--max-cost", "P", "Acceptable utility cost: 0.01 is one point", METHOD),
    ] = 0.01,
    probes: Annotated[
        bool,
        flag("--probes/--no-probes", "Predict the attribute from the embeddings", METHOD),
    ] = True,
    convention: common.ConventionName = "tiltmeter",
    k: Annotated[
        int | None,
        option("--k", "N", "Length of rankings", STATISTICS, min=1, default="the convention's"),
    ] = None,
    permutations: common.Permutations = 500,
    bootstraps: common.Bootstraps = 200,
    seed: common.Seed = 0,
    store: common.StorePlace = None,
    device: common.Device = "auto",
    out: common.Out = None,
    force: common.Force = False,
    all_strengths: Annotated[
        bool, flag("--all", "Show every strength, not only the selected ones", OUTPUT)
    ] = False,
    as_json: common.Json = False,
) -> None:
    """Compare debiasers and their strengths: bias against utility."""
    from tiltmeter.judge.frontier import frontier as run_frontier
    from tiltmeter.pages.terminal import frontier as terminal

    check_new(out, force=force)
    roles = data_roles(data or (), known=("captions", "utility"))
    with progress_bar(quiet=as_json) as progress:
        result = run_frontier(
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
            max_cost=max_cost,
            probes=probes,
            permutations=permutations,
            bootstraps=bootstraps,
            seed=seed,
            store=store,
            device=device,
            strict=strict,
            progress=progress,
        )
    if out is not None:
        result.save(out, replace=force)
    if as_json:
        print(json.dumps({"out": out and str(out), **terminal.as_json(result)}, indent=2))
        return
    terminal.frontier(result, all_strengths=all_strengths)
    if out is not None:
        print(f"\nSaved in {out}; candidates: {out / 'instances' / 'frontier.parquet'}")
