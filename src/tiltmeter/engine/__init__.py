"""Where batches run. `local` runs them here."""
