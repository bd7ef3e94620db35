"""The client of qsync: transactions that are committed when the quorum has them.

gid              the name of a prepared transaction, which says all that a successor must know; pure
outcome          what can become of a transaction; pure

It needs psycopg and psycopg-pool, and nothing else of this project.
"""
