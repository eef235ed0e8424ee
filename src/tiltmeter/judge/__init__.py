"""What runs say together: comparison of two runs, frontier of corrections, calibration, panels."""
