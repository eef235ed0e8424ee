"""Probes, one file a published protocol: a model and data in, rows of results out."""

from __future__ import annotations

from tiltmeter.registry import Registry

PROBES = Registry("probe", {"ranking": "tiltmeter.probes.ranking:ranking"})
