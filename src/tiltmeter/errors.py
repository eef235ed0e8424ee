"""Errors that a user can cause: what was given, what was expected, what to type.

Every error has a stable `code` and the offending `value`, for programs and tests.

TiltmeterError            error                base class; the command line exits with code 2
├── InputError            bad-input            data or options that cannot be used
│   ├── MissingError      missing-package      a package that is not installed
│   └── DamagedError      damaged-file         a file of a store that is not what was written
├── ProbeFailedError      probe-failed         `.run` has the other results (tiltmeter.results)
├── UnknownNameError      unknown-name         a name that is not known; `.suggestions` are similar
└── ConventionError       convention-mismatch  results that were measured differently

An InputError may have a narrower code: `bad-option` (malformed or out of range), `not-found` (no
such file or directory), `exists` (the output exists already), `bad-file` (unreadable, or another
format), `bad-labels` (labels or ids that cannot be used), `no-images`, `incomplete` (data that
`?strict=yes` refuses), `unsafe-path` (it leads out of its root directory). The command line prints
the code behind the message, and `os-error` for an OSError.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

Code = Literal[
    "error", "bad-input", "bad-option", "not-found", "exists", "bad-file", "bad-labels",
    "incomplete", "no-images", "unreadable-image", "unsafe-path", "missing-package", "damaged-file",
    "probe-failed", "unknown-name", "convention-mismatch",
]  # fmt: skip


class TiltmeterError(Exception):
    """Base class of all errors that the package raises on purpose.

    Parameters
    ----------
    *args
        The message.
    code
        A narrower code than the class's own.
    value
        What was given and cannot be used.
    """

    code: Code = "error"
    value: object = None

    def __init__(self, *args: object, code: Code | None = None, value: object = None) -> None:
        super().__init__(*args)
        if code is not None:
            self.code = code
        if value is not None:
            self.value = value

    def __reduce__(self) -> tuple[Any, ...]:
        # an exception's own way would call the constructor with the message alone
        return _restore, (type(self), self.args, vars(self))


def _restore(
    kind: type[TiltmeterError], args: tuple[Any, ...], state: dict[str, Any]
) -> TiltmeterError:
    """An error that comes from another process."""
    error = kind.__new__(kind)
    error.args = args
    vars(error).update(state)
    return error


#: What a user can fix; any other exception is a bug.
EXPECTED = (TiltmeterError, OSError)


class InputError(TiltmeterError, ValueError):
    """Data or options that cannot be used as they are."""

    code: Code = "bad-input"


def reason(error: Exception) -> str:
    """The message of an error; for a bug, with its type."""
    return str(error) if isinstance(error, EXPECTED) else f"{type(error).__name__}: {error}"


#: Packages of our optional dependencies, by their names on PyPI.
EXTRAS = {
    "models": ("torch", "transformers", "sentencepiece", "protobuf"),
    "open-clip": ("open_clip_torch",),
    "datasets": ("datasets",),
    "words": ("wordfreq",),
    "debias": ("scikit-learn",),
    "openai": ("httpx2",),
    "explore": ("starlette", "uvicorn", "anyio", "h11"),
    "frames": ("pandas", "polars"),
    "ray": ("ray",),
}


class MissingError(InputError):
    """A package that is needed is not installed.

    Parameters
    ----------
    what
        What needs the package.
    package
        Its name on PyPI.
    extra
        The extra to install; by default the one that has the package.

    Attributes
    ----------
    install : str
        What to type.
    """

    code: Code = "missing-package"
    install = ""

    def __init__(self, what: str, package: str, *, extra: str | None = None) -> None:
        if extra is None:
            extra = next((name for name, packages in EXTRAS.items() if package in packages), None)
        self.install = f"pip install 'tiltmeter[{extra}]'" if extra else f"pip install {package}"
        super().__init__(f"{what} needs the package {package}: {self.install}", value=package)


class DamagedError(InputError):
    """A file of a store is not what was written.

    Parameters
    ----------
    path
        The file.
    reason
        What is wrong with it, as the end of a sentence that begins with the path.
    """

    code: Code = "damaged-file"

    def __init__(self, path: Path, reason: str) -> None:
        self.path, self.reason = path, reason
        super().__init__(
            f"{path} {reason}: `tiltmeter store verify {path.parent.parent} --remove` removes "
            "damaged files, `tiltmeter embed` with their model computes them again",
            value=path,
        )


class ConventionError(TiltmeterError, ValueError):
    """Results of different conventions cannot be compared."""

    code: Code = "convention-mismatch"


class UnknownNameError(TiltmeterError, LookupError):
    """A name that is not known; the message has the most similar ones.

    Parameters
    ----------
    kind
        What the name should be the name of, such as `convention`.
    name
        The name that was given.
    known
        All names of this kind.
    suggestions
        What to type instead; by default the known names that are most similar.
    note
        What else is known about the name, in a sentence without a full stop.

    Examples
    --------
    >>> raise UnknownNameError("convention", "berg2021", ["berg2022", "sfid", "tiltmeter"])
    Traceback (most recent call last):
    ...
    tiltmeter.errors.UnknownNameError: unknown convention 'berg2021'; did you mean 'berg2022'?
    """

    code: Code = "unknown-name"

    def __init__(
        self, kind: str, name: str, known: Iterable[str], *, suggestions: Sequence[str] = (),
        note: str = "",
    ) -> None:  # fmt: skip
        names = sorted(known)
        self.kind = kind
        self.suggestions = list(suggestions) or difflib.get_close_matches(name, names, cutoff=0.5)
        if self.suggestions:
            hint = f"did you mean {' or '.join(map(repr, self.suggestions))}?"
        else:
            hint = "known: " + ", ".join(names) if names else "none is known"
        hint = f"{note}; {hint}" if note else hint
        super().__init__(f"unknown {kind} {name!r}; {hint}", value=name)
