"""`tiltmeter frontier`: methods and their strengths, bias against usefulness, on unseen images."""

from tiltmeter.frontier.sweep import frontier
from tiltmeter.frontier.table import Frontier

__all__ = ["Frontier", "frontier"]
