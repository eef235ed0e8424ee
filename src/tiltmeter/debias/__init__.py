"""Debiasers, one file a method: all are of one of the three kinds in `debiaser`.

The package can be called: `tiltmeter.debias("leace", model, faces, attribute="gender")` is
`tiltmeter.debiasing.debias`, whatever was imported before.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from tiltmeter.registry import Registry

DEBIASERS = Registry(
    "debiaser",
    {
        "bend": "tiltmeter.debias.bend:Bend",
        "clip-clip": "tiltmeter.debias.clip_clip:ClipClip",
        "closed-form": "tiltmeter.debias.closed_form:ClosedForm",
        "difference": "tiltmeter.debias.difference:Difference",
        "fairerclip": "tiltmeter.debias.fairerclip:FairerClip",
        "fairvlp": "tiltmeter.debias.fairvlp:FairVLP",
        "inlp": "tiltmeter.debias.inlp:Inlp",
        "leace": "tiltmeter.debias.leace:Leace",
        "mpr": "tiltmeter.debias.mpr:Mpr",
        "orth-cali": "tiltmeter.debias.orth_cali:OrthCali",
        "orth-proj": "tiltmeter.debias.orth_proj:OrthProj",
        "pbm": "tiltmeter.debias.pbm:Pbm",
        "pipeline": "tiltmeter.debias.pipeline:Pipeline",
        "prompt-array": "tiltmeter.debias.prompt_array:PromptArray",
        "roboshot": "tiltmeter.debias.roboshot:RoboShot",
        "sfid": "tiltmeter.debias.sfid:Sfid",
        "spd": "tiltmeter.debias.inlp:Spd",
        "transport": "tiltmeter.debias.transport:Transport",
    },
)


class _Callable(ModuleType):
    """A package and a function that share their name."""

    def __call__(self, *given: Any, **named: Any) -> Any:
        from tiltmeter.debiasing import debias

        return debias(*given, **named)


sys.modules[__name__].__class__ = _Callable
