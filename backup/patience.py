"""Trying again: a store answers one try, and who has hours of work behind him has patience."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event
from typing import TypeVar

import structlog

from backup.errors import BackupError
from objectstore.errors import ObjectStoreError
from objectstore.sealed import SEAL, Seal
from objectstore.store import ObjectStore

T = TypeVar("T")

log = structlog.get_logger()

PATIENCE_SECONDS = 600.0
PAUSE_SECONDS = 0.5
PAUSE_SECONDS_MAX = 15.0


def patiently(
    attempt: Callable[[], T],
    stopping: Event | None = None,
    patience_seconds: float = PATIENCE_SECONDS,
) -> T:
    """What `attempt` returns, tried again while its error may pass, until `stopping` is set.

    Raises ObjectStoreError.
    """
    stopping = stopping or Event()
    deadline = time.monotonic() + patience_seconds
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


def create_patiently(
    store: ObjectStore, key: str, sealed: bytes, stopping: Event | None = None
) -> None:
    """A new object. Raises BackupError when another's is there, ObjectStoreError."""

    def create() -> None:
        if store.create(key, sealed):
            return
        # A try that seemed to have failed may have arrived.
        found = Seal.decode(store.get_tail(key, SEAL.size), key)
        if not found.is_same_content(Seal.decode(sealed, key)):
            raise BackupError(f'object "{key}" exists: another backup has the same name')

    patiently(create, stopping)
