"""Every metric against a bias of known size: what it finds, what it misses, when it cries wolf.

>>> from tiltmeter.judge.calibration import calibrate
>>> found = calibrate(["sc_eat"], doses=(0, 1, 2), sizes=(100, 1000), replicates=2)
>>> found.summaries[0].order > 0.9
True
"""

from __future__ import annotations

from tiltmeter.judge.calibration.measurement import Calibration, calibrate

__all__ = ["Calibration", "calibrate"]
