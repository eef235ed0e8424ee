"""Probes, one file a published protocol: a model and data in, rows of results out."""

from __future__ import annotations

from tiltmeter.registry import Registry

PROBES = Registry(
    "probe",
    {
        "ranking": "tiltmeter.probes.ranking:ranking",
        "retrieval": "tiltmeter.probes.retrieval:retrieval",
        "zero_shot": "tiltmeter.probes.zero_shot:zero_shot",
    },
)
#: The role of the data that a probe needs.
NEEDS = {"ranking": "faces", "retrieval": "captions", "zero_shot": "utility"}
