"""Hand results to others: bundles, model cards, experiment trackers."""
