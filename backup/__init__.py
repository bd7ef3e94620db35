"""Base backups in the archive, restores from them, and the WAL that a restored server fetches.

This package imports neither the proposer nor the safekeeper. Its callers open the connections to
servers.
"""
