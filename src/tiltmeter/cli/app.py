"""The command line: assembles the commands and prints errors."""

from __future__ import annotations

import errno
import io
import json
import sys
import warnings
from typing import Annotated, Any, NoReturn

import typer

from tiltmeter import __version__
from tiltmeter.cli.audit import audit
from tiltmeter.cli.calibrate import calibrate
from tiltmeter.cli.captions import captions
from tiltmeter.cli.compare import compare
from tiltmeter.cli.debias import debias
from tiltmeter.cli.embed import embed, store_app
from tiltmeter.cli.explore import explore
from tiltmeter.cli.frontier import frontier
from tiltmeter.cli.help import Command, CommandGroup, examples
from tiltmeter.cli.installation import doctor, list_
from tiltmeter.cli.leaderboard import leaderboard
from tiltmeter.cli.morph import morph
from tiltmeter.cli.plan import plan
from tiltmeter.cli.report import report
from tiltmeter.cli.reproduce import reproduce
from tiltmeter.cli.sharing import bundle, card, verify
from tiltmeter.cli.words import words
from tiltmeter.errors import TiltmeterError, UnknownNameError

AUDIT, CORRECT, EXPLAIN, SHARE, SET_UP = "Audit", "Correct", "Explain", "Share", "Set-up"
#: Panel, command and examples, in the order of the main help page.
COMMANDS = (
    (AUDIT, audit, (
        "audit",
        "audit hf:openai/clip-vit-base-patch32 --images fairface:DIR",
        "audit embeddings:DIR --cross 'race*gender' --out run",
    )),
    (AUDIT, plan, (
        "plan --images table:labels.csv --cross 'race*gender'",
        "plan --scale 1e9 --model hf:DIR --workers 64",
    )),
    (AUDIT, embed, ("embed hf:DIR --images fairface:DIR --store store",)),
    (AUDIT, reproduce, (
        "reproduce sobit --out sobit",
        "reproduce sobit hf:DIR --data faces=fairface:DIR --out sobit",
    )),
    (AUDIT, captions, ("captions corpus/*.parquet --against tiltmeter-runs/001",)),
    (CORRECT, debias, (
        "debias leace hf:DIR --images fairface:DIR -a gender --out fair",
        "debias fairvlp testbed:fusion --option variant=vision --out fair",
    )),
    (CORRECT, frontier, (
        "frontier testbed:dual -a shape --out frontier",
        "frontier hf:DIR --images fairface:DIR -a gender -m leace",
    )),
    (EXPLAIN, report, ("report tiltmeter-runs/001 --figures figures",)),
    (EXPLAIN, words, (
        "words tiltmeter-runs/001 --category Occupation",
        "words after --before before",
    )),
    (EXPLAIN, explore, ("explore", "explore tiltmeter-runs/001 --show-images")),
    (EXPLAIN, compare, (
        "compare before after --fail-on worse",
        "compare before after --max 'max_skew@1000[gender] < 0.15'",
    )),
    (EXPLAIN, leaderboard, (
        "leaderboard runs/clip runs/siglip runs/blip --out leaderboard.html",
    )),
    (SHARE, card, ("card tiltmeter-runs/001 --out README.md",)),
    (SHARE, bundle, ("bundle tiltmeter-runs/001 --out 001.tiltmeter.zip",)),
    (SHARE, verify, ("verify 001.tiltmeter.zip",)),
    (SET_UP, morph, (
        "morph --images 'cfd:DIR?expression=N&race=A,B,W' --share 0.5 --out morphs",
    )),
    (SET_UP, list_, ("list", "list conventions", "list stimuli default")),
    (SET_UP, doctor, ("doctor",)),
    (SET_UP, calibrate, ("calibrate --metric c_asc --metric max_skew --out calibration",)),
)  # fmt: skip

#: An option or argument that cannot be read: of the click that typer uses, which may be its own.
USAGE_ERROR: Any = typer.BadParameter.__base__

app = typer.Typer(
    name="tiltmeter",
    cls=CommandGroup,
    help="Measure the social bias of vision-language models.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
for panel, command, lines in COMMANDS:
    name = command.__name__.rstrip("_")
    app.command(name, cls=Command, rich_help_panel=panel, epilog=examples(*lines))(command)
    if command is embed:
        app.add_typer(store_app, name="store", rich_help_panel=AUDIT)


@app.callback(invoke_without_command=True)
def version(
    ctx: typer.Context,
    show_version: Annotated[bool, typer.Option("--version", help="Print the version")] = False,
) -> None:
    """Measure the social bias of vision-language models."""
    if show_version:
        print(f"tiltmeter {__version__}")
        raise typer.Exit
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())


def main() -> None:
    """Runs the command line; an error that the user can fix is one line and exit code 2."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that knows ASCII only
    # one line for whoever sits at the terminal, without our line of code
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"
    try:
        # the name also as `python -m tiltmeter`; errors of options are ours to print
        sys.exit(app(prog_name="tiltmeter", standalone_mode=False))
    except USAGE_ERROR as error:
        if not error.format_message():  # no command: the help page
            error.show()
            sys.exit(2)
        where = error.ctx.command_path if error.ctx else "tiltmeter"
        given = _not_parsed(error)
        got = "" if given is None else f"; got {given!r}"
        _fail(f"{error.format_message()}{got} ({where} --help)", "bad-option", given)
    except typer.Abort:
        sys.exit(1)
    except TiltmeterError as error:
        _fail(str(error) + _hint(error), error.code, error.value)
    except OSError as error:
        message = f"{error.filename or 'a file'}: {error.strerror or error}"
        if error.errno == errno.ENOSPC:
            message += "; free some space, or name another directory"
        _fail(message, "os-error", error.filename)


def _not_parsed(error: Exception) -> object:
    """What was given for an option and is no value of its type; None if that is not known."""
    # pydantic's, which typer reads options with; its messages do not repeat the input
    details: Any = getattr(error.__cause__, "errors", list)()
    return details[0].get("input") if details else None


def _hint(error: TiltmeterError) -> str:
    """Whether an unknown component is known as one of another kind."""
    if not isinstance(error, UnknownNameError):
        return ""
    from tiltmeter.catalogue import KINDS

    own, name = f"{error.kind}s", error.value
    kinds = [kind for kind, names in KINDS.items() if name in names]
    if own not in KINDS or own in kinds or not kinds:
        return ""
    return f" ({name!r} is one of the {kinds[0]}: tiltmeter list {kinds[0]})"


def _fail(message: str, code: str, value: object) -> NoReturn:
    if "--json" in sys.argv:
        error = {"code": code, "message": message, "value": value}
        print(json.dumps({"error": error}, default=str, ensure_ascii=False), file=sys.stderr)
        sys.exit(2)
    from rich.console import Console
    from rich.text import Text

    from tiltmeter.pages.text import printable

    line = Text.assemble(("error: ", "bold red"), printable(message), (f" [{code}]", "dim"))
    Console(stderr=True, soft_wrap=True).print(line)
    sys.exit(2)
