"""A server's pages held against what its WAL says."""
