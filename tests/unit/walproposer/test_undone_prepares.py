"""The prepared transactions in the output of pg_waldump."""

from __future__ import annotations

from quorum_wal.qsync.gid import Gid
from quorum_wal.walproposer.failover.undone_prepares import undone_prepares

FIRST = f"skq1.d.19c1f0a3e55.1-16b374d848-2f1-1.{'0' * 32}"
SECOND = f"skq1.r.1.1-5000-7-1.{'f' * 32}"
#: Of Postgres 15, 16 and 18, which print the same.
WALDUMP = f"""
rmgr: Transaction len (rec/tot):    242/   242, tx:        725, lsn: 0/01527B20, prev 0/01527AE0, \
desc: PREPARE gid {FIRST}: 2026-11-24 11:01:34.068307 UTC
rmgr: Transaction len (rec/tot):    250/   250, tx:        726, lsn: 0/01527C58, prev 0/01527C18, \
desc: PREPARE gid it's PREPARE gid {SECOND}: 2026-11-24 11:01:34.074699 UTC
rmgr: Transaction len (rec/tot):    242/   242, tx:        727, lsn: 0/01527D00, prev 0/01527C58, \
desc: PREPARE gid {SECOND}: 2026-11-24 11:01:34.068307 UTC
rmgr: Transaction len (rec/tot):     42/    42, tx:          0, lsn: 0/01527D58, prev 0/01527D00, \
desc: ABORT_PREPARED 726: 2026-11-24 11:01:34.082397 UTC
"""


def test_those_of_qsync_are_found() -> None:
    assert undone_prepares(WALDUMP) == (Gid.parse(FIRST), Gid.parse(SECOND))
    assert undone_prepares("") == ()
