"""How many files the process may have open: as many as the system lets it, and enough, or no start.

Law: it is refused at the start, in a sentence, and not when the files run out.
"""

from __future__ import annotations

import resource

from access.admission import ConnectionLimits
from access.errors import AccessError

FILES_OF_STRANGER = 2  # a socket each, twice: one end is kept to turn them away by

INSUFFICIENT_RESOURCES = "53000"


def raise_limit(needed: int, limits: ConnectionLimits) -> int:
    """The soft limit becomes the hard one, which is returned. Raises AccessError (53000)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError):  # "infinity" where the kernel has a lower bound of its own
            soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if soft != resource.RLIM_INFINITY and soft < needed:
        raise AccessError(
            f"the limit of open files is {soft}, and {limits.connections_max} connections may need "
            f"{needed}",
            hint="Raise it (ulimit -n, LimitNOFILE= of systemd, --ulimit of a container), or lower "
            "--connections-max.",
            sqlstate=INSUFFICIENT_RESOURCES,
        )
    return soft
