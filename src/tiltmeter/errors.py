"""Every error a user can cause: what was given, what was expected, what to do.

TiltmeterError            anything the package says no to; the command line exits with 2
├── InputError            data of the wrong shape, values or labels
│   ├── MissingError      a package that is not installed
│   └── DamagedError      a file of a store that is not what was written
├── ProbeFailedError      a probe of an audit failed; `.run` keeps the others (tiltmeter.results)
├── UnknownNameError      a name that no registry holds, with the nearest ones
└── ConventionError       two results that were measured under different conventions
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path


class TiltmeterError(Exception):
    """Base of all errors that the package raises on purpose."""


#: What a user can put right; any other exception is a bug.
EXPECTED = (TiltmeterError, OSError)


class InputError(TiltmeterError, ValueError):
    """The data given cannot be measured as they are."""


def reason(error: Exception) -> str:
    """The message of an error; a bug's with its type."""
    return str(error) if isinstance(error, EXPECTED) else f"{type(error).__name__}: {error}"


class MissingError(InputError):
    """A package that something needs is not installed."""

    def __init__(self, what: str, package: str) -> None:
        extra = dict.fromkeys(("torch", "transformers", "safetensors"), "models").get(package)
        install = f"'tiltmeter[{extra}]'" if extra else package
        super().__init__(f"{what} needs the package {package}: pip install {install}")


class DamagedError(InputError):
    """A file of a store is not what was written; `reason` completes a sentence about `path`."""

    def __init__(self, path: Path, reason: str) -> None:
        self.path, self.reason = path, reason
        super().__init__(
            f"{path} {reason}: `tiltmeter store verify {path.parent.parent} --remove` removes "
            "damaged files, `tiltmeter embed` with their model makes them again"
        )


class ConventionError(TiltmeterError, ValueError):
    """Numbers of two conventions were about to be compared."""


class UnknownNameError(TiltmeterError, LookupError):
    """A name that is not known; the message names the nearest ones.

    >>> raise UnknownNameError("convention", "berg2021", ["berg2022", "sfid", "tiltmeter"])
    Traceback (most recent call last):
    ...
    tiltmeter.errors.UnknownNameError: unknown convention 'berg2021'; did you mean 'berg2022'?
    """

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
        if near:
            hint = "did you mean " + " or ".join(repr(n) for n in near) + "?"
        else:
            hint = "known: " + ", ".join(names) if names else "none is known"
        super().__init__(f"unknown {kind} {name!r}; {hint}")
