"""A local page on vectors: type a prompt, see who comes up, beside what chance would give."""
