"""How many files a safekeeper may need to have open at once.

    connections        a socket each, and the segment that is written or read for it
    unauthenticated    a socket each, twice: the second one is kept to close the connection
    HTTP               a socket each
    archive            a segment and a request for each upload
    other              standard streams, both listeners, the lock, event loop, housekeeping

Law: a start with a lower limit is refused. A safekeeper that ran out of files later could not open
segments, and its timelines would stop one after another. Timelines that sleep have no open files.
"""

from __future__ import annotations

from quorum_wal.access.admission import ConnectionLimits
from quorum_wal.access.open_files import FILES_OF_UNAUTHENTICATED
from quorum_wal.safekeeper.archive_workers import UPLOADS_MAX
from quorum_wal.telemetry.status_server import HTTP_CONNECTIONS_MAX

FILES_OTHER = 100
FILES_OF_CONNECTION = 2
FILES_OF_ARCHIVE_WORKER = 2 * UPLOADS_MAX


def files_needed(limits: ConnectionLimits, archive_workers_max: int) -> int:
    """For all connections that the limits allow, and twice the workers, as some may hang."""
    return (
        FILES_OF_CONNECTION * limits.connections_max
        + FILES_OF_UNAUTHENTICATED * limits.unauthenticated_max
        + HTTP_CONNECTIONS_MAX
        + FILES_OF_ARCHIVE_WORKER * 2 * archive_workers_max
        + FILES_OTHER
    )
