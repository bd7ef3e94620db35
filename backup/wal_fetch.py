"""Fetches one WAL file for a recovering Postgres; `restore_command` calls it.

    source 1   |=====whole=====|                          -> the segment; no other source is asked
    source 1   |====|                 source 2  |=======| -> the longest beginning, and zeros

Laws. None means that every source has answered, and that none has a byte of the file. Postgres then
ends its recovery, or tries another source of its own. Every other failure is an error. It is also
an error if two sources have different bytes at one position.
Source: Postgres `xlogarchive.c`, RestoreArchivedFile.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

from quorum_wal.backup.errors import BackupError
from quorum_wal.backup.wal_source import WalSource, WalSourceError, check_same_server
from quorum_wal.consensus.messages import ServerFacts
from quorum_wal.objectstore.errors import ObjectStoreError
from quorum_wal.pgwal.errors import WalError
from quorum_wal.pgwal.history import parse_history_file_name

PAUSE_SECONDS = 0.5
_SEGMENT = re.compile("[0-9A-F]{24}")
_HISTORY = re.compile(r"[0-9A-F]{8}\.history")

SourceFailure = (BackupError, ObjectStoreError, WalError)


def fetch_wal_file(
    name: str,
    sources: Sequence[WalSource],
    retry_seconds: float = 0.0,
    *,
    whole_only: bool = False,
) -> bytes | None:
    """The content of a segment or of a history file. None if there is none; with `whole_only` also
    if there is only the beginning of a segment.

    Retries failures that may pass for `retry_seconds`. Raises BackupError, ObjectStoreError,
    WalError.
    """
    deadline = time.monotonic() + retry_seconds
    while True:
        try:
            return _fetch(name, sources, whole_only)
        except SourceFailure as error:
            is_transient = getattr(error, "is_transient", False)
            if not is_transient or time.monotonic() + PAUSE_SECONDS > deadline:
                raise
        time.sleep(PAUSE_SECONDS)


def is_segment(name: str) -> bool:
    return _SEGMENT.fullmatch(name) is not None


def _fetch(name: str, sources: Sequence[WalSource], whole_only: bool) -> bytes | None:
    if is_segment(name):
        return _fetch_segment(name, sources, whole_only)
    if _HISTORY.fullmatch(name):
        return _fetch_history(parse_history_file_name(name), sources)
    return None  # a backup history file, which Postgres does not ask for


def _fetch_history(tli: int, sources: Sequence[WalSource]) -> bytes | None:
    failures: list[Exception] = []
    for source in sources:
        try:
            content = source.history(tli)
        except SourceFailure as error:
            failures.append(error)
            continue
        if content is not None:
            return content
    _raise_first(failures)
    return None


def _fetch_segment(name: str, sources: Sequence[WalSource], whole_only: bool) -> bytes | None:
    longest, server = b"", None
    failures: list[Exception] = []
    for source in sources:
        try:
            content = source.segment(name)
            server = _same_server(server, source)
        except SourceFailure as error:
            failures.append(error)
            continue
        common = min(len(content), len(longest))
        if content[:common] != longest[:common]:
            raise WalSourceError(
                f"the sources have different WAL in segment {name}",
                hint="Name the archive and the safekeepers of the same timeline.",
            )
        longest = max(longest, content, key=len)
        if server is not None and len(longest) == server.wal_seg_size:
            return longest
    _raise_first(failures)
    if not longest or server is None or whole_only:
        return None
    return longest.ljust(server.wal_seg_size, b"\0")


def _same_server(server: ServerFacts | None, source: WalSource) -> ServerFacts | None:
    found = source.server
    if server is not None and found is not None:
        check_same_server(server, found, "one of the sources")
    return server or found


def _raise_first(failures: Sequence[Exception]) -> None:
    """Raises the first permanent failure, else the first one; a permanent one needs no retry."""
    lasting = (error for error in failures if not getattr(error, "is_transient", False))
    for error in (*lasting, *failures):
        raise error
