"""Where WAL is read from: a folder of segments, an archive, safekeepers, or two of them joined.

    first_lsn             end_lsn                    newest_lsn
    |== segment ==|== segment ==|                |== partial ==|     one log, all timelines of it
                                |<-- a gap -->|

Law: an input never hands out bytes that are not of the log it names, and says where it has none;
whether they are valid WAL is for `record_index.py` to say.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from consensus.messages import ServerFacts
from spark.errors import WalInputError


@dataclass(frozen=True, slots=True)
class WalChunk:
    """Bytes of the log from `lsn` on; `name` says in errors where they come from."""

    lsn: int
    data: bytes
    name: str


class LostWal(WalInputError):
    """From `lsn` on the log is missing, cut short or damaged; the text names file and LSN."""

    def __init__(self, lsn: int, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.lsn = lsn

    def __reduce__(self) -> tuple[object, ...]:
        return _restore, (self.lsn, str(self), self.hint)


class WalInput(Protocol):
    """Picklable: it is made on the driver and read on the executors. All raise WalInputError."""

    @property
    def poll_seconds(self) -> float:
        """How often a stream may ask whether there is more."""
        ...

    @property
    def ends_at_record(self) -> bool:
        """Whether the end of its extent is a record boundary, if its WAL is not damaged."""
        ...

    def facts(self) -> ServerFacts:
        """Whose WAL it is: system identifier, version, segment size."""
        ...

    def extent(self, from_lsn: int | None = None) -> tuple[int, int]:
        """(first_lsn, end_lsn) of what can be read now without a gap, from the oldest WAL there is
        or from `from_lsn` on; `first_lsn` is where a segment begins, `end_lsn` may be inside a
        record."""
        ...

    def newest_lsn(self, from_lsn: int = 0) -> int:
        """The end of all there is, whatever is missing before; nothing below `from_lsn` is looked
        at."""
        ...

    def read(self, lsn: int, end_lsn: int | None = None) -> Iterator[WalChunk]:
        """The log from `lsn`, the address of a page, up to `end_lsn`, which there must be, or up to
        the end of what there is. All chunks but the last are whole pages. Raises LostWal."""
        ...


def _restore(lsn: int, message: str, hint: str) -> LostWal:
    return LostWal(lsn, message, hint=hint)
