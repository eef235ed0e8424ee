"""Methods of the sweep, and the strengths of each.

A registered method that is not in the table is tried with its defaults.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tiltmeter.debiasers import DEBIASERS
from tiltmeter.debiasers.debiaser import ModelEdit
from tiltmeter.debiasers.pipeline import Pipeline
from tiltmeter.errors import InputError

#: Suffix of a setting that is a share of the smallest group that is fitted on.
SHARE = "%"
#: Numbers of neighbours, as shares of the smallest group.
NEIGHBOURS = ("2%", "4%", "7%", "10%")
GRIDS: dict[str, Sequence[Mapping[str, Any]]] = {
    "bend": [
        {},
        *({"project": False, "neighbours": near, "rounds": 1} for near in NEIGHBOURS[:2]),
        *({"project": False, "neighbours": near, "rounds": 3} for near in NEIGHBOURS),
        {"neighbours": "7%", "rounds": 3},
    ],
    "clip-clip": [{"keep": share} for share in (0.95703125, 0.78125, 0.5, 0.25)],
    "closed-form": [{}, {"towers": "texts"}],
    "difference": [{}, {"towers": "both"}, {"weight": 1000.0}],
    "fairerclip": [{"tau": tau} for tau in (0.3, 0.6, 0.9)],
    "inlp": [{"rounds": rounds} for rounds in (1, 5, 30)],
    "leace": [{}, {"towers": "both"}, {"shrink": 0.001}],
    "mpr": [{"rho": rho} for rho in (0.05, 0.2, 0.5)],
    "orth-cali": [{"weight": weight} for weight in (1.0, 10.0, 100.0, 1000.0)],
    "orth-proj": [{}, {"towers": "both"}],
    # weights of the contrastive loss (Berg et al. 2022, Figure 2: at most 0.0001, and 0.05)
    "prompt-array": [{"itc": weight} for weight in (0.0001, 0.001, 0.01, 0.05, 0.5)],
    "roboshot": [{}, {"towers": "both"}],
    "sfid": [{"dims": share} for share in (0.05, 0.1953125, 0.5)],
    "spd": [{"rank": rank} for rank in (1, 5, 20)],
    "transport": [{}, {"clusters": 1}, {"shrink": 1.0}],
}
#: Compositions of methods; settings are prefixed with the method.
BEND_SETTINGS = {"bend.project": False, "bend.neighbours": "7%", "bend.rounds": 3}
COMPOSITIONS: dict[str, Sequence[Mapping[str, Any]]] = {
    "bend+leace": [BEND_SETTINGS, {**BEND_SETTINGS, "leace.shrink": 0.001}],
    "bend+sfid": [BEND_SETTINGS],
    "closed-form+bend": [BEND_SETTINGS],
    "inlp+bend": [BEND_SETTINGS],
    "leace+bend": [BEND_SETTINGS, {"leace.shrink": 0.001, **BEND_SETTINGS}],
}


@dataclass(frozen=True)
class Candidate:
    """A method at one strength; without a method, the original model."""

    method: str
    settings: Mapping[str, Any]

    @property
    def strength(self) -> str:
        """The settings that differ from the defaults, as typed on the command line."""
        return ", ".join(f"{name}={typed(value)}" for name, value in self.settings.items())

    @property
    def name(self) -> str:
        return f"{self.method}: {self.strength}" if self.settings else self.method


def typed(value: Any) -> str:
    """A setting as typed on the command line.

    >>> typed(False), typed(0.78125), typed(100)
    ('no', '0.78125', '100')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def candidates(
    methods: Sequence[str] | None, strengths: Sequence[str] | None, fewest: int
) -> list[Candidate]:
    """Candidates of the sweep.

    Parameters
    ----------
    methods : sequence of str or None
        Methods to sweep. None: those of `strengths`, otherwise all that need no training.
    strengths : sequence of str or None
        METHOD:NAME=VALUE,NAME=VALUE, in place of the method's own strengths.
    fewest : int
        Number of images of the smallest group.

    Returns
    -------
    list of Candidate

    Raises
    ------
    UnknownNameError
        If a method is unknown.
    InputError
        If a strength cannot be read.
    """
    requested = [_parsed(text) for text in strengths or ()]
    if methods is None:
        methods = list(dict.fromkeys(candidate.method for candidate in requested)) or untrained()
    swept: list[Candidate] = []
    for method in methods:
        for part in method.split("+"):
            DEBIASERS[part]  # raises if unknown
        chosen = [candidate for candidate in requested if candidate.method == method]
        grid = {**GRIDS, **COMPOSITIONS}.get(method, [{}])
        swept += chosen or [Candidate(method, _sized(settings, fewest)) for settings in grid]
    return list({candidate.name: candidate for candidate in swept}.values())


def untrained() -> list[str]:
    """Methods that need no training, and compositions of them."""
    kinds = {name: DEBIASERS[name] for name in DEBIASERS}
    alone = [name for name, kind in kinds.items() if not issubclass(kind, ModelEdit | Pipeline)]
    return [*alone, *(name for name in COMPOSITIONS if set(name.split("+")) <= set(alone))]


def _sized(settings: Mapping[str, Any], fewest: int) -> dict[str, Any]:
    """Settings with shares of the smallest group as numbers."""
    return {
        name: max(1, round(float(value[:-1]) / 100 * fewest))
        if isinstance(value, str) and value.endswith(SHARE)
        else value
        for name, value in settings.items()
    }


def _parsed(text: str) -> Candidate:
    method, _, rest = text.partition(":")
    pairs = [pair.partition("=") for pair in rest.split(",") if pair]
    if not method or any(not (name and equals and value) for name, equals, value in pairs):
        raise InputError(
            "expected a strength such as clip-clip:keep=400 (METHOD:NAME=VALUE,NAME=VALUE); "
            f"got {text!r}"
        )
    return Candidate(method, {name.strip(): value.strip() for name, _, value in pairs})
