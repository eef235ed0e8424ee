"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tiltmeter.cli.completion import completion_of
from tiltmeter.cli.help import COMPUTE, DATA, OUTPUT, STATISTICS, WORDS


def option(
    names: str,
    metavar: str,
    help: str,
    panel: str,
    *,
    default: str | None = None,
    complete: str | None = None,
    min: int | None = None,
    max: int | None = None,
) -> Any:
    """An option that takes a value.

    Parameters
    ----------
    names
        `--name`, or `--name -n`.
    metavar
        What to type.
    help
        The help text.
    panel
        The panel of the help page.
    default
        What happens without the option, if its default value does not say it.
    complete
        The kind of components whose names complete it, such as `probes`.
    min, max
        The range of a number.
    """
    return typer.Option(
        *names.split(),
        metavar=metavar,
        help=help,
        rich_help_panel=panel,
        show_default=True if default is None else default,
        autocompletion=None if complete is None else completion_of(complete),
        min=min,
        max=max,
    )


def flag(name: str, help: str, panel: str) -> Any:
    """A switch without a value.

    Parameters
    ----------
    name
        `--name`, `--name -n`, or `--name/--no-name`.
    help
        The help text.
    panel
        The panel of the help page.
    """
    return typer.Option(*name.split(), help=help, rich_help_panel=panel)


ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="hf:NAME, testbed:dual, ... (tiltmeter list models)",
        autocompletion=completion_of("models"),
    ),
]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="Directory of a saved audit")]

Images = Annotated[
    str | None,
    option(
        "--images",
        "SPEC",
        "Images with group labels: fairface:DIR, table:FILE, ...",
        DATA,
        complete="datasets",
    ),
]
Attribute = Annotated[
    str | None,
    option("--attribute -a", "A", "Label column, or an intersection: 'race*gender'", DATA),
]
Attributes = Annotated[
    list[str] | None,
    option("--attribute -a", "A", "Label column; repeatable", DATA, default="all label columns"),
]
Cross = Annotated[
    list[str] | None,
    option("--cross", "race*gender", "Intersection of label columns; repeatable", DATA),
]
Strict = Annotated[
    bool,
    flag("--strict", "Stop at a missing or unreadable image instead of skipping it", DATA),
]
Prompts = Annotated[
    Path | None,
    option("--prompts", "FILE", "YAML file with texts that name each group", WORDS),
]
WordList = Annotated[
    str | None,
    option(
        "--words",
        "NAME|FILE",
        "Built-in word list (list stimuli), .yaml or .csv file",
        WORDS,
        complete="stimuli",
    ),
]
ConventionName = Annotated[
    str,
    option(
        "--convention",
        "NAME",
        "How metrics are computed (list conventions)",
        STATISTICS,
        complete="conventions",
    ),
]
TopK = Annotated[
    list[int] | None,
    option(
        "--k", "N", "Length of rankings; repeatable", STATISTICS, min=1, default="the convention's"
    ),
]
Permutations = Annotated[
    int,
    option(
        "--permutations",
        "N",
        "Permutations for p-values; 0: none by permutation",
        STATISTICS,
        min=0,
    ),
]
Bootstraps = Annotated[
    int,
    option(
        "--bootstraps", "N", "Bootstrap resamples for intervals; 0: no intervals", STATISTICS, min=0
    ),
]
AuditPermutations = Annotated[
    int | None,
    option(
        "--permutations",
        "N",
        "Permutations for p-values; 0: none by permutation",
        STATISTICS,
        min=0,
        default="1000; built-in data 200",
    ),
]
AuditBootstraps = Annotated[
    int | None,
    option(
        "--bootstraps",
        "N",
        "Bootstrap resamples for intervals; 0: none",
        STATISTICS,
        min=0,
        default="400; built-in data 100",
    ),
]
Seed = Annotated[
    int,
    option("--seed", "N", "Same inputs and seed: same bytes", STATISTICS, min=0),
]
StorePlace = Annotated[
    Path | None,
    option("--store", "DIR", "Cache of image embeddings, see `tiltmeter embed`", COMPUTE),
]
Device = Annotated[
    str,
    option("--device", "auto|cpu|cuda", "Where models run", COMPUTE),
]
Precision = Annotated[
    str,
    option("--precision", "TYPE", "float32 or bfloat16; auto: bfloat16 on a GPU", COMPUTE),
]
EngineName = Annotated[
    str,
    option(
        "--engine",
        "local|parts|ray",
        "Where to compute; with options: ray:workers=8,gpus=0.5",
        COMPUTE,
    ),
]
TrustRemoteCode = Annotated[
    bool,
    flag("--trust-remote-code", "Run code from the checkpoint of an hf: model", COMPUTE),
]
Out = Annotated[
    Path | None,
    option("--out -o", "DIR", "Directory to save the run in", OUTPUT),
]
Force = Annotated[bool, flag("--force", "Replace existing output", OUTPUT)]
Json = Annotated[bool, flag("--json", "Print JSON; errors too, on stderr", OUTPUT)]
