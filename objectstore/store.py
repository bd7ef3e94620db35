"""The interface of all object stores, and how to open one by its URL.

    /srv/archive, file:///srv/archive     a folder: fsynced, atomic
    s3://bucket/prefix                    S3 and compatible stores (option endpoint=...)
    gs://bucket/prefix, az://container/prefix
    memory://                             for tests; lost at the end of the process

Laws. `put` and `create` are atomic, and durable when they return. No other guarantee is needed:
everything that must happen once is a `create`, which every store has. Credentials come from the
environment, as with the vendors' own tools, or from options; a URL never contains them.

A large object is written and read in pieces. A folder does so one by one. The other stores have no
conditional write in parts, so they gather an object, in its packed form, before they send it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, TypeAlias
from urllib.parse import unquote, urlsplit

from quorum_wal.objectstore.errors import ObjectStoreError

#: The content of an object. Pieces may be requested again: each iteration returns all of them.
Data: TypeAlias = bytes | Iterable[bytes | memoryview]
#: Size of the pieces of an object that is read in pieces.
PIECE_BYTES = 1 << 20
#: Keys that an error text names.
NAMED_KEYS = 3


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One entry of a listing; `modified_at` is by the store's clock."""

    key: str
    size_bytes: int
    modified_at: datetime


class ObjectStore(Protocol):
    """Thread-safe. Every method raises ObjectStoreError; keys are relative, with "/"."""

    #: Its name in messages; without secrets.
    url: str

    def put(self, key: str, data: Data) -> None:
        """Gives `key` this content, replacing any other. If the pieces raise, the caller gets the
        exception and `key` keeps its old content."""

    def create(self, key: str, data: Data) -> bool:
        """Gives `key` this content unless it exists; returns whether it is new. Else like `put`."""

    def get(self, key: str) -> bytes:
        """All of it. Raises ObjectNotFound."""

    def get_pieces(self, key: str) -> Iterator[bytes]:
        """Like `get`, in pieces of at most PIECE_BYTES. The first one may raise ObjectNotFound."""

    def get_tail(self, key: str, length: int) -> bytes:
        """Its last bytes. Raises ObjectNotFound."""

    def get_range(self, key: str, begin: int, length: int) -> bytes:
        """`length` bytes from the byte `begin` on; fewer if the object ends before, none after its
        end. Raises ObjectNotFound."""

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        """The objects whose key begins with `prefix` (a folder with "/", or "") and is greater than
        `after`, in the order of their keys."""

    def list_folders(self, prefix: str) -> Sequence[str]:
        """The names directly below `prefix` that have objects below them."""

    def delete(self, key: str) -> None:
        """Deletes an object; no error if it does not exist."""

    def delete_many(self, keys: Sequence[str]) -> None:
        """Deletes all of them, DELETE_KEYS_MAX a request; no error if one does not exist. The text
        of an error names keys that may be left. It does not show which ones were deleted: all of
        them may be requested again."""


def named_keys(keys: Sequence[str]) -> str:
    """Some of the keys, for the text of an error."""
    some = ", ".join(f'"{key}"' for key in keys[:NAMED_KEYS])
    return some if len(keys) <= NAMED_KEYS else f"{some} and {len(keys) - NAMED_KEYS} more"


def open_store(url: str, options: Mapping[str, str] | None = None) -> ObjectStore:
    """Sends no request to a remote store yet. Raises ObjectStoreError."""
    try:
        parts = urlsplit(url)
    except ValueError:  # the message may have credentials
        raise ObjectStoreError(
            "an archive's URL is not valid",
            hint="Use /srv/archive, file:///srv/archive or s3://bucket/prefix.",
        ) from None
    if "\0" in url or "%00" in url:
        raise ObjectStoreError("an archive's URL must not contain a zero byte")
    if parts.username or parts.password:
        raise ObjectStoreError(
            "an archive's URL must not contain credentials",
            hint="Give them in the environment (AWS_ACCESS_KEY_ID, ...) or in the config file.",
        )
    if parts.scheme and (parts.query or parts.fragment):  # it may be a signature or a key
        raise ObjectStoreError(
            'an archive\'s URL must not contain "?" or "#"',
            hint="Give options in the config file, credentials in the environment. Write %3F for a "
            '"?" in the name of a folder, %23 for a "#".',
        )
    if parts.scheme in ("", "file"):
        from quorum_wal.objectstore.local import LocalStore

        if options:
            raise ObjectStoreError(f"a folder has no options, found {', '.join(sorted(options))}")
        return LocalStore(unquote(parts.path) if parts.scheme else url)
    from quorum_wal.objectstore.remote import (
        RemoteStore,  # takes 20 ms, which a local archive can save
    )

    return RemoteStore(url, options or {})
