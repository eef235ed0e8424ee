"""Probes, one file a published protocol: a model and data in, rows of results out."""

from __future__ import annotations

from tiltmeter.registry import Registry

PROBES = Registry(
    "probe",
    {
        "ranking": "tiltmeter.probes.ranking:PROBE",
        "retrieval": "tiltmeter.probes.retrieval:PROBE",
        "zero_shot": "tiltmeter.probes.zero_shot:PROBE",
        "harms": "tiltmeter.probes.harms:PROBE",
        "strength": "tiltmeter.probes.strength:PROBE",
        "eat": "tiltmeter.probes.eat:OF_WORDS",
        "ieat": "tiltmeter.probes.eat:OF_PICTURES",
        "propagation": "tiltmeter.probes.propagation:PROBE",
        "stereotype": "tiltmeter.probes.stereotype:PROBE",
        "counterfactual": "tiltmeter.probes.counterfactual:PROBE",
    },
)
