"""Bundles: a run in one file that others can verify and recompute."""
