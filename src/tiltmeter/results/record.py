"""Provenance of a run: what was measured, on what, how, with which versions, and where."""

from __future__ import annotations

import contextlib
import os
import platform
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

from tiltmeter.results.files import content_hash

#: Packages that results may depend on.
PACKAGES = ("tiltmeter", "numpy", "scipy", "numba", "pyarrow", "torch", "transformers")


def run_record(
    *,
    data: Mapping[str, Any],
    seed: int,
    model: Any = None,
    spec: str | None = None,
    environment: Mapping[str, Any] | None = None,
    **entries: Any,
) -> dict[str, Any]:
    """Record what was measured, on what and how: `Run.meta`, which is saved as `run.json`.

    Parameters
    ----------
    data : mapping
        Role to what is known about the data: name, source, counts, hashes.
    seed : int
        The seed of every random draw.
    model : object, optional
        The audited model; its `name` and `provenance` are recorded.
    spec : str, optional
        The spec that the model was loaded from, such as `hf:NAME`.
    environment : mapping, optional
        Added to time and platform, in the block that no hash covers.
    **entries
        Further entries of one kind of run, such as `convention` or `not_run`.

    Returns
    -------
    dict
        Values that can be written as JSON.

    Examples
    --------
    >>> record = run_record(data={"faces": {"images": 10}}, seed=0, convention="tiltmeter")
    >>> list(record)
    ['data', 'convention', 'seed', 'versions', 'environment']
    """
    identity = {}
    if model is not None:
        name = getattr(model, "name", type(model).__name__)
        identity["model"] = {"name": name, "spec": spec, **getattr(model, "provenance", {})}
    return {
        **identity,
        "data": dict(data),
        **entries,
        "seed": int(seed),
        "versions": versions(),
        "environment": {**machine(), **(environment or {})},
    }


def prompt_record(
    prompts: Sequence[Any], lists: Sequence[Any] = (), neutral: Sequence[Any] = ()
) -> dict[str, Any]:
    """Record the prompts that a model was shown: which words, of which lists.

    Parameters
    ----------
    prompts : sequence of Prompt
        Words and neutral words (role `placebo`).
    lists, neutral : sequence of Stimuli
        The lists that words and neutral words are from; none if the model has its own texts.

    Returns
    -------
    dict
        `words`, `placebos` (prompts), `concepts` (distinct words), `hash` (of the texts), `lists`
        and `neutral_lists` (name, version and hash of the words), `templates`, and `by_category`
        (the words).

    Examples
    --------
    >>> from tiltmeter.types import Prompt
    >>> record = prompt_record([Prompt("a photo of a nurse", "nurse", "a photo of a {}")])
    >>> record["words"], record["placebos"], record["concepts"]
    (1, 0, 1)
    """
    by_category: dict[str, dict[str, None]] = {}
    for prompt in prompts:
        if prompt.role == "word":
            by_category.setdefault(prompt.category or "", {})[prompt.concept] = None
    return {
        "words": sum(prompt.role == "word" for prompt in prompts),
        "placebos": sum(prompt.role == "placebo" for prompt in prompts),
        "concepts": len({prompt.concept for prompt in prompts if prompt.role == "word"}),
        "hash": content_hash([prompt.text for prompt in prompts]),
        "lists": [_list_record(one) for one in lists],
        "neutral_lists": [_list_record(one) for one in neutral],
        "templates": list(dict.fromkeys(p.template for p in prompts if p.role == "word")),
        "by_category": {category: list(words) for category, words in by_category.items()},
    }


def _list_record(listed: Any) -> dict[str, str]:
    words = [[word.category, word.text] for word in listed.words]
    return {"name": listed.name, "version": listed.version, "hash": content_hash(words)}


def machine() -> dict[str, Any]:
    """When and where a run was made: in a block of its own, since no hash covers it."""
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
    }


def versions() -> dict[str, str]:
    """Installed versions of PACKAGES."""
    installed = {}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            installed[name] = metadata.version(name)
    return installed
