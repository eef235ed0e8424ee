"""Which methods are swept, and how strongly each is applied: one small table.

A method of the registry that the table does not name is tried as its defaults have it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tiltmeter.debiasers import DEBIASERS
from tiltmeter.debiasers.debiaser import ModelEdit
from tiltmeter.debiasers.pipeline import Pipeline
from tiltmeter.errors import InputError

#: What a setting is called when it is a share of the smallest group that is fitted on.
SHARE = "%"
#: Numbers of neighbours, as shares of the smallest group.
NEAR = ("2%", "4%", "7%", "10%")
GRIDS: dict[str, Sequence[Mapping[str, Any]]] = {
    "bend": [
        {},
        *({"project": False, "neighbours": near, "rounds": 1} for near in NEAR[:2]),
        *({"project": False, "neighbours": near, "rounds": 3} for near in NEAR),
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
    "roboshot": [{}, {"towers": "both"}],
    "sfid": [{"dims": share} for share in (0.05, 0.1953125, 0.5)],
    "spd": [{"rank": rank} for rank in (1, 5, 20)],
    "transport": [{}, {"clusters": 1}, {"shrink": 1.0}],
}
#: Compositions that are tried too; a setting is named with its method.
BENT = {"bend.project": False, "bend.neighbours": "7%", "bend.rounds": 3}
COMPOSITIONS: dict[str, Sequence[Mapping[str, Any]]] = {
    "bend+leace": [BENT, {**BENT, "leace.shrink": 0.001}],
    "bend+sfid": [BENT],
    "closed-form+bend": [BENT],
    "inlp+bend": [BENT],
    "leace+bend": [BENT, {"leace.shrink": 0.001, **BENT}],
}


@dataclass(frozen=True)
class Candidate:
    """A method at one strength; without a method, the model as it is."""

    method: str
    settings: Mapping[str, Any]

    @property
    def strength(self) -> str:
        """The settings that are not the defaults, as they are typed."""
        return ", ".join(f"{name}={typed(value)}" for name, value in self.settings.items())

    @property
    def name(self) -> str:
        return f"{self.method}: {self.strength}" if self.settings else self.method


def typed(value: Any) -> str:
    """A setting as it is given on the command line.

    >>> typed(False), typed(0.78125), typed(100)
    ('no', '0.78125', '100')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def candidates(
    methods: Sequence[str] | None, strengths: Sequence[str] | None, fewest: int
) -> list[Candidate]:
    """What is swept: all methods that need no training, and compositions, unless some are named.

    `strengths` are written METHOD:NAME=VALUE,NAME=VALUE and stand instead of the method's own;
    without `methods`, theirs alone are swept. `fewest` is how many images the smallest group has.
    """
    asked = [_parsed(one) for one in strengths or ()]
    if methods is None:
        methods = list(dict.fromkeys(one.method for one in asked)) or untrained()
    found: list[Candidate] = []
    for method in methods:
        for part in method.split("+"):
            DEBIASERS[part]  # raises for an unknown one
        own = [one for one in asked if one.method == method]
        grid = {**GRIDS, **COMPOSITIONS}.get(method, [{}])
        found += own or [Candidate(method, _sized(one, fewest)) for one in grid]
    return list({one.name: one for one in found}.values())


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
    pairs = [one.partition("=") for one in rest.split(",") if one]
    if not method or any(not (name and equals and value) for name, equals, value in pairs):
        raise InputError(
            f"a strength is written METHOD:NAME=VALUE,NAME=VALUE, such as clip-clip:keep=400; "
            f"got {text!r}"
        )
    return Candidate(method, {name.strip(): value.strip() for name, _, value in pairs})
