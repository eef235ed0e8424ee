"""The command `explore`: a local page where one types a prompt and sees who comes up."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tiltmeter.errors import InputError


def explore(
    source: Annotated[
        Path | None,
        typer.Argument(
            metavar="RUN_OR_STORE",
            help="A saved audit; or a store of vectors, with --model and --images. Without one: "
            "the models alone, by default the built-in ones on the built-in world",
        ),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option("--model", metavar="SPEC", help="Model; again for more, to compare"),
    ] = None,
    images: Annotated[
        str | None, typer.Option("--images", metavar="SPEC", help="Images with groups")
    ] = None,
    show_images: Annotated[
        bool,
        typer.Option("--show-images", help="Show small copies of the pictures; else tiles"),
    ] = False,
    words: Annotated[
        str | None,
        typer.Option("--words", help="Words to click on: a shipped list, .yaml or .csv"),
    ] = None,
    convention: Annotated[
        str | None,
        typer.Option("--convention", help="Named choices. Default: the run's, else tiltmeter"),
    ] = None,
    store: Annotated[
        Path | None,
        typer.Option("--store", metavar="DIR", help="Where the vectors of a run are now"),
    ] = None,
    port: Annotated[
        int | None, typer.Option("--port", min=1, max=65535, help="Default: any free one")
    ] = None,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page in the browser")
    ] = True,
    device: Annotated[str, typer.Option("--device", help="auto, cpu or cuda")] = "auto",
    trust_remote_code: Annotated[
        bool,
        typer.Option("--trust-remote-code", help="Run code that a checkpoint of hf: brings along"),
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Stop at a picture that cannot be read")
    ] = False,
) -> None:
    """Type any prompt and see who comes up, beside what chance would give; on this machine only."""
    try:
        from tiltmeter.explorer.server import serve
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("starlette", "uvicorn", "anyio", "h11"):
            raise
        raise InputError(
            f"the explorer needs the package {error.name}: pip install 'tiltmeter[explore]'"
        ) from None
    from tiltmeter.cli.parsing import progress_bar
    from tiltmeter.explorer.data import gather

    if source is None and not model and images is None:
        model = ["testbed:dual", "testbed:dual?twin=fair"]
    with progress_bar(quiet=False) as progress:
        scene = gather(
            source,
            model or (),
            images,
            show_images=show_images,
            store=store,
            words=words,
            convention=convention,
            device=device,
            trust_remote_code=trust_remote_code,
            strict=strict,
            progress=progress,
        )

    def ready(address: str) -> None:
        names = ", ".join(tower.name for tower in scene.towers)
        print(f"{len(scene):,} images of {scene.name}, ranked by {names}.")
        print(f"Open {address}", flush=True)
        print("Only this machine can reach it. Ctrl+C ends it.", flush=True)
        if browser:
            import webbrowser

            webbrowser.open(address)

    serve(scene, port=port, ready=ready)
