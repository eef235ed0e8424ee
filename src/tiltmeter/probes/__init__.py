"""Probes, one file a published protocol: a model and data in, rows of results out."""

from __future__ import annotations

from tiltmeter.registry import Registry

PROBES = Registry(
    "probe",
    {
        "ranking": "tiltmeter.probes.ranking.probe:PROBE",
        "retrieval": "tiltmeter.probes.retrieval:PROBE",
        "zero_shot": "tiltmeter.probes.zero_shot:PROBE",
        "harms": "tiltmeter.probes.harms:PROBE",
        "strength": "tiltmeter.probes.strength:PROBE",
        "eat": "tiltmeter.probes.eat:OF_WORDS",
        "ieat": "tiltmeter.probes.eat:OF_PICTURES",
        "propagation": "tiltmeter.probes.propagation.probe:PROBE",
        "stereotype": "tiltmeter.probes.stereotype.probe:PROBE",
        "counterfactual": "tiltmeter.probes.counterfactual.probe:PROBE",
    },
)
