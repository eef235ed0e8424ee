"""Two runs side by side: what got better, what got worse, what cannot be told; and a gate on it."""

from tiltmeter.judge.gate.comparison import Comparison, compare
from tiltmeter.judge.gate.decision import Gate, gate
from tiltmeter.judge.gate.limits import Limit

__all__ = ["Comparison", "Gate", "Limit", "compare", "gate"]
