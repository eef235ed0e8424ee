"""The public interface, `tm.__all__` and the API reference, changes only on purpose.

python -m tests.test_public_api      writes public_api.txt again, for a change that is meant
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import tiltmeter as tm
from tests.conftest import ROOT

STARS = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
SNAPSHOT = Path(__file__).with_name("public_api.txt")


def documented() -> Iterator[tuple[str, object]]:
    """Names and objects that the API reference shows."""
    for name in tm.__all__:
        value = getattr(tm, name)
        yield f"tiltmeter.{name}", value
        for member in getattr(value, "__all__", ()):  # metrics, stats, stimuli
            yield f"tiltmeter.{name}.{member}", getattr(value, member)
    pages = (ROOT / "docs" / "api").glob("*.md")
    text = "\n".join(page.read_text() for page in pages)
    for target in set(re.findall(r"^::: ([\w.]+)$", text, re.M)):
        try:
            module = import_module(target)
        except ModuleNotFoundError:
            parent, _, name = target.rpartition(".")
            yield target, getattr(import_module(parent), name)
            continue
        for name, value in vars(module).items():
            if not name.startswith("_") and getattr(value, "__module__", None) == target:
                yield f"{target}.{name}", value


def parameters(value: object) -> str:
    """Names and kinds of parameters; defaults and types may improve without notice."""
    if not callable(value):
        return ""
    try:
        known = inspect.signature(value).parameters.values()
    except ValueError:
        return "(...)"
    names, keyword = [], False
    for parameter in known:
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword:
            names.append("*")
        keyword = keyword or parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        optional = "" if parameter.default is parameter.empty else "="
        names.append(f"{STARS.get(parameter.kind, '')}{parameter.name}{optional}")
    return f"({', '.join(names)})"


def snapshot() -> str:
    return "".join(sorted({f"{name}{parameters(value)}\n" for name, value in documented()}))


def test_the_public_interface_is_the_one_that_was_promised() -> None:
    assert snapshot() == SNAPSHOT.read_text(), (
        "if meant: python -m tests.test_public_api, CHANGELOG"
    )


if __name__ == "__main__":
    SNAPSHOT.write_text(snapshot())
