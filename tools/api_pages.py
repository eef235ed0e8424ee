"""Hook of mkdocs: a line `::: registry tiltmeter.ROOM.TABLE` becomes one entry per registered name.

So a new metric, model, dataset, probe or debiaser is in the API reference as soon as it is in its
registry, and no page has to be edited.
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

LINE = re.compile(r"^::: registry ([\w.]+)\.(\w+)$", re.M)
PLAIN = ("show_symbol_type_heading: false", "show_symbol_type_toc: false")
#: What is shown of an entry: a loader is called by its spec, never by its signature.
OPTIONS = {
    "dataset": ("show_signature: false", "separate_signature: false", *PLAIN),
    "model": ("show_signature: false", "separate_signature: false", *PLAIN),
    "debiaser": ("members: false",),
    "probe": ("members: false", *PLAIN),
}


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace every registry line of a page."""
    return LINE.sub(lambda line: entries(line[1], line[2]), markdown)


def entries(module: str, table: str) -> str:
    """One mkdocstrings block per thing that is registered, under the names that it has."""
    registry = getattr(import_module(module), table)
    names: dict[str, list[str]] = {}
    for name, path in registry.paths.items():
        # a probe is an object without a docstring: its module says what it does
        target = path.partition(":")[0] if registry.kind == "probe" else path.replace(":", ".")
        names.setdefault(target, []).append(name)
    return "\n\n".join(
        _block(target, ", ".join(known), OPTIONS.get(registry.kind, ()))
        for target, known in names.items()
    )


def _block(target: str, heading: str, options: tuple[str, ...]) -> str:
    options = (f'heading: "{heading}"', f'toc_label: "{heading}"', *options)
    return "\n".join([f"::: {target}", "    options:", *(f"      {line}" for line in options)])
