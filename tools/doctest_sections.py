"""Extension of griffe: doctests that stand outside a section get the heading `Examples`.

Markdown would read the `>>>` of a bare doctest as three nested quotations.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

BARE = re.compile(r"(?<=\n\n)(?=>>> )|\A(?=>>> )")


class DoctestSections(griffe.Extension):
    """Puts bare doctests of every docstring into a section of their own."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        """Change the docstring of one object, where it has a bare doctest."""
        if obj.docstring and "Examples\n--------" not in obj.docstring.value:
            obj.docstring.value = BARE.sub("Examples\n--------\n", obj.docstring.value, count=1)
