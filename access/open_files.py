"""The limit of open files: raised as far as the system allows; a start with too few is refused.

Law: the error comes at the start, and not when the files run out.
"""

from __future__ import annotations

import resource

from quorum_wal.access.admission import ConnectionLimits
from quorum_wal.access.errors import AccessError

FILES_OF_UNAUTHENTICATED = 2  # a socket each, twice: the second one is kept to close the connection

INSUFFICIENT_RESOURCES = "53000"


def raise_limit(needed: int, limits: ConnectionLimits) -> int:
    """Raises the soft limit to the hard one, and returns it. Raises AccessError (53000)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError):  # "infinity", but the kernel has a lower limit of its own
            soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if soft != resource.RLIM_INFINITY and soft < needed:
        raise AccessError(
            f"the limit of open files is {soft}, but {limits.connections_max} connections may need "
            f"{needed}",
            hint="Raise it (ulimit -n, LimitNOFILE= of systemd, --ulimit of a container), or lower "
            "--connections-max.",
            sqlstate=INSUFFICIENT_RESOURCES,
        )
    return soft
