"""Which transactions of qsync only a deposed primary had prepared, by pg_waldump of its WAL. Pure.

    rmgr: Transaction ... lsn: 0/01527B20, ... desc: PREPARE gid skq1.d.0.1-5000-7-1.0000: 2026-...

They are in no elected log: their outcome is rolled back, and their clients were told nothing else
but that they are pending. Source: Postgres `xactdesc.c` (xact_desc_prepare), since 13.
"""

from __future__ import annotations

import re

from qsync.gid import Gid, GidError

_PREPARE = re.compile(r"^rmgr: Transaction .* desc: PREPARE gid (?P<gid>\S+): ", re.MULTILINE)


def undone_prepares(waldump: str) -> tuple[Gid, ...]:
    """In the order of the log."""
    found = []
    for match in _PREPARE.finditer(waldump):
        try:
            found.append(Gid.parse(match["gid"]))
        except GidError:
            continue  # of others
    return tuple(found)
