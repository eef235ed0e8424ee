"""What users read: report, plots, terminal output."""
