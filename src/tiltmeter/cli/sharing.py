"""The commands that share a run: `card`, `bundle`, `verify`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from tiltmeter.cli import options as common
from tiltmeter.cli.help import DATA, OUTPUT
from tiltmeter.cli.options import flag, option
from tiltmeter.errors import InputError


def card(
    run: common.RunArgument,
    model: Annotated[
        str | None,
        option("--model", "NAME", "Model of the card, if the run has several", DATA),
    ] = None,
    out: Annotated[
        Path | None,
        option(
            "--out -o",
            "FILE",
            "Card to write or update, such as README.md; other sections are kept",
            OUTPUT,
            default="print",
        ),
    ] = None,
    mlflow: Annotated[
        bool, flag("--mlflow", "Log the metrics to MLflow instead of printing", OUTPUT)
    ] = False,
    wandb: Annotated[
        bool, flag("--wandb", "Log the metrics to Weights & Biases instead", OUTPUT)
    ] = False,
) -> None:
    """Write a model card section for Hugging Face.

    Also writes the results into the card's model-index."""
    from tiltmeter.results import Run
    from tiltmeter.sharing.card import card as make_card
    from tiltmeter.sharing.card import of_model

    chosen = of_model(Run.load(run), model)
    if mlflow or wandb:
        from tiltmeter.sharing import trackers

        if mlflow:
            print(f"MLflow: run {trackers.to_mlflow(chosen)}")
        if wandb:
            print(f"Weights & Biases: run {trackers.to_wandb(chosen)}")
    if out is not None:
        existing = _read_card(out)
        _write_card(out, existing, make_card(chosen, existing))
    elif not (mlflow or wandb):
        print(make_card(chosen), end="")


def _read_card(path: Path) -> str:
    if path.is_dir():
        raise InputError(
            f"{path} is a directory: --out takes a file, such as {path / 'README.md'}",
            code="bad-option",
            value=path,
        )
    try:
        return path.read_bytes().decode("utf-8") if path.exists() else ""
    except UnicodeDecodeError:
        raise InputError(
            f"{path} is not UTF-8 text: choose another --out", code="bad-file", value=path
        ) from None


def _write_card(path: Path, existing: str, text: str) -> None:
    from tiltmeter.sharing.card import BEGIN

    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.new")
    new.write_bytes(text.encode("utf-8"))  # an existing card is never half written
    new.replace(path)
    done = "written" if not existing else "replaced" if BEGIN in existing else "added"
    print(f"{path}: section {done} ({BEGIN} ...), results in the model-index.")


def bundle(
    run: common.RunArgument,
    with_vectors: Annotated[
        bool, flag("--with-vectors", "Include embeddings (they are of people)", DATA)
    ] = False,
    with_instances: Annotated[
        bool, flag("--with-instances", "Include ids, labels and scores of images", DATA)
    ] = False,
    out: Annotated[
        Path | None,
        option("--out -o", "FILE", "The bundle", OUTPUT, default="RUN.tiltmeter.zip"),
    ] = None,
    force: common.Force = False,
    as_json: common.Json = False,
) -> None:
    """Pack a run into one file that others can verify.

    To verify it, neither the images nor the model are needed.
    """
    from tiltmeter.judge.bundle.pack import ENDING
    from tiltmeter.judge.bundle.pack import bundle as pack
    from tiltmeter.pages.terminal.sharing import bundled

    packed = pack(
        run,
        out or Path(f"{run.resolve().name}{ENDING}"),
        with_vectors=with_vectors,
        with_instances=with_instances,
        replace=force,
    )
    if as_json:
        summary = {"out": str(packed.path), "digest": packed.digest, "missing": packed.missing}
        print(json.dumps({**summary, "manifest": packed.manifest}, indent=2))
    else:
        bundled(packed)


def verify(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="FILE.tiltmeter.zip")],
    digest: Annotated[
        str | None,
        option("--digest", "SHA256", "The digest that was published with it", DATA),
    ] = None,
    require_recomputed: Annotated[
        bool,
        flag("--require-recomputed", "Fail if a ranking result could not be recomputed", DATA),
    ] = False,
    as_json: common.Json = False,
) -> None:
    """Verify a bundle's hashes, and recompute results from its counts.

    Exit code 1 if any differs; with --require-recomputed also if nothing was
    recomputed, or a ranking result was not."""
    from tiltmeter.judge.bundle.verify import verify as check
    from tiltmeter.pages.terminal.sharing import verified, verified_summary

    expected = None if digest is None else digest.removeprefix("sha256:").strip().lower()
    if expected is not None and (len(expected) != 64 or set(expected) - set("0123456789abcdef")):
        raise InputError(
            f"--digest takes 64 hexadecimal digits; got {digest!r}",
            code="bad-option",
            value=digest,
        )
    result = check(bundle, digest=expected)
    if as_json:
        print(json.dumps(verified_summary(result), indent=2))
    else:
        verified(result)
    if not result.ok or (require_recomputed and not result.fully_recomputed):
        if result.ok:
            typer.echo("not verified: some results were not recomputed", err=True)
        raise typer.Exit(1)
