"""Bias propagation: intrinsic association against retrieval."""
