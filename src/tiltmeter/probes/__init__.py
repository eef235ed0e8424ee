"""Probes, one per published protocol: they take a model and data and return rows of results."""

from __future__ import annotations

from tiltmeter.registry import Registry

PROBES = Registry(
    "probe",
    {
        "silence": "tiltmeter.probes.silence:PROBE",  # first: it selects what others see
        "ranking": "tiltmeter.probes.ranking.probe:PROBE",
        "lift": "tiltmeter.probes.lift.probe:PROBE",
        "forced_choice": "tiltmeter.probes.forced_choice:PROBE",
        "pronoun": "tiltmeter.probes.pronoun:PROBE",
        "description": "tiltmeter.probes.description:PROBE",
        "retrieval": "tiltmeter.probes.retrieval:PROBE",
        "zero_shot": "tiltmeter.probes.zero_shot:PROBE",
        "harms": "tiltmeter.probes.harms:PROBE",
        "strength": "tiltmeter.probes.strength:PROBE",
        "eat": "tiltmeter.probes.eat:EAT_PROBE",
        "ieat": "tiltmeter.probes.eat:IEAT_PROBE",
        "face_eat": "tiltmeter.probes.face_eat:PROBE",
        "propagation": "tiltmeter.probes.propagation.probe:PROBE",
        "stereotype": "tiltmeter.probes.stereotype.probe:PROBE",
        "counterfactual": "tiltmeter.probes.counterfactual.probe:PROBE",
    },
)
