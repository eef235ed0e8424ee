"""Before an audit: its power and its cost, and whether the installation works."""
