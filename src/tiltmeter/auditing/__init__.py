"""The one path of an audit: options, checks, embeddings, probes, record."""
