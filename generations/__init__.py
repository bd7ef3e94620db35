"""Generation numbers: which pageserver may delete objects, and unique names for objects.

`suffix.py` is the part of object names that contains the numbers. `operations.py` assigns numbers
from a database (`sqlite_store.py`, `postgres_store.py`) within one process. `service.py` and
`client.py` do the same over HTTP. Both implement `protocol.py`.
"""
