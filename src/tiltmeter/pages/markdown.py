"""The Markdown renderer: tables, findings and paragraphs whose labels stay text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from tiltmeter.pages import text
from tiltmeter.pages.model import Finding, Table

_SIGNS = re.compile(r"([\\`*_{}\[\]#|~])")
#: An ampersand that Markdown would read as part of an entity; any other is shown as it is.
_ENTITY = re.compile(r"&(?=\\?#?\w+;)")


def escape(label: Any, most: int = 4000) -> str:
    """Text that Markdown shows as it is: no tags, links or markers.

    >>> escape("<script> a|b *c*")
    '&lt;script&gt; a\\\\|b \\\\*c\\\\*'
    >>> escape("?images=DIR&balanced=yes &lt;")
    '?images=DIR&balanced=yes &amp;lt;'
    """
    shown = _SIGNS.sub(r"\\\1", text.short(label, most))
    return _ENTITY.sub("&amp;", shown).replace("<", "&lt;").replace(">", "&gt;")


def table(made: Table, *, caption: bool = True) -> str:
    """A table in GitHub's Markdown, all rows; numbers to the right, bad news in bold."""
    rule = ["---" if column.is_text else "---:" for column in made.columns]
    lines = [[escape(column.head) for column in made.columns], rule]
    for at, cells in enumerate(made.merged_cells()):
        shown = [escape(cell) for cell in cells]
        if made.tone(at) == "bad":
            shown[-1] = f"**{shown[-1]}**"
        lines.append(shown)
    body = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return f"{escape(made.caption)}\n\n{body}" if caption else body


def listed(lines: Sequence[str]) -> str:
    """A list of plain lines."""
    return "\n".join(f"- {escape(line)}" for line in lines)


def findings(found: Sequence[Finding]) -> str:
    """A list of findings, each with its numbers."""
    lines = []
    for finding in found:
        sentence = Markup(finding.text).striptags().rstrip(".")
        numbers = finding.numbers.rstrip(".")
        lines.append(f"{sentence}: {numbers}.")
    return listed(lines)
