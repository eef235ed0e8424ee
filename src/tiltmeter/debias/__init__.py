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
        "clip-clip": "tiltmeter.debias.clip_clip:ClipClip",
        "fairvlp": "tiltmeter.debias.fairvlp:FairVLP",
        "leace": "tiltmeter.debias.leace:Leace",
        "pipeline": "tiltmeter.debias.pipeline:Pipeline",
    },
)


class _Callable(ModuleType):
    """A package and a function that share their name."""

    def __call__(self, *given: Any, **named: Any) -> Any:
        from tiltmeter.debiasing import debias

        return debias(*given, **named)


sys.modules[__name__].__class__ = _Callable
