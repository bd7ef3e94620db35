"""The qsync transactions that only a deposed primary had prepared, from pg_waldump of its WAL.
Pure.

    rmgr: Transaction ... lsn: 0/01527B20, ... desc: PREPARE gid skq1.d.0.1-5000-7-1.0000: 2026-...

No elected log has them: their outcome is rolled back, and their clients were told only that they
are pending. Source: Postgres `xactdesc.c` (xact_desc_prepare), since 13.
"""

from __future__ import annotations

import re

from quorum_wal.qsync.gid import Gid, GidError

_PREPARE = re.compile(r"^rmgr: Transaction .* desc: PREPARE gid (?P<gid>\S+): ", re.MULTILINE)


def undone_prepares(waldump: str) -> tuple[Gid, ...]:
    """The gids in the order of the log."""
    found = []
    for match in _PREPARE.finditer(waldump):
        try:
            found.append(Gid.parse(match["gid"]))
        except GidError:
            continue  # a gid of another program
    return tuple(found)
