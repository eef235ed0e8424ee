"""Charts: what a plot shows, as data, and how it is drawn."""
