"""Point-in-time recovery from a cut: a page, a table, or a server as of any position."""
