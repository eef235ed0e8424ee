"""Debiasers, one file per method, of the three kinds in `debiaser`."""

from __future__ import annotations

from tiltmeter.registry import Registry

DEBIASERS = Registry(
    "debiaser",
    {
        "bend": "tiltmeter.debiasers.bend:Bend",
        "clip-clip": "tiltmeter.debiasers.clip_clip:ClipClip",
        "closed-form": "tiltmeter.debiasers.closed_form:ClosedForm",
        "difference": "tiltmeter.debiasers.difference:Difference",
        "fairerclip": "tiltmeter.debiasers.fairerclip:FairerClip",
        "fairvlp": "tiltmeter.debiasers.fairvlp:FairVLP",
        "inlp": "tiltmeter.debiasers.inlp:Inlp",
        "leace": "tiltmeter.debiasers.leace:Leace",
        "mpr": "tiltmeter.debiasers.mpr:Mpr",
        "orth-cali": "tiltmeter.debiasers.orth_cali:OrthCali",
        "orth-proj": "tiltmeter.debiasers.orth_proj:OrthProj",
        "pbm": "tiltmeter.debiasers.pbm:Pbm",
        "pipeline": "tiltmeter.debiasers.pipeline:Pipeline",
        "prompt-array": "tiltmeter.debiasers.prompt_array:PromptArray",
        "roboshot": "tiltmeter.debiasers.roboshot:RoboShot",
        "sfid": "tiltmeter.debiasers.sfid:Sfid",
        "spd": "tiltmeter.debiasers.inlp:Spd",
        "transport": "tiltmeter.debiasers.transport:Transport",
    },
)
