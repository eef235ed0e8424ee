"""YAML that somebody else may have written."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from tiltmeter.errors import InputError

DEEPEST = 500  # levels of brackets
_STEPS = {"[": 1, "{": 1, "]": -1, "}": -1}


def parse_yaml(text: str, name: object) -> Any:
    """Parse YAML; InputError if it is not valid, or nested too deeply.

    Parameters
    ----------
    text : str
        The text.
    name : object
        The file it is from, for the error.

    Examples
    --------
    >>> parse_yaml("Occupation: [nurse, pilot]", "words.yaml")
    {'Occupation': ['nurse', 'pilot']}
    """
    import yaml  # here, so that importing the package stays fast

    depths = accumulate(_STEPS[letter] for letter in text if letter in _STEPS)
    try:
        if max(depths, default=0) > DEEPEST:  # the parser would take minutes
            raise RecursionError("nested too deeply")
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise InputError(f"{name} is not valid YAML: {error}", code="bad-file") from None
