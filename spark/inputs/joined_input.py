"""An archive and running safekeepers as one input: the archive first, then the safekeepers.

    archive       |== 05 ==|== 06 ==|== 07.partial|
    safekeepers                |== 06 ==|== 07 == commit_lsn
                               read from the archive ^ then from a safekeeper, at a page's start

Law: no byte is missing or read twice where one ends and the other begins, although both advance.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quorum_wal.consensus.messages import ServerFacts
from quorum_wal.pgwal.page import WAL_PAGE_SIZE
from quorum_wal.spark.errors import WalInputError
from quorum_wal.spark.inputs.archive_input import ArchiveInput
from quorum_wal.spark.inputs.wal_input import WalChunk

if TYPE_CHECKING:
    from quorum_wal.spark.inputs.safekeeper_input import SafekeeperInput


@dataclass(frozen=True)
class JoinedInput:
    """Both must belong to the same cluster."""

    archive: ArchiveInput
    safekeepers: SafekeeperInput

    @property
    def poll_seconds(self) -> float:
        return self.safekeepers.poll_seconds

    @property
    def ends_at_record(self) -> bool:
        return self.safekeepers.ends_at_record

    def facts(self) -> ServerFacts:
        archived, live = self.archive.facts(), self.safekeepers.facts()
        if (archived.system_id, archived.wal_seg_size) != (live.system_id, live.wal_seg_size):
            raise WalInputError(
                f"archive {self.archive.url} has WAL of another server: expected system "
                f"{live.system_id} with segments of {live.wal_seg_size} bytes, found system "
                f"{archived.system_id} with segments of {archived.wal_seg_size} bytes",
                hint="Name the archive and the safekeepers of one cluster.",
            )
        return live

    def end(self) -> tuple[int, int]:
        return self.safekeepers.end()

    def extent(self, from_lsn: int | None = None) -> tuple[int, int]:
        if from_lsn is not None:
            return self.safekeepers.extent(from_lsn)
        first_lsn, archived_lsn = self.archive.extent()
        if first_lsn == archived_lsn:  # nothing is archived yet
            return self.safekeepers.extent()
        return first_lsn, max(first_lsn, self.newest_lsn())

    def newest_lsn(self, from_lsn: int = 0) -> int:
        return self.safekeepers.newest_lsn(from_lsn)

    def read(self, lsn: int, end_lsn: int | None = None) -> Iterator[WalChunk]:
        while True:
            for chunk in self._archived(lsn, end_lsn):
                yield chunk
                lsn = chunk.lsn + len(chunk.data)
            if lsn == end_lsn:
                return
            try:
                for chunk in self.safekeepers.read(lsn, end_lsn):
                    yield chunk
                    lsn = chunk.lsn + len(chunk.data)
                return
            except WalInputError:
                # WAL that they have removed since the archive was read is archived by now.
                if next(self._archived(lsn, end_lsn), None) is None:
                    raise

    def _archived(self, lsn: int, end_lsn: int | None) -> Iterator[WalChunk]:
        """The archived WAL up to the start of a page, or up to `end_lsn`."""
        for chunk in self.archive.read(lsn):
            data = chunk.data if end_lsn is None else chunk.data[: end_lsn - chunk.lsn]
            behind = chunk.lsn + len(data)
            if behind != end_lsn:
                data = data[: len(data) - behind % WAL_PAGE_SIZE]
            if data:
                yield WalChunk(chunk.lsn, data, chunk.name)
            if behind == end_lsn:
                return
