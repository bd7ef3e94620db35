"""Whether a timeline's log may grow by a segment, and when a log that ran out of space may resume.

    disk      free space, less the reserve for control files
    archive   WAL that is not archived yet, up to the limit of the backlog
    tenant    WAL of all its timelines here, up to its quota

Law: a timeline without space stops alone, before the disk is full for all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.storage import durable
from quorum_wal.storage.durable import DISK_FULL
from quorum_wal.storage.errors import StorageError

if TYPE_CHECKING:
    from quorum_wal.safekeeper.tenant_limits import WalQuota
    from quorum_wal.safekeeper.timeline import Timeline

#: A timeline that ran out of space resumes with room for the open segment, the next one and the
#: spare one.
SEGMENTS_TO_RESUME = 3


class Room:
    """Of one timeline. `quota` is its tenant's; None means no limit."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self.quota: WalQuota | None = None

    @property
    def bytes_to_resume(self) -> int:
        """Free space that a stopped timeline needs to resume."""
        timeline = self._timeline
        seg_size = timeline.control.server.wal_seg_size
        return SEGMENTS_TO_RESUME * seg_size + timeline.retention.disk_reserve_bytes

    def check(self) -> None:
        """Called before the log grows by a segment. Raises StorageError."""
        self._check_archive()
        if self.quota is not None:
            self.quota.check(self._timeline.control.server.wal_seg_size)
        self._check_disk()

    def is_sufficient(self, free_bytes: int) -> bool:
        """Whether a timeline that stopped for lack of space may resume."""
        timeline = self._timeline
        if free_bytes < self.bytes_to_resume:
            return False
        archive, quota = timeline.archive, self.quota
        if archive is not None and archive.is_backlog_full(timeline.positions.commit_lsn):
            return False
        return quota is None or not quota.is_reached(timeline.control.server.wal_seg_size)

    def warn_of_backlog(self) -> None:
        """Logs one warning each time the archive's backlog becomes high."""
        timeline = self._timeline
        if timeline.archive is not None:
            timeline.archive.warn_of_backlog(
                str(timeline.control.timeline), timeline.positions.commit_lsn
            )

    def _check_archive(self) -> None:
        timeline, archive = self._timeline, self._timeline.archive
        if archive is None:
            return
        commit_lsn = timeline.positions.commit_lsn
        # WAL that is not committed cannot be archived yet, and has the same limit for itself: a
        # lagging member must be able to follow to the log's end, or nothing would be committed.
        if archive.is_backlog_full(commit_lsn) or archive.is_limit_reached(
            timeline.store.end_lsn - commit_lsn
        ):
            raise StorageError(
                f"archive backlog has reached its limit of {archive.settings.backlog_bytes_max} "
                f"bytes: nothing above {format_lsn(archive.archived_lsn)} is archived",
                hint=archive.error or "Is the store too slow? --archive-backlog-max is the limit.",
                sqlstate=DISK_FULL,
            )

    def _check_disk(self) -> None:
        directory = self._timeline.directory
        reserve_bytes = self._timeline.retention.disk_reserve_bytes
        free_bytes = durable.free_bytes(directory)
        if free_bytes < reserve_bytes:
            raise StorageError(
                f'could not create a segment in "{directory}": No space left on device but '
                f"{free_bytes} of the {reserve_bytes} bytes reserved for control files",
                hint="Free some space; the timeline then resumes without a restart.",
                sqlstate=DISK_FULL,
            )
