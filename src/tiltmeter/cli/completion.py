"""Shell completion: names of components, without importing any component."""

from __future__ import annotations

import os
from collections.abc import Callable

#: Specs that are complete as they are.
BUILT_IN = ("testbed:dual", "testbed:fusion", "testbed:stream", "testbed:writer")


def completion_of(kind: str) -> Callable[[str], list[str]]:
    """A completion callback for the names of one kind.

    Parameters
    ----------
    kind
        A kind that `tiltmeter list` knows, such as `probes`. Models and datasets get their colon.
    """

    def callback(incomplete: str) -> list[str]:
        from tiltmeter.catalogue import KINDS

        if _after_colon():
            return []
        names = list(KINDS[kind])
        if kind in ("models", "datasets"):
            names = [f"{name}:" for name in names]
        if kind == "models":
            names += BUILT_IN
        return sorted(name for name in names if name.startswith(incomplete))

    return callback


def _after_colon() -> bool:
    """Whether bash, which splits words at colons, completes a path behind one: it can itself."""
    words, at = os.environ.get("COMP_WORDS", "").split(), int(os.environ.get("COMP_CWORD", "0"))
    return ":" in words[max(at - 1, 0) : at + 1]


def complete_kind(incomplete: str) -> list[str]:
    """Completes the argument of `tiltmeter list`."""
    from tiltmeter.catalogue import KINDS

    return [kind for kind in KINDS if kind.startswith(incomplete)]
