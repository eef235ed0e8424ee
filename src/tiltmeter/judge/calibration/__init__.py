"""Calibration: every metric tested against a known bias.

>>> from tiltmeter.judge.calibration import calibrate
>>> few = {"doses": (0, 1, 2), "sizes": (100, 1000), "replicates": 2, "trained": ()}
>>> calibration = calibrate(["sc_eat"], **few)
>>> calibration.summaries[0].order > 0.9
True
"""

from __future__ import annotations

from tiltmeter.judge.calibration.measurement import Calibration, calibrate

__all__ = ["Calibration", "calibrate"]
