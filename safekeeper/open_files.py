"""How many files a safekeeper may need to have open at once.

    connections    a socket each, and the segment that is written or read for it
    strangers      a socket each, twice: one end is kept to turn them away by
    HTTP           a socket each
    archive        a segment and a request for each upload
    beside         standard streams, both listeners, the lock, event loop, housekeeping

Law: less is refused at the start. A safekeeper that runs out later could open no segment: then the
timelines would stop one after another. Those that sleep have none open.
"""

from __future__ import annotations

from access.admission import ConnectionLimits
from access.open_files import FILES_OF_STRANGER
from safekeeper.archive_workers import UPLOADS_MAX
from telemetry.status_server import HTTP_CONNECTIONS_MAX

FILES_BESIDE = 100
FILES_OF_CONNECTION = 2
FILES_OF_ARCHIVE_WORKER = 2 * UPLOADS_MAX


def files_needed(limits: ConnectionLimits, archive_workers_max: int) -> int:
    """With all connections that the limits allow, and twice the workers: some may hang."""
    return (
        FILES_OF_CONNECTION * limits.connections_max
        + FILES_OF_STRANGER * limits.unauthenticated_max
        + HTTP_CONNECTIONS_MAX
        + FILES_OF_ARCHIVE_WORKER * 2 * archive_workers_max
        + FILES_BESIDE
    )
