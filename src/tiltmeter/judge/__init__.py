"""Results of several runs: comparison, frontier of debiasers, calibration, panels, bundles."""
