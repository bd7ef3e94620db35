"""Retries of requests to an object store, with growing pauses.

An ObjectStore tries each request once. A backup that has run for hours should not fail because of
an error that passes within minutes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event
from typing import TypeVar

import structlog

from quorum_wal.backup.errors import BackupError
from quorum_wal.objectstore.errors import ObjectStoreError
from quorum_wal.objectstore.sealed import SEAL, Seal
from quorum_wal.objectstore.store import ObjectStore

T = TypeVar("T")

log = structlog.get_logger()

RETRY_SECONDS = 600.0
PAUSE_SECONDS = 0.5
PAUSE_SECONDS_MAX = 15.0


def with_retries(
    attempt: Callable[[], T],
    stopping: Event | None = None,
    retry_seconds: float = RETRY_SECONDS,
) -> T:
    """Returns what `attempt` returns. Retries errors that may pass, until `stopping` is set.

    Raises ObjectStoreError.
    """
    stopping = stopping or Event()
    deadline = time.monotonic() + retry_seconds
    pause_seconds = PAUSE_SECONDS
    while True:
        try:
            return attempt()
        except ObjectStoreError as error:
            if not error.is_transient or time.monotonic() > deadline:
                raise
            log.warning("trying again", reason=str(error), after_seconds=pause_seconds)
            if stopping.wait(pause_seconds):
                raise
        pause_seconds = min(2 * pause_seconds, PAUSE_SECONDS_MAX)


def create_with_retries(
    store: ObjectStore, key: str, sealed: bytes, stopping: Event | None = None
) -> None:
    """Creates an object. Raises ObjectStoreError, or BackupError if another backup created it."""

    def create() -> None:
        if store.create(key, sealed):
            return
        # An attempt may have created the object although it reported an error.
        found = Seal.decode(store.get_tail(key, SEAL.size), key)
        if not found.is_same_content(Seal.decode(sealed, key)):
            raise BackupError(f'object "{key}" exists: another backup has the same name')

    with_retries(create, stopping)
