"""Postgres WAL as bytes and values: positions, segments, pages, records. Pure; no I/O.

It may import nothing of this project and nothing that touches the outside world, so that it can be
lifted out and used alone. Postgres 13 to 18.
"""
