"""Generation numbers: which pageserver may delete, and what may never have the name of something
else.

`suffix.py` is what ends up in the names of objects. `operations.py` gives the numbers out, from a
database (`sqlite_store.py`, `postgres_store.py`), within one process; `service.py` and `client.py`
put HTTP between. Both ways are one protocol: `protocol.py`.
"""
