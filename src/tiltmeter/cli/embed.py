"""The commands `embed` and `store`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from tiltmeter.cli import options as common
from tiltmeter.cli.help import COMPUTE, DATA, OUTPUT, Command, CommandGroup, examples
from tiltmeter.cli.options import flag, option
from tiltmeter.cli.progress import progress_bar


def embed(
    model: common.ModelArgument,
    images: Annotated[
        str,
        option(
            "--images",
            "SPEC",
            "Images: fairface:DIR, ... (tiltmeter list datasets)",
            DATA,
            complete="datasets",
        ),
    ],
    store: Annotated[
        Path,
        option("--store", "DIR", "Where embeddings are saved", OUTPUT),
    ],
    strict: common.Strict = False,
    device: common.Device = "auto",
    precision: common.Precision = "auto",
    batch: Annotated[
        int | None,
        option("--batch", "N", "Images per batch", COMPUTE, min=1, default="by device"),
    ] = None,
    workers: Annotated[
        int | None,
        option(
            "--workers",
            "N",
            "Processes that decode images; on Ray, threads per worker",
            COMPUTE,
            min=0,
            default="by device and cores",
        ),
    ] = None,
    decode: Annotated[
        str,
        option("--decode", "auto|cpu|gpu", "Where JPEG files are decoded", COMPUTE),
    ] = "auto",
    compiled: Annotated[
        bool, flag("--compile", "Use torch.compile: slow to start, then faster", COMPUTE)
    ] = False,
    engine: common.EngineName = "local",
    trust_remote_code: common.TrustRemoteCode = False,
    as_json: common.Json = False,
) -> None:
    """Embed images into a store; cached embeddings are reused.

    It can be interrupted at any time: the next call continues.
    """
    from tiltmeter.datasets import list_shards, load_data
    from tiltmeter.datasets.found_images import check_complete, describe
    from tiltmeter.engine.embedding.embed_images import Workers, load_for
    from tiltmeter.engine.embedding.embed_images import embed as run_embed
    from tiltmeter.engine.embedding.loader import LoaderConfig
    from tiltmeter.engine.embedding.shards import embed_shards
    from tiltmeter.engine.named import engine_of
    from tiltmeter.pages import terminal
    from tiltmeter.store import Store

    where = engine_of(engine)
    shards = None if where.name == "local" else list_shards(images)
    data = None if shards is not None and shards.in_images else load_data(images)
    check_complete(data, strict=strict)  # before a model is loaded
    loaded, load = load_for(where, model, device=device, trust_remote_code=trust_remote_code)
    config = LoaderConfig(batch, workers, precision=precision, decode=decode, compiled=compiled)
    on = Workers(where, load, read=False)
    if shards is not None and shards.in_images:
        with progress_bar(quiet=as_json) as progress:
            embedded = embed_shards(
                loaded, shards, Store(store), on, config, strict=strict, progress=progress
            )
        if as_json:
            print(json.dumps(embedded.counts, indent=2))
        else:
            terminal.embedded_shards(embedded, describe(embedded.faces), store)
        return
    with progress_bar(quiet=as_json) as progress:
        result = run_embed(
            loaded,
            getattr(data, "images", None),
            getattr(data, "ids", ()),
            store=Store(store),
            config=config,
            strict=strict,
            workers=on,
            progress=progress,
        )
    if as_json:
        counts = {"images": len(result.rows), "embedded": result.new}
        rest = {"unreadable": result.unreadable, "seconds": round(result.seconds, 3)}
        print(json.dumps({**counts, **rest}, indent=2))
    else:
        terminal.embedded(result, describe(data), store)


store_app = typer.Typer(cls=CommandGroup, help="Manage stored embeddings.", no_args_is_help=True)
StoreArgument = Annotated[Path, typer.Argument(metavar="DIR", help="Directory of a store")]


@store_app.command("info", cls=Command, epilog=examples("store info store"))
def store_info(store: StoreArgument, as_json: common.Json = False) -> None:
    """Show the models, images and size of a store."""
    from tiltmeter.pages import terminal
    from tiltmeter.store import Store

    spaces = [space.info() for space in Store(store).spaces()]
    if as_json:
        print(json.dumps(spaces, indent=2))
    else:
        terminal.spaces(spaces)


@store_app.command("verify", cls=Command, epilog=examples("store verify store --remove"))
def store_verify(
    store: StoreArgument,
    remove: Annotated[
        bool, flag("--remove", "Remove damaged files; `embed` computes them again", OUTPUT)
    ] = False,
) -> None:
    """Verify checksums; exit code 1 if a file is damaged."""
    from tiltmeter.store import Store

    damaged, shards = 0, 0
    for space in Store(store).spaces():
        shards += len(space.shards())
        for shard, problem in list(space.problems()):
            print(f"{space.path}: {problem}" + (" (removed)" if remove else ""))
            damaged += 1
            if remove:
                space.remove(shard)
    print(f"{shards:,} shards checked, {damaged:,} damaged.")
    if damaged and not remove:
        raise typer.Exit(1)


@store_app.command("merge", cls=Command, epilog=examples("store merge store other_store"))
def store_merge(
    store: StoreArgument,
    others: Annotated[list[Path], typer.Argument(metavar="OTHER", help="Stores to copy from")],
) -> None:
    """Copy the embeddings of other stores into this one."""
    from tiltmeter.store import Store

    for other in others:
        print(f"{Store(store).merge(Store(other)):,} shards copied from {other}.")


@store_app.command("gc", cls=Command, epilog=examples("store gc store"))
def store_gc(store: StoreArgument) -> None:
    """Remove leftovers of interrupted writers, and duplicate shards."""
    from tiltmeter.store import Store

    print(f"{len(Store(store).gc()):,} files removed.")
