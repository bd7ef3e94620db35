"""Where WAL is read from: a folder of segments, an archive, safekeepers, or two of them joined.

    first_lsn                              end_lsn
    |== segment ==|== segment ==|== partial ==|       what there is of one log, all timelines of it

Law: an input never hands out bytes that are not of the log it names, and says where it has none;
whether they are valid WAL is for `record_index.py` to say.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from consensus.messages import ServerFacts


@dataclass(frozen=True, slots=True)
class WalChunk:
    """Bytes of the log from `lsn` on; `name` says in errors where they come from."""

    lsn: int
    data: bytes
    name: str


class WalInput(Protocol):
    """Picklable: it is made on the driver and read on the executors. All raise WalInputError."""

    def facts(self) -> ServerFacts:
        """Whose WAL it is: system identifier, version, segment size."""
        ...

    def extent(self) -> tuple[int, int]:
        """(first_lsn, end_lsn) of what can be read now without a gap; `first_lsn` is where a
        segment begins, `end_lsn` may be inside a record."""
        ...

    def read(self, lsn: int) -> Iterator[WalChunk]:
        """The log from `lsn`, the address of a page, up to the end of what there is. All chunks
        but the last are whole pages."""
        ...
