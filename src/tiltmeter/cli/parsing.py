"""Values of options: parsed and checked before any work."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tiltmeter.errors import InputError, UnknownNameError


def key_values(option: str, texts: Sequence[str], *, example: str) -> dict[str, str]:
    """Pairs from texts such as `keep=400`.

    Parameters
    ----------
    option
        The option and its form, for the error message.
    texts
        What was given.
    example
        What to type, for the error message.

    Examples
    --------
    >>> key_values("--option NAME=VALUE", ["keep=400"], example="keep=400")
    {'keep': '400'}
    """
    pairs = {}
    for text in texts:
        name, _, value = text.partition("=")
        if not (name and value):
            raise InputError(
                f"expected {option}, such as {example}; got {text!r}",
                code="bad-option",
                value=text,
            )
        pairs[name] = value
    return pairs


def probe_options(texts: Sequence[str]) -> dict[str, dict[str, str]]:
    """Options by probe, from texts such as `propagation.k=500`.

    Parameters
    ----------
    texts
        What was given as --option.
    """
    from tiltmeter.probes import PROBES

    by_probe: dict[str, dict[str, str]] = {}
    form, example = "--option PROBE.NAME=VALUE", "propagation.k=500"
    for name, value in key_values(form, texts, example=example).items():
        probe, _, option = name.partition(".")
        if not option:
            text = f"{name}={value}"
            raise InputError(
                f"expected {form}, such as {example}; got {text!r}", code="bad-option", value=text
            )
        if probe not in PROBES:
            raise UnknownNameError("probe", probe, PROBES)
        by_probe.setdefault(probe, {})[option] = value
    return by_probe


def data_roles(texts: Sequence[str], *, known: Sequence[str] | None = None) -> dict[str, str]:
    """Specs by role, from texts such as `captions=coco:FILE`.

    Parameters
    ----------
    texts
        What was given as --data.
    known
        The roles that the command uses; by default any.
    """
    roles = key_values("--data ROLE=SPEC", texts, example="captions=coco:FILE")
    for role in roles:
        if known is not None and role not in known:
            raise UnknownNameError("data role for this command", role, known)
    return roles


def numbers(option: str, text: str) -> list[float]:
    """Numbers separated by commas.

    Parameters
    ----------
    option
        The option that takes them, for the error message.
    text
        What was given.

    Examples
    --------
    >>> numbers("--shares", "0.5,0.25")
    [0.5, 0.25]
    """
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(
            f"{option} takes numbers with commas between; got {text!r}",
            code="bad-option",
            value=text,
        ) from None


def check_new(place: Path | None, *, force: bool) -> None:
    """Refuses an output that exists already.

    Parameters
    ----------
    place
        Where the output will be saved; None: nowhere.
    force
        Whether it may be replaced.
    """
    if place is not None and place.exists() and not force:
        raise InputError(
            f"{place} exists already: choose another --out, or pass --force",
            code="exists",
            value=place,
        )


def next_run() -> Path:
    """The first unused directory of tiltmeter-runs/001, 002, ..."""
    root, number = Path("tiltmeter-runs"), 1
    while (root / f"{number:03d}").exists():
        number += 1
    return root / f"{number:03d}"


def server_specs(
    models: Sequence[str], *, allow_upload: bool, max_requests: int | None
) -> list[str]:
    """Model specs with the options of servers, which only openai: takes.

    >>> server_specs(["openai:http://localhost/v1?model=m"], allow_upload=False, max_requests=9)
    ['openai:http://localhost/v1?model=m&max_requests=9']
    """
    wanted = {"allow_upload": "yes"} if allow_upload else {}
    if max_requests is not None:
        wanted["max_requests"] = str(max_requests)
    servers = [model for model in models if model.startswith("openai:")]
    if wanted and not servers:
        option = "--" + next(iter(wanted)).replace("_", "-")
        raise InputError(
            f"{option} is for models behind a server: openai:URL?model=NAME; got "
            f"{', '.join(models)}",
            code="bad-option",
            value=option,
        )

    def extended(model: str) -> str:
        parts = [f"{name}={value}" for name, value in wanted.items()]
        return "&".join([model + ("" if "?" in model else "?"), *parts]).replace("?&", "?")

    return [extended(model) if model in servers and wanted else model for model in models]
