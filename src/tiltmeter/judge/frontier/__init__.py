"""Frontier: debiasing methods at several strengths, bias against utility, on unseen images."""

from tiltmeter.judge.frontier.sweep import frontier
from tiltmeter.judge.frontier.table import Frontier

__all__ = ["Frontier", "frontier"]
