"""Whether the log has the PREPARE of a transaction: reads its WAL again from the primary.

    begin_lsn of the gid          the end that its client knows, or the end of the log
    |--- the start of a page ... PREPARE gid ... ---|

Two servers that were promoted from one log assign the same xids at the same positions, on timelines
of the same number. So neither the status of an xid nor a position identifies the transaction. The
PREPARE record does: it has the gid. The search is used only if nothing else decides
(`outcome_answer.py`), and if the primary still has that WAL.

Source: Postgres `access/transam/twophase.c` (EndPrepare: the gid, with a zero byte, is part of the
record), `access/xact.h` (XLOG_XACT_PREPARE).
"""

from __future__ import annotations

from quorum_wal.pgclient.stream import ReplicationStream, start_copy
from quorum_wal.pgwal.errors import TimelineHistoryError, WalFormatError
from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.pgwal.page import WAL_PAGE_SIZE
from quorum_wal.pgwal.record import Record
from quorum_wal.pgwal.walker import NEED_DATA, RecordWalker
from quorum_wal.pgwire.commands import StartReplication, format_start_replication
from quorum_wal.qsync.gid import Gid
from quorum_wal.walproposer.errors import Unreachable
from quorum_wal.walproposer.primary.primary import Primary
from quorum_wal.walproposer.qsync.primary_session import PrimarySession

#: WAL read for one question.
SEARCH_BYTES_MAX = 16 << 20
SILENCE_SECONDS = 10.0

_RM_XACT_ID = 1
_XACT_OPERATION_MASK = 0x70
_XACT_PREPARE = 0x10


def search_end_lsn(gid: Gid, lsn: int, history: TimelineHistory, flushed_lsn: int) -> int | None:
    """The position below which its PREPARE must end, if the log has it; None: unknown, or too far
    away.

    `lsn` is the end that its client knows, or 0: then the whole log is searched.
    """
    try:
        left_lsn = history.switch_lsn_of(gid.tli)
    except TimelineHistoryError:
        return None
    end_lsn = flushed_lsn if left_lsn is None else left_lsn
    if lsn > end_lsn:
        return None
    end_lsn = lsn or end_lsn
    return end_lsn if 0 < end_lsn - gid.begin_lsn <= SEARCH_BYTES_MAX else None


def has_prepare(session: PrimarySession, primary: Primary, gid: Gid, end_lsn: int) -> bool:
    """Whether it is between `gid.begin_lsn` and `end_lsn`. `session` accepts replication commands,
    and is closed afterwards. Raises WalProposerError."""
    begin_lsn = gid.begin_lsn - gid.begin_lsn % WAL_PAGE_SIZE
    command = StartReplication(Lsn(begin_lsn), slot=None, timeline=gid.tli)
    try:
        with session.opened("could not read the log of a transaction") as connection:
            if not start_copy(connection.pgconn, format_start_replication(command)):
                raise Unreachable("the primary no longer has the WAL of the transaction")
            stream = ReplicationStream(connection.pgconn, begin_lsn, SILENCE_SECONDS)
            wal = stream.read(end_lsn)
    finally:
        session.close()
    return _is_in(wal, begin_lsn, primary, str(gid).encode() + b"\0")


def _is_in(wal: bytes, begin_lsn: int, primary: Primary, gid: bytes) -> bool:
    server = primary.server
    walker = RecordWalker(
        begin_lsn,
        wal_seg_size=server.wal_seg_size,
        version_major=server.pg_version // 10000,
        system_id=server.system_id,
        skip_continuation=True,
    )
    walker.feed(wal)
    try:
        while (record := walker.next()) is not NEED_DATA:
            if _is_prepare(record) and gid in record.data:
                return True
    except WalFormatError as error:
        raise Unreachable(f"could not read the log of a transaction: {error}") from error
    return False


def _is_prepare(record: Record) -> bool:
    return record.rmgr_id == _RM_XACT_ID and record.info & _XACT_OPERATION_MASK == _XACT_PREPARE
