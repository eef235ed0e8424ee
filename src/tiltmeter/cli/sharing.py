"""The commands that hand a run on: `card`, `bundle`, `verify`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from tiltmeter.errors import InputError

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A saved audit")]


def card(
    run: RunArgument,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="The card, such as README.md; if it is "
                     "there, only our section and results in it change. Default: print"),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", metavar="NAME", help="Which, if the run has several")
    ] = None,
    mlflow: Annotated[
        bool, typer.Option("--mlflow", help="Log the figures to MLflow instead of printing a card")
    ] = False,
    wandb: Annotated[
        bool, typer.Option("--wandb", help="Log the figures to Weights & Biases, likewise")
    ] = False,
) -> None:  # fmt: skip
    """Write a section for a model card of Hugging Face, with its model-index."""
    from tiltmeter.results import Run
    from tiltmeter.sharing.card import BEGIN, of_model
    from tiltmeter.sharing.card import card as make_card

    found = of_model(Run.load(run), model)
    if mlflow or wandb:
        from tiltmeter.sharing import trackers

        if mlflow:
            print(f"MLflow: run {trackers.to_mlflow(found)}")
        if wandb:
            print(f"Weights & Biases: run {trackers.to_wandb(found)}")
    if out is None:
        if not (mlflow or wandb):
            print(make_card(found), end="")
        return
    if out.is_dir():
        raise InputError(f"{out} is a directory: --out takes a file, such as {out / 'README.md'}")
    existing = ""
    if out.exists():
        try:
            existing = out.read_bytes().decode("utf-8")
        except UnicodeDecodeError:
            raise InputError(f"{out} is not text in UTF-8: name another --out") from None
    whole = make_card(found, existing).encode("utf-8")
    out.parent.mkdir(parents=True, exist_ok=True)
    beside = out.with_name(f".{out.name}.new")
    beside.write_bytes(whole)  # a card that is there is never half written
    beside.replace(out)
    done = "written" if not existing else "replaced" if BEGIN in existing else "added"
    print(f"{out}: section {done} ({BEGIN} ...), results in the model-index.")


def bundle(
    run: RunArgument,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="Default: RUN.tiltmeter.zip"),
    ] = None,
    with_vectors: Annotated[
        bool, typer.Option("--with-vectors", help="Pack the vectors too: they are of people")
    ] = False,
    with_instances: Annotated[
        bool,
        typer.Option("--with-instances", help="Pack single images' ids, labels and scores too"),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the file that is there")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines")] = False,
) -> None:
    """Pack a run into one file that others can check without the images and the model."""
    from tiltmeter.judge.bundle.pack import ENDING
    from tiltmeter.judge.bundle.pack import bundle as pack
    from tiltmeter.pages.terminal.sharing import bundled

    done = pack(
        run,
        out or Path(f"{run.resolve().name}{ENDING}"),
        with_vectors=with_vectors,
        with_instances=with_instances,
        replace=force,
    )
    if as_json:
        told = {"out": str(done.path), "digest": done.digest, "gone": done.gone}
        print(json.dumps({**told, "manifest": done.manifest}, indent=2))
    else:
        bundled(done)


def verify(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="FILE.tiltmeter.zip")],
    digest: Annotated[
        str | None,
        typer.Option("--digest", metavar="SHA256", help="The digest that was quoted for it"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines")] = False,
) -> None:
    """Check a bundle and recompute its numbers; exit code 1 where something differs."""
    from tiltmeter.judge.bundle.verify import verify as check
    from tiltmeter.pages.terminal.sharing import verified, verified_summary

    quoted = None if digest is None else digest.removeprefix("sha256:").strip().lower()
    if quoted is not None and (len(quoted) != 64 or set(quoted) - set("0123456789abcdef")):
        raise InputError(f"--digest takes 64 hexadecimal digits; got {digest!r}")
    found = check(bundle, digest=quoted)
    if as_json:
        print(json.dumps(verified_summary(found), indent=2))
    else:
        verified(found)
    if not found.ok:
        raise typer.Exit(1)
