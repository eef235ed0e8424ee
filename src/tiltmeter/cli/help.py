"""Help pages that show what to type: panels by topic, metavars instead of Python types."""

from __future__ import annotations

from typing import Any

from typer.core import TyperArgument, TyperCommand, TyperGroup

#: Panels of options, in the order of every help page.
PANELS = DATA, WORDS, PROBES, METHOD, GATE, STATISTICS, COST, COMPUTE, OUTPUT = (
    "Data", "Words", "Probes", "Method", "Gate", "Statistics", "Cost (with --scale)", "Compute",
    "Output",
)  # fmt: skip


class Command(TyperCommand):
    """A command whose help shows no Python types, and all panels in order."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # lines of a docstring are longer than a terminal: only empty lines are breaks
        paragraphs = (self.help or "").split("\n\n")
        self.help = "\n\n".join(" ".join(one.split()) for one in paragraphs)

    def get_params(self, ctx: Any) -> list[Any]:
        params = _without_types(super().get_params(ctx))
        for param in params:
            if param.name == "help":
                param.rich_help_panel = OUTPUT
        # required options come first in a function, wherever they belong on the page
        return sorted(params, key=_panel_number)


class CommandGroup(TyperGroup):
    """A group of commands whose help shows no Python types."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types(super().get_params(ctx))


def _panel_number(param: Any) -> int:
    return -1 if isinstance(param, TyperArgument) else PANELS.index(param.rich_help_panel)


def _without_types(params: list[Any]) -> list[Any]:
    for param in params:
        if isinstance(param, TyperArgument):
            param.display_type_rich = lambda ctx: None  # type: ignore[method-assign]
        elif getattr(param, "is_flag", False):
            param.metavar = ""  # it takes no value
    return params


def examples(*commands: str) -> str:
    """The end of a help page.

    Parameters
    ----------
    *commands
        What can be typed, without `tiltmeter`.
    """
    lines = [f"  tiltmeter {command}".replace("[", r"\[") for command in commands]
    return "\n".join(["Examples:", *lines])
