"""Where a restore finds its WAL: what every source can do, and what it must not do.

    archive             whole segments, and the beginning of the last one
    live safekeepers    what is committed and not yet archived

Laws. A source answers with committed WAL only. "I do not have it" is an answer; no answer is a
WalSourceError, and never taken for the other: a recovery that hears "there is no more" ends there.
What a source hands out has been checked as far as its first page tells.
"""

from __future__ import annotations

from typing import Protocol

from backup.errors import BackupError
from consensus.messages import ServerFacts
from pgwal.errors import WalFormatError
from pgwal.lsn import format_lsn
from pgwal.page import check_page_header, parse_page_header
from pgwal.versions import wal_version


class WalSourceError(BackupError):
    """A source could not answer; `is_transient` when another try may succeed."""

    def __init__(self, message: str, *, hint: str = "", is_transient: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.is_transient = is_transient


class WalSource(Protocol):
    """Every method raises WalSourceError, ObjectStoreError, WalError."""

    @property
    def server(self) -> ServerFacts | None:
        """Of which server its WAL is; known when it has answered."""

    def history(self, tli: int) -> bytes | None:
        """A timeline's history file."""

    def segment(self, name: str) -> bytes:
        """As much of a segment's beginning as there is; empty when there is nothing."""


def check_beginning(content: bytes, tli: int, segno: int, server: ServerFacts) -> None:
    """The first page is of this server, of this place, and of `tli` or one of its ancestors.

    Raises WalFormatError.
    """
    lsn = segno * server.wal_seg_size
    header = parse_page_header(content)
    if header is None:
        raise WalFormatError(lsn, f"{len(content)} bytes of WAL at {format_lsn(lsn)} are no page")
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


def check_same_server(expected: ServerFacts, found: ServerFacts, who: str) -> None:
    """Raises WalSourceError when `who` has WAL of another one."""
    if (found.system_id, found.wal_seg_size) != (expected.system_id, expected.wal_seg_size):
        raise WalSourceError(
            f"{who} has WAL of another server: expected system {expected.system_id} with segments "
            f"of {expected.wal_seg_size} bytes, found {found.system_id} with {found.wal_seg_size}",
            hint="Name the archive and the safekeepers of one cluster.",
        )
