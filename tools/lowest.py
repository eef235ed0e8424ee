"""The oldest versions that pyproject.toml allows, for pip: `python -m tools.lowest [EXTRA ...]`."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path


def lowest(extras: list[str], project: Path = Path("pyproject.toml")) -> list[str]:
    """`name==version` of every requirement, and of those of extras, at its lower bound.

    Examples
    --------
    >>> "numpy==2.0" in lowest([])
    True
    """
    declared = tomllib.loads(project.read_text())["project"]
    listed = list(declared["dependencies"])
    for extra in extras:
        listed += declared["optional-dependencies"][extra]
    listed = [one for one in listed if not one.startswith(f"{declared['name']}[")]  # its own extras
    return [re.sub(r">=([\w.]+).*", r"==\1", one) for one in listed]


if __name__ == "__main__":
    print(*lowest(sys.argv[1:]), sep="\n")
