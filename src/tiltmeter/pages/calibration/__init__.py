"""Pages and plots of `tiltmeter calibrate`."""
