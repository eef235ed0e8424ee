"""From image files to embeddings."""
