"""Postgres WAL as bytes and values: positions, segments, pages, records. Pure; no I/O.

It imports nothing of this project and does no I/O, so that it can be used alone. Postgres 13 to 18.
"""
