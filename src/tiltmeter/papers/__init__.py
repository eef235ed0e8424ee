"""Tables and figures of published papers, and the numbers that these papers report."""
