"""A run that can be handed on and checked: packed with all it takes to recompute its numbers."""
