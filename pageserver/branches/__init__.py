"""A Postgres of its own as of a moment."""
