"""The interface of a source of WAL for a restore.

    archive               whole segments, and the beginning of the last one
    running safekeepers   WAL that is committed and not yet archived

Laws. A source returns committed WAL only. "I do not have it" is an answer. A source that cannot
answer raises WalSourceError, because a recovery that gets "there is no more WAL" ends there.
The source has checked the first page of all WAL that it returns.
"""

from __future__ import annotations

from typing import Protocol

from quorum_wal.backup.errors import BackupError
from quorum_wal.consensus.messages import ServerFacts
from quorum_wal.pgwal.errors import WalFormatError
from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.pgwal.page import check_page_header, parse_page_header
from quorum_wal.pgwal.versions import wal_version


class WalSourceError(BackupError):
    """A source could not answer. `is_transient` if a retry may succeed."""

    def __init__(self, message: str, *, hint: str = "", is_transient: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.is_transient = is_transient


class WalSource(Protocol):
    """Every method raises WalSourceError, ObjectStoreError, WalError."""

    @property
    def server(self) -> ServerFacts | None:
        """The server that wrote the WAL; None until the source has answered."""

    def history(self, tli: int) -> bytes | None:
        """The history file of a timeline, or None if there is none."""

    def segment(self, name: str) -> bytes:
        """The beginning of a segment, as long as the source has it; empty if it has none."""


def check_beginning(content: bytes, tli: int, segno: int, server: ServerFacts) -> None:
    """Checks that the first page belongs to this server and position, and to `tli` or an ancestor.

    Raises WalFormatError.
    """
    lsn = segno * server.wal_seg_size
    header = parse_page_header(content)
    if header is None:
        raise WalFormatError(
            lsn, f"{len(content)} bytes of WAL at {format_lsn(lsn)} are not a page"
        )
    check_page_header(
        header,
        lsn,
        version=wal_version(server.pg_major),
        wal_seg_size=server.wal_seg_size,
        system_id=server.system_id,
    )
    if header.tli > tli:
        raise WalFormatError(
            lsn, f"WAL page at {format_lsn(lsn)} is of timeline {header.tli} (expected {tli})"
        )


def check_same_server(expected: ServerFacts, found: ServerFacts, source: str) -> None:
    """Raises WalSourceError if `source` has WAL of another server."""
    if (found.system_id, found.wal_seg_size) != (expected.system_id, expected.wal_seg_size):
        raise WalSourceError(
            f"{source} has WAL of another server: expected system {expected.system_id} with "
            f"segments of {expected.wal_seg_size} bytes, found system {found.system_id} with "
            f"segments of {found.wal_seg_size} bytes",
            hint="Name the archive and the safekeepers of one cluster.",
        )
