"""The section of each probe in the report, one file per probe: rows in, one Section out."""

from __future__ import annotations

from tiltmeter.registry import Registry

_HERE = "tiltmeter.pages.sections"
#: In the order of the page. A probe that is not named here gets a plain table.
SECTIONS = Registry(
    "section of the report",
    {
        "panel": f"{_HERE}.panel:section",
        "frontier": f"{_HERE}.frontier:section",
        "lift": f"{_HERE}.lift:section",
        "silence": f"{_HERE}.generative:silence",
        "forced_choice": f"{_HERE}.generative:forced_choice",
        "pronoun": f"{_HERE}.generative:pronoun",
        "description": f"{_HERE}.generative:description",
        "ranking": f"{_HERE}.ranking:section",
        "harms": f"{_HERE}.harms:section",
        "stereotype": f"{_HERE}.stereotype:section",
        "counterfactual": f"{_HERE}.counterfactual:section",
        "propagation": f"{_HERE}.propagation:section",
        "eat": f"{_HERE}.eat:section",
        "ieat": f"{_HERE}.eat:section",
        "face_eat": f"{_HERE}.eat:section",
        "strength": f"{_HERE}.strength:section",
        "captions": f"{_HERE}.captions:section",
        "retrieval": f"{_HERE}.utility:section",
        "zero_shot": f"{_HERE}.utility:section",
    },
)
