"""The command `debias`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from tiltmeter.cli import options as common
from tiltmeter.cli.completion import completion_of
from tiltmeter.cli.help import DATA, METHOD, OUTPUT
from tiltmeter.cli.options import option
from tiltmeter.cli.parsing import data_roles, key_values
from tiltmeter.cli.progress import progress_bar


def debias(
    method: Annotated[
        str,
        typer.Argument(
            metavar="METHOD",
            help="leace, fairvlp, ... (tiltmeter list debiasers)",
            autocompletion=completion_of("debiasers"),
        ),
    ],
    model: common.ModelArgument,
    out: Annotated[
        Path,
        option("--out -o", "DIR", "Directory for the debiased model", OUTPUT),
    ],
    images: common.Images = None,
    attribute: common.Attribute = None,
    data: Annotated[
        list[str] | None,
        option("--data", "ROLE=SPEC", "Data for methods that train: captions=, utility=", DATA),
    ] = None,
    edited: Annotated[
        str | None,
        option("--edited", "DIR", "Edited images by id; or `redraw`", DATA),
    ] = None,
    share: Annotated[
        float,
        option("--share", "P", "Fit on a random share of the images", DATA),
    ] = 1.0,
    strict: common.Strict = False,
    prompts: common.Prompts = None,
    option: Annotated[
        list[str] | None,
        option(
            "--option",
            "NAME=VALUE",
            "Option of the method: tiltmeter list debiasers METHOD; repeatable",
            METHOD,
        ),
    ] = None,
    seed: common.Seed = 0,
    store: common.StorePlace = None,
    device: common.Device = "auto",
    engine: common.EngineName = "local",
    export: Annotated[
        str | None,
        option("--export", "hf", "Also write a transformers checkpoint into DIR", OUTPUT),
    ] = None,
    force: common.Force = False,
    as_json: common.Json = False,
) -> None:
    """Debias a model; the result is a model for `tiltmeter audit`.

    Training can be interrupted at any time: the same call continues from the last checkpoint.
    """
    from tiltmeter.debiasers.fitting import debias as run_debias

    if export is not None:
        from tiltmeter.debiasers.export import check_format, export_saved

        check_format(export, model)
    roles = data_roles(data or (), known=("captions", "utility"))
    settings = key_values("--option NAME=VALUE", option or (), example="keep=400")
    with progress_bar(quiet=as_json) as progress:
        debiased = run_debias(
            method,
            model,
            images,
            attribute=attribute,
            captions=roles.get("captions"),
            prompts=prompts,
            edited=edited,
            utility=roles.get("utility"),
            settings=settings,
            share=share,
            out=out,
            replace=force,
            store=store,
            device=device,
            engine=engine,
            strict=strict,
            seed=seed,
            progress=progress,
        )
    if export is not None:
        export_saved(debiased, out)
    record = debiased.provenance["debiaser"]
    if as_json:
        print(json.dumps({"out": str(out), **record}, indent=2))
    else:
        _show(debiased.name, record, out)


def _show(name: str, record: dict[str, Any], out: Path) -> None:
    from tiltmeter.pages.terminal.audit import left_out

    for line in left_out({"data": record["left_out"]}):
        print(line)
    rows = record["fitted"]["count"] if record["fitted"] else 0
    shards = f" in {record['shards']:,} shards" if "shards" in record else ""
    print(f"{name}: fitted on {rows:,} images{shards} in {record['seconds']:.1f} s.")
    for cost in record.get("utility_cost", ()):
        print(
            f"  {cost['metric']:28} {cost['before']:.3f} -> {cost['after']:.3f}  "
            f"change {cost['change']:+.3f} [{cost['change_low']:+.3f}, {cost['change_high']:+.3f}]"
            f"  n = {cost['n']:,}"
        )
    print(f"Audit it on other images:  tiltmeter audit {out} --images SPEC --unseen {out}")
