"""Before an audit: the smallest effect it could find, and what it costs."""
