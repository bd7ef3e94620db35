"""The safekeeper: stores WAL durably, votes, and serves the WAL to clients that may read it.

It never imports the proposer: the two share messages and laws (`consensus/`) only.
"""
