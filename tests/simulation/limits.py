"""Limits of the cores, small enough that a run of kilobytes and of seconds meets them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pgwal import segment
from walproposer import election, leader, progress, proposer, wal_window

from .log import WAL_SEG_SIZE

SMALL = (
    (segment, "WAL_SEG_SIZE_MIN", WAL_SEG_SIZE),
    (election, "TAIL_BYTES_MAX", WAL_SEG_SIZE),  # which is the least that Postgres has, too
    (wal_window, "KEEP_BYTES", 16 * 1024),
    (wal_window, "KEEP_CHUNKS", 8),
    (wal_window, "WINDOW_BYTES_MAX", 64 * 1024),
    (wal_window, "APPEND_BYTES_MAX", 16 * 1024),
    (progress, "IN_FLIGHT_BYTES_MAX", 16 * 1024),
    (proposer, "RESPONSE_TIMEOUT_MS", 500),
    (leader, "HEARTBEAT_MS", 100),
)


@contextmanager
def small_limits() -> Iterator[None]:
    before = [(module, name, getattr(module, name)) for module, name, _ in SMALL]
    try:
        for module, name, value in SMALL:
            setattr(module, name, value)
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)
