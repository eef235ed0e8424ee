"""Engines: how embeddings and rankings are computed, in one piece, by parts or on Ray."""
