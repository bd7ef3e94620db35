"""The interface of an input: a folder of segments, an archive, safekeepers, or two of them joined.

    first_lsn             end_lsn                    newest_lsn
    |== segment ==|== segment ==|                |== partial ==|     one log, all its timelines
                                |<-- a gap -->|

Law: an input returns only bytes of its log, and reports where it has none. `record_index.py` checks
whether they are valid WAL.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from quorum_wal.consensus.messages import ServerFacts
from quorum_wal.spark.errors import WalInputError


@dataclass(frozen=True, slots=True)
class WalChunk:
    """Bytes of the log from `lsn` on. `name` is their source, for error messages."""

    lsn: int
    data: bytes
    name: str


class LostWal(WalInputError):
    """From `lsn` on the log is missing, truncated or damaged. The message names file and LSN."""

    def __init__(self, lsn: int, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.lsn = lsn

    def __reduce__(self) -> tuple[object, ...]:
        return _restore, (self.lsn, str(self), self.hint)


class WalInput(Protocol):
    """Picklable: created on the driver, read on the executors. All methods raise WalInputError."""

    @property
    def poll_seconds(self) -> float:
        """The shortest pause between two questions of a stream for more WAL."""
        ...

    @property
    def ends_at_record(self) -> bool:
        """Whether the end of its extent is a record boundary, unless its WAL is damaged."""
        ...

    def facts(self) -> ServerFacts:
        """The server that wrote the WAL: system identifier, version, segment size."""
        ...

    def end(self) -> tuple[int, int]:
        """(tli, lsn): the Postgres timeline on which the log ends, and where. One answer has both:
        a second question may reach a safekeeper that is behind."""
        ...

    def extent(self, from_lsn: int | None = None) -> tuple[int, int]:
        """(first_lsn, end_lsn) of the WAL without a gap that can be read now, from the oldest WAL
        or from `from_lsn` on. `first_lsn` is the start of a segment; `end_lsn` may be inside a
        record."""
        ...

    def newest_lsn(self, from_lsn: int = 0) -> int:
        """The end of all WAL, even after a gap. Looks at nothing below `from_lsn`, and returns at
        least `from_lsn`."""
        ...

    def read(self, lsn: int, end_lsn: int | None = None) -> Iterator[WalChunk]:
        """The log from `lsn`, the address of a page, up to `end_lsn`, which must exist, or up to
        the end of the WAL. All chunks but the last are whole pages. Raises LostWal."""
        ...


def _restore(lsn: int, message: str, hint: str) -> LostWal:
    return LostWal(lsn, message, hint=hint)
