"""`delete_requests`: splits many keys into requests of the allowed size. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

#: S3's limit for DeleteObjects.
DELETE_KEYS_MAX = 1000


def delete_requests(keys: Iterable[str]) -> Iterator[tuple[str, ...]]:
    """The same keys, in their order."""
    rest = iter(keys)
    while request := tuple(islice(rest, DELETE_KEYS_MAX)):
        yield request
