"""What every object store can do, and how one is opened by its URL.

    /srv/archive, file:///srv/archive     a folder: fsynced, atomic
    s3://bucket/prefix                    S3 and what speaks like it (option endpoint=...)
    gs://bucket/prefix, az://container/prefix
    memory://                             for tests; gone with the process

Laws. `put` and `create` are atomic, and durable when they return. Nothing else is asked of a store:
whatever must happen once is a `create`, which every store has. Credentials come from the
environment, as the vendors' own tools take them, or from options; they are never part of a URL.

A large object is written and read in pieces: a folder takes and gives them one by one. The other
stores have no conditional write in parts, so they gather an object, packed as it is, before they
send it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, TypeAlias
from urllib.parse import unquote, urlsplit

from objectstore.errors import ObjectStoreError

#: What an object is made of. Pieces may be asked for again: each iteration gives all of them.
Data: TypeAlias = bytes | Iterable[bytes | memoryview]
#: Of an object that is read in pieces.
PIECE_BYTES = 1 << 20
#: Of those that an error is about.
NAMED_KEYS = 3


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One line of a listing; `modified_at` is the store's clock."""

    key: str
    size_bytes: int
    modified_at: datetime


class ObjectStore(Protocol):
    """Thread-safe. Every method raises ObjectStoreError; keys are relative, with "/"."""

    #: How messages name it; without secrets.
    url: str

    def put(self, key: str, data: Data) -> None:
        """Give `key` this content, whatever it had. What the pieces raise goes to the caller, and
        `key` keeps what it had."""

    def create(self, key: str, data: Data) -> bool:
        """Give `key` this content unless it exists; whether it did not. As `put` otherwise."""

    def get(self, key: str) -> bytes:
        """All of it. Raises ObjectNotFound."""

    def get_pieces(self, key: str) -> Iterator[bytes]:
        """The same, PIECE_BYTES at most at a time. Raises ObjectNotFound, with the first."""

    def get_tail(self, key: str, length: int) -> bytes:
        """Its last bytes. Raises ObjectNotFound."""

    def get_range(self, key: str, begin: int, length: int) -> bytes:
        """`length` bytes from the byte `begin` on; fewer where the object ends before, none behind
        its end. Raises ObjectNotFound."""

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        """All whose key begins with `prefix`, a folder that ends with "/" or nothing, and is
        greater than `after`; in the order of their keys."""

    def list_folders(self, prefix: str) -> Sequence[str]:
        """The names of what is directly below `prefix` and has something below itself."""

    def delete(self, key: str) -> None:
        """One that does not exist is deleted already."""

    def delete_many(self, keys: Sequence[str]) -> None:
        """All of them, DELETE_KEYS_MAX a request; one that does not exist is deleted already. An
        error names keys that may be left, and says of none that it is not deleted: all of them may
        be asked for again."""


def named_keys(keys: Sequence[str]) -> str:
    """Some of them, as an error names them."""
    some = ", ".join(f'"{key}"' for key in keys[:NAMED_KEYS])
    return some if len(keys) <= NAMED_KEYS else f"{some} and {len(keys) - NAMED_KEYS} more"


def open_store(url: str, options: Mapping[str, str] | None = None) -> ObjectStore:
    """Nothing is asked of a remote store yet. Raises ObjectStoreError."""
    parts = urlsplit(url)
    if parts.username or parts.password:
        raise ObjectStoreError(
            "an archive's URL must not contain credentials",
            hint="Give them in the environment (AWS_ACCESS_KEY_ID, ...) or in the config file.",
        )
    if parts.scheme in ("", "file"):
        from objectstore.local import LocalStore

        if options:
            raise ObjectStoreError(f"a folder has no options, found {', '.join(sorted(options))}")
        return LocalStore(unquote(parts.path) if parts.scheme else url)
    from objectstore.remote import RemoteStore  # it costs 20 ms that a local archive need not pay

    return RemoteStore(url, options or {})
