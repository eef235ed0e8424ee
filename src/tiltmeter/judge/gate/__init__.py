"""Compare two runs, and decide whether a run passes a gate."""

from tiltmeter.judge.gate.comparison import Comparison, compare
from tiltmeter.judge.gate.decision import Gate, gate
from tiltmeter.judge.gate.limits import Limit

__all__ = ["Comparison", "Gate", "Limit", "compare", "gate"]
