"""Branches: writable Postgres servers as of a point in time."""
