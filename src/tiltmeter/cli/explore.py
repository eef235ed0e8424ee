"""The command `explore`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tiltmeter.cli import options as common
from tiltmeter.cli.help import COMPUTE, DATA, OUTPUT, STATISTICS
from tiltmeter.cli.options import flag, option
from tiltmeter.errors import EXTRAS, MissingError


def explore(
    source: Annotated[
        Path | None,
        typer.Argument(
            metavar="RUN_OR_STORE",
            help="Saved audit; or a store, with --model and --images",
            show_default="the built-in models and images",
        ),
    ] = None,
    model: Annotated[
        list[str] | None,
        option("--model", "SPEC", "Model; repeatable, to compare models", DATA, complete="models"),
    ] = None,
    images: common.Images = None,
    show_images: Annotated[
        bool, flag("--show-images", "Show thumbnails instead of coloured tiles", DATA)
    ] = False,
    strict: common.Strict = False,
    words: common.WordList = None,
    convention: Annotated[
        str | None,
        option(
            "--convention",
            "NAME",
            "How metrics are computed (list conventions)",
            STATISTICS,
            default="the run's",
            complete="conventions",
        ),
    ] = None,
    store: Annotated[
        Path | None,
        option("--store", "DIR", "Where the embeddings of the run are now", COMPUTE),
    ] = None,
    device: common.Device = "auto",
    trust_remote_code: common.TrustRemoteCode = False,
    port: Annotated[
        int | None,
        option(
            "--port", "N", "Port on this machine", OUTPUT, min=1, max=65535, default="any free one"
        ),
    ] = None,
    browser: Annotated[
        bool, flag("--browser/--no-browser", "Open the page in the browser", OUTPUT)
    ] = True,
) -> None:
    """Explore rankings in the browser: type a prompt, see the groups.

    The page is served on this machine only.
    """
    try:
        from tiltmeter.explorer.server import serve
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS["explore"]:
            raise
        raise MissingError("the explorer", package) from None
    from tiltmeter.cli.progress import progress_bar
    from tiltmeter.explorer.gather import gather

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
        names = ", ".join(model.name for model in scene.models)
        print(f"{len(scene):,} images of {scene.name}, ranked by {names}.")
        print(f"Open {address}", flush=True)
        print("Only this machine can reach it. Ctrl+C ends it.", flush=True)
        if browser:
            import webbrowser

            webbrowser.open(address)

    serve(scene, port=port, ready=ready)
