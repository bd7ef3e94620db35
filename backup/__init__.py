"""Base backups in the archive, and servers made of them again; what a restored server fetches.

Nobody's sibling: it knows neither the proposer nor the safekeeper. A connection to a server is
handed to it open.
"""
