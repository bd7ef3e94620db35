"""How many files the process may have open: as many as the system lets it, and enough, or no start.

    connections    a socket each, and the segment that is written or read for it
    strangers      a socket each, twice: one end is kept to turn them away by
    HTTP           a socket each
    archive        a segment and a request for each upload
    beside         standard streams, both listeners, the lock, event loop, housekeeping

Law: it is refused at the start, in a sentence. One that runs out later could open no segment: then
the timelines would stop one after another. Those that sleep have none open.
"""

from __future__ import annotations

import resource

from access.admission import ConnectionLimits
from safekeeper.archive_workers import UPLOADS_MAX
from safekeeper.errors import SafekeeperError
from telemetry.status_server import HTTP_CONNECTIONS_MAX

FILES_BESIDE = 100
FILES_OF_CONNECTION = 2
FILES_OF_STRANGER = 2
FILES_OF_ARCHIVE_WORKER = 2 * UPLOADS_MAX

INSUFFICIENT_RESOURCES = "53000"


def files_needed(limits: ConnectionLimits, archive_workers_max: int) -> int:
    """With all connections that the limits allow, and twice the workers: some may hang."""
    return (
        FILES_OF_CONNECTION * limits.connections_max
        + FILES_OF_STRANGER * limits.unauthenticated_max
        + HTTP_CONNECTIONS_MAX
        + FILES_OF_ARCHIVE_WORKER * 2 * archive_workers_max
        + FILES_BESIDE
    )


def raise_limit(limits: ConnectionLimits, archive_workers_max: int) -> int:
    """The soft limit becomes the hard one, which is returned. Raises SafekeeperError (53000)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError):  # "infinity" where the kernel has a lower bound of its own
            soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    needed = files_needed(limits, archive_workers_max)
    if soft != resource.RLIM_INFINITY and soft < needed:
        raise SafekeeperError(
            f"the limit of open files is {soft}, and {limits.connections_max} connections may need "
            f"{needed}",
            hint="Raise it (ulimit -n, LimitNOFILE= of systemd, --ulimit of a container), or lower "
            "--connections-max.",
            sqlstate=INSUFFICIENT_RESOURCES,
        )
    return soft
