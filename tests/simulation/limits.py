"""Limits of the cores, so small that a run of kilobytes and seconds reaches them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import ModuleType

from quorum_wal.pgwal import segment
from quorum_wal.walproposer.stream import (
    chains,
    election,
    leader,
    learners,
    membership_change,
    outsiders,
    progress,
    proposer,
    steady_leader,
    wal_window,
)

from .log import WAL_SEG_SIZE

SMALL_SEGMENTS = ((segment, "WAL_SEG_SIZE_MIN", WAL_SEG_SIZE),)
SMALL = (
    *SMALL_SEGMENTS,
    (election, "TAIL_BYTES_MAX", WAL_SEG_SIZE),  # which is also the least of Postgres
    (wal_window, "KEEP_BYTES", 16 * 1024),
    (wal_window, "KEEP_CHUNKS", 8),
    (wal_window, "WINDOW_BYTES_MAX", 64 * 1024),
    (wal_window, "APPEND_BYTES_MAX", 16 * 1024),
    (steady_leader, "APPEND_BYTES_MAX", 16 * 1024),
    (progress, "IN_FLIGHT_BYTES_MAX", 16 * 1024),
    (proposer, "RESPONSE_TIMEOUT_MS", 500),
    (leader, "HEARTBEAT_MS", 100),
    (chains, "LATE_MS", 200),
    (chains, "RETRY_MS", 200),
    (membership_change, "SILENT_MS", 400),
    (membership_change, "FOUND_PATIENCE_MS", 200),
    (membership_change, "TELL_MS", 300),
    (learners, "SILENT_MS", 1500),
    (learners, "RETRY_MS", 200),
    (outsiders, "RETRY_MS", 200),
    (outsiders, "FORGET_MS", 1000),
)


def small_limits() -> AbstractContextManager[None]:
    return lowered(SMALL)


def small_segments() -> AbstractContextManager[None]:
    """Everything else is as in production."""
    return lowered(SMALL_SEGMENTS)


@contextmanager
def lowered(limits: Sequence[tuple[ModuleType, str, int]]) -> Iterator[None]:
    before = [(module, name, getattr(module, name)) for module, name, _ in limits]
    try:
        for module, name, value in limits:
            setattr(module, name, value)
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)
